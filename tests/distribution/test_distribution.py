"""The wheel and the sdist: built, compared, installed into clean environments and used there.

A clean environment has links to the distributions that the wheel declares and those that these
declare, out of the environment that runs the tests, and nothing else: nothing is downloaded, and
what is not declared is really absent. pip then installs the wheel without an index, so that a
declared version that does not fit is an error.
"""

import json
import os
import runpy
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from importlib.metadata import Distribution, distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from rankscope.process import REQUIREMENTS
from rankscope.version import __version__

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
NOT_FOR_USERS = {"all", "dev", "docs"}
"""Extras that gather others, or build what developers build."""
NAMES = runpy.run_path(str(ROOT / "tests" / "test_public_names.py"))["NAMES"]
DRAWN = {f"rankscope.{name}" for name in ("figures", "report", "show.figures", "show.report")}
DRAWN |= {f"rankscope.run.{name}" for name in NAMES["rankscope.run"].split()
          if name in ("MOST_SEEDS", "SUMMARY") or name.lower().startswith("reprod")}  # fmt: skip
DRAWN.add("rankscope.reproduce")
"""Public names that need charts or write pages; all others are in the bare install."""
MOST_BYTES = 2_000_000
MOST_DEPENDENCIES = 5
"""Direct ones beside torch."""


def build(source: Path, folder: Path, *targets: str) -> list[Path]:
    """What hatchling makes of a source tree, as `pip install` and `python -m build` call it."""
    chosen = [word for target in targets for word in ("-t", target)]
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(folder), *chosen],
        cwd=source, check=True, capture_output=True,
        env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"},
    )  # fmt: skip
    return sorted(folder.iterdir())


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> dict[str, Path]:
    paths = build(ROOT, tmp_path_factory.mktemp("built"), "sdist", "wheel")
    return {"".join(path.suffixes[-2:]) if "tar" in path.name else "whl": path for path in paths}


def test_the_wheel_is_small_and_has_its_type_marker(built):
    wheel = built["whl"]
    assert wheel.name == f"rankscope-{__version__}-py3-none-any.whl"  # no compiler, any system
    assert wheel.stat().st_size < MOST_BYTES
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    in_source = [path for path in (ROOT / "src").rglob("*") if path.is_file()]
    ours = {
        path.relative_to(ROOT / "src").as_posix() for path in in_source if path.suffix != ".pyc"
    }
    assert {"rankscope/py.typed", "rankscope/__init__.pyi"} <= ours
    assert {name for name in names if ".dist-info/" not in name} == ours
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_building_twice_gives_the_same_bytes(built, tmp_path):
    """And the sdist makes the same wheel, in another folder, with other times of its files."""
    for path in build(ROOT, tmp_path / "twice", "sdist", "wheel"):
        assert path.read_bytes() in [one.read_bytes() for one in built.values()], path.name
    with tarfile.open(built[".tar.gz"]) as archive:
        archive.extractall(tmp_path, filter="data")
    source = tmp_path / f"rankscope-{__version__}"
    for path in source.rglob("*.py"):
        os.utime(path, (1, 1))
    (wheel,) = build(source, tmp_path / "again", "wheel")
    assert wheel.read_bytes() == built["whl"].read_bytes()


def test_few_packages_are_needed():
    needed = {canonicalize_name(Requirement(line).name) for line in PROJECT["dependencies"]}
    assert "torch" in needed
    assert len(needed - {"torch"}) <= MOST_DEPENDENCIES


def test_every_optional_package_is_in_the_extra_that_its_error_names():
    providers = packages_distributions()
    for package, requirement in REQUIREMENTS.items():
        asked = Requirement(requirement)
        if asked.name != "rankscope":
            continue
        (extra,) = asked.extras
        direct = {canonicalize_name(Requirement(line).name) for line in EXTRAS[extra]}
        assert direct & {canonicalize_name(name) for name in providers[package]}, package
    everything = Requirement(EXTRAS["all"][0]).extras
    assert everything == set(EXTRAS) - NOT_FOR_USERS
    assert "rankscope[all,docs]" in EXTRAS["dev"]


def closure(lines: list[str]) -> dict[str, Distribution]:
    """The distributions that requirements need, those of the requirements' extras included."""
    needed: dict[tuple[str, str], Distribution] = {}
    queue = [(Requirement(line), "") for line in lines]
    while queue:
        asked, extra = queue.pop()
        name = canonicalize_name(asked.name)
        if asked.marker is not None and not asked.marker.evaluate({"extra": extra}):
            continue
        for part in ("", *asked.extras):
            if name == "rankscope":
                queue += [(Requirement(line), "") for line in EXTRAS.get(part, [])]
            elif (name, part) not in needed:
                needed[name, part] = distribution(name)
                queue += [(Requirement(line), part) for line in needed[name, part].requires or []]
    return {name: found for (name, _), found in needed.items()}


def environment(folder: Path, wheel: Path, extra: str) -> Path:
    """An environment with the wheel and what it declares; returns its Python."""
    venv.create(folder, symlinks=os.name == "posix", with_pip=False)
    (site,) = folder.glob("lib/python*/site-packages")
    for found in closure([*PROJECT["dependencies"], *EXTRAS.get(extra, [])]).values():
        for top in {path.parts[0] for path in found.files or [] if path.parts[0] != ".."}:
            target = Path(str(found.locate_file(top)))
            if top != "__pycache__" and target.exists():
                (site / top).symlink_to(target.resolve())
    python = folder / "bin" / "python"
    asked = str(wheel) if extra == "bare" else f"{wheel}[{extra}]"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "-q", "--no-index", "--no-compile", asked], check=True)
    return python


def run(python: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Isolated: no variable and no current folder leads to another rankscope."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(
        [str(python), "-I", *words], cwd=folder, env={**clean, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip


@pytest.mark.parametrize("extra", ["bare", *sorted(set(EXTRAS) - NOT_FOR_USERS)])
def test_the_wheel_works_with_its_declared_packages_alone(built, tmp_path, extra):
    python = environment(tmp_path / "environment", built["whl"], extra)
    shutil.copy(Path(__file__).with_name("installed.py"), tmp_path)
    done = run(python, tmp_path, "installed.py", extra, json.dumps(NAMES))
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout.splitlines()[-1])
    present, refusals = report["importable"], report["unavailable"]
    if extra == "bare":
        assert present == []
        assert set(refusals) == DRAWN
        command = run(python, tmp_path, "-m", "rankscope", "--help")
        assert (command.returncode, command.stdout) == (2, "")
        assert "pip install 'rankscope[cli]'" in command.stderr
        assert command.stderr.splitlines()[1:] == ["  See docs/errors.md#missingpackageerror"]
    else:
        named = {package for package, asked in REQUIREMENTS.items() if f"[{extra}]" in asked}
        assert named <= set(present)
    for sentence in refusals.values():
        assert "which is not installed; run pip install 'rankscope[plot]'" in sentence
    assert bool(refusals) == ("altair" not in present)
