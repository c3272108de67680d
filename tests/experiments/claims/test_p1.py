"""Condensation of attention: the random energy model against other arithmetic, each outcome."""

import math
from dataclasses import replace

import polars as pl
import pytest
import torch

from rankscope import tables
from rankscope.errors import InputError
from rankscope.experiments import kit
from rankscope.experiments.claims import p1
from rankscope.experiments.claims._overlapping import (
    first_pattern,
    overlap_kernel,
    overlapping_tokens,
)
from rankscope.experiments.claims.p1 import (
    critical_ratio,
    limit_participation,
    mean_participation,
    sampled_participation,
)
from rankscope.process.progress import silent

from ..shown import can_be_shown, reads, steps_of

SMALL = p1.Config(
    tokens=(32,),
    overlaps=(0.0, 0.5),
    ratios=(0.5, 1.0, 2.0),
    heads=8,
    decades=(2, 4, 12, 100),
    drawn=(100, 4),
)


def two_tokens(ratio: float) -> float:
    """Of two logits only the difference matters: P = 1/(1 + e^d), d normal."""
    deviation = math.sqrt(2) * ratio * math.sqrt(math.log(2)) * math.sqrt(2)
    g = torch.linspace(-10, 10, 200_001, dtype=torch.float64)
    density = torch.exp(-(g**2) / 2) / math.sqrt(2 * math.pi)
    p = torch.sigmoid(deviation * g)
    return float(((p**2 + (1 - p) ** 2) * density).sum() * 1e-4)


@pytest.mark.parametrize("ratio", [0.3, 1.0, 2.5])
def test_two_random_energies_are_one_integral(ratio: float) -> None:
    assert mean_participation(math.log(2), ratio) == pytest.approx(two_tokens(ratio), rel=1e-8)


@pytest.mark.parametrize(("tokens", "draws"), [(32, 4000), (3000, 400)])
def test_the_integral_is_the_mean_of_drawn_models(tokens: int, draws: int) -> None:
    ratios = (0.5, 1.0, 2.0)
    drawn = sampled_participation(tokens, ratios, draws, 0)
    for ratio, values in zip(ratios, drawn, strict=True):
        error = float(values.std()) / math.sqrt(draws)
        mean = mean_participation(math.log(tokens), ratio)
        assert abs(float(values.mean()) - mean) < 3.5 * error


def test_small_logits_share_a_query_among_all_keys() -> None:
    """To second order Σ P² = (1 + σ²)/T, and with all logits equal 1/T."""
    assert mean_participation(math.log(1000), 1e-3) == pytest.approx(1e-3, rel=1e-4)
    deviation = math.sqrt(2 * math.log(1000)) * 0.05
    expected = math.exp(deviation**2) / 1000
    assert mean_participation(math.log(1000), 0.05) == pytest.approx(expected, rel=0.01)


def test_more_and_more_tokens_come_to_the_closed_form() -> None:
    for ratio in (0.5, 1.5, 2.0):
        far = [
            abs(mean_participation(decade * math.log(10), ratio) - limit_participation(ratio))
            for decade in (2, 12, 100)
        ]
        assert far == sorted(far, reverse=True)
        assert far[-1] < 0.01
    assert limit_participation(0.0) == limit_participation(1.0) == 0.0
    assert critical_ratio(0.0) == pytest.approx(math.sqrt(2))


def test_tokens_have_the_overlap_they_are_made_for() -> None:
    x = overlapping_tokens(6, 9, 0.3, 1)
    assert torch.allclose(x @ x.T / 9, overlap_kernel(6, 0.3), atol=1e-12)
    with pytest.raises(InputError, match="need more than 6 features"):
        overlapping_tokens(6, 6, 0.3, 1)
    with pytest.raises(InputError, match="cosine of two tokens"):
        overlap_kernel(3, 1.0)


def test_logits_have_the_deviation_that_is_asked_for() -> None:
    """By hand: at β = 1 and overlap 0 the logits of T tokens have deviation √(log T)."""
    config = replace(SMALL, head_width=512, heads=8)
    network = p1.Network.random(config.spec(32), seed=3, dtype=torch.float64)
    pattern = first_pattern(network, overlapping_tokens(32, 33, 0.0, 0))
    logits = pattern.log() - pattern.log().mean(-1, keepdim=True)
    assert float(logits.square().sum(-1).mean() / 31) == pytest.approx(math.log(32), rel=0.1)


def test_it_runs_small_and_networks_are_random_energies() -> None:
    found, _ = steps_of(p1.ENTRY.run, SMALL)
    can_be_shown(found)
    assert found.verdict == "holds", found.sentences
    assert found.beyond is not None
    assert found.beyond.verdict == "fails"
    assert p1.ENTRY.run(SMALL, silent).table.equals(found.table)
    assert not p1.ENTRY.run(replace(SMALL, seed=1), silent).table.equals(found.table)


METRIC = "weight_participation"
MADE_UP = replace(SMALL, tokens=(8,), overlaps=(0.0,), ratios=(2.0,))


def made_up(network: float, far: tuple[float, float, float]) -> pl.DataFrame:
    """Networks beside 0.5, and random energies so far from a limit of 0.5, at growing lengths."""
    rows = [
        ("T = 8", "networks, p = 0", 2.0, 0, METRIC, network),
        ("T = 8", "networks, p = 0", 2.0, 1, METRIC, network),
        ("T = 8", p1.MODEL, 2.0, 0, METRIC, 0.5),
        *(
            ("random energies", f"T = 10^{decade}", 2.0, 0, METRIC, 0.5 + off)
            for decade, off in zip((2, 6, 30), far, strict=True)
        ),
        ("T = 8", "networks, p = 0", 2.0, 0, "attention_entropy", 1.0),
        ("T = 8", "predicted, p = 0", 2.0, 0, "attention_entropy", 1.0 + 0.05 * math.log(8)),
    ]
    return tables.from_rows(("model", "variant", "setting", "sample", "metric", "value"), rows)


@pytest.mark.parametrize(
    ("network", "far", "verdict", "beyond"),
    [
        (
            0.51,
            (0.2, 0.1, 0.01),
            "Supported",
            "Not supported: off by 0.2 at T = 10^2 and 0.1 at T = 10^6",
        ),
        (0.51, (0.2, 0.04, 0.01), "Supported", "Supported in part: off by 0.2 at T = 10^2"),
        (0.51, (0.03, 0.02, 0.01), "Supported", "Supported"),
        (0.6, (0.2, 0.1, 0.01), "Supported for limit at 2 β_c; not for networks", "Not supported"),
        (
            0.51,
            (0.2, 0.1, 0.05),
            "Supported for networks, T = 8, p = 0, 2 β_c; not for limit",
            "Not supported",
        ),
        (0.51, (0.01, 0.1, 0.005), "Supported for networks, T = 8", "Supported in part: off by"),
        (0.6, (0.2, 0.1, 0.05), "Not supported", "Not supported"),
    ],
)
def test_each_outcome(
    network: float, far: tuple[float, float, float], verdict: str, beyond: str
) -> None:
    found = kit.conclude(p1.ENTRY, MADE_UP, made_up(network, far))
    assert reads(found.judgement, verdict)
    assert reads(found.beyond, beyond)
    assert all(sentence.endswith(".") for sentence in found.sentences)
    assert "networks differ by 5.0% of log T" in found.sentences[-1]


@pytest.mark.parametrize(
    ("ratios", "message"),
    [((), "at least one length"), ((0.0, 2.0), "above 0"), ((1.0, 0.9), "away from 1")],
)
def test_nothing_to_try_is_refused(ratios: tuple[float, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        p1.ENTRY.run(replace(SMALL, ratios=ratios), silent)


def test_lengths_nobody_uses_are_no_verdict_on_those_people_use() -> None:
    table = made_up(0.51, (0.2, 0.1, 0.01)).filter(
        ~pl.col("variant").is_in(["T = 10^2", "T = 10^6"])
    )
    beyond = kit.conclude(p1.ENTRY, MADE_UP, table).beyond
    assert beyond is not None
    assert beyond.verdict == "not tried"
