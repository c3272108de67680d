"""The screen of a run: it fits, and says what the history has."""

import math
from dataclasses import replace

import pytest
from tests.monitor import made_runs

from rankscope.cli.run_screen import BLOCKS, PLAIN_BLOCKS, screen
from rankscope.errors import InputError
from rankscope.monitor._history import Alarm, History, StepRecord


def lines_of(history, metric="rank/residual", **more):
    return screen(history, metric, **more).plain.split("\n")


def small(*courses, **facts):
    """Courses of layers 1, 2, …; None where a layer was not measured."""
    records = [
        StepRecord(k, {("rank/residual", n): v for n, v in enumerate(values, 1) if v is not None})
        for k, values in enumerate(zip(*courses, strict=True))
    ]
    return History({"layers": len(courses), **facts}, {}, records)


def test_sparklines_have_one_logarithmic_scale():
    lines = lines_of(small([1.0, 0.1, 0.01], [1.0, 1.0, 1.0]))
    assert lines[0] == "step 2, 3 records"
    assert lines[1] == "No alarm"
    assert lines[3] == "Relative residual (rank/residual), ▁ 0.01 to █ 1, log"
    assert lines[4].split() == ["L1", "█▅▁", "1", ">", "0.01"]
    assert lines[5].split() == ["L2", "███", "1", ">", "1"]


def test_what_is_not_finite_or_not_measured_is_shown():
    lines = lines_of(small([1.0, math.nan, math.inf, 0.5], [1.0, None, 0.2, 0.0]))
    assert lines[3].endswith(", log, x not finite")
    assert lines[4].split()[1] == "█xx▅"  # 0.5 between 0.2 and 1
    assert lines[5][3:7] == "█ ▁▁"


def test_many_records_share_columns_and_a_lost_one_stays_visible():
    values = [1.0] * 500
    values[123] = math.nan
    (line,) = [line for line in lines_of(small(values), width=60) if line.startswith("L1")]
    spark = line.split()[1]
    assert len(spark) < 40
    assert spark.count("x") == 1


def test_alarms_are_told_with_their_page():
    history = small([1.0, 0.5], [1.0, 0.01])
    history.alarms = [
        Alarm("stream-spike", 0, 1, 0.5, "layer 1: large", "docs/alarms.md#stream-spike", 1),
        Alarm("rank-collapse", 1, 2, 0.01, "layer 2: small\x1b[2J", "docs/alarms.md#rank-collapse"),
    ]
    lines = lines_of(history, title="run\x1b[2J")
    assert lines[0].startswith("run\ufffd[2J: step 1")
    assert lines[1] == "1 open alarm, 1 ended"
    assert lines[2] == "rank-collapse, step 1: layer 2: small\ufffd[2J"
    assert lines[3] == "  docs/alarms.md#rank-collapse"
    assert lines[4] == "stream-spike, step 0 (ended at step 1): layer 1: large"
    history.alarms = [replace(alarm, ended=1) for alarm in history.alarms]
    assert lines_of(history)[1] == "No open alarm, 2 ended"


@pytest.mark.parametrize("width", [60, 80, 120, 200])
@pytest.mark.parametrize("height", [24, 40, 80, None])
def test_it_fits_any_terminal(width, height):
    history = made_runs.collapsing(120, 48, first=20)
    lines = lines_of(history, width=width, height=height, title="a run of a long name " * 3)
    assert max(map(len, lines)) <= width
    assert height is None or len(lines) <= height
    layers = [int(line[1:3]) for line in lines if line.startswith("L")]
    assert layers == sorted(layers)
    assert {1, 3, 48} <= set(layers)  # the first, the last and those of alarms
    assert len(layers) == 48 if height is None else len(layers) >= 4
    alarmed = {alarm.layer for alarm in history.alarms}
    assert alarmed <= set(layers)


def test_the_main_metrics_have_their_first_and_latest_values():
    history = made_runs.healthy(5, 2)
    history.records[-1].values["loss", None] = math.nan
    rows = {line.split()[0]: line for line in lines_of(history) if "/" in line or "loss" in line}
    first, last = history.baseline.at("rank/residual"), history.last.at("rank/residual")
    assert f"{min(first.values()):.3g}" in rows["rank/residual"]
    assert f"{max(last.values()):.3g}" in rows["rank/residual"]
    assert rows["loss"].endswith("not finite")


def test_plain_terminals_have_plain_blocks():
    text = screen(small([1.0, 0.1, 0.01]), "rank/residual", blocks=PLAIN_BLOCKS).plain
    assert not set(BLOCKS) & set(text)
    assert "@+_" in text


@pytest.mark.parametrize("metric", ["nothing", "loss", "mine"])
def test_metrics_that_a_run_lacks_are_refused(metric):
    history = made_runs.healthy(2, 2)
    history.last.values["mine", 1] = 1.0
    with pytest.raises(InputError, match=f"no metric '{metric}' of layers; it has rank/residual, "):
        screen(history, metric)
