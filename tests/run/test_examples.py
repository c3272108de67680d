"""The example grids: each is planned in both forms, and a small run of each is carried out."""

import re
import shlex
from pathlib import Path

import pytest

from rankscope.metric_catalogue import METRICS
from rankscope.run import estimate, execute, plan, read_grid

DOCS = Path(__file__).parents[2] / "docs" / "sweeps.md"
FOLDER = Path(__file__).parents[2] / "examples" / "sweeps"
EXAMPLES = sorted(FOLDER.glob("*.toml"))
MINUTES = 2


def test_there_is_one_for_each_question():
    assert [path.stem for path in EXAMPLES] == [
        "heads_depth",
        "init_depth",
        "radius_depth",
        "skip_depth",
        "width_depth",
    ]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_run_is_checked_and_the_smallest_carried_out(path):
    whole, quick = plan(read_grid(path)), plan(read_grid(path, quick=True))
    assert len(quick.runs) < len(whole.runs)
    assert (whole.merged, quick.merged) == (0, 0)
    assert estimate(quick.runs).seconds < 60 * MINUTES
    table = execute(quick.runs[0])
    asked = read_grid(path).fields["metrics"]
    assert table["metric"].unique(maintain_order=True).to_list() == asked
    assert set(asked) <= set(METRICS)
    assert table["value"].is_finite().all()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_it_opens_with_what_one_sees_and_how(path):
    """The commands it gives are about its own axes and metrics."""
    lines = path.read_text().splitlines()
    opening = lines[: lines.index("")]
    assert len(opening) > 6
    assert all(line.startswith("#") for line in opening)
    said = " ".join(line.lstrip("# ").rstrip("\\") for line in opening)
    grid = read_grid(path)
    words = shlex.split(re.search(r"rankscope sweep table .*", said)[0])
    axes = [
        words[words.index(option) + 1]
        for option in ("--x", "--map", "--color", "--facet")
        if option in words
    ]
    named = {name for each in axes for name in each.split(",")}
    assert named <= {*grid.axis_names, "depth"}
    assert words[words.index("--y") + 1] in grid.fields["metrics"]
    assert f"rankscope sweep {path.name} --quick" in said


def test_the_documentation_runs_as_it_stands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = DOCS.read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    names = {}
    exec(compile(code, str(DOCS), "exec"), names)
    assert (names["swept"].done, names["swept"].total) == (6, 6)
    assert (tmp_path / "depths.html").is_file()
    (grid,) = re.findall(r"```toml\n(.*?)```", text, flags=re.DOTALL)
    (tmp_path / "grid.toml").write_text(grid, encoding="utf-8")
    assert len(plan(read_grid("grid.toml")).runs) == 4 * 3 * 4 * 2 * 10
    assert len(plan(read_grid("grid.toml", quick=True)).runs) == 4 * 3 * 4 * 2


def test_the_documentation_tells_of_every_example_and_option():
    text = DOCS.read_text(encoding="utf-8")
    for path in EXAMPLES:
        assert f"`{path.name}`" in text
    for option in ("x", "y", "color", "facet", "map", "layer", "below", "boundary", "only", "pool"):
        assert f"--{option} " in text
