"""Which metrics the source names, read with ``ast``: where a table, a chart or a filter has one.

Names that only a running program knows are not found; the tests that run one look after those.
"""

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import rankscope

SOURCE = Path(rankscope.__file__).parent
_LOGARITHM = re.compile(r"log10_[a-z0-9_]*[a-z0-9]")


def metrics_named(text):
    """The names of metrics in a source text."""
    reader = _Reader(ast.parse(text))
    reader.visit(reader.tree)
    return reader.found


@cache
def metrics_in(*rooms):
    """The names of metrics in all modules but those of some rooms."""
    found = defaultdict(set)
    for path in sorted(SOURCE.rglob("*.py")):
        where = path.relative_to(SOURCE)
        if where.parts[0].removesuffix(".py") not in rooms:
            for name in metrics_named(path.read_text("utf-8")):
                found[name].add(str(where))
    return dict(found)


def strings_in(*rooms):
    """Every string in all modules but those of some rooms; declarations of metrics do not count."""
    strings = set()
    for path in SOURCE.rglob("*.py"):
        if path.relative_to(SOURCE).parts[0].removesuffix(".py") not in rooms:
            tree = ast.parse(path.read_text("utf-8"))
            declared = {
                id(node.args[0])
                for node in ast.walk(tree)
                if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Metric")
                if node.args
            }
            strings |= {
                node.value
                for node in ast.walk(tree)
                if isinstance(node, ast.Constant) and isinstance(node.value, str)
                if id(node) not in declared
            }
    return strings


class _Reader(ast.NodeVisitor):
    """Collects strings in the places of a metric, constants and loop variables resolved."""

    def __init__(self, tree):
        self.tree = tree
        self.found = set()
        self._bound = _bindings(ast.walk(tree))

    def visit_Dict(self, node):
        for key, value in zip(node.keys, node.values, strict=True):
            if key is not None and _text(key) == "metric":
                self._keep(value)
        self.generic_visit(node)

    def visit_Call(self, node):
        for keyword in node.keywords:
            if keyword.arg in ("metric", "metrics"):
                self._keep(keyword.value)
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name == "Drawing" and len(node.args) > 2:
            self._keep(node.args[2])
        elif name == "from_rows":
            self._keep_column(*node.args)
        elif name == "alias" and [_text(each) for each in node.args] == ["metric"]:
            self._keep(getattr(node.func, "value", None))
        elif name in ("is_in", "replace") and _is_metric(getattr(node.func, "value", None)):
            for argument in node.args:
                self._keep(argument)
                self._keep(*getattr(argument, "values", ()))
        self.generic_visit(node)

    def visit_Compare(self, node):
        sides = (node.left, *node.comparators)
        if any(map(_is_metric, sides)):
            self._keep(*sides)
        self.generic_visit(node)

    def visit_Subscript(self, node):
        if _text(node.slice) == "metric":
            self._keep(*self._bound[ast.unparse(node)])
        self.generic_visit(node)

    def visit_Constant(self, node):
        if isinstance(node.value, str) and _LOGARITHM.fullmatch(node.value):
            self.found.add(node.value)

    def visit_Expr(self, node):
        if not isinstance(node.value, ast.Constant):  # a docstring names nothing
            self.generic_visit(node)

    def visit_For(self, node):
        self._loop(node.target, node.iter)
        self.generic_visit(node)

    def visit_comprehension(self, node):
        self._loop(node.target, node.iter)
        self.generic_visit(node)

    def _loop(self, target, source):
        """``for metric, value in {...}.items()`` and ``for metric in (...)``."""
        names = [getattr(each, "id", "") for each in getattr(target, "elts", [target])]
        if "metric" not in names:
            return
        if isinstance(source, ast.Call) and getattr(source.func, "attr", "") == "items":
            source = source.func.value
        for row in self._elements(source):
            parts = getattr(row, "elts", [row])
            self._keep(parts[min(names.index("metric"), len(parts) - 1)])

    def _keep_column(self, names, rows):
        """Rows may begin with ``*labels``, so their columns are counted from the end."""
        columns = [_text(each) for each in self._elements(names)]
        for row in self._elements(rows):
            cells = getattr(row, "elts", [])
            if "metric" in columns and cells:
                self._keep(cells[columns.index("metric") - len(columns)])

    def _elements(self, node, seen=()):
        """What a literal, or a name bound to one, gives in a loop."""
        if isinstance(node, ast.Name) and node.id not in seen:
            for value in self._bound[node.id]:
                yield from self._elements(value, (*seen, node.id))
        if isinstance(node, ast.ListComp | ast.GeneratorExp):
            yield node.elt
        for each in getattr(node, "elts", getattr(node, "keys", ())):
            if isinstance(each, ast.Starred):
                yield from self._elements(each.value, seen)
            elif each is not None:
                yield each

    def _keep(self, *nodes):
        for node in nodes:
            self.found |= self._strings(node)

    def _strings(self, node, seen=()):
        match node:
            case ast.Constant(value=str(text)):
                return {text} if re.fullmatch(r"[a-z][a-z0-9_]*", text) else set()
            case ast.Name(id=name):
                if name in seen:
                    return set()
                return self._union(self._bound[name], (*seen, name))
            case ast.Attribute(value=ast.Name()):
                return self._union(self._bound[ast.unparse(node)], seen)
            case ast.JoinedStr(values=parts):
                texts = [self._strings(getattr(part, "value", part), seen) for part in parts]
                texts = [
                    {part.value} if isinstance(part, ast.Constant) else text
                    for part, text in zip(parts, texts, strict=True)
                ]
                return {"".join(map(min, texts))} if all(texts) else set()
            case ast.List(elts=parts) | ast.Tuple(elts=parts):
                return self._union(parts, seen)
            case ast.Dict(keys=parts):
                return self._union([part for part in parts if part is not None], seen)
            case ast.BinOp(left=left, right=right):
                return self._union([left, right], seen)
            case ast.ListComp(elt=ast.Name(id=name), generators=loops):
                sources = [loop.iter for loop in loops if getattr(loop.target, "id", "") == name]
                return self._union(sources or [node.elt], seen)
            case ast.ListComp(elt=part) | ast.Starred(value=part):
                return self._strings(part, seen)
            case ast.Call(func=ast.Attribute(attr="lit"), args=[part, *_]):
                return self._strings(part, seen)
            case ast.Call(func=ast.Name(id="list" | "tuple" | "sorted"), args=[part]):
                return self._strings(part, seen)
        return set()

    def _union(self, nodes, seen):
        return set().union(*(self._strings(each, seen) for each in nodes))


def _bindings(nodes):
    """What each name is bound to, in any scope; imported constants are looked up."""
    bound = defaultdict(list)
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rankscope."):
            for alias in node.names:
                here = alias.asname or alias.name
                bound[here] += _constants(node.module)[alias.name]
                for name, values in _constants(f"{node.module}.{alias.name}").items():
                    bound[f"{here}.{name}"] += values
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and node.value is not None:
            for target in getattr(node, "targets", None) or [node.target]:
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    for each, value in zip(target.elts, node.value.elts, strict=False):
                        bound[ast.unparse(each)].append(value)
                else:
                    bound[ast.unparse(target)].append(node.value)
    return bound


@cache
def _constants(module):
    """What the names at the top of one of our modules are bound to."""
    path = SOURCE.joinpath(*module.split(".")[1:]).with_suffix(".py")
    return _bindings(ast.parse(path.read_text("utf-8")).body if path.is_file() else [])


def _text(node):
    return node.value if isinstance(node, ast.Constant) else None


def _is_metric(node):
    """``pl.col("metric")``."""
    return (
        isinstance(node, ast.Call)
        and getattr(node.func, "attr", "") == "col"
        and [_text(each) for each in node.args] == ["metric"]
    )
