"""The page as a whole: what is on it, that it is safe, and that it needs nothing else."""

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import altair as alt
import polars as pl
import pytest

from rankscope.errors import InputError
from rankscope.results import Finding, Headline, Judgement, Listing
from rankscope.show.report import Chart, Report, Section, Table, write_html

ATTACK = """</script></style></title><script>alert("x")</script><img src=x onerror='a&b'>"""


class Page(HTMLParser):
    """Elements with their attributes, and the text inside them."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.open, self.inside = [], [], {}
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data):
        if self.open:
            self.inside.setdefault(self.open[-1], []).append(data)

    def attributes(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture
def write(tmp_path):
    def written(report):
        return write_html(report, tmp_path / "deep" / "report.html").read_text("utf-8")

    return written


def specification(page):
    (text,) = re.findall(r'<script type="application/json">(.*?)</script>', page, re.DOTALL)
    return json.loads(text)


def test_everything_is_on_the_page(report, write):
    text = write(report)
    page = Page(text)
    assert page.open == []
    assert page.inside["title"] == ["What keeps the tokens apart?"]
    assert page.inside["h1"] == ["What keeps the tokens apart?"]
    assert page.inside["h2"] == ["Layer by layer", "In figures", "Provenance"]
    assert page.inside["code"] == ["SAN"]
    assert page.inside["dd"] == ["0.1.0", "7"]
    assert page.inside["caption"] == ["The last layer"]
    for words in ("<strong>loses</strong>", "And the other does not.", "Read it so.", "0.857"):
        assert words in text
    assert "$" not in re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)


def test_the_page_loads_nothing(report, write):
    text = write(report)
    page = Page(text)
    linked = [a.get(key) for _, a in page.elements for key in ("src", "href", "srcset", "poster")]
    assert all(link.startswith(("data:", "#")) for link in linked if link)
    assert {tag for tag, _ in page.elements} & {
        "link",
        "iframe",
        "object",
        "embed",
        "base",
    } == set()
    for style in page.inside["style"]:
        assert "@import" not in style
        assert "url(" not in style
    named = set(re.findall(r"https?://[\w.]+(?:/[\w-]+)?", text))
    assert named <= {  # namespaces, a schema's name, and two addresses in Vega's messages
        "http://www.w3.org/1999",
        "http://www.w3.org/2000",
        "https://github.com/vega",
        "https://vega.github.io/schema",
        "https://vega.github.io/editor",
    }


def test_the_browser_is_told_to_load_nothing_and_run_these_scripts_only(report, write):
    text = write(report)
    (policy,) = [a["content"] for a in Page(text).attributes("meta") if "http-equiv" in a]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert "unsafe-inline" not in rules["script-src"]
    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert len(scripts) == 2
    for script in scripts:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in rules["script-src"]


def test_vega_comes_once_however_many_charts(report, chart, write):
    many = replace(
        report, sections=[Section("s", blocks=[Chart(chart, f"Chart {n}")] * 2) for n in range(3)]
    )
    text = write(many)
    assert text.count("window.vegaEmbed") == write(report).count("window.vegaEmbed") == 1
    assert len(Page(text).attributes("figure")) == 6
    assert len({figure["id"] for figure in Page(text).attributes("figure")}) == 6


def test_without_charts_there_is_no_script(report, write):
    text = write(replace(report, sections=report.sections[1:]))
    assert "<script" not in text
    assert len(text) < 50_000


def test_without_javascript_there_is_a_picture(report, write):
    text = write(report)
    (hidden,) = re.findall(r"<noscript>(.*?)</noscript>", text, re.DOTALL)
    (picture,) = Page(hidden).attributes("img")
    assert picture["alt"] == "From 1 to 1e-9."
    kind, data = picture["src"].split(",")
    assert kind == "data:image/svg+xml;base64"
    drawn = base64.b64decode(data).decode()
    assert drawn.startswith("<svg")
    assert "float32 noise floor" in drawn
    for words in ("Residual by layer", "What keeps the tokens apart?"):  # it may be sent on
        assert words in drawn
    assert "var(--" not in drawn  # it may be saved, and opened by programs that know no variables


def test_the_chart_on_the_page_is_the_chart_with_the_colours_of_the_page(report, chart, write):
    text = write(report)
    spec = specification(text)
    assert spec["background"] == "var(--on-ffffff, #ffffff)"
    assert "--on-ffffff: #191f26;" in text
    assert spec["datasets"] == chart.to_dict()["datasets"]


def test_whatever_is_given_is_escaped(chart, write):
    hostile = Report(
        title=ATTACK,
        lead=ATTACK,
        sections=[
            Section(
                ATTACK,
                f"{ATTACK} `{ATTACK}` **{ATTACK}**",
                [Chart(chart.properties(title=ATTACK), ATTACK, ATTACK, ATTACK)],
            ),
            *[
                Section(
                    ATTACK,
                    blocks=[
                        Table(pl.DataFrame({ATTACK: [ATTACK], "b": [ATTACK]}), ATTACK, ATTACK),
                        Table(Listing(ATTACK, (ATTACK, "b"), ((ATTACK, ATTACK),), ATTACK), ATTACK),
                        Table([Finding(ATTACK, "absent", *[ATTACK] * 2, part=ATTACK)], ATTACK),
                    ],
                )
            ]
            * 3,
        ],
        provenance={ATTACK: ATTACK},
        overline=ATTACK,
        warnings=[ATTACK],
        headline=Headline(ATTACK, "holds"),
        answer=ATTACK,
        judgements={ATTACK: Judgement("holds", ATTACK, ATTACK)},
        key_figures={ATTACK: 1.0},
    )
    text = write(hostile)
    page = Page(text)
    assert page.open == []
    assert (
        len(page.attributes("script")) == 3
    )  # the chart, Vega, and what draws the one with the other
    assert not any("onerror" in attributes for _, attributes in page.elements)
    assert all("alert" not in a.get("src", "") for a in page.attributes("img"))
    assert page.inside["h1"] == [ATTACK]
    assert specification(text)["title"] == ATTACK


def test_four_sections_have_a_list_of_contents(report, write):
    assert "<nav" not in write(report)
    page = Page(write(replace(report, sections=[Section(f"Part {n}") for n in range(4)])))
    skip, *targets = [a["href"] for a in page.attributes("a")]
    assert skip == "#main"
    assert targets == [f"#{a['id']}" for a in page.attributes("section")]


def test_equal_reports_make_equal_files(report, write):
    assert write(report) == write(replace(report))


def test_nothing_is_enough_for_a_page(write):
    page = Page(write(Report("Empty", "")))
    assert page.open == []
    assert page.attributes("dl") == page.attributes("section") == page.attributes("ul") == []


def test_any_chart_of_altair_will_do(write):
    data = alt.InlineData(values=[{"x": 1, "y": 2}])
    plain = alt.Chart(data).mark_point().encode(x="x:Q", y="y:Q")
    for chart in (plain, plain + plain, plain | plain):
        assert specification(
            write(Report("t", "l", sections=[Section("s", blocks=[Chart(chart, "c")])]))
        )


def test_a_chart_whose_data_are_elsewhere_is_refused(tmp_path):
    chart = alt.Chart("https://example.invalid/data.csv").mark_point().encode(x="x:Q")
    report = Report("t", "l", sections=[Section("s", blocks=[Chart(chart, "Far away")])])
    with pytest.raises(InputError, match=r"'Far away'.*nothing is loaded from elsewhere"):
        write_html(report, tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_a_verdict_there_is_not_is_refused():
    with pytest.raises(InputError, match="'maybe' is unknown, expected one of holds, fails"):
        Judgement("maybe", "all")


def test_what_there_is_not_leaves_nothing_behind(report, write):
    text = write(replace(report, lead="", sections=()))
    for kind in ("lead", "overline", "judgements", "key", "headline", "answer", "warnings"):
        assert f'class="{kind}' not in text


def test_the_top_of_the_page(report, write):
    text = write(
        replace(
            report,
            overline="D2 · Dong et al. 2021",
            judgements={"Stated for: all": Judgement("holds", "all")},
            key_figures={"paths": 9},
            warnings=["Take care."],
            headline=Headline("All is well", "holds"),
            answer="It is.",
        )
    )
    marks = ("Take care.", "Dong et al.", "<h1>", "loses", "All is", "It is.", "Stated", "<dd>9")
    places = [text.index(mark) for mark in marks]
    assert places == sorted(places)


def test_long_entries_of_the_provenance_have_a_row_of_their_own(report, write):
    text = write(replace(report, provenance={"seed": "7", "config": "x" * 61}))
    assert '<div class="wide"><dt>config</dt>' in text
    assert "<div><dt>seed</dt>" in text
