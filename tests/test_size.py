"""The source stays as small as it is: lines and files per package, budgets in pyproject.toml.

A budget is what a package has, and a little room to work in. Lower it when a package becomes
smaller; raise one only for a capability that is worth its lines, and say so in the commit.
"""

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


def lines_of(paths: list[Path]) -> int:
    return sum(len(path.read_text("utf-8").splitlines()) for path in paths)


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
