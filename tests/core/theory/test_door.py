"""The theory is entered by one door."""

import pkgutil
import sys

import rankscope
from rankscope.core import theory


def test_the_door_exports_what_it_says():
    assert theory.__all__ == sorted(theory.__all__, key=lambda n: (not n.isupper(), n))
    assert all(hasattr(theory, name) for name in theory.__all__)


def test_no_module_has_the_name_of_something_exported():
    """Whoever imports such a module would hide the name behind it, or the other way round."""
    modules = {module.name for module in pkgutil.iter_modules(theory.__path__)}
    assert modules
    assert all(name.startswith("_") for name in modules)
    assert modules & set(theory.__all__) == set()


def test_there_is_one_class_called_bounds():
    assert rankscope.Bounds is theory.Bounds
    named = {
        value
        for module in list(sys.modules.values())
        if getattr(module, "__name__", "").startswith("rankscope.core.theory")
        for name, value in vars(module).items()
        if name == "Bounds"
    }
    assert named == {theory.Bounds}
