"""A result in a notebook."""

from dataclasses import replace

from rankscope.show.report import _html, notebook

from .test_html import ATTACK, Page


def test_the_answer_comes_first_and_nothing_is_loaded(answer):
    html = answer._repr_html_()
    assert html == notebook(answer)
    words = (
        "2 of 3 tokens are unknown.",
        answer.question,
        answer.title,
        "No collapse",
        "<strong>stay apart</strong>",
        "kind",
        "It falls.</td>",
        "<img",
    )
    places = [html.index(each) for each in words]
    assert places == sorted(places)
    page = Page(html)
    assert page.open == []
    assert page.attributes("script") == []
    (picture,) = page.attributes("img")
    assert picture["src"].startswith("data:image/svg+xml;base64,")
    assert "at layer 2" in picture["alt"]
    assert "background:#ffffff" in picture["style"]  # also where the notebook is dark


def test_a_claim_has_its_verdict_and_no_chart_if_it_draws_none(claim):
    html = notebook(claim)
    assert "Not supported. Beyond its domain: supported in part: the mask" in html
    assert "<li>They do not.</li>" in html
    assert "<img" not in html
    assert "<table" not in html


def test_one_chart_is_drawn_however_many_there_are(answer, monkeypatch):
    drawn = []
    first = _html.picture
    monkeypatch.setattr(
        _html, "picture", lambda *given, **named: drawn.append(given) or first(*given, **named)
    )
    notebook(answer)
    assert len(drawn) == 1


def test_whatever_is_said_is_escaped(answer):
    hostile = replace(
        answer, title=ATTACK, question=ATTACK, sentences=(ATTACK,), warnings=(ATTACK,)
    )
    page = Page(notebook(hostile))
    assert page.open == []
    assert len(page.attributes("img")) == 1
