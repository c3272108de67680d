"""Hostile calls: none may end in a foreign error or not at all, and no public name is left out."""

import importlib
import inspect
import subprocess
import sys
from collections.abc import Callable
from dataclasses import is_dataclass
from pathlib import Path
from typing import get_args, get_origin

import pytest

from rankscope import run
from rankscope.core import network

from ..test_public_names import NAMES

HERE = Path(__file__).parent
EXEMPT = {
    "network.Spec": "each of its fields is checked when it is set",
    "network.Init": "checked where a spec or a call names one",
}
PARTS = {f"network.{name}" for name in ("Attention", "Block", "MLP", "Scores", "Sphere")}
"""Parts of a network, which checks its input once for all: of these, constructors alone."""
MODULES = ("metric_catalogue", "results", "tables")


def _public():
    rooms = {room: names.split() for room, names in NAMES.items()}
    del rooms["rankscope"], rooms["rankscope.errors"]
    for module in MODULES:
        found = vars(importlib.import_module(f"rankscope.{module}")).items()
        rooms[f"rankscope.{module}"] = [
            name
            for name, value in found
            if not name.startswith("_")
            and getattr(value, "__module__", "") == f"rankscope.{module}"
        ]
    for room, names in rooms.items():
        for name in names:
            thing = getattr(importlib.import_module(room), name)
            if inspect.isfunction(thing) or (
                inspect.isclass(thing) and not issubclass(thing, tuple)
            ):
                yield f"{room.rpartition('.')[2]}.{name}", thing


PUBLIC = dict(_public())


def _classes(annotation):
    """The classes an annotation names; what a caller's own function is given is not among them."""
    origin = get_origin(annotation)
    if inspect.isclass(annotation) and origin is None:
        yield annotation
    elif origin is not Callable:
        for inner in get_args(annotation):
            yield from _classes(inner)


def _functions(thing):
    """A function, or the methods of a class that was not made by ``dataclass``."""
    if inspect.isfunction(thing):
        return [thing]
    members = [getattr(member, "__func__", member) for member in vars(thing).values()]
    made = thing.__init__ if is_dataclass(thing) else None
    return [member for member in members if inspect.isfunction(member) and member is not made]


TAKEN = {
    kind
    for thing in PUBLIC.values()
    for function in _functions(thing)
    for parameter in inspect.signature(function).parameters.values()
    for kind in _classes(parameter.annotation)
}


def _needs_no_check(thing):
    """A protocol has no arguments of its own, and a record that is only returned is made by us."""
    if getattr(thing, "_is_protocol", False):
        return True
    is_checked = hasattr(getattr(thing, "__init__", None), "__checked__")
    return is_dataclass(thing) and not is_checked and thing not in TAKEN


def _takes_arguments(function):
    return any(
        parameter.annotation is not parameter.empty
        for parameter in inspect.signature(function).parameters.values()
    )


def _unchecked(name, thing):
    """Functions of ours, methods included, that take annotated arguments and check no kinds."""
    if inspect.isfunction(thing):
        members = {name: thing}
    else:
        members = {
            f"{name}.{each}": getattr(member, "__func__", member)
            for each, member in vars(thing).items()
            if each == "__init__" or (name not in PARTS and not each.startswith("_"))
        }
    return [
        each
        for each, member in members.items()
        if inspect.isfunction(member)
        and _takes_arguments(member)
        and not hasattr(member, "__checked__")
    ]


@pytest.mark.parametrize("name", sorted(set(PUBLIC) - set(EXEMPT)))
def test_every_public_function_checks_its_arguments(name):
    assert _needs_no_check(PUBLIC[name]) or _unchecked(name, PUBLIC[name]) == []


def test_records_that_are_only_returned_are_told_from_those_that_are_taken():
    assert _needs_no_check(run.Progress)
    assert _needs_no_check(run.Engine)
    assert not _needs_no_check(run.Grid)  # ``plan`` takes one
    assert not _needs_no_check(run.plan)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Names in the table of good calls, each made once where no shapes are checked."""
    code = (
        f"import sys; sys.path.insert(0, {str(HERE)!r})\n"
        "import calls, campaign\n"
        "for row in calls.ROWS:\n"
        "    campaign.call(row, row.good())\n"
        "    print(row.name, file=sys.stderr)\n"
    )
    source = HERE.parents[1] / "src"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path_factory.mktemp("calls"),
        env={"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stderr.splitlines()


def test_every_public_name_has_a_good_call_that_is_answered(table):
    named = {name.partition("[")[0] for name in table}
    missing = [
        name
        for name, thing in PUBLIC.items()
        if not any(row == name or row.startswith(f"{name}.") for row in named)
        and (inspect.isclass(thing) or _takes_arguments(thing))
        and _has_arguments(thing)
        and not _needs_no_check(thing)
    ]
    assert missing == []


def _has_arguments(thing):
    if thing in (network.Scores, network.Sphere):
        return False
    return bool(inspect.signature(thing).parameters)


def test_hostile_calls_are_answered_or_refused():
    command = [sys.executable, str(HERE / "campaign.py"), "--calls", "1000", "--processes", "1"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "1,000 calls" in done.stdout
