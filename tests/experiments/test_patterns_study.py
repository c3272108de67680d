"""Attention patterns side by side: which law each follows."""

import pytest

from rankscope import figures
from rankscope.experiments import pattern_study as study
from rankscope.experiments.depths import RELATIVE, Texts

PAIRWISE = {"ALiBi", "rotary"}


@pytest.fixture(scope="module")
def found():
    ticks: list[int] = []
    reading = Texts(width=16, tokens=10, samples=2)
    result = study.pattern_study(layers=9, reading=reading, on_network=lambda: ticks.append(1))
    assert len(ticks) == study.steps() == 15
    return result


def test_patterns_whose_rows_agree_are_doubly_exponential_and_others_not(found) -> None:
    laws = study.pattern_laws(found.summary)
    assert len(laws) == 15
    assert ("causal mask", "Linformer") not in laws
    for (model, variant), law in laws.items():
        agree = model == "full mask" and variant not in PAIRWISE
        assert law.kind == ("doubly exponential" if agree else "exponential"), (model, variant)
        if agree:
            assert law.growth == pytest.approx(3, abs=0.05)


def test_all_start_from_the_same_tokens_and_end_differently(found) -> None:
    rows = found.summary.filter(metric=RELATIVE)
    first = rows.filter(layer=0)["median"]
    assert first.max() == pytest.approx(first.min())
    for model in ("full mask", "causal mask"):
        ends = rows.filter(model=model, layer=9)["median"]
        assert ends.n_unique() == len(ends)


def test_sentences_tell_every_law_and_the_chart_can_be_drawn(found) -> None:
    assert len(found.sentences) == 15
    assert found.sentences[0].startswith("dot product, full mask: relative residual 10^")
    assert "each step is 3.00 times" in found.sentences[0]
    (drawing,) = found.drawings
    figures.by_depth(found.summary, metric=drawing.metric, **drawing.options)
