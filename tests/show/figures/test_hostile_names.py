"""Names that would break out of Vega's expressions: every chart is drawn all the same."""

import polars as pl
import pytest

from rankscope import tables
from rankscope.errors import InputError, KindError
from rankscope.show import figures
from rankscope.show.figures import _chart

HOSTILE = ["a\\", "a\nb", "a\u2028b", "a\u2029\rb", "a\0b", 'a"b\\"']
SWEPT = {"metric": ["residual"] * 4, "value": [1.0, 0.5, 0.9, 0.4], "layer": [1] * 4}
CELLS = {"layer": [1, 2, 1, 2], "setting": [1.0, 1.0, 2.0, 2.0], "sample": [0] * 4}
PAIRS = {"layer": [0] * 4, "token": [0, 0, 1, 1], "other_token": [0, 1, 0, 1]}


def _swept(name):
    table = tables.frame(SWEPT).with_columns(run=pl.Series(["a", "b", "c", "d"]))
    return table.with_columns(
        pl.Series(name, [1.0, 2.0, 1.0, 2.0]), pl.Series("mask", [name, name, "full", "full"])
    )


def _phases(name):
    more = {"parameter": [name] * 4, "model": [name] * 4}
    return tables.summary(tables.frame({**SWEPT, **CELLS, **more}))


CHARTS = {
    "by_axis": lambda s: figures.by_axis(_swept(s), metric="residual", x=s, color="mask"),
    "words": lambda s: figures.by_axis(_swept(s), metric="residual", x="mask", color=s),
    "axis_map": lambda s: figures.axis_map(_swept(s), metric="residual", x=s, y="mask"),
    "phase_map": lambda s: figures.phase_map(_phases(s), metric="residual", marks=s),
    "by_setting": lambda s: figures.by_setting(_phases(s).filter(layer=2), metric="residual"),
    "token_map": lambda s: figures.token_map(
        tables.frame({**SWEPT, **PAIRS}), metric="residual", labels=[s, "cat"]
    ),
}


def _marks(chart, path):
    drawn = figures.save(chart, path).read_text("utf-8")
    return drawn.count("<path") + drawn.count("<rect")


@pytest.mark.parametrize("kind", CHARTS)
def test_hostile_names_leave_no_chart_blank(kind, tmp_path):
    path = tmp_path / "chart.svg"
    plain = _marks(CHARTS[kind]("x"), path)
    for name in HOSTILE:
        assert _marks(CHARTS[kind](name), path) >= 0.9 * plain, name


def test_a_chart_that_holds_itself_is_refused(tmp_path):
    spec = {"mark": "point"}
    spec["layer"] = [spec]
    with pytest.raises(KindError, match="holds itself"):
        figures.save(spec, tmp_path / "chart.svg")


def test_what_cannot_be_drawn_is_one_sentence(tmp_path):
    with pytest.raises(InputError, match="cannot be drawn from what it holds"):
        figures.save({"mark": "nonsense"}, tmp_path / "chart.svg")


def test_little_address_space_is_one_sentence(tmp_path, monkeypatch):
    _chart.check_address_space.cache_clear()
    monkeypatch.setattr(_chart, "free_address_space", lambda: 20 * 2**30)
    with pytest.raises(InputError, match=r"66 GiB of address space.*ulimit -v unlimited"):
        figures.save({"mark": "point"}, tmp_path / "chart.svg")
    _chart.check_address_space.cache_clear()


@pytest.mark.parametrize("column", ["token", "layer", "value"])
def test_columns_of_the_wrong_kind_are_named(column):
    table = tables.frame({**SWEPT, **PAIRS}).with_columns(pl.lit("a").alias(column))
    with pytest.raises(KindError, match=f"the column '{column}' holds String, expected .*numbers"):
        figures.token_map(table, metric="residual")
    with pytest.raises(KindError, match=f"the column '{column}' holds String"):
        tables.summary(table)


def test_positions_without_end_are_refused():
    table = tables.frame({**SWEPT, **PAIRS, "token": [0, 0, 2**62, 1]})
    with pytest.raises(InputError, match="a map has 100,000 at most"):
        figures.token_map(table, metric="residual")
