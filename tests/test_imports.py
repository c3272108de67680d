"""Imports point downwards: design.md's rules, read off the source with ``ast``."""

import ast
import graphlib
import importlib.util
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import pytest

import rankscope

SOURCE = Path(importlib.util.find_spec("rankscope").origin).parent

# For each room of the core, the rooms it may import; whatever else is ours is above it.
LOWEST = {
    "_collection_kinds",
    "_kinds",
    "_plain_kinds",
    "arguments",
    "display",
    "errors",
    "fingerprints",
    "metric_catalogue",
    "numerals",
    "shapes",
    "streams",
    "threads",
    "version",
    "versions",
    "weights",
}
CORE = {
    "_plain_kinds": {"errors"},
    "_collection_kinds": {"_plain_kinds", "errors"},
    "_kinds": {"_collection_kinds", "_plain_kinds", "errors"},
    "arguments": {"_collection_kinds", "_kinds", "_plain_kinds"},
    "version": set(),
    "versions": {"version"},
    "display": {"numerals"},
    "errors": set(),
    "fingerprints": set(),
    "metric_catalogue": {"arguments"},
    "numerals": set(),
    "shapes": set(),
    "streams": {"errors"},
    "threads": set(),
    "_hidden_weights": set(),
    "weights": {"_hidden_weights"},
    "batches": LOWEST | {"checks"},
    "checks": LOWEST,
    "metrics": LOWEST | {"checks"},
    "masks": LOWEST | {"checks"},
    "network": LOWEST | {"checks", "masks"},
    "tracing": LOWEST | {"batches", "checks", "metrics", "network"},
    "paths": LOWEST | {"checks", "metrics", "network"},
    "deep": LOWEST | {"batches", "checks", "metrics", "network", "tracing"},
    "theory": LOWEST | {"checks", "metrics", "masks", "network", "tracing", "deep"},
    "prediction": LOWEST | {"checks", "metrics", "masks", "network", "tracing", "deep"},
}
OUTSIDE = {"torch", "numpy", "jaxtyping"} | set(sys.stdlib_module_names)
LAZY = {  # asked for by .table, .save and .plot alone
    "tracing": {"tables", "figures", "results"},
    "paths": {"tables", "figures"},
    "theory": {"tables"},
    "prediction": {"tables", "figures"},
}
LAZY_OUTSIDE = {"theory": {"scipy"}}  # asked for by graphs alone
KERNELS = {  # loaded for a tensor on CUDA: they need Triton
    "rankscope.metrics._attention_kernel",
    "rankscope.metrics._centring_kernel",
    "rankscope.metrics._fused_kernels",
    "rankscope.metrics._half_step_kernel",
}


@dataclass(frozen=True)
class Import:
    """``target`` as dotted names; ``when`` it happens: at the top, for typing, or in a function."""

    module: str
    target: str
    when: str

    @property
    def room(self):
        return room_of(self.module)

    @property
    def library(self):
        return self.target.split(".")[0]


def room_of(module):
    """``rankscope.metrics.residual`` → ``metrics``; the package itself → ``""``."""
    return [*module.split("."), ""][1]


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
                is_room = base == "rankscope"
                found.append(Import(module, whole if whole in known or is_room else base, when))
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


def all_imports():
    known = modules()
    return [
        one
        for module, path in known.items()
        for one in imports_of(
            module, path.read_text("utf-8"), known, is_package=path.name == "__init__.py"
        )
    ]


IMPORTS = all_imports()


def test_the_reader_reads_every_kind_of_import():
    """If this one fails, the others say nothing."""
    source = """
import torch.nn as nn
from typing import TYPE_CHECKING
from . import sibling
from .spec import Spec
from ..errors import InputError
from rankscope import tables
from rankscope.network import construct, Spec
if TYPE_CHECKING:
    import altair
def late():
    import polars
    def later():
        from rankscope import figures
try:
    import scipy
except ImportError:
    pass
"""
    known = {"rankscope.network.construct", "rankscope.network.spec", "rankscope.network.sibling"}
    read = {(one.target, one.when) for one in imports_of("rankscope.network.x", source, known)}
    assert read == {
        ("torch.nn", "top"),
        ("typing", "top"),
        ("rankscope.network.sibling", "top"),
        ("rankscope.network.spec", "top"),
        ("rankscope.errors", "top"),
        ("rankscope.tables", "top"),
        ("rankscope.network.construct", "top"),
        ("rankscope.network", "top"),
        ("altair", "typing"),
        ("polars", "function"),
        ("rankscope.figures", "function"),
        ("scipy", "top"),
    }
    package = imports_of("rankscope.network", "from .spec import Spec", known, is_package=True)
    assert [one.target for one in package] == ["rankscope.network.spec"]
    assert {"torch", "rankscope"} <= {one.library for one in IMPORTS}
    assert {"checks", "metrics", "network", "tracing"} <= {one.room for one in IMPORTS}


@pytest.mark.parametrize("room", CORE)
def test_the_core_needs_torch_numpy_and_jaxtyping_alone(room):
    foreign = [
        one
        for one in IMPORTS
        if one.room == room
        and one.when != "typing"
        and one.library not in OUTSIDE | {"rankscope"}
        and not (one.when == "function" and one.library in LAZY_OUTSIDE.get(room, ()))
        and not (one.library == "triton" and one.module in KERNELS)
    ]
    assert foreign == []


def test_nobody_imports_a_kernel_but_for_a_tensor():
    assert [one for one in IMPORTS if one.target in KERNELS] == []
    assert set(modules()) >= KERNELS


@pytest.mark.parametrize("room", CORE)
def test_the_core_imports_lower_rooms_only(room):
    upwards = [
        one
        for one in IMPORTS
        if one.room == room
        and one.library == "rankscope"
        and one.when != "typing"
        and room_of(one.target) not in CORE[room] | {room}
        and not (one.when == "function" and room_of(one.target) in LAZY.get(room, ()))
    ]
    assert upwards == []


@pytest.mark.parametrize("room", CORE)
def test_no_import_of_the_core_hides_in_a_function(room):
    hidden = [
        one
        for one in IMPORTS
        if one.room == room
        and one.when == "function"
        and room_of(one.target) not in LAZY.get(room, ())
        and one.library not in LAZY_OUTSIDE.get(room, ())
    ]
    assert hidden == []


DOORS = ("deep", "masks", "metrics", "network", "paths", "sweeping", "tracing", "training")


def test_rooms_are_entered_by_their_doors():
    """A module with a leading underscore is its room's own."""
    past = [
        (one.module, one.target)
        for one in IMPORTS
        if room_of(one.target) in DOORS and one.room != room_of(one.target)
        if one.target.count(".") > 1
    ]
    assert past == []


def test_a_room_with_a_door_has_private_modules_alone():
    inside = [module for module in modules() if room_of(module) in DOORS and module.count(".") == 2]
    assert inside
    assert [module for module in inside if not module.split(".")[2].startswith("_")] == []


def test_rooms_have_no_cycle():
    """Lazy imports count: what a room needs later it needs all the same."""
    needs = defaultdict(set)
    for one in IMPORTS:
        target = room_of(one.target)
        if one.library == "rankscope" and one.when != "typing" and target and one.room:
            needs[one.room] |= {target} - {one.room, ""}
    assert_no_cycle(needs)


def test_modules_have_no_cycle():
    needs = defaultdict(set)
    for one in IMPORTS:
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


def test_only_tracing_and_monitor_register_hooks():
    rooms = {
        room_of(module)
        for module, path in modules().items()
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("register_")
        and node.attr.endswith("hook")
    }
    assert rooms - {"tracing", "monitor"} == set()
    assert "tracing" in rooms


def test_only_one_file_imports_ray():
    modules_with_ray = {one.module for one in IMPORTS if one.library == "ray"}
    assert modules_with_ray == {"rankscope.sweeping._ray"}


@pytest.mark.parametrize("name", ["utils", "util", "helpers", "helper", "common", "misc"])
def test_every_file_has_a_name_that_says_something(name):
    paths = [*SOURCE.rglob("*"), *Path(__file__).parent.rglob("*")]
    assert [path for path in paths if path.stem in (name, f"test_{name}")] == []


HEAVY = ("torch", "polars", "altair", "numpy", "transformers", "scipy", "ray", "starlette")


def loaded_after(statement):
    """Which heavy libraries a fresh interpreter holds after running a statement."""
    code = f"{statement}\nimport sys\nprint(*[m for m in {HEAVY!r} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return set(run.stdout.split())


def room_exists(room):
    return (SOURCE / room / "__init__.py").is_file() or (SOURCE / f"{room}.py").is_file()


@pytest.mark.parametrize(
    "statement", ["import rankscope", "import rankscope.cli", "from rankscope.cli import main"]
)
def test_start_up_is_light(statement):
    if "cli" in statement and not room_exists("cli"):
        pytest.skip("there is no command line yet")
    assert loaded_after(statement) == set()


def test_the_catalogue_of_metrics_and_the_numerals_need_nothing():
    assert loaded_after("import rankscope.metric_catalogue, rankscope.numerals") == set()


def test_results_need_neither_torch_nor_charts():
    assert loaded_after("import rankscope.results") - {"numpy"} == {"polars"}


def test_figures_and_reports_need_no_torch():
    rooms = [room for room in ("tables", "figures", "report") if room_exists(room)]
    loaded = loaded_after(f"import {', '.join(f'rankscope.{room}' for room in rooms)}")
    assert "torch" not in loaded
    assert "polars" in loaded  # so that the question was really asked


def test_the_core_loads_neither_tables_nor_charts():
    core = "import " + ", ".join(f"rankscope.{room}" for room in CORE)
    assert loaded_after(core) - {"torch", "numpy"} == set()


def test_lazy_names_lead_to_the_real_ones():
    assert sorted(rankscope.__all__) == dir(rankscope)
    for name in ("Network", "Spec", "Trace", "trace", "residual"):
        assert getattr(rankscope, name).__name__ == name
    for room in filter(room_exists, ("errors", "metrics", "network", "tables")):
        assert getattr(rankscope, room).__name__ == f"rankscope.{room}"
    with pytest.raises(AttributeError, match="nonsense"):
        _ = rankscope.nonsense
