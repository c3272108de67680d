"""A study as a page, in a terminal and as files."""

import io
import json
import math
from dataclasses import replace

import polars as pl
import pytest
from rich.console import Console

from rankscope import figures, tables
from rankscope.cli import deliver
from rankscope.errors import InputError
from rankscope.experiments.study import Drawing, Study
from rankscope.report import study_charts, study_page
from rankscope.report.terminal import grids, show_study, thinned

INF = math.inf
DEEP = "log10_relative_residual"


@pytest.fixture(scope="module")
def study():
    """Two models with two masks by layer, and a sweep."""
    rows = [
        (model, mask, layer, None, None, DEEP, slope * (3**layer - 1) / 2 if layer < 9 else -INF)
        for model in ("BERT", "ViT")
        for mask, slope in (("full", -1.0), ("causal", -0.001))
        for layer in range(11)
    ]
    rows += [
        (None, mask, None, "window", setting, "layers_to", 7.0 * setting)
        for mask in ("full", "causal")
        for setting in (1.0, 2.5)
    ]
    names = ("model", "variant", "layer", "parameter", "setting", "metric", "value")
    table = tables.frame(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))
    return Study(
        name="masks",
        title="How fast do masks collapse?",
        question="Which masks collapse, and how fast?",
        sentences=("Full attention **triples** its exponent.", "Causal [a] does not."),
        table=table,
        summary=tables.summary(table),
        provenance={"seed": 3, "lowest": -INF, "masks": {"n": 2}},
        drawings=(
            Drawing("by_depth", "By mask.", DEEP, {"lowest": -300.0}),
            Drawing(
                "by_depth", "One of them.", DEEP, {}, {"model": ("ViT",), "variant": ("full",)}
            ),
            Drawing("by_setting", "What was varied.", "layers_to"),
        ),
    )


def printed(summary, metrics, width=80):
    console = Console(file=io.StringIO(), width=width)
    show_study(summary, metrics, console)
    return console.file.getvalue()


def test_the_page_has_question_sentences_charts_and_provenance(study):
    page = study_page(study)
    assert (page.title, page.lead) == (study.title, study.question)
    first, *drawn = page.sections[:4]
    assert first.text == "Full attention **triples** its exponent.\n\nCausal [a] does not."
    assert [section.title for section in drawn] == [
        "Relative residual against depth",
        "Relative residual against depth: ViT, full",
        "Layers needed against what was varied",
    ]
    assert [section.text.split("\n\n")[0] for section in drawn] == [
        drawing.caption for drawing in study.drawings
    ]
    assert all(section.chart is not None for section in drawn)
    assert page.provenance == {"seed": "3", "lowest": "-inf", "masks": "n 2"}


def test_the_page_tells_each_metric_in_short(study):
    by_layer, by_window = study_page(study).sections[4:]
    assert by_layer.title == "Relative residual by layer, in figures"
    assert by_layer.table.columns[0] == "curve"
    assert by_layer.table.columns[-1] == "layer 10"
    assert by_layer.table["curve"].to_list()[:2] == ["BERT · full", "BERT · causal"]
    assert by_layer.table["layer 1"].to_list()[:2] == ["0.1", "0.998"]
    assert by_layer.table["layer 10"].to_list() == ["exactly 0"] * 4
    assert by_window.table.rows() == [("full", "7", "17.5"), ("causal", "7", "17.5")]
    assert by_window.table.columns == ["curve", "window 1", "window 2.5"]


def test_charts_are_those_asked_for_with_their_options(study):
    cut, one, sweep = study_charts(study)
    assert cut.to_dict(validate=False) == figures.by_depth(
        study.summary, metric=DEEP, lowest=-300.0
    ).to_dict(validate=False)
    assert sweep.to_dict(validate=False) == figures.by_setting(
        study.summary, metric="layers_to"
    ).to_dict(validate=False)
    spec = one.to_dict(validate=False)
    assert len(spec["concat"]) == 1
    (rows,) = (rows for rows in spec["datasets"].values() if "median" in rows[0] and len(rows) > 2)
    assert {(row["model"], row["variant"]) for row in rows} == {("ViT", "full")}


@pytest.mark.parametrize("figure", ["by_layer", "by_model"])
def test_other_figures_can_be_asked_for(study, figure):
    """Rows of other metrics, which have no layer, are no hindrance."""
    kept = ["BERT", "ViT"] if figure == "by_model" else ["ViT"]
    rows = study.summary.filter(pl.col("model").is_null() | pl.col("model").is_in(kept))
    asked = replace(study, summary=rows, drawings=(Drawing(figure, "", DEEP),))
    (chart,) = study_charts(asked)
    titles = [panel["title"]["text"] for panel in chart.to_dict(validate=False)["concat"]]
    assert titles == (["BERT", "ViT"] if figure == "by_model" else ["Relative residual"])


def test_distributions_are_drawn_from_the_table(study):
    rows = tables.frame(
        {
            "model": ["a", "a", "b"],
            "length": [0, 1, 0],
            "metric": ["proportion"] * 3,
            "value": [0.25, 0.75, 1.0],
        }
    )
    drawing = Drawing("length_distributions", "", "proportion", {}, {"model": ("a",)})
    (chart,) = study_charts(replace(study, table=rows, drawings=(drawing,)))
    wanted = figures.length_distributions(rows.filter(pl.col("model") == "a"))
    assert chart.to_dict(validate=False) == wanted.to_dict(validate=False)


def test_a_drawing_that_cannot_be_drawn_is_refused(study):
    with pytest.raises(InputError, match="keeps some of 'mask'; the table has model, variant"):
        study_charts(
            replace(study, drawings=(Drawing("by_depth", "", DEEP, {}, {"mask": ("a",)}),))
        )
    with pytest.raises(InputError, match="'by_moon'; choose one of by_depth, by_setting"):
        study_charts(replace(study, drawings=(Drawing("by_moon", "", DEEP),)))


def test_a_terminal_shows_medians_by_layer_a_table_for_each_model(study):
    text = printed(study.summary, [DEEP])
    lines = [line.split() for line in text.splitlines()]
    assert "Relative residual ‖res(X)‖ / ‖X‖, BERT, median over the samples" in text
    assert ", ViT, median" in text
    assert lines.count(["layer", "full", "causal"]) == 2
    assert lines.count(["8", "10^−3,280.0", "10^−3.28"]) == 2
    assert lines.count(["10", "exactly", "0", "exactly", "0"]) == 2


def test_a_terminal_shows_settings_under_their_own_name(study):
    lines = [line.split() for line in printed(study.summary, ["layers_to"]).splitlines()]
    assert lines[0] == ["Layers", "needed,", "median", "over", "the", "samples"]
    assert lines[1:4] == [["window", "full", "causal"], ["1", "7", "7"], ["2.5", "17.5", "17.5"]]


def test_a_terminal_thins_layers_and_breaks_many_curves(study):
    rows = [(f"a mask named [m{k}] here", layer) for k in range(6) for layer in range(200)]
    table = tables.frame(
        {
            "variant": [name for name, _ in rows],
            "layer": [layer for _, layer in rows],
            "metric": [DEEP] * len(rows),
            "value": [-40_000.0 * layer for _, layer in rows],
        }
    )
    text = printed(tables.summary(table), [DEEP])
    assert text.count("layer") == 2  # four curves, then two
    assert text.count("10^−7,960,000.0") == 6  # the last layer, in each
    assert text.count("[m5]") == 1  # names are no markup
    assert all(len(line) <= 80 for line in text.splitlines())
    (grid,) = grids(tables.summary(table), DEEP, apart=("model",), most=16)
    assert grid.places == thinned(range(200), 16)
    assert (len(grid.places), grid.places[:3], grid.places[-1]) == (16, [0, 1, 2], 199)
    assert study.shown == ()


def test_layers_under_several_settings_are_curves():
    table = tables.frame(
        {
            "layer": [0, 1, 0, 1],
            "parameter": ["scale"] * 4,
            "setting": [0.5, 0.5, 2.0, 2.0],
            "metric": ["rank"] * 4,
            "value": [4.0, math.nan, 3.0, 1.0],
        }
    )
    (grid,) = grids(tables.summary(table), "rank", apart=("model", "parameter"), most=9)
    assert (grid.place, grid.places, grid.curves) == ("layer", [0, 1], ["scale 0.5", "scale 2"])
    assert [grid.cells[place, "scale 0.5"] for place in (0, 1)] == ["4", "–"]
    assert [grid.cells[place, "scale 2"] for place in (0, 1)] == ["3", "1"]


def test_a_metric_with_neither_layer_nor_setting_is_one_row():
    table = tables.frame({"variant": ["a"], "metric": ["rank"], "value": [4.0]})
    assert printed(tables.summary(table), ["rank"]).split()[-2:] == ["a", "4"]


def test_delivered_as_files_and_words(study, tmp_path, capsys):
    deliver.study(replace(study, drawings=study.drawings[2:]), folder=tmp_path, as_json=False)
    told = capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "masks.html",
        "masks.parquet",
        "masks.png",
    ]
    table, provenance = tables.read(tmp_path / "masks.parquet")
    assert table.equals(study.table)
    assert provenance == study.provenance
    for words in (study.title, study.question, "Causal [a] does not.", "triples its", "masks.png"):
        assert words in told
    assert "**" not in told


def test_delivered_as_json_infinities_are_words_and_nan_is_null(study, capsys):
    rows = study.summary.with_columns(
        mean=pl.when(pl.col("layer") == 1).then(math.nan).otherwise(pl.col("mean"))
    )
    deliver.study(replace(study, summary=rows), folder=None, as_json=True)
    told = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert set(told) == {
        "name", "title", "question", "sentences", "provenance", "summary", "files",
    }  # fmt: skip
    assert told["sentences"] == list(study.sentences)
    assert told["provenance"] == {"seed": 3, "lowest": "-inf", "masks": {"n": 2}}
    assert (told["name"], told["files"]) == ("masks", {})
    by_layer = {row["layer"]: row for row in told["summary"] if row["model"] == "BERT"}
    assert by_layer[10]["median"] == "-inf"
    assert float(by_layer[10]["median"]) == -INF
    assert by_layer[1]["mean"] is None
    assert by_layer[1]["median"] == pytest.approx(-0.001)


def test_a_study_without_drawings_has_no_chart(study, tmp_path, capsys):
    deliver.study(replace(study, drawings=()), folder=tmp_path, as_json=True)
    assert set(json.loads(capsys.readouterr().out)["files"]) == {"table", "report"}
