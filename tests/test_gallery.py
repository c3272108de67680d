"""The figures of the site show what the text beside them says."""

import doctest
import importlib.util
import re
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from rankscope.experiments.catalogue import entries

ROOT = Path(__file__).parents[1]
_SPEC = importlib.util.spec_from_file_location("draw_figures", ROOT / "tools" / "draw_figures.py")
draw_figures = importlib.util.module_from_spec(_SPEC)
sys.modules["draw_figures"] = draw_figures
_SPEC.loader.exec_module(draw_figures)
CLAIMS = ROOT / "docs" / "images" / "claims"
PAGES = [ROOT / "docs" / "pictures.md", *(ROOT / "docs" / "gallery").glob("*.md")]


def curves(name: str) -> dict[str, list[float]]:
    """What is drawn: the values of each curve in their order."""
    datasets = draw_figures.FIGURES[name]().to_dict()["datasets"].values()
    (rows,) = (rows for rows in datasets if "drawn_median" in rows[0])  # others: the noise floor
    drawn: dict[str, list[float]] = {}
    for row in rows:
        drawn.setdefault(row["variant"], []).append(row["drawn_median"])
    return drawn


def test_gemma_4_begins_with_one_key_per_query():
    drawn = curves("gemma4-init")
    assert max(drawn["logits as initialised (scale 1)"]) < 0.5  # nats
    assert min(drawn["logits × 1/√d"]) > 2.5


def test_logits_grow_unless_queries_and_keys_are_normalised():
    drawn = curves("logit-growth")
    assert drawn["queries and keys as they are"][-1] > 100
    assert max(drawn["normalised"]) < 10


def test_pairs_alone_make_all_sentences_alike():
    drawn = curves("embedding-collapse")
    assert drawn["pairs alone"][-1] > 0.99
    assert drawn["pairs against the batch"][-1] < 0.1


def test_without_skips_nothing_but_rounding_is_left():
    drawn = curves("skipless")
    assert drawn["without"][5] < 1e-6
    assert min(drawn["with skip connections"]) > 0.3


def test_two_tokens_meet_and_ones_with_a_skip_do_not():
    drawn = curves("two-tokens-residual")
    alone = drawn["attention alone"]
    steps = [after / before for before, after in pairwise(alone[:5])]
    assert steps == sorted(steps, reverse=True)  # faster with every layer
    assert drawn["skip + 0.3 × attention"][-1] > 0.5


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_figures_that_pages_name_exist(page):
    named = re.findall(r"```\{(?:chart|page-of)\} (\S+)", page.read_text("utf-8"))
    assert set(named) <= set(draw_figures.FIGURES)
    assert named or page.stem == "index"
    commands = re.findall(r"draw_figures\.py ([\w-]+) ", page.read_text("utf-8"))
    assert set(commands) <= set(named) | {"NAME"}


@pytest.mark.parametrize("name", ["draw_figures", "site_catalogues", "site_reference"])
def test_examples_of_what_writes_the_site(name, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs" / "_ext")
    outcome = doctest.testmod(importlib.import_module(name))
    assert outcome.attempted > 0
    assert outcome.failed == 0


def test_every_claim_has_a_figure_that_describes_itself():
    drawn = {path.stem: path.read_text("utf-8") for path in CLAIMS.glob("*.svg")}
    assert set(drawn) == {id_.lower() for id_ in entries("claim")}
    for name, figure in drawn.items():
        assert re.match(r"<!-- [^<>]{20,}? --><svg ", figure), name


def test_an_unknown_figure_is_refused(tmp_path):
    with pytest.raises(SystemExit, match="no figure 'nothing'"):
        draw_figures.draw("nothing", tmp_path / "nothing.svg")


def test_a_picture_takes_the_colours_of_its_page():
    drawn = draw_figures.inline('<svg><path fill="#3566c8" d="M1"/></svg>', 'a "b" <c')
    assert 'aria-label="a &quot;b&quot; &lt;c"' in drawn
    assert 'fill="var(--on-3566c8, #3566c8)"' in drawn
    assert "--on-3566c8:" in draw_figures.style()
