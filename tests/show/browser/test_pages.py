"""Every page of the product, opened from disk in a real browser."""

from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import polars as pl
import pytest
import torch

from rankscope import tables, trace
from rankscope.ask import Subject
from rankscope.core.network import Network, Spec
from rankscope.experiments import CATALOGUE, run
from rankscope.results import Finding, Headline, Listing, Part
from rankscope.show import figures, report

from .conftest import LOCAL

PHONE, DESK = 390, 1280
SCREENS = [(PHONE, "light"), (PHONE, "dark"), (DESK, "light"), (DESK, "dark")]
NEEDS_MODELS = "compare"  # several checkpoints
QUESTIONS = [
    entry.id
    for entry in CATALOGUE.values()
    if entry.kind == "question" and entry.id != NEEDS_MODELS
]
OTHERS = {
    "advise": {"first_draws": 1, "draws": 1, "candidates": 1, "confirmed": 1, "networks": 1},
    "predict": {"draws": 2},
    "masks": {"masks": ("full", "causal")},
}
"""What makes the slow ones quick."""
LARGEST = 5_000_000
EVERY_CHART_IS_DRAWN = """() => [...document.querySelectorAll("figure, #chart")].every(
    (holder) => holder.querySelector("svg.marks"))"""
EVERY_CHART_IS_FITTED = """() => [...document.querySelectorAll("[data-width]")].every(
    (chart) => Math.abs(chart.clientWidth - chart.dataset.width) < 8)"""


@cache
def network():
    return Network.random(Spec(2, 2, 8, mlp_ratio=2))


def states(samples=3):
    return torch.randn(samples, 6, 8, generator=torch.Generator().manual_seed(0))


def answer(name):
    """A small result of one of the questions."""
    entry = CATALOGUE[name]
    given = Subject(network(), states(1 if name == "advise" else 3))
    config = entry.module().Config(given, **OTHERS.get(name, {}))
    return entry.run(config)


def everything():
    """A result with every element that a page can show."""
    found = answer("trace")
    words = Listing(
        "Heads", ("head", "entropy", "note"), (("layer 1, head 0", 2.1e-7, "10^-3"),) * 3, "A note."
    )
    return replace(
        found,
        id="everything",
        headline=Headline("No collapse", "holds"),
        warnings=("2 of 3 tokens are unknown to the `tokenizer`.",),
        findings=tuple(
            Finding(f"kind {fate}", fate, "It is.", "below 10^-3", 0.1, 2, "attention", 1, 3)
            for fate in ("collapse", "slow", "absent", "unknown")
        ),
        listings=(words,),
        parts=(Part("Heads", ("One.", "Two."), (words,), found.drawings * 2),),
        provenance={**found.provenance, "command": "rankscope trace"},
    )


def every_figure():
    """A chart of every kind there is, and of every kind of axis."""
    layers = {"layer": [1, 2, 1, 2], "sample": [0, 0, 1, 1], "variant": ["a", "a", "a", "a"]}
    deep = table(metric="log10_residual", **layers)
    cells = table(layer=[1, 1, 2, 2], head=[0, 1, 0, 1], metric="attention_entropy")
    counted = {"layer": [1, 1, 2, 2], "length": [0, 1, 0, 1]}
    swept = {"parameter": ["width"] * 4, "setting": [1.0, 10.0, 100.0, 1000.0]}
    moved = {"layer": [0, 1, 0, 1], "parameter": ["first"] * 4, "variant": ["a"] * 4}
    grid = table(metric="relative_residual", layer=[1, 1, 2, 2]).with_columns(
        run=pl.Series(["a", "b", "c", "d"]),
        depth=pl.Series([1, 1, 2, 2]),
        skip=pl.Series([0, 1] * 2),
    )
    trained = table(metric="rank", layer=[1, 2, 1, 2]).with_columns(step=pl.Series([0, 0, 9, 9]))
    summary = tables.summary
    drawn = {
        "by_axis": figures.by_axis(grid, metric="relative_residual", x="depth", color="skip"),
        "axis_map": figures.axis_map(grid, metric="relative_residual", x="depth", y="skip"),
        "by_depth": figures.by_depth(summary(deep), metric="log10_residual"),
        "log depth": figures.by_depth(summary(deep), metric="log10_residual", log_depth=True),
        "by_layer": figures.by_layer(summary(table(metric="rank", **layers))),
        "by_model": figures.by_model(
            summary(table(metric="rank", model=["b"] * 4, **layers)), metric="rank"
        ),
        "by_setting": figures.by_setting(summary(table(metric="rank", **swept)), metric="rank"),
        "by_length": figures.by_length(summary(table(metric="residual_share", **counted))),
        "by_step": figures.by_step(trained, metrics="rank", layers=[1]),
        "step_map": figures.step_map(trained, metric="rank"),
        "head_map": figures.head_map(cells, metric="attention_entropy"),
        "steps": figures.steps(summary(table(metric="step", **layers)), metric="step"),
        "layer_map": figures.layer_map(
            summary(table(metric="share", layer=[1, 1, 2, 2], index=[1, 2, 1, 2])), metric="share"
        ),
        "token_map": figures.token_map(
            table(metric="cosine", layer=[1] * 4, token=[0, 0, 1, 1], other_token=[0, 1, 0, 1]),
            metric="cosine",
            labels=["the", "cat"],
        ),
        "phase_map": figures.phase_map(
            summary(table(metric="rank", layer=[1, 1, 2, 2], setting=[1.0, 2.0, 1.0, 2.0])),
            metric="rank",
        ),
        "length_distributions": figures.length_distributions(
            table(metric="proportion", model=["b"] * 4, length=[0, 1, 2, 3])
        ),
        "trajectories": figures.trajectories(
            tables.stack(
                table(metric=f"{axis}_coordinate", **moved).head(2).with_columns(model=pl.lit("b"))
                for axis in "xy"
            )
        ),
    }
    assert set(figures.FIGURES) <= set(drawn)
    charts = [report.Chart(chart, name) for name, chart in drawn.items()]
    return report.Report("Every figure", "", [report.Section("Figures", blocks=charts)])


def table(*, metric, **columns):
    values = {"metric": [metric] * 4, "value": [0.9, 0.5, 0.7, 0.4]}
    return tables.frame({**columns, **values})


def written(name, folder):
    """The page called so."""
    if name == "figures":
        return report.write_html(every_figure(), folder / "figures.html")
    if name == "chart":
        path = folder / "chart.html"
        trace(network(), states()).plot().save(str(path))
        return path
    if name == "overview":
        claims = [entry for entry in CATALOGUE.values() if entry.kind == "claim"]
        return report.write_overview(claims, [], folder / "reproduce.html")
    makers = {"everything": everything, "D8": lambda: run("D8")}
    result = makers[name]() if name in makers else answer(name)
    return report.write_html(report.page(result), folder / f"{name}.html")


def check(seen, charts):
    """What is asked of every page, at every width, light and dark."""
    seen.page.wait_for_function(EVERY_CHART_IS_DRAWN, timeout=60_000)
    assert seen.page.locator("svg.marks").count() == charts
    assert seen.said == []
    assert [url for url in seen.asked if not url.startswith(LOCAL)] == []
    assert seen.fits(), f"wider than the screen: {seen.page.viewport_size}"


@pytest.mark.parametrize("name", [*QUESTIONS, "D8", "overview", "chart", "figures"])
def test_a_page_draws_every_chart_asks_nobody_and_fits(name, tmp_path, visit):
    path = Path(written(name, tmp_path))
    assert path.stat().st_size < LARGEST
    charts = path.read_text("utf-8").count("<figure") or int(name == "chart")
    seen = visit(path, width=PHONE)
    check(seen, charts)
    seen.page.emulate_media(color_scheme="dark")
    seen.page.set_viewport_size({"width": DESK, "height": 900})
    seen.page.wait_for_function(EVERY_CHART_IS_FITTED, timeout=60_000)
    check(seen, charts)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A page with everything on it."""
    return Path(written("everything", tmp_path_factory.mktemp("page")))


@pytest.fixture
def page(path, visit):
    """The same, drawn."""
    seen = visit(path)
    seen.page.wait_for_function(EVERY_CHART_IS_DRAWN, timeout=60_000)
    return seen.page


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_a_page_with_everything_on_it_opens_on_every_screen(width, scheme, path, visit):
    check(visit(path, width=width, scheme=scheme), 3)


def test_a_screen_reader_finds_landmarks_headings_in_order_and_names(page):
    assert page.locator("header, main, footer, nav").count() == 4
    levels = page.eval_on_selector_all("h1, h2, h3", "found => found.map(each => +each.tagName[1])")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    for chart in page.locator("figure [role=img]").all():
        assert "at layer 2" in chart.get_attribute("aria-label")
    assert page.locator("figure [role=img]").count() == 3
    assert page.locator("table").count() == page.locator("table caption").count() == 3


def test_a_keyboard_skips_to_the_content_and_reaches_every_table(page):
    page.keyboard.press("Tab")
    skip = page.locator(".skip")
    assert skip.evaluate("each => each === document.activeElement")
    assert skip.bounding_box()["y"] >= 0
    page.keyboard.press("Enter")
    page.wait_for_url("**#main")
    first = page.locator(".table").first
    first.focus()
    assert first.evaluate("each => getComputedStyle(each).outlineStyle") == "solid"


def test_charts_fill_their_cards(page):
    for chart in page.locator("figure .chart").all():
        drawn = chart.locator("svg.marks").bounding_box()["width"]
        assert drawn > 0.85 * chart.bounding_box()["width"]


def test_every_link_on_the_page_leads_somewhere(page):
    targets = page.eval_on_selector_all(
        "a[href^='#']", "found => found.map(each => each.getAttribute('href').slice(1))"
    )
    assert len(targets) > 5
    assert all(page.evaluate("id => document.getElementById(id) !== null", id) for id in targets)


def test_warnings_and_the_headline_are_seen_first(page):
    tops = [
        page.locator(each).first.bounding_box()["y"]
        for each in (".warnings", "h1", ".headline", ".answer", "main")
    ]
    assert tops == sorted(tops)
    assert tops[2] < 500


def test_colours_turn_around_in_the_dark(page):
    inks = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        inks.append(
            [
                page.locator(where).first.evaluate(f"each => getComputedStyle(each).{what}")
                for where, what in (("body", "backgroundColor"), ("svg.marks text", "fill"))
            ]
        )
    (paper, ink), (dark_paper, dark_ink) = inks
    assert paper != dark_paper
    assert ink != dark_ink


def test_without_scripts_there_are_pictures(path, visit):
    seen = visit(path, java_script_enabled=False)
    assert seen.page.locator("figure img").count() == 3
    picture = seen.page.locator("figure img").first
    assert "at layer 2" in picture.get_attribute("alt")
    assert picture.bounding_box()["width"] > 300


def test_what_is_printed_has_every_chart(page):
    page.emulate_media(media="print")
    assert page.locator("svg.marks").first.is_visible()
    assert not page.locator("figcaption").first.is_visible()
    assert len(page.pdf()) > 10_000
