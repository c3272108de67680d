"""The rooms of the theory and their doors, in every order of import."""

import pkgutil
import subprocess
import sys

import pytest

import rankscope
from rankscope.core import theory
from rankscope.core.theory import equilibria, graphs, residual_bounds

ROOMS = (residual_bounds, graphs, equilibria)


def test_every_room_exports_what_it_says_and_the_theory_what_users_need():
    for package in (theory, *ROOMS):
        assert package.__all__ == sorted(package.__all__, key=lambda n: (not n.isupper(), n))
        assert all(hasattr(package, name) for name in package.__all__)
    offered = {name: getattr(room, name) for room in ROOMS for name in room.__all__}
    assert all(getattr(theory, name) is offered[name] for name in theory.__all__)


def test_no_module_has_the_name_of_something_exported():
    """Whoever imports such a module would hide the name behind it, or the other way round."""
    for package in (theory, *ROOMS):
        modules = {found.name for found in pkgutil.iter_modules(package.__path__)}
        assert modules & set(package.__all__) == set()
    for room in ROOMS:
        assert all(found.name.startswith("_") for found in pkgutil.iter_modules(room.__path__))


@pytest.mark.parametrize(
    "first",
    [
        "import rankscope.core.theory.residual_bounds._network",
        "from rankscope import bounds",
    ],
)
def test_bounds_is_the_function_whatever_is_imported_first(first):
    code = (
        f"{first}\nimport rankscope\nfrom rankscope.core.theory import bounds\n"
        "assert rankscope.bounds is rankscope.core.theory.bounds is bounds\n"
        "print(bounds.__name__, callable(bounds))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.stdout.split() == ["bounds", "True"], run.stderr


def test_there_is_one_class_called_bounds():
    assert rankscope.Bounds is theory.Bounds is residual_bounds.Bounds
    named = {
        value
        for module in list(sys.modules.values())
        if getattr(module, "__name__", "").startswith("rankscope.core.theory")
        for name, value in vars(module).items()
        if name == "Bounds"
    }
    assert named == {theory.Bounds}
