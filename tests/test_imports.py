"""Imports point one way: the layers of docs/architecture.md, read off the source with ``ast``."""

import ast
import graphlib
import importlib.util
import json
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import rankscope
from rankscope.process import REQUIREMENTS

SOURCE = Path(importlib.util.find_spec("rankscope").origin).parent

# The lowest layer first. A layer imports itself and what stands before it; ``show`` knows results
# and tables alone, so that a surface cannot ask what kind of result it shows.
LAYERS = {
    "base": ("errors", "version", "numerals", "process", "arguments", "streams"),
    "catalogues": ("metric_catalogue",),
    "core": ("core",),
    "tables": ("tables", "results"),
    "models": ("models",),
    "show": ("show",),
    "monitor": ("monitor",),
    "ask": ("ask",),
    "experiments": ("experiments",),
    "run": ("run",),
    "cli": ("cli",),
}
ORDER = list(LAYERS)
LAYER_OF = {name: layer for layer, names in LAYERS.items() for name in names}
# Packages inside a layer, each importing those before it in its row.
CORE = ("names", "shapes", "packing", "tabular", "weights", "checks", "batches", "metrics", "masks",
        "network", "tracing", "paths", "deep", "theory", "prediction")  # fmt: skip
LAZY = {"tables", "results", "show"}
"""What .table, .save and .plot of the core ask for, in a function."""
OUTSIDE = {"torch", "numpy", "jaxtyping", "lazy_loader"} | set(sys.stdlib_module_names)
TOP_LEVEL = {"errors", "arguments", "tables", "results", "metric_catalogue", "numerals", "streams",
             "version"}  # fmt: skip


@dataclass(frozen=True)
class Import:
    """``target`` as dotted names; ``when`` it happens: at the top, for typing, in a function.

    ``require("scipy.sparse")`` is an import, too: "required".
    """

    module: str
    target: str
    when: str

    @property
    def library(self):
        return self.target.split(".")[0]


def package_of(module):
    """The package whose door others use: ``rankscope.core.metrics``, ``rankscope.run``."""
    parts = module.split(".")
    inner = parts[1:2] and parts[1] in ("core", "models", "show")
    return ".".join(parts[: 3 if inner else 2])


def layer_of(module):
    return LAYER_OF.get([*module.split("."), ""][1], "")


def modules():
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = ("rankscope", *path.relative_to(SOURCE).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(module, source, known, *, is_package=False):
    """Every import in a source text, relative ones resolved, submodules told from names."""
    found = []
    package = module if is_package else module.rpartition(".")[0]

    def visit(node, when):
        if isinstance(node, ast.Import):
            found.extend(Import(module, alias.name, when) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            written = "." * node.level + (node.module or "")
            base = importlib.util.resolve_name(written, package)
            for alias in node.names:
                whole = f"{base}.{alias.name}"
                found.append(Import(module, whole if whole in known else base, when))
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "require":
            found.append(Import(module, ast.literal_eval(node.args[0]), "required"))
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            for child in node.body:
                visit(child, "typing")
            for child in node.orelse:
                visit(child, when)
        else:
            inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            for child in ast.iter_child_nodes(node):
                visit(child, "function" if inside else when)

    visit(ast.parse(source), "top")
    return found


@cache
def all_imports():
    known = modules()
    return [
        one
        for module, path in known.items()
        for one in imports_of(
            module, path.read_text("utf-8"), known, is_package=path.name == "__init__.py"
        )
    ]


def test_the_reader_reads_every_kind_of_import():
    """If this one fails, the others say nothing."""
    source = """
import torch.nn as nn
from typing import TYPE_CHECKING
from . import sibling
from .spec import Spec
from ...errors import InputError
from rankscope import tables
from rankscope.core.network import construct, Spec
if TYPE_CHECKING:
    import altair
def late():
    import polars
    def later():
        from rankscope.show import figures
try:
    import scipy
except ImportError:
    pass
ray = require("ray.util")
"""
    inside = "rankscope.core.network"
    known = {f"{inside}.construct", f"{inside}.spec", f"{inside}.sibling", "rankscope.tables",
             "rankscope.show.figures"}  # fmt: skip
    read = {(one.target, one.when) for one in imports_of(f"{inside}.x", source, known)}
    assert read == {
        ("torch.nn", "top"),
        ("typing", "top"),
        (f"{inside}.sibling", "top"),
        (f"{inside}.spec", "top"),
        ("rankscope.errors", "top"),
        ("rankscope.tables", "top"),
        (f"{inside}.construct", "top"),
        (inside, "top"),
        ("altair", "typing"),
        ("polars", "function"),
        ("rankscope.show.figures", "function"),
        ("scipy", "top"),
        ("ray.util", "required"),
    }
    package = imports_of(inside, "from .spec import Spec", known, is_package=True)
    assert [one.target for one in package] == [f"{inside}.spec"]
    assert {"torch", "rankscope"} <= {one.library for one in all_imports()}


def test_imports_point_one_way():
    upwards = [
        (one.module, one.target)
        for one in all_imports()
        if one.library == "rankscope" and one.when != "typing" and layer_of(one.target)
        if layer_of(one.module)
        and ORDER.index(layer_of(one.target)) > ORDER.index(layer_of(one.module))
        and not (layer_of(one.module) in ("core", "models") and one.when == "function"
                 and one.target.split(".")[1] in LAZY)
    ]  # fmt: skip
    assert upwards == []


def test_show_knows_results_and_tables_alone():
    """The lab also computes: it is a small program of its own that uses the core."""
    allowed = {"base", "catalogues", "tables", "show"}
    asking = [
        (one.module, one.target)
        for one in all_imports()
        if one.module.startswith(("rankscope.show.figures", "rankscope.show.report"))
        and one.library == "rankscope" and one.when != "typing"
        and layer_of(one.target) not in allowed
    ]  # fmt: skip
    assert asking == []


def test_the_core_needs_torch_numpy_and_jaxtyping_alone():
    """Graphs require SciPy, and ``to_pandas`` pandas; kernels import Triton, for CUDA alone."""
    foreign = [
        (one.module, one.target)
        for one in all_imports()
        if layer_of(one.module) in ("base", "catalogues", "core") and one.when != "typing"
        and one.library not in OUTSIDE | {"rankscope"}
        and not (one.when == "required" and one.library in ("scipy", "pandas"))
        and not (one.library == "triton" and one.module.endswith(("_kernel", "_kernels")))
    ]  # fmt: skip
    assert foreign == []


def test_optional_packages_are_imported_where_their_absence_is_explained():
    """By ``require``, or behind a door that says what to install: those of cli and show."""
    direct = {
        (one.module, one.library)
        for one in all_imports()
        if one.library in REQUIREMENTS and one.when in ("top", "function")
        and layer_of(one.module) not in ("cli", "show")
    }  # fmt: skip
    assert direct == set()
    declared = {"rankscope", "polars", "jinja2", "triton"} | {"markupsafe", "h11"}
    """MarkupSafe comes with Jinja, h11 with uvicorn."""
    known = OUTSIDE | set(REQUIREMENTS) | declared
    assert {one.library for one in all_imports() if one.when != "typing"} <= known


def test_nobody_imports_a_kernel_but_for_a_tensor():
    kernels = {one.module for one in all_imports() if one.library == "triton"}
    assert kernels
    assert [one for one in all_imports() if one.target in kernels] == []


def test_no_import_of_the_core_hides_in_a_function():
    hidden = [
        (one.module, one.target)
        for one in all_imports()
        if layer_of(one.module) == "core" and one.when == "function"
        and one.target.split(".")[1:2] and one.target.split(".")[1] not in LAZY
    ]  # fmt: skip
    assert hidden == []


def test_packages_are_entered_by_their_doors():
    """Nobody outside a package imports one of its modules."""
    packages = {name for name, path in modules().items() if path.name == "__init__.py"}
    past = [
        (one.module, one.target)
        for one in all_imports()
        if one.library == "rankscope" and (inside := package_of(one.target)) in packages
        if one.target != inside
        and not f"{one.module}.".startswith(f"{inside}.")
    ]  # fmt: skip
    assert past == []


def test_packages_have_no_cycle():
    """Lazy imports count: what a package needs later it needs all the same."""
    needs = defaultdict(set)
    for one in all_imports():
        if one.library == "rankscope" and one.when != "typing" and one.target.count("."):
            inside, other = package_of(one.module), package_of(one.target)
            if "." in inside and not (
                one.when == "function" and layer_of(one.module) in ("core", "models")
            ):
                needs[inside] |= {other} - {inside}
    assert_no_cycle(needs)


def test_modules_have_no_cycle():
    needs = defaultdict(set)
    for one in all_imports():
        if one.library == "rankscope" and one.when == "top":
            needs[one.module] |= {one.target} - {one.module}
    packages = {name for name, path in modules().items() if path.name == "__init__.py"}
    for package in packages:  # a package names its modules; that is no need of theirs
        needs.pop(package, None)
    assert_no_cycle(needs)


def assert_no_cycle(needs):
    try:
        graphlib.TopologicalSorter(needs).prepare()
    except graphlib.CycleError as error:
        pytest.fail(f"import cycle: {' → '.join(error.args[1])}")


def test_only_tracing_registers_hooks():
    hooking = {
        package_of(module)
        for module, path in modules().items()
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute)
        and node.attr in ("_forward_hooks", "_forward_pre_hooks", "register_forward_hook")
    }
    assert hooking == {"rankscope.core.tracing"}


def test_only_one_file_imports_ray():
    assert len({one.module for one in all_imports() if one.library == "ray"}) == 1


def test_every_file_has_a_name_that_says_something():
    empty = {"utils", "util", "helpers", "helper", "common", "misc"}
    paths = [*SOURCE.rglob("*"), *Path(__file__).parent.rglob("*")]
    assert [path for path in paths if path.stem.removeprefix("test_") in empty] == []


HEAVY = ("torch", "polars", "altair", "numpy", "transformers", "scipy", "ray", "starlette")
LIGHT = {  # a statement, and the heavy libraries it may load
    "import rankscope": set(),
    "from rankscope.cli import main": set(),
    "from rankscope.monitor import RunReader": set(),
    "from rankscope.cli.run_screen import screen": set(),
    "import rankscope.metric_catalogue, rankscope.numerals": set(),
    "import rankscope.results": {"polars", "numpy"},
    "import rankscope.show.figures, rankscope.show.report": {"polars", "numpy", "altair"},
    "import " + ", ".join(f"rankscope.core.{name}" for name in CORE if "weights" not in name): {
        "torch",
        "numpy",
    },
}


def test_imports_are_as_light_as_they_can_be():
    """One interpreter forks for each statement, since starting each anew would cost seconds."""
    code = """
import json, os, sys
statements, heavy = json.loads(sys.argv[1])
for statement in statements:
    out, into = os.pipe()
    if os.fork() == 0:
        exec(statement)
        os.write(into, json.dumps([name for name in heavy if name in sys.modules]).encode())
        os._exit(0)
    os.close(into)
    print(os.fdopen(out).read())
    os.wait()
"""
    asked = json.dumps([list(LIGHT), HEAVY])
    run = subprocess.run([sys.executable, "-c", code, asked], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    loaded = [set(json.loads(line)) for line in run.stdout.splitlines()]
    for (statement, allowed), names in zip(LIGHT.items(), loaded, strict=True):
        assert names <= allowed, statement
        assert bool(names) == bool(allowed), statement  # so that the question was really asked


TIMED = """
import sys, time
before = time.process_time()
import rankscope
imported = time.process_time() - before
sys.argv = ["rankscope", "--help"]
from rankscope.__main__ import main
try:
    main()
except SystemExit:
    pass
print(imported, time.process_time() - before, file=sys.stderr)
"""


def test_start_up_is_quick():
    """In processor time: 50 ms for the import, 0.3 s for the help, in the best of some trials."""
    trials = []
    while len(trials) < 6 and not any(
        imported <= 0.05 and shown <= 0.3 for imported, shown in trials
    ):
        run = subprocess.run([sys.executable, "-c", TIMED], capture_output=True, text=True)
        assert "Usage: rankscope" in run.stdout, run.stderr
        trials.append(tuple(map(float, run.stderr.split())))
    assert min(imported for imported, _ in trials) <= 0.05
    assert min(shown for _, shown in trials) <= 0.3


def test_lazy_names_lead_to_the_real_ones():
    for name in ("Network", "Spec", "Trace", "trace", "residual"):
        assert getattr(rankscope, name).__name__ == name
    assert rankscope.metrics.__name__ == "rankscope.core.metrics"
    with pytest.raises(AttributeError, match="nonsense"):
        _ = rankscope.nonsense
