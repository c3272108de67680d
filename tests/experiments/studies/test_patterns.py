"""Attention patterns side by side: which law each follows."""

import pytest

from rankscope.experiments.depths import RELATIVE
from rankscope.experiments.studies.patterns import ENTRY, Config, ScorePattern, pattern_laws

from ..shown import can_be_shown, steps_of

SMALL = Config(layers=9, width=16, tokens=10, samples=2)
PAIRWISE = {"ALiBi", "rotary"}


@pytest.fixture(scope="module")
def found():
    result, seen = steps_of(ENTRY.run, SMALL)
    assert len(seen) == 15 + 2
    return result


def test_patterns_whose_rows_agree_are_doubly_exponential_and_others_not(found) -> None:
    laws = pattern_laws(found.table)
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


def test_sentences_tell_every_law_and_the_study_can_be_shown(found) -> None:
    full, causal = found.sentences
    assert full == (
        "Under the full mask, doubly exponential: dot product, linear kernel, Linformer, Gaussian "
        "kernel, sparsemax, sink; exponential: ALiBi, rotary."
    )
    assert causal.startswith("Under the causal mask, exponential: dot product, linear kernel")
    (listing,) = found.listings
    assert len(listing.rows) == 15
    scores, mask, end, law, pace = listing.rows[0]
    assert (scores, mask, law) == ("dot product", "full mask", "doubly exponential")
    assert end.startswith("10^−")
    assert pace.startswith("step × 3.00")
    can_be_shown(found)


def test_what_is_compared_names_the_run(found) -> None:
    fewer = Config(
        layers=9, width=16, tokens=10, samples=2, patterns=(ScorePattern("dot product", "dot"),)
    )
    assert found.provenance["digest"] == SMALL.digest("patterns") != fewer.digest("patterns")
