"""Pages of the reference: every public name with its signature, its docstring and its examples.

The names are those of ``rankscope/__init__.pyi`` and of ``__all__`` in the packages it names.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

import rankscope

_CODE = re.compile(r"(``.+?``)", re.DOTALL)
_SPECIAL = re.compile(r"([\[\]<])")
_LONG = 76  # characters of a signature on one line

Names = dict[str, Any]


def top_level() -> Names:
    """The names of ``rankscope`` itself that are not packages."""
    return {name: value for name, value in _exported(rankscope) if not inspect.ismodule(value)}


def packages() -> dict[str, ModuleType]:
    """The public packages by their names in ``rankscope``."""
    return {name: value for name, value in _exported(rankscope) if inspect.ismodule(value)}


def pages() -> dict[str, str]:
    """Every page of the reference by its name."""
    about = "What most people need. [The grammar of all calls](../../api.md) says what they share."
    written = {"rankscope": _page("rankscope", about, top_level().items())}
    for name, module in packages().items():
        path, about = f"rankscope.{name}", markdown(inspect.getdoc(module) or "")
        written[path] = _page(path, about, _exported(module))
    return written


def markdown(docstring: str) -> str:
    """A docstring as Markdown: examples as blocks of code, and no character with a meaning.

    >>> print(markdown("A ``list[int]`` of [x]."))
    A `list[int]` of \\[x\\].
    """
    blocks = re.split(r"\n\s*\n", inspect.cleandoc(docstring))
    return "\n\n".join(_block(block) for block in blocks)


def _block(block: str) -> str:
    if block.lstrip().startswith(">>>"):
        return f"```pycon\n{textwrap.dedent(block)}\n```"
    if all(line.startswith("    ") for line in block.splitlines()) or re.search("[├└]", block):
        return f"```text\n{textwrap.dedent(block)}\n```"
    parts = _CODE.split(block)
    return "".join(
        f"`{part.strip('`')}`" if part.startswith("``") else _SPECIAL.sub(r"\\\1", part)
        for part in parts
    )


def _exported(module: ModuleType) -> Iterator[tuple[str, Any]]:
    public = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
    ]
    for name in sorted(public, key=str.lower):
        if not name.startswith("__"):
            yield name, getattr(module, name)


def _page(path: str, about: str, names: Iterable[tuple[str, Any]]) -> str:
    sections = [_section(path, name, value) for name, value in names]
    return f"# {path}\n\n{about}\n\n" + "\n\n".join(sections) + "\n"


def _section(path: str, name: str, value: Any) -> str:
    full = f"{path}.{name}"
    if inspect.ismodule(value):
        return f"## {name}\n\n{markdown(inspect.getdoc(value) or '')}"
    if not (inspect.isfunction(inspect.unwrap(value)) or inspect.isclass(value)):
        return f"## {name}\n\n`{full}`: {_data(value)}"
    parts = [f"## {name}", _signature(full, value), markdown(inspect.getdoc(value) or "")]
    if inspect.isclass(value):
        parts += _members(value)
    return "\n\n".join(part for part in parts if part)


def _data(value: Any) -> str:
    if isinstance(value, dict | tuple | frozenset):
        shown = ", ".join(f"`{_short(entry)}`" for entry in list(value)[:12])
        return f"{type(value).__name__} of {len(value)} entries: {shown}{' …' * (len(value) > 12)}"
    return f"`{value}`"


def _short(entry: Any) -> str:
    return str(getattr(entry, "name", None) or getattr(entry, "id", None) or entry)[:40]


def _signature(full: str, value: Any) -> str:
    """How it is called, from its source: annotations as they are written there."""
    maker = value.__init__ if inspect.isclass(value) else value
    node = _definition(maker)
    if inspect.isclass(value) and (node is None or "__init__" not in vars(value)):
        fields = [field for field in _fields(value) if not field.startswith("_")]
        return _call(full, fields) if fields else ""
    if node is None:
        return ""
    returned = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    arguments = _arguments(node.args)
    return _call(full, arguments[1:] if inspect.isclass(value) else arguments, returned)


def _call(full: str, arguments: list[str], returned: str = "") -> str:
    line = f"{full}({', '.join(arguments)}){returned}"
    if len(line) > _LONG:
        inner = "".join(f"    {argument},\n" for argument in arguments)
        line = f"{full}(\n{inner}){returned}"
    return f"```python\n{line}\n```"


def _definition(function: Any) -> Any:
    try:
        source = textwrap.dedent(inspect.getsource(inspect.unwrap(function)))
        node = ast.parse(source).body[0]
    except (TypeError, OSError, SyntaxError):
        return None
    return node if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else None


def _arguments(arguments: ast.arguments) -> list[str]:
    """The arguments, one text each."""
    words = ast.unparse(arguments)
    tree = ast.parse(f"def f({words}): ...").body[0]
    assert isinstance(tree, ast.FunctionDef)
    parts = tree.args
    positional = [*parts.posonlyargs, *parts.args]
    defaults = [None] * (len(positional) - len(parts.defaults)) + parts.defaults
    listed = [_argument(*pair) for pair in zip(positional, defaults, strict=True)]
    if parts.posonlyargs:
        listed.insert(len(parts.posonlyargs), "/")
    if parts.vararg:
        listed.append(f"*{_argument(parts.vararg, None)}")
    elif parts.kwonlyargs:
        listed.append("*")
    listed += [_argument(*pair) for pair in zip(parts.kwonlyargs, parts.kw_defaults, strict=True)]
    return listed + ([f"**{_argument(parts.kwarg, None)}"] if parts.kwarg else [])


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    kind = f": {ast.unparse(argument.annotation)}" if argument.annotation else ""
    space = " " if kind else ""
    return f"{argument.arg}{kind}" + (f"{space}={space}{ast.unparse(default)}" if default else "")


def _fields(value: type) -> list[str]:
    """The fields of a dataclass, as its source states them."""
    try:
        node = ast.parse(textwrap.dedent(inspect.getsource(value))).body[0]
    except (TypeError, OSError, SyntaxError):
        return []
    if not hasattr(value, "__dataclass_fields__"):
        return []
    return [
        f"{line.target.id}: {ast.unparse(line.annotation)}"
        for line in getattr(node, "body", [])
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
    ]


def _members(value: type) -> list[str]:
    """The public methods and properties of a class and its parents of ours: a line each."""
    rows = []
    for name, member in inspect.getmembers_static(value):
        owner = next((base for base in value.__mro__ if name in vars(base)), object)
        if name.startswith("_") or not owner.__module__.startswith("rankscope"):
            continue
        inner = getattr(member, "__func__", getattr(member, "fget", member))
        inner = getattr(inner, "func", inner)  # of a cached property
        node = _definition(inner) if callable(inner) else None
        text = inspect.getdoc(inner) if node is not None else ""
        if not text:
            continue
        first = " ".join(re.split(r"\n\s*\n", text)[0].split())
        call = (
            ""
            if isinstance(member, property) or inner is not getattr(member, "__func__", member)
            else "()"
        )
        rows.append(f"| `{name}{call}` | {_block(first).replace('|', chr(92) + '|')} |")
    return ["| member | |\n|---|---|\n" + "\n".join(rows)] if rows else []
