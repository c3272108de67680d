"""Every kind of result as a page."""

from dataclasses import replace

import polars as pl
import pytest

from rankscope.report import _compose, page, write_html
from rankscope.results import Drawing

from .conftest import DEEP


def test_the_page_has_question_sentences_charts_and_provenance(study):
    shown = page(study)
    assert (shown.title, shown.lead) == (study.title, study.question)
    first, *drawn = shown.sections[:4]
    assert first.title == "What was found"
    assert first.text == (
        "- Full attention **triples** its power, to 10^-3,280.\n- Causal [a] does not."
    )
    for section, drawing in zip(drawn, study.drawings, strict=True):
        assert section.text.startswith(drawing.caption)
        assert "samples" in section.text  # how to read it
        assert section.chart is not None
    assert len({section.title for section in drawn}) == 3
    assert shown.provenance == {"seed": "3", "lowest": "-inf", "masks": "n 2"}
    assert shown.answers == {}
    assert shown.overline == ""


def test_the_page_tells_each_metric_in_short(study):
    by_layer, by_window = page(study).sections[4:]
    assert by_layer.title == "Relative residual by layer, in figures"
    assert by_layer.text == "Medians over the samples."
    assert by_layer.table.curves == ["BERT · full", "BERT · causal", "ViT · full", "ViT · causal"]
    assert by_layer.table.places == [0, 1, 2, 5, 7, 10]
    assert by_window.title == "Rank by window, in figures"
    assert by_window.text == ""  # there was one sample
    assert by_window.table.places == [1.0, 2.5]


def test_the_page_of_a_claim_has_its_verdict_in_words_and_its_source(claim):
    shown = page(claim)
    assert shown.answers == {
        "Stated for: chains of attention": claim.judgement,
        "Beyond it: chains of masks": claim.beyond,
    }
    assert shown.overline == "D9 · Dong et al. 2021, section 2"
    assert shown.sections[0].text == "They do not."
    assert shown.provenance["config"] == "heads 1, 2"


def test_findings_are_cards_and_are_not_said_again(diagnosis):
    shown = page(diagnosis)
    assert shown.verdicts == [
        ("SAN", "It falls.", "collapse"),
        ("transformer", "It stays.", "holds"),
    ]
    assert shown.sections[0].text == "Both were seen."
    assert shown.key_figures == diagnosis.key_figures


def test_a_question_that_is_the_title_is_asked_once(diagnosis):
    assert page(replace(diagnosis, title=diagnosis.question)).lead == ""


def test_a_page_tells_the_statistic_its_charts_draw(diagnosis):
    (section,) = [each for each in page(diagnosis).sections if each.table is not None]
    assert section.text == "Means over the samples."
    assert section.table.statistic == "mean"


def test_lengths_are_told_after_the_last_layer(lengths):
    (section,) = [each for each in page(lengths).sections if each.table is not None]
    assert section.title == "All metrics by length, in figures"
    assert section.text == "Medians over the samples, after the last layer."


def test_any_result_makes_a_page_with_nothing_missing(study, claim, diagnosis, lengths, tmp_path):
    for result in (study, claim, diagnosis, lengths):
        text = write_html(page(result), tmp_path / "page.html").read_text("utf-8")
        assert result.title in text
        assert ">None<" not in text
        assert "<dd></dd>" not in text


def test_nothing_is_drawn_for_a_result_without_drawings(claim, monkeypatch):
    monkeypatch.setattr(_compose, "draw", lambda *_: pytest.fail("something was drawn"))
    assert all(section.chart is None for section in page(claim).sections)


def test_drawings_get_the_whole_result(study, monkeypatch):
    seen = []
    monkeypatch.setattr(_compose, "draw", lambda *given: seen.append(given))
    page(study)
    assert seen == [(drawing, study) for drawing in study.drawings]


def test_only_what_is_shown_is_told(study):
    tables = [each.table for each in page(replace(study, shown=("rank",))).sections if each.table]
    assert [grid.metric for grid in tables] == ["rank"]


def test_charts_of_one_metric_have_headings_of_their_own(study):
    one, other = (Drawing("by_depth", "", DEEP, {}, {"model": (name,)}) for name in ("BERT", "ViT"))
    kept = study.table.filter(pl.col("metric") == DEEP)
    titles = [
        section.title
        for section in page(replace(study, table=kept, drawings=(one, other))).sections
        if section.chart is not None
    ]
    assert len(set(titles)) == 2
