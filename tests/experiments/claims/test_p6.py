"""Rank and the length of a context: closed forms, the outlier, and each outcome."""

import math
from dataclasses import replace
from typing import cast

import polars as pl
import pytest
import torch

from rankscope import tables
from rankscope.core.network import Block, Network, Visibility
from rankscope.errors import InputError
from rankscope.experiments import kit
from rankscope.experiments.claims import p6
from rankscope.experiments.claims._overlapping import overlapping_tokens
from rankscope.experiments.kit import Mean
from rankscope.process.progress import silent

from ..shown import can_be_shown, steps_of

OWN, NARROW, OVERLAP = p6.Config().settings
SMALL = p6.Config(tokens=(8, 16, 32), settings=(OWN, OVERLAP), networks=2, draws=2)


def test_orthogonal_tokens_have_the_rank_of_the_closed_form() -> None:
    """Logits of deviation 1: stable rank e, dispersion √(1 − 1/e), second value below 1/4."""
    network = Network.random(SMALL.spec(OWN, 256), seed=1, dtype=torch.float64)
    figures = p6._layer(network, overlapping_tokens(256, 257, 0.0, 0))[p6.NETWORKS]
    assert figures["stable_rank"] == pytest.approx(math.e, rel=0.1)
    assert figures["relative_dispersion"] == pytest.approx(math.sqrt(1 - 1 / math.e), rel=0.03)
    assert figures["first_singular_value"] == pytest.approx(1.0, abs=0.02)
    assert figures["gram_stable_rank"] < 1.1


def test_centred_values_take_the_outlier_out() -> None:
    spec = SMALL.spec(replace(NARROW, head_width=4), 8)
    assert (spec.heads, spec.head_width) == (2, 4)
    network = Network.random(spec, seed=1, dtype=torch.float64)
    x = overlapping_tokens(8, 9, 0.2, 0)
    attention = cast(Block, network.blocks[0]).attention
    seen = Visibility.of(spec.mask, 8, None, x.device)
    with torch.no_grad():
        pattern = attention.pattern(x.unsqueeze(0), seen)[0]
        values = attention.value(x).unflatten(-1, (2, 4)).transpose(0, 1)
        mixed = ((pattern - 1 / 8) @ values).transpose(0, 1).flatten(1)
        expected = p6._ranks(attention.output(mixed))
    assert p6._layer(network, x)[p6.CENTRED] == pytest.approx(expected)
    singular = torch.linalg.svdvals(pattern)
    found = p6._layer(network, x)[p6.NETWORKS]
    assert found["second_singular_value"] == pytest.approx(float(singular[:, 1].mean()))


def test_ranks_by_hand() -> None:
    """Singular values 2, 1, 1: stable rank 6/4, of the Gram matrix 18/16."""
    found = p6._ranks(torch.diag(torch.tensor([2.0, 1.0, 1.0], dtype=torch.float64)))
    assert found["stable_rank"] == pytest.approx(1.5)
    assert found["gram_stable_rank"] == pytest.approx(1.125)


def test_it_runs_small_and_can_be_shown() -> None:
    found, _ = steps_of(p6.ENTRY.run, SMALL)
    can_be_shown(found)
    tiny = replace(SMALL, settings=(OWN,), networks=1, draws=1)
    one, same, other = (p6.ENTRY.run(replace(tiny, seed=seed), silent).table for seed in (0, 0, 1))
    assert one.equals(same)
    assert not one.equals(other)
    for wrong in ({"tokens": (8, 16)}, {"settings": ()}):
        with pytest.raises(InputError, match="3 lengths or more"):
            p6.ENTRY.run(replace(SMALL, **wrong), silent)


def test_exponents_are_of_what_is_above() -> None:
    curve = {tokens: Mean(1 + 5 / tokens, 0.1) for tokens in (2.0, 4.0, 8.0, 16.0)}
    assert p6.exponent(curve, 1.0) == pytest.approx(-1)
    assert p6.exponent({**curve, 16.0: Mean(1.0, 0.0)}, 1.0) == -math.inf


USUAL = {
    (p6.NETWORKS, "first_singular_value"): lambda _: 1.0,
    (p6.NETWORKS, "second_singular_value"): lambda t: t**-0.5,
    (p6.NETWORKS, "gram_stable_rank"): lambda t: 1 + 1 / t,
    (p6.NETWORKS, "stable_rank"): lambda t: 1 + 1 / t,
    (p6.CENTRED, "stable_rank"): lambda t: t / 4,
    (p6.NETWORKS, "relative_dispersion"): lambda t: t**-0.5,
    (p6.PREDICTED, "relative_dispersion"): lambda t: t**-0.5,
}


def made_up(other: dict) -> pl.DataFrame:
    rows = [
        (setting, variant, tokens, 0, metric, law(tokens))
        for setting in ("first", "second")
        for (variant, metric), law in (USUAL | other).items()
        for tokens in (16.0, 64.0, 256.0)
    ]
    return tables.from_rows(("model", "variant", "setting", "sample", "metric", "value"), rows)


@pytest.mark.parametrize(
    ("other", "against"),
    [
        ({}, []),
        ({(p6.NETWORKS, "first_singular_value"): lambda _: 1.2}, [0]),
        ({(p6.NETWORKS, "second_singular_value"): lambda t: t**-0.3}, [1]),
        ({(p6.NETWORKS, "second_singular_value"): lambda t: 1 / t}, [1]),
        ({(p6.NETWORKS, "gram_stable_rank"): lambda t: 1 + 20 / t}, [2]),
        ({(p6.NETWORKS, "gram_stable_rank"): lambda _: 1.04}, [2]),
        ({(p6.CENTRED, "stable_rank"): lambda _: 4.0}, [3]),
    ],
)
def test_each_question_has_two_sides(other: dict, against: list[int]) -> None:
    table = made_up(other)
    stated = p6.judge(SMALL, table).stated
    assert stated is not None
    assert [number for number, held in enumerate(stated.values()) if not held] == against
    found = kit.conclude(p6.ENTRY, SMALL, table)
    assert found.beyond is not None
    assert found.verdict == found.beyond.verdict == ("depends" if against else "holds")
    assert all(sentence.endswith(".") for sentence in found.sentences)
    first = found.listings[0].rows[0]
    longest = kit.curves(table)["first", p6.NETWORKS, "first_singular_value"][256.0]
    assert first[:2] == ("First", longest.value)


@pytest.mark.parametrize("source", [p6.NETWORKS, p6.PREDICTED])
def test_tokens_are_alike_only_if_prediction_and_networks_say_so(source: str) -> None:
    table = made_up({(source, "relative_dispersion"): lambda _: 0.8})
    found = kit.conclude(p6.ENTRY, SMALL, table)
    assert found.beyond is not None
    assert (found.verdict, found.beyond.verdict) == ("holds", "depends")


def test_the_rank_of_the_output_itself_is_no_statement_of_the_paper() -> None:
    """Of orthogonal tokens it stays at e, while the Gram matrix, of fourth powers, tends to one."""
    found = kit.conclude(p6.ENTRY, SMALL, made_up({(p6.NETWORKS, "stable_rank"): lambda _: math.e}))
    assert found.verdict == "holds"
    assert found.beyond is not None
    assert "first: the output tends to stable rank one" in found.beyond.on
