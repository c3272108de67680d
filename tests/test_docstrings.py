"""Every example in a docstring runs and prints what it says."""

import doctest
import importlib
import importlib.util
import inspect
from pathlib import Path

import pytest

import rankscope

SOURCE = Path(importlib.util.find_spec("rankscope").origin).parent
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def module_names():
    for path in sorted(SOURCE.rglob("*.py")):
        parts = ("rankscope", *path.relative_to(SOURCE).with_suffix("").parts)
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if ">>>" in path.read_text(encoding="utf-8") and parts[-1] != "__main__":
            yield name


def examples_of(name):
    finder = doctest.DocTestFinder(exclude_empty=True)
    module = importlib.import_module(name)
    return [test for test in finder.find(module, name) if test.examples]


MODULES = list(module_names())


def test_there_are_many():
    assert len(MODULES) > 20


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)  # some write a file
    tests = examples_of(name)
    assert tests, f"{name} has an example that doctest does not find"
    runner = doctest.DocTestRunner(optionflags=OPTIONS)
    for test in tests:
        runner.run(test)
    assert runner.failures == 0, capsys.readouterr().out


def public_names():
    """All functions and classes of the reference: of ``rankscope`` and of its public packages."""
    packages = [value for value in vars_of(rankscope).values() if inspect.ismodule(value)]
    for package in (rankscope, *packages):
        for name, value in vars_of(package).items():
            if inspect.isclass(value) or inspect.isfunction(inspect.unwrap(value)):
                yield f"{package.__name__}.{name}", value


def vars_of(module):
    """What a module exports, which may be loaded on first use; errors have no ``__all__``."""
    if not hasattr(module, "__all__"):
        return {name: value for name, value in vars(module).items() if isinstance(value, type)}
    return {name: getattr(module, name) for name in module.__all__}


def test_every_public_name_has_an_example():
    """The reference of the site shows them; ``test_examples_run`` runs them."""
    names = dict(public_names())
    assert len(names) > 250
    without = [name for name, value in names.items() if ">>>" not in (inspect.getdoc(value) or "")]
    assert without == []


def test_a_wrong_example_is_seen():
    test = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "wrong", None, 0)
    runner = doctest.DocTestRunner(verbose=False)
    runner.run(test, out=lambda _: None)
    assert runner.failures == 1
