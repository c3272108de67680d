"""Definitions and papers on a page, and the ways to them."""

import re
from dataclasses import replace

import pytest

from rankscope.experiments import CATALOGUE
from rankscope.show.report import page, write_html
from rankscope.show.report._glossary import defined, glossary, known_terms, papers, term
from rankscope.show.report._papers import PAPERS, linked, named_in

from .test_html import Page


def test_metrics_with_something_to_say_are_terms_each_once():
    assert known_terms(["rank", "my_score", "rank"]) == ["rank"]


def test_a_term_is_a_link_if_the_page_has_its_line():
    assert term("rank", ["rank"]) == '<a class="term" href="#term-rank">Rank</a>'
    assert term("rank", []) == "Rank"
    assert defined(["rank", "my_score", "rank"], ["rank"]).count("<a ") == 1
    assert defined(["my_score"], ["rank"]) == ""


def test_a_line_has_title_symbol_and_definition():
    html = glossary(["dispersion"])
    assert '<div id="term-dispersion"><dt>Dispersion' in html
    assert '<span class="symbol">μ(X)</span>' in html
    assert "in the Frobenius norm" in html
    assert 'href="https://arxiv.org/abs/2405.18781"' in html  # Wu et al. 2024
    assert glossary([]) == ""


def test_papers_are_links_that_load_nothing():
    text = "Dong et al. 2021, theorem 2.2; Wu et al. 2024 and nobody et al. 2021"
    assert linked(text).count("<a ") == 2
    assert [paper.name for paper in named_in(text)] == ["Dong et al. 2021", "Wu et al. 2024"]
    assert papers("nothing") == ""
    assert "loses rank doubly exponentially" in papers(text)
    assert all(re.fullmatch(r"https://arxiv\.org/abs/\d{4}\.\d{5}", p.address) for p in PAPERS)


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
