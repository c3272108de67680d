"""The result of a run: what it says, where it began, and that every surface can show it."""

import math
from dataclasses import replace

import pytest
from tests.monitor import made_runs

from rankscope import results
from rankscope.monitor import run_result, write_report
from rankscope.monitor._history import Alarm, History, StepRecord
from rankscope.show import figures, report


def by_layer(step, *values, metric="rank/residual", **more):
    return StepRecord(step, {(metric, k): v for k, v in enumerate(values, 1)} | more)


def alarm(step, layer, value, **more):
    return Alarm("rank-collapse", step, layer, value, f"layer {layer}: relative residual", **more)


def fallen():
    """Layer 2 halves at step 20 and falls on; layer 1 halves at step 10 and recovers."""
    values = [(0.8, 0.6), (0.4, 0.6), (0.8, 0.3), (0.8, 0.1), (0.8, 0.05)]
    records = [by_layer(10 * number, *pair) for number, pair in enumerate(values)]
    return History({"layers": 2}, {}, records, [alarm(40, 2, 0.05, url="docs/alarms.md#x")])


def listing(result, title):
    (part,) = [part for part in result.parts if part.title == title]
    (only,) = part.listings
    return [dict(zip(only.columns, row, strict=True)) for row in only.rows]


def test_a_healthy_run_is_called_healthy():
    result = run_result(made_runs.healthy(25))
    assert result.headline == results.Headline("Healthy so far: 1,200 steps, no alarm", "holds")
    assert list(result.answers) == ["largest change", "run", "cost"]
    assert result.answers["run"] == "12 layers, 25 records from step 0 to step 1,200."
    assert result.answers["cost"].startswith("Recording took 11")
    assert [part.title for part in result.parts] == ["What changed first",
                                                     "Other metrics by layer and step"]  # fmt: skip


def test_when_and_where_it_began_comes_first():
    result = run_result(fallen())
    assert result.headline == results.Headline("Rank collapse in layer 2 at step 40", "collapse")
    assert result.answers["first alarm"] == "Layer 2: relative residual."
    assert result.answers["began"] == (
        "The relative residual of layer 2 had halved by step 20, 20 steps before."
    )
    (row,) = listing(result, "What changed first")
    assert (row["changed from step"], row["layer"], row["start"], row["now"]) == (20, 2, 0.6, 0.05)
    (row,) = listing(result, "Alarms")
    assert list(row.values())[:4] == [1, 40, 2, "Rank collapse"]
    assert row["ended"] == "no"


def test_more_alarms_are_counted_and_ended_ones_are_milder():
    history = fallen()
    history.alarms = [alarm(40, 2, 0.05), alarm(30, 2, 0.1, ended=40)]
    result = run_result(history)
    assert result.headline.text == "Rank collapse in layer 2 at step 30, and 1 more alarm"
    assert result.answers["then"] == "Rank collapse in layer 2 at step 40."
    history.alarms = [replace(alarm, ended=40) for alarm in history.alarms]
    assert run_result(history).headline.tone == "slow"
    assert run_result(history).headline.text.endswith("; all ended")


@pytest.mark.parametrize(("start", "now", "metric", "changed"), [
    (0.8, 0.41, "rank/residual", None),
    (0.8, 0.39, "rank/residual", 10),
    (8.0, 16.5, "attention/max_logit", 10),
    (0.02, 0.2, "rank/mean_cosine", None),  # a share: ten times as much, and yet little
    (0.02, 0.3, "rank/mean_cosine", 10),
    (0.5, math.nan, "rank/residual", 10),
    (0.5, 0.0, "rank/residual", 10),
    (0.0, 0.0, "rank/residual", None),
    (math.nan, 0.5, "rank/residual", None),
])  # fmt: skip
def test_what_counts_as_changed(start, now, metric, changed):
    records = [by_layer(0, start, metric=metric), by_layer(10, now, metric=metric)]
    (row,) = listing(run_result(History({"layers": 1}, {}, records)), "What changed first")
    assert row["changed from step"] == changed


def test_the_first_drawing_is_of_the_metric_of_the_first_alarm():
    history = made_runs.collapsing()
    assert [a.rule for a in history.alarms] == ["rank-collapse", "logit-growth"]
    first, curves, whole = run_result(history).drawings
    assert (first.figure, first.metric) == ("step_map", "rank/residual")
    assert curves.options["layers"] == [9, 10, 11, 12]
    assert whole.options["metrics"][0] == "loss"
    assert whole.options["metrics"][-1] == "rankscope/overhead_ms"
    history.alarms.reverse()
    history.alarms[0] = replace(history.alarms[0], step=0, value=history.baseline.get(
        "attention/max_logit", 3))  # fmt: skip
    assert run_result(history).drawings[0].metric == "attention/max_logit"
    broken = made_runs.broken()
    assert run_result(broken).drawings[0].metric == "attention/entropy"  # as its sentence says


def test_the_table_has_every_value_and_alarm_once():
    history = fallen()
    history.records.insert(1, by_layer(0, 0.7, 0.7))  # a second record of the first step
    table = run_result(history).table
    rows = {(step, layer, metric): value for step, layer, metric, value in table.rows()}
    assert len(rows) == table.height == 11
    assert rows[0, 1, "rank/residual"] == 0.8
    assert rows[40, 2, "alarm/rank-collapse"] == 0.05


def test_files_of_one_run_have_one_name():
    history = made_runs.healthy(30)
    early = replace(history, records=history.records[:4])
    assert run_result(early).stem == run_result(history).stem
    assert run_result(made_runs.healthy(30, seed=1)).stem != run_result(history).stem


def no_band():
    history = made_runs.healthy(5)
    history.predicted.clear()
    return history


RUNS = {
    "healthy": made_runs.healthy,
    "collapsing": made_runs.collapsing,
    "three records": lambda: made_runs.healthy(3, 6),
    "baseline": lambda: made_runs.healthy(1, 2),
    "nothing": lambda: History({"layers": 2}),
    "NaN": made_runs.broken,
    "one layer": lambda: made_runs.healthy(9, 1),
    "no band": no_band,
    "loss alone": lambda: History({"layers": 1}, {}, [
        StepRecord(0, {("loss", None): 2.0}), StepRecord(1, {("loss", None): 1.0})]),
    "own metric": lambda: History({"layers": 1}, {}, [by_layer(0, 1.0, metric="mine")]),
    "all NaN": lambda: History({"layers": 1}, {}, [by_layer(k, math.nan) for k in range(3)]),
}  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
def test_every_surface_shows_every_run(name, tmp_path, capsys):
    result = run_result(RUNS[name]())
    for drawing in result.all_drawings:
        spec = figures.printable(figures.draw(drawing, result).to_dict())
        assert figures.svg(spec).startswith("<svg")
        assert figures.description(drawing, result)
    report.show(result, full=True)
    assert result.headline.text in capsys.readouterr().out
    assert report.to_json(result)["headline"]["text"] == result.headline.text
    read = results.read(results.write(result, tmp_path / "run.parquet"))
    assert read.sentences == result.sentences
    assert read.drawings == result.drawings


def test_a_page_is_one_file_that_works_offline(tmp_path):
    path = write_report(made_runs.collapsing(30), str(tmp_path / "page.html"))
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]
    page = path.read_text(encoding="utf-8")
    assert "Rank collapse in layer" in page
    assert "default-src 'none'" in page
    assert "docs/alarms.md" in page


def test_a_large_run_makes_a_page_of_a_few_megabytes():
    history = made_runs.healthy(600, 48)
    result = run_result(history)
    first = figures.draw(result.drawings[0], result).to_dict()
    cells = max(map(len, first["datasets"].values()))
    assert 48 * 90 <= cells <= 48 * 105
