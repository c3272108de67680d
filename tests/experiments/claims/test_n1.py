"""Pairs of positions make the collapse exponential, and hidden states that shrink do not."""

import math
from dataclasses import replace

import pytest
import torch

from rankscope import tables
from rankscope.experiments import kit
from rankscope.experiments.claims import n1
from rankscope.experiments.claims.n1 import (
    PRODUCT,
    SECOND,
    TAU,
    collapsed_patterns,
    position_table,
    read,
)
from rankscope.experiments.depths import RELATIVE, law_entries
from rankscope.numerals import power_of_ten
from rankscope.process.progress import silent

from .small import TINY, tiny

CUBIC = [-(3.0**k) for k in range(9)]
STEADY = [-0.3 * k for k in range(17)]
QUICKENING = [-0.4 * k * k for k in range(17)]
LEVEL = [0.0] * 17
SHORT = [0.0, -1.0]


def table(**curves: tuple[float, list[float]]):
    """By pattern: τ of its collapsed state and its curve; hidden states lose a decade a layer."""
    rows = []
    for name, (tau, curve) in curves.items():
        for layer, value in enumerate(curve):
            rows.append((n1.KEEPING, name, layer, 0, RELATIVE, value))
            rows.append((n1.KEEPING, name, layer, 0, "log10_residual", value - layer))
            rows.append((n1.KEEPING, name, layer + 1, 0, TAU, tau))
            if tau > 1e-9:
                rows.append((n1.KEEPING, name, layer + 1, 0, SECOND, tau))
                rows.append(
                    (n1.KEEPING, name, layer + 1, 0, PRODUCT, math.log10(tau) * (layer + 1))
                )
    return tables.from_rows(("model", "variant", "layer", "sample", "metric", "value"), rows)


@pytest.mark.parametrize(
    ("curves", "verdict"),
    [
        ({"sink": (0.0, CUBIC), "ALiBi": (0.5, STEADY)}, "Supported"),
        (
            {"sink": (0.0, CUBIC), "rotary": (0.5, QUICKENING)},
            "Supported for 1 pattern; not for rotary (between)",
        ),
        ({"sink": (0.0, STEADY), "ALiBi": (0.5, CUBIC)}, "Not supported"),
        ({"sink": (0.0, CUBIC), "ALiBi": (0.5, SHORT)}, "Supported"),  # too short to count
        ({"ALiBi": (0.5, SHORT)}, "Not tested: the layers are too few to show a law"),
        ({"ALiBi": (0.5, LEVEL)}, "Not supported"),
    ],
)
def test_every_verdict_can_be_reached(curves, verdict) -> None:
    found = kit.conclude(n1.ENTRY, n1.Config(), kit.Measured(table(**curves)))
    assert str(found.judgement) == verdict


def test_what_shows_no_law_is_named() -> None:
    measured = kit.Measured(table(sink=(0.0, CUBIC), ALiBi=(0.5, SHORT)))
    said = kit.conclude(n1.ENTRY, n1.Config(), measured).sentences
    assert said[-1].startswith("Left out of the verdict")
    assert said[-1].endswith("show a law: ALiBi.")


def test_what_is_read_off_a_table() -> None:
    found = read(table(steady=(0.5, STEADY), agree=(1e-15, CUBIC)), n1.KEEPING)
    steady, agree = found["steady"], found["agree"]
    assert steady.expected == "exponential"
    assert agree.expected == "doubly exponential"
    assert steady.second == pytest.approx(0.5)
    assert steady.positions.rate == pytest.approx(math.log10(0.5))
    assert steady.shrinks == pytest.approx(-1.0)
    assert agree.positions is None
    assert math.isnan(agree.gap)
    off = replace(
        steady,
        law=replace(steady.law, rate=math.log10(0.5) - 0.1, rate_error=0.03),
        positions=replace(steady.positions, rate_error=0.04),
    )
    assert off.gap == pytest.approx(2.0)


def test_rates_are_those_of_positions_alone() -> None:
    """ALiBi's collapsed attention by hand: softmax of −slope·distance, the same in every layer."""
    config = n1.Config(layers=12, width=16, tokens=6, samples=2)
    (alibi,) = (each for each in config.patterns if each.name == "ALiBi")
    network = config.network(alibi, config.init)
    x, token_mask = config.texts()
    place = torch.arange(6, dtype=torch.float64)
    slope = 2.0**-8  # of a single head
    by_hand = (-slope * (place[:, None] - place).abs()).softmax(-1)
    for found in collapsed_patterns(network, x, token_mask):
        torch.testing.assert_close(found, by_hand.expand(2, 6, 6))
    sizes = torch.linalg.eigvals(by_hand).abs().sort(descending=True).values
    rows = position_table(network, x, token_mask).filter(metric=SECOND)["value"]
    assert rows.to_list() == pytest.approx([float(sizes[1])] * 24)
    table = n1.ENTRY.run(replace(config, patterns=(alibi,)), silent).table
    found = read(table, n1.KEEPING)["ALiBi"]
    assert found.law.kind == "exponential"
    assert found.law.rate == pytest.approx(math.log10(float(sizes[1])), abs=0.05)


def test_rotary_quickens_where_hidden_states_shrink() -> None:
    """By twice the decades a layer takes from the hidden states: logits are quadratic in them."""
    config = n1.Config(
        layers=16, width=16, tokens=8, samples=2, patterns=(n1.Config().patterns[2],)
    )
    found = n1.ENTRY.run(config, silent)
    assert found.verdict == "holds"
    assert str(found.beyond) == "Not supported"
    rotary = read(found.table, n1.SHRINKING)["rotary"]
    assert rotary.law.kind == "between"
    assert rotary.law.bend == pytest.approx(2 * rotary.shrinks, rel=0.1)
    assert any(f"grow by {-rotary.law.bend:.2f} decades each" in each for each in found.sentences)
    (row,) = found.listings[1].rows
    assert row[:4] == ("rotary", *law_entries(rotary.law))


def test_the_relative_bias_follows_the_seed() -> None:
    (bias,) = (each for each in n1.Config().patterns if each.name == "relative bias")
    tables_ = [
        n1.Config(seed=seed).network(bias, "orthogonal").blocks[0].attention.scores.table.weight
        for seed in (0, 0, 1)
    ]
    assert torch.equal(tables_[0], tables_[1])
    assert not torch.equal(tables_[0], tables_[2])


def test_n1_says_which_rates_agree_with_positions() -> None:
    found, _ = tiny("n1")
    assert found.sentences[0].startswith("2 of 2 exponential rates agree within 3 standard errors")
    absolute, rotary, alibi = found.listings[0].rows
    assert absolute[2:] == ("doubly exponential", "step × 3.00", None, None)
    assert rotary[-2].startswith("layer × ")
    one = read(found.table, n1.KEEPING)["ALiBi"]
    assert alibi[-2:] == (f"layer × {power_of_ten(one.positions.rate, digits=3)}", one.second)
    few = replace(TINY["n1"][1], layers=4, patterns=n1.Config().patterns[2:3])
    assert n1.ENTRY.run(few, silent).table.equals(n1.ENTRY.run(few, silent).table)
