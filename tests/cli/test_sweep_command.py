"""``rankscope sweep``: run, stopped, gone on with, told about, made tables and charts of."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest

GRID = """
heads = 1
width = 8
length = 6
samples = 2
variant = "{variant_name}"
metrics = ["relative_residual", "mean_cosine"]

[axes]
variant_name = ["SAN", "transformer"]
layers = [1, 2]
seed = [0, 1]

[quick.axes]
seed = [0]
"""


@pytest.fixture
def grid(tmp_path: Path) -> str:
    (tmp_path / "grid.toml").write_text(GRID)
    return "grid.toml"


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a sweep that is done."""
    from rankscope import sweep

    place = tmp_path_factory.mktemp("sweep")
    (place / "grid.toml").write_text(GRID)
    assert sweep(place / "grid.toml", place / "swept", engine="inline").done == 8
    return str(place / "swept")


def test_a_dry_run_says_what_would_be_run_and_runs_nothing(rankscope, grid, tmp_path) -> None:
    told = rankscope("sweep", grid, "--dry-run").stdout
    assert "8, over variant_name (2) × layers (2) × seed (2)" in told
    assert "trace (variant_name=SAN, layers=1, seed=0)" in told
    assert "rankscope-output/grid" in told
    found = json.loads(rankscope("sweep", grid, "--dry-run", "--quick", "--json").stdout)
    assert (found["runs"], found["merged"]) == (4, 0)
    assert 0 < found["longest"] <= found["seconds"]
    assert not (tmp_path / "rankscope-output").exists()


def test_a_dry_run_is_about_what_is_left(rankscope, grid) -> None:
    rankscope("sweep", grid, "--quick", "--engine", "inline", "--output", "out")
    told = rankscope("sweep", grid, "--dry-run", "--output", "out").stdout
    assert "4; the estimates below are for the rest" in told
    assert "trace (variant_name=SAN, layers=1, seed=0)" not in told
    found = json.loads(
        rankscope("sweep", grid, "--quick", "--dry-run", "--output", "out", "--json").stdout
    )
    assert (found["runs"], found["done"], found["first"], found["seconds"]) == (4, 4, [], 0)


def test_a_dry_run_makes_no_figure_up_where_nothing_is_known(rankscope, tmp_path) -> None:
    """A claim has taken so long at its usual sizes; of other sizes nothing is known."""
    (tmp_path / "claim.toml").write_text('experiment = "D2"\n[axes]\nseed = [0, 1]\n')
    told = rankscope("sweep", "claim.toml", "--dry-run").stdout
    assert "of work, " in told
    assert "memory" not in told
    (tmp_path / "claim.toml").write_text('experiment = "D2"\nlayers = 3\n[axes]\nseed = [0, 1]\n')
    told = rankscope("sweep", "claim.toml", "--dry-run").stdout
    assert "no estimate for 2 runs" in told
    assert "second" not in told
    assert "memory" not in told


def test_a_second_start_runs_only_what_is_missing(rankscope, grid) -> None:
    quick = rankscope("sweep", grid, "--quick", "--engine", "inline", "--output", "out")
    assert "4 runs: 4 done, in" in quick.stdout
    assert quick.returncode == 0
    whole = rankscope("sweep", "run", grid, "--engine", "inline", "--output", "out", "--json")
    found = json.loads(whole.stdout)
    assert (found["total"], found["done"], found["before"], found["failed"]) == (8, 8, 4, 0)
    told = rankscope("sweep", "status", "out").stdout
    assert "8 runs: 8 done, 0 failed, 0 left" in told
    assert "not running" in told
    status = json.loads(rankscope("sweep", "status", "out", "--json").stdout)
    assert (status["total"], status["done"], status["left"]) == (8, 8, 0)
    assert status["holder"] is None


def test_what_fails_is_told_and_does_not_stop_the_others(rankscope, grid) -> None:
    from rankscope.experiments.catalogue import Entry

    ran = Entry.run

    def fail_sometimes(self, config, *rest, **more):
        if config.subject.network.spec.layers == 2:
            raise RuntimeError("out of luck")
        return ran(self, config, *rest, **more)

    arguments = ("sweep", grid, "--quick", "--engine", "inline", "--output", "out")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Entry, "run", fail_sometimes)
        got = rankscope(*arguments)
    assert got.returncode == 2
    assert "4 runs: 2 done, 2 failed" in got.stdout
    assert "layers=2, seed=0) failed: RuntimeError: out of luck." in got.stderr
    assert "the same command with --retry-failed" in got.stdout
    assert "2 failed" in rankscope("sweep", "status", "out").stdout
    assert rankscope(*arguments).returncode == 2  # they are not tried again unless asked for
    assert "4 done (2 earlier)" in rankscope(*arguments, "--retry-failed").stdout


def test_a_grid_that_is_wrong_is_refused_before_anything_runs(refuses, grid, tmp_path) -> None:
    (tmp_path / "bad.toml").write_text(GRID.replace("layers = [1, 2]", "layers = [1, -2]"))
    assert "bad.toml: axes.layers[1]" in refuses("sweep", "bad.toml", "--engine", "inline")
    assert "missing.toml" in refuses("sweep", "missing.toml")
    assert "has no option address" in refuses("sweep", grid, "--address", "auto")
    assert "has no option workers" in refuses("sweep", grid, "--engine", "inline", "--workers", "2")
    assert not (tmp_path / "rankscope-output").exists()


def test_medians_are_printed_and_written(rankscope, swept, tmp_path) -> None:
    told = rankscope("sweep", "table", swept).stdout
    assert "of 8 runs" in told
    assert "SAN, transformer" in told
    assert "relative_residual, mean_cosine" in told
    chosen = ("--x", "depth", "--y", "relative_residual", "--color", "variant_name")
    shown = rankscope("sweep", "table", swept, *chosen, "--output", "medians.csv").stdout
    assert "layers \\ variant_name" in shown
    medians = pl.read_csv(tmp_path / "medians.csv")
    rows = rankscope("sweep", "table", swept, *chosen, "--json").stdout
    assert [row["median"] for row in json.loads(rows)["rows"]] == medians["median"].to_list()
    assert medians["count"].to_list() == [4] * 4  # two seeds, two samples
    # The oracle: the whole table, of each run its last layer.
    rankscope("sweep", "table", swept, "--output", "all.parquet")
    whole = pl.read_parquet(tmp_path / "all.parquet")
    last = whole.filter(
        pl.col("layer") == pl.col("layers"),
        metric="relative_residual",
        layers=2,
        variant_name="SAN",
    )
    (median,) = medians.filter(layers=2, variant_name="SAN")["median"]
    assert median == pytest.approx(last["value"].median())


def test_the_layer_the_threshold_and_what_is_pooled_can_be_chosen(rankscope, swept) -> None:
    rankscope("sweep", "table", swept, "--output", "all.parquet")
    whole = pl.read_parquet("all.parquet").filter(metric="mean_cosine")
    chosen = ("sweep", "table", swept, "--y", "mean_cosine", "--json", "--x", "variant_name")

    def medians(*more: str) -> list[float]:
        rows = json.loads(rankscope(*chosen, *more).stdout)["rows"]
        return [row["median"] for row in rows]

    first = whole.filter(layer=0, variant_name="SAN")["value"].median()
    assert medians("--pool", "seed,layers", "--layer", "0")[0] == pytest.approx(first)
    every = ("--color", "layers", "--below")
    assert medians(*every, str(whole["value"].max() + 1)) == [0, 0, 0, 0]
    assert medians(*every, str(whole["value"].min() - 1)) == [None] * 4


def test_only_keeps_some_values(rankscope, refuses, swept) -> None:
    chosen = ("sweep", "table", swept, "--x", "layer", "--y", "mean_cosine", "--json")
    kept = rankscope(*chosen, "--only", "variant_name=san", "--only", "depth=2").stdout
    assert [row["layer"] for row in json.loads(kept)["rows"]] == [0, 1, 2]
    assert "variant_name also varies" in refuses(*chosen, "--only", "layers=2")
    assert "values of layers: 1, 2" in refuses(*chosen, "--only", "layers=3")
    assert "expected a number" in refuses(*chosen, "--only", "layers=deep")
    assert "expected AXIS=VALUE" in refuses(*chosen, "--only", "colour=2")


def test_charts_are_drawn(rankscope, swept, tmp_path) -> None:
    lines = ("--x", "depth", "--y", "relative_residual", "--color", "variant_name")
    got = rankscope("sweep", "table", swept, *lines, "--output", "charts/lines.png")
    assert "charts/lines.png" in got.stdout
    assert (tmp_path / "charts/lines.png").read_bytes().startswith(b"\x89PNG")
    maps = ("--map", "depth,variant_name", "--y", "mean_cosine", "--below", "0.9")
    rankscope("sweep", "table", swept, *maps, "--output", "map.html")
    page = (tmp_path / "map.html").read_text(encoding="utf-8")
    assert "First layer with mean cosine below 0.9" in page
    assert "Medians over samples, seed" in page


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--x", "layers"], "choose a metric with --y; available: relative_residual, mean_cosine"),
        (["--x", "layers", "--map", "layers,seed"], "give one of them"),
        (["--map", "layers"], "does not name two axes"),
        (["--x", "layers", "--y", "mean_cosine", "--facet", "layers"], "used only once"),
        (["--x", "depth", "--y", "mean_cosine", "--color", "layers"], "used only once"),
        (["--color", "mask"], "--color needs --x or --map"),
        (["--map", "layers,variant_name", "--color", "seed"], "--map does not take --color"),
        (["--x", "layers", "--boundary", "1"], "--boundary needs --map"),
        (["--output", "x.pdf"], "expected the suffix .html, .svg, .png, .parquet, .csv"),
        (["--output", "x.png"], "give its axes with --x or --map"),
        (["--x", "width", "--y", "mean_cosine"], "no column 'width'"),
        (["--x", "layers", "--y", "cosine"], "no metric cosine; available: relative_residual"),
        (["--y", "cosine"], "no metric cosine; available: relative_residual"),
    ],
)
def test_what_cannot_be_drawn_is_refused(refuses, swept, arguments, words) -> None:
    assert words in refuses("sweep", "table", swept, *arguments)


def test_runs_that_no_chart_shows_are_told(rankscope, tmp_path) -> None:
    metrics = """metrics = "{name}"\n[axes]\nname = ["relative_residual", "mean_cosine"]\n"""
    (tmp_path / "grid.toml").write_text("layers = 1\nheads = 1\nwidth = 8\nlength = 4\n" + metrics)
    rankscope("sweep", "grid.toml", "--engine", "inline", "--output", "out")
    got = rankscope("sweep", "table", "out", "--x", "name", "--y", "mean_cosine")
    assert "1 of 2 runs have no mean_cosine and are excluded." in got.stderr
    assert "left out" not in rankscope("sweep", "table", "out").stderr


def test_every_file_that_was_set_aside_is_told(rankscope, grid, tmp_path) -> None:
    arguments = ("sweep", grid, "--quick", "--engine", "inline", "--output", "out")
    rankscope(*arguments)
    damaged = sorted((tmp_path / "out/results").iterdir())[:2]
    for path in damaged:
        path.write_bytes(path.read_bytes()[:-8])
    told = rankscope(*arguments).stdout
    assert "4 done (2 earlier)" in told
    assert all(path.name in told for path in damaged)


def test_folders_that_are_no_sweeps_are_refused(refuses, tmp_path) -> None:
    (tmp_path / "empty").mkdir()
    for command in ("status", "table"):
        assert "empty" in refuses("sweep", command, "empty")


def test_help_and_status_answer_without_torch(swept) -> None:
    code = (
        "import sys; from rankscope.cli import main\n"
        "for words in (['--help'], ['status', sys.argv[1]]):\n"
        "    sys.argv = ['rankscope', 'sweep', *words]\n"
        "    main()\n"
        "    heavy = {'torch', 'ray', 'altair'} & set(sys.modules)\n"
        "    assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code, swept], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "8 done" in done.stdout


def test_an_interruption_keeps_what_is_done_and_says_so(tmp_path) -> None:
    (tmp_path / "grid.toml").write_text(
        GRID.replace("seed = [0, 1]", "seed = {from = 0, to = 249}")
    )
    command = [sys.executable, "-m", "rankscope", "sweep", "grid.toml", "--engine", "inline"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    results = tmp_path / "rankscope-output/grid/results"

    def count() -> int:  # less what is being written
        return sum(
            re.fullmatch(r"[0-9a-f]+\.parquet", each.name) is not None for each in results.glob("*")
        )

    try:
        until = time.monotonic() + 120
        while count() < 3 and process.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130
    kept = count()
    assert kept >= 3
    told = int(said.partition(" of 1,000 runs are saved")[0].rpartition(" ")[2])
    assert kept - 1 <= told <= kept  # one may have been written, and not yet counted
    assert "run the same command again to resume" in said
    assert "Traceback" not in said
