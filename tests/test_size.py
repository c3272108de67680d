"""The source stays as small as it is: lines and files per package, budgets in pyproject.toml.

A budget is what a package has, and a little room to work in. Lower it when a package becomes
smaller; raise one only for a capability that is worth its lines, and say so in the commit.
Examples in docstrings are not counted, nor the empty line before one and the closing quotes that it
moves to a line of their own: nothing should be saved on showing a name.
"""

import ast
import re
import tomllib
from pathlib import Path

import pytest

import rankscope

SOURCE = Path(rankscope.__file__).parent
SETTINGS = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))
BUDGETS = SETTINGS["tool"]["rankscope"]["budgets"]
LONGEST = 500
"""Lines of a file; catalogues of data are longer."""
CATALOGUES = ("metric_catalogue.py",)


def files_by_package() -> dict[str, list[Path]]:
    """Every file counts for the innermost package that has a budget; "." is the top level."""
    files: dict[str, list[Path]] = {package: [] for package in BUDGETS}
    for path in sorted(SOURCE.rglob("*.py")):
        inside = [str(parent) for parent in path.relative_to(SOURCE).parents]
        files[next(package for package in inside if package in BUDGETS)].append(path)
    return files


def example_lines(code: str) -> int:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    nodes = [node for node in ast.walk(ast.parse(code)) if isinstance(node, documented)]
    texts = [ast.get_docstring(node) or "" for node in nodes]
    return sum(map(lines_for_examples, texts))


def lines_for_examples(text: str) -> int:
    paragraphs = re.split(r"\n\s*\n", text)
    shown = [part for part in paragraphs if part.lstrip().startswith(">>>")]
    last = shown and shown[-1] is paragraphs[-1]
    return sum(len(part.splitlines()) + 1 for part in shown) + bool(last)


def lines_of(paths: list[Path]) -> int:
    codes = [path.read_text("utf-8") for path in paths]
    return sum(len(code.splitlines()) - example_lines(code) for code in codes)


@pytest.mark.parametrize("package", BUDGETS)
def test_a_package_keeps_its_budget(package: str) -> None:
    paths = files_by_package()[package]
    most_lines, most_files = BUDGETS[package]
    assert paths
    assert lines_of(paths) <= most_lines
    assert len(paths) <= most_files


def test_a_file_can_be_read_in_one_sitting() -> None:
    long = {path.name for path in SOURCE.rglob("*.py") if lines_of([path]) > LONGEST}
    assert long - set(CATALOGUES) == set()


def test_the_top_level_has_few_modules() -> None:
    modules = {path.stem for path in SOURCE.iterdir() if not path.name.startswith("_")} - {"py"}
    packages = {"ask", "cli", "core", "experiments", "models", "monitor", "process", "run", "show"}
    assert len(modules - packages) <= 9, modules - packages


def test_examples_are_not_counted_and_code_is(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        'def f():\n    """Two.\n\n    >>> f()\n    2\n\n    End.\n    """\n    return 2\n'
    )
    assert lines_of([path]) == 6
    path.write_text('def f():\n    """Two.\n\n    >>> f()\n    2\n    """\n    return 2\n')
    assert lines_of([path]) == 3
