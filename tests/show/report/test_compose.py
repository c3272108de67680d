"""Every kind of result as a page."""

from dataclasses import replace

import polars as pl
import pytest

from rankscope.results import Drawing
from rankscope.show.figures import draw
from rankscope.show.report import Table, _page, page, write_html

from .conftest import DEEP


def charts_of(report):
    return [chart.figure for chart in report.charts]


def tables_of(report):
    return [
        block for section in report.sections for block in section.blocks if isinstance(block, Table)
    ]


def test_the_page_has_question_sentences_charts_and_provenance(study):
    shown = page(study)
    assert (shown.title, shown.lead) == (study.question, study.title)
    assert shown.about == study.title
    first, *drawn = shown.sections[:4]
    assert first.title == "Results"
    assert first.text == (
        "- Full attention **triples** its power, to 10^-3,280.\n- Causal [a] does not."
    )
    for section, drawing in zip(drawn, study.drawings, strict=True):
        (chart,) = section.charts
        assert chart.text.startswith(drawing.caption)
        assert chart.title == section.title
    # How to read it, where it is first needed.
    assert ["samples" in chart.text for chart in shown.charts] == [True, False, True]
    assert len({section.title for section in drawn}) == 3
    assert shown.provenance == {"seed": "3", "lowest": "-inf", "masks": "n 2"}
    assert shown.judgements == {}
    assert (shown.headline, shown.answer, shown.warnings) == (None, "", ())
    assert shown.overline == ""


def test_the_page_tells_each_metric_in_short(study):
    section = page(study).sections[4]
    assert section.title == "Measurements"
    by_layer, by_window = section.blocks
    assert by_layer.caption == "Relative residual by layer"
    assert by_layer.note == "Medians over the samples."
    assert by_layer.rows.curves == ["BERT · full", "BERT · causal", "ViT · full", "ViT · causal"]
    assert by_layer.rows.positions == list(range(11))
    assert by_window.caption == "Rank by window"
    assert by_window.note == ""  # there was one sample
    assert by_window.rows.positions == [1.0, 2.5]


def test_the_page_of_a_claim_has_its_verdict_in_words_and_its_source(claim):
    shown = page(claim)
    assert (shown.title, shown.lead) == (claim.title, claim.question)
    assert shown.judgements == {
        "Stated for: chains of attention": claim.judgement,
        "Beyond it: chains of masks": claim.beyond,
    }
    assert shown.overline == "D9 · Dong et al. 2021, section 2"
    assert shown.sections[0].text == "They do not."
    assert shown.provenance["config"] == "heads 1, 2"


def test_findings_are_a_table_and_are_not_said_again(diagnosis):
    first, second, *_ = page(diagnosis).sections
    (block,) = first.blocks
    assert first.title == "Findings"
    assert block.rows == diagnosis.findings
    assert second.text == "Both were seen."
    assert page(diagnosis).key_figures == diagnosis.key_figures


def test_sentences_below_a_headline_are_the_answer(answer):
    shown = page(answer)
    assert shown.headline == answer.headline
    assert shown.answer == "The tokens **stay apart**. It falls."
    assert shown.warnings == answer.warnings
    (found,) = [section for section in shown.sections if section.title == "Results"]
    assert found.text == ""
    (table,) = found.blocks
    assert (table.rows, table.caption) == (answer.listings[0], "In short")


def test_parts_are_sections_with_several_charts_under_one_heading(answer):
    shown = page(answer)
    assert [section.title for section in shown.sections] == [
        "Findings",
        "Results",
        "Relative residual layer by layer",
        "Heads",
        "Charts",
    ]
    *_, heads, charts = shown.sections
    assert heads.text == "- Head 0 mixes most.\n- Head 1 does not."
    assert [block.rows for block in heads.blocks] == list(answer.parts[0].listings)
    assert len(charts.charts) == 2
    assert len(shown.charts) == len(answer.all_drawings) == 3
    assert len({chart.title for chart in charts.charts}) == 2


def test_a_result_in_parts_tells_only_the_figures_it_names(answer):
    kept = tables_of(page(replace(answer, shown=("relative_residual",))))
    assert [table.caption for table in kept][-1] == "Relative residual by layer"
    assert all(table.caption != "Relative residual by layer" for table in tables_of(page(answer)))


def test_a_question_that_is_the_title_is_asked_once(diagnosis):
    assert page(replace(diagnosis, title=diagnosis.question)).lead == ""


def test_a_page_tells_the_statistic_its_charts_draw(diagnosis):
    _, table = tables_of(page(diagnosis))  # the first is about what was looked for
    assert table.note == "Medians over the samples."
    assert table.rows.statistic == "median"


def test_lengths_are_told_after_the_last_layer(lengths):
    (table,) = tables_of(page(lengths))
    assert table.caption == "All metrics by length"
    assert table.note == "Medians over the samples, after the last layer."


def test_any_result_makes_a_page_with_nothing_missing(
    study, claim, diagnosis, lengths, answer, tmp_path
):
    for result in (study, claim, diagnosis, lengths, answer):
        text = write_html(page(result), tmp_path / "page.html").read_text("utf-8")
        assert result.title in text
        assert ">None<" not in text
        assert "<dd></dd>" not in text


def test_nothing_is_drawn_for_a_result_without_drawings(claim, monkeypatch):
    monkeypatch.setattr(_page, "draw", lambda *_: pytest.fail("something was drawn"))
    assert page(claim).charts == []


def test_drawings_get_the_whole_result(study, monkeypatch):
    seen, chart = [], draw(study.drawings[0], study)
    monkeypatch.setattr(_page, "draw", lambda *given: seen.append(given) or chart)
    assert charts_of(page(study)) == [chart] * 3
    assert seen == [(drawing, study) for drawing in study.drawings]


def test_only_what_is_shown_is_told(study):
    kept = tables_of(page(replace(study, shown=("rank",))))
    assert [table.rows.metric for table in kept] == ["rank"]


def test_charts_of_one_metric_have_headings_of_their_own(study):
    one, other = (Drawing("by_depth", "", DEEP, {}, {"model": (name,)}) for name in ("BERT", "ViT"))
    kept = study.table.filter(pl.col("metric") == DEEP)
    shown = page(replace(study, table=kept, drawings=(one, other)))
    assert len({chart.title for chart in shown.charts}) == 2
