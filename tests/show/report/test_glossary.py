"""Definitions and papers on a page, and the ways to them."""

import re
from dataclasses import replace

import pytest
from markupsafe import Markup

from rankscope.experiments import CATALOGUE
from rankscope.metric_catalogue import metric
from rankscope.show.report import Chart, Report, Section, page, write_html
from rankscope.show.report._prose import PAPERS, linked, named_in
from rankscope.show.report._tables import term

from .test_html import Page


def test_a_page_defines_each_metric_of_its_charts_and_tables_once(chart, tmp_path):
    named = [metric("stable_rank"), metric("my_score"), metric("stable_rank")]
    report = Report("t", "", [Section("s", blocks=[Chart(chart, "c", metrics=named)] * 2)])
    assert list(report.terms) == ["stable_rank"]
    text = write_html(report, tmp_path / "page.html").read_text("utf-8")
    assert text.count('<a class="term" href="#term-stable_rank">Stable rank</a>') == 2
    assert text.count('<div id="term-stable_rank"><dt>Stable rank') == 1
    assert "my_score" not in text


def test_a_term_is_a_link_if_the_page_has_its_line():
    rank = metric("stable_rank")
    assert (
        term(rank, {"stable_rank": rank})
        == '<a class="term" href="#term-stable_rank">Stable rank</a>'
    )
    assert term(rank, {}) == "Stable rank"


def test_a_definition_has_title_symbol_and_links_to_its_paper(chart, tmp_path):
    section = Section("s", blocks=[Chart(chart, "c", metrics=[metric("dispersion")])])
    text = write_html(Report("t", "", [section]), tmp_path / "page.html").read_text("utf-8")
    assert '<div id="term-dispersion"><dt>Dispersion' in text
    assert '<span class="symbol">μ(X)</span>' in text
    assert "in the Frobenius norm" in text
    assert 'href="https://arxiv.org/abs/2405.18781"' in text  # Wu et al. 2024
    assert "On the role of attention masks and LayerNorm" in text


def test_papers_are_links_that_load_nothing():
    text = "Dong et al. 2021, theorem 2.2; Wu et al. 2024 and nobody et al. 2021"
    assert linked(Markup(text)).count("<a ") == 2
    assert [paper.name for paper in named_in(text)] == ["Dong et al. 2021", "Wu et al. 2024"]
    assert all(re.fullmatch(r"\d{4}\.\d{5}", paper.arxiv) for paper in PAPERS)


@pytest.mark.parametrize("entry", CATALOGUE.values(), ids=lambda entry: entry.id)
def test_every_paper_that_a_source_names_can_be_read(entry):
    names = re.findall(r"[A-Z][\w ]*? (?:et al\.|and \w+) \d{4}", entry.source)
    assert len(named_in(entry.source)) == len(set(names))


def test_every_chart_and_table_leads_to_the_definitions_below(diagnosis, tmp_path):
    text = write_html(page(diagnosis), tmp_path / "page.html").read_text("utf-8")
    found = Page(text)
    targets = [a["href"] for a in found.attributes("a") if a.get("class") == "term"]
    assert targets == ["#term-relative_residual"] * 2  # the chart, the table
    assert [a.get("id") for a in found.attributes("div")].count("term-relative_residual") == 1


def test_the_command_to_repeat_is_code_and_no_entry(diagnosis, tmp_path):
    repeated = replace(diagnosis, provenance={"seed": 0, "notes": [], "command": "rankscope a <b>"})
    text = write_html(page(repeated), tmp_path / "page.html").read_text("utf-8")
    assert "<code>rankscope a &lt;b&gt;</code>" in text
    assert "<dt>command</dt>" not in text
    assert "<dt>notes</dt>" not in text
    assert "<dt>seed</dt><dd>0</dd>" in text
