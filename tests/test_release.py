"""What a release says about itself in several places is the same in all of them."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from rankscope.version import __version__

ROOT = Path(__file__).parents[1]
GITHUB = ROOT / ".github"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))


def read(path: Path) -> str:
    return path.read_text("utf-8")


def test_the_version_is_the_same_everywhere():
    assert re.search(r"^## (\S+)", read(ROOT / "CHANGELOG.md"), re.MULTILINE)[1] == __version__
    assert yaml.safe_load(read(ROOT / "CITATION.cff"))["version"] == __version__


def test_python_versions_agree():
    classified = {
        line.rpartition(" ")[2]
        for line in PROJECT["classifiers"]
        if re.search(r"Python :: 3\.\d", line)
    }
    tests = yaml.safe_load(read(GITHUB / "workflows" / "test.yml"))
    assert set(tests["jobs"]["versions"]["strategy"]["matrix"]["python"]) == classified
    least = PROJECT["requires-python"].removeprefix(">=")
    assert min(classified, key=lambda version: int(version.partition(".")[2])) == least
    assert f"{least} to {max(classified)}" in read(ROOT / "docs" / "versioning.md")


def test_the_oldest_versions_that_are_tried_are_the_lower_bounds():
    extras = PROJECT["optional-dependencies"]
    lines = [line for name, inside in extras.items() for line in inside
             if name not in ("dev", "docs")]  # fmt: skip
    promised = {
        f"{asked.name}=={asked.specifier}".replace("==>=", "==")
        for asked in map(Requirement, [*PROJECT["dependencies"], *lines])
        if asked.name != "rankscope"
    }
    tried = {
        line for line in read(GITHUB / "constraints" / "oldest.txt").splitlines() if "==" in line
    }
    assert tried == promised


def test_every_direct_dependency_is_pinned_for_developers():
    pinned = {
        line.partition("==")[0].lower().replace("_", "-")
        for line in read(ROOT / "constraints.txt").splitlines()
    }
    extras = PROJECT["optional-dependencies"].values()
    lines = [*PROJECT["dependencies"], *(line for inside in extras for line in inside)]
    needed = {Requirement(line).name.lower() for line in lines} - {"rankscope"}
    assert needed <= pinned


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_asks_for_no_more_than_it_needs(path):
    workflow = yaml.safe_load(read(path))
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        allowed = {"contents", "id-token", "attestations", "pages"}
        assert set(job.get("permissions", {})) <= allowed, name
    for tests in re.findall(r"tests/[\w./]+", read(path)):
        assert (ROOT / tests).exists(), tests


def test_a_release_is_published_without_a_secret():
    text = read(GITHUB / "workflows" / "release.yml")
    jobs = yaml.safe_load(text)["jobs"]
    assert "secrets." not in text
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert jobs["publish"]["environment"] == "pypi"
    assert set(jobs["publish"]["needs"]) == {"build", "test"}


def addresses_are_known(folder: Path) -> subprocess.CompletedProcess:
    """What the step of the release workflow says about a folder."""
    steps = yaml.safe_load(read(GITHUB / "workflows" / "release.yml"))["jobs"]["build"]["steps"]
    (step,) = (each for each in steps if "addresses" in each.get("name", ""))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-e", "-c", step["run"]],
        cwd=folder, capture_output=True, text=True, check=False, env={**os.environ, "PATH": path},
    )  # fmt: skip


@pytest.mark.skipif(sys.platform == "win32", reason="the workflow runs on Linux")
def test_nothing_is_released_without_its_addresses(tmp_path):
    project, citation = read(ROOT / "pyproject.toml"), read(ROOT / "CITATION.cff")
    names = ("Documentation", "Source", "Issues", "Changelog")
    urls = "".join(f'{name} = "https://example.org/{name}"\n' for name in names)
    code = "repository-code: https://example.org/code\n"
    for more, cited, is_known in (
        ("", code, False),
        (urls.replace("Documentation", "Docs"), code, False),
        (urls, "", False),
        (urls, code, True),
    ):
        without = re.sub(r"\[project\.urls\]\n(?:\w+ = .*\n)+", "", project)
        (tmp_path / "pyproject.toml").write_text(f"{without}\n[project.urls]\n{more}", "utf-8")
        without = re.sub(r"^repository-code: .*\n", "", citation, flags=re.MULTILINE)
        (tmp_path / "CITATION.cff").write_text(without + cited, "utf-8")
        done = addresses_are_known(tmp_path)
        assert (done.returncode == 0) == is_known, done.stderr


def test_addresses_are_in_both_files_or_in_none():
    assert ("urls" in PROJECT) == ("repository-code" in yaml.safe_load(read(ROOT / "CITATION.cff")))


@pytest.mark.parametrize("name", ["bug", "question"])
def test_issues_ask_for_the_versions(name):
    form = yaml.safe_load(read(GITHUB / "ISSUE_TEMPLATE" / f"{name}.yml"))
    assert any("`rankscope list versions`" in str(field) for field in form["body"])


def test_the_paper_cites_what_its_bibliography_has():
    paper, entries = read(ROOT / "paper" / "paper.md"), read(ROOT / "paper" / "paper.bib")
    cited = set(re.findall(r"@([a-z]+\d{4}\w*)", paper))
    assert cited == set(re.findall(r"^@\w+\{(\w+),", entries, re.MULTILINE))
    for picture in re.findall(r"\]\((\w+\.png)\)", paper):
        assert (ROOT / "paper" / picture).stat().st_size > 10_000
    assert 800 <= len(paper.split()) <= 1_900  # about four pages
