"""Corollary 3.2 against sums by hand, Jacobians against autograd, and each outcome."""

import math
from dataclasses import replace

import polars as pl
import pytest
import torch

from rankscope import tables
from rankscope.core.theory import bounds
from rankscope.errors import InputError
from rankscope.experiments import kit
from rankscope.experiments.claims import d12
from rankscope.process.progress import silent

from .small import TINY, tiny

CONFIG = d12.Config(activations=("relu",), gains=(1.0, 2.0, 4.0), draws=2, scales=(0.1,))
KEPT = d12.Held(0.1, 6, 0, 0, 6, 6, 0.5)


def composite(matrix: torch.Tensor) -> float:
    return math.sqrt(float(matrix.abs().sum(0).max() * matrix.abs().sum(1).max()))


def test_the_bound_is_the_corollarys_by_hand() -> None:
    """βH and λ from the matrices; slopes of ReLU lie between 0 and 1."""
    config = replace(CONFIG, layers=2, width=6, tokens=5)
    network = config.network("relu", 0, 0.1)
    x, mask = config.texts()
    curves, held = d12.hold(0.1, bounds(network, x[:1], token_mask=mask[:1]))
    assert held.covered == 2
    factor = 0.0
    for layer, block in enumerate(network.blocks, 1):
        attention, mlp = block.attention, block.mlp
        q, k, v = (getattr(attention, name).weight.detach() for name in ("query", "key", "value"))
        o, beta = attention.output.weight.detach(), 0.0
        for head in (slice(0, 3), slice(3, 6)):
            scores = float((q[head].T @ k[head]).abs().sum(0).max())
            beta = max(beta, scores * composite(v[head].T @ o[:, head].T))
        up, down = mlp.up.weight.detach().T, mlp.down.weight.detach().T
        gain = composite((up @ down).abs() / 2 + up.abs() @ down.abs() / 2)
        constant = 4 * beta * 2 * gain / math.sqrt(3)
        before = curves[d12.MEASURED][layer - 1]
        assert curves[d12.LAYER][layer] == pytest.approx(math.log10(constant) + 3 * before)
        factor = max(factor, constant)
        power = 3**layer
        depth = math.log10(factor) * (power - 1) / 2 + curves[d12.MEASURED][0] * power
        assert curves[d12.DEPTH][layer] == pytest.approx(depth)


def test_a_residual_above_its_bound_is_counted() -> None:
    config = replace(CONFIG, layers=2, width=6, tokens=5)
    x, mask = config.texts()
    promised = bounds(config.network("relu", 0, 0.1), x[:1], token_mask=mask[:1])
    first, last = promised.layers
    higher = replace(last, log10_residual=last.log10_residual + 50)
    broken = replace(promised, layers=(first, higher))
    assert d12.hold(0.1, promised)[1][2:4] == (0, 0)
    assert d12.hold(0.1, broken)[1][2:4] == (1, 1)


def test_amplification_is_that_of_autograd() -> None:
    config = replace(CONFIG, layers=2, width=6, tokens=5)
    network, x = config.network("gelu", 1, gain=3.0), config.texts()[0][0]
    whole = torch.autograd.functional.jacobian(lambda t: network(t.unsqueeze(0))[0], x)
    jacobian = whole.reshape(x.numel(), x.numel())
    found = d12.amplification(network, x)
    worst = float(torch.linalg.svdvals(jacobian)[0])
    typical = math.sqrt(float(jacobian.square().sum()) / x.numel())
    size = float(x.norm() / network(x.unsqueeze(0)).norm().detach())
    assert found == pytest.approx(
        {
            "worst, absolute": worst,
            "worst, relative": worst * size,
            "random, absolute": typical,
            "random, relative": typical * size,
        },
        rel=1e-5,
    )


def made_up(absolute: float, relative: float, without: float) -> pl.DataFrame:
    """Powers of the factor, in each of two draws."""
    rows = []
    for kind, draw, gain in (
        (kind, draw, gain) for kind in ("relu", d12.NO_MLP) for draw in (0, 1) for gain in (1, 2, 4)
    ):
        for size in (d12.WORST, d12.TYPICAL):
            powers = {d12.ABSOLUTE: absolute, d12.RELATIVE: relative}
            for name, power in powers.items():
                power = power if kind == "relu" else without
                value = 3.0 * (1 + draw) * gain**power
                rows.append((kind, f"{size}, {name}", draw, float(gain), d12.GAIN, value))
    return tables.from_rows(("model", "variant", "sample", "setting", "metric", "value"), rows)


@pytest.mark.parametrize(
    ("powers", "held", "against"),
    [
        ((2.0, 0.5, 0.2), KEPT, []),
        ((2.0, 0.5, 0.2), KEPT._replace(above_layer=1), ["the bound in single layers"]),
        ((2.0, 0.5, 0.2), KEPT._replace(above_depth=1), ["the bound over all layers"]),
        ((0.05, 0.5, 0.2), KEPT, ["relu: perturbations grow with λ"]),
    ],
)
def test_each_statement_has_two_sides(
    powers: tuple[float, float, float], held: d12.Held, against: list[str]
) -> None:
    measured = kit.Measured(made_up(*powers), facts=[KEPT, held])
    answer = d12.judge(CONFIG, measured)
    assert answer.stated is not None
    assert [name for name, kept in answer.stated.items() if not kept] == against
    result = kit.conclude(d12.ENTRY, CONFIG, measured)
    assert result.verdict == ("depends" if against else "holds")
    assert all(name in str(result.judgement) for name in against)
    assert answer.key_figures["power of λ, relu, worst, absolute"] == pytest.approx(powers[0])


@pytest.mark.parametrize(
    ("relative", "without", "kept"),
    [(0.5, 0.2, [True] * 3), (0.5, 0.6, [True, True, False]), (0.05, 0.0, [False, False, True])],
)
def test_what_is_relative_lies_beyond(relative: float, without: float, kept: list[bool]) -> None:
    answer = d12.judge(CONFIG, kit.Measured(made_up(2.0, relative, without), facts=[KEPT]))
    assert answer.beyond is not None
    assert list(answer.beyond.values()) == kept


def test_a_bound_whose_condition_is_nowhere_met_is_not_judged() -> None:
    unmet = KEPT._replace(covered=0)
    stated = d12.judge(CONFIG, kit.Measured(made_up(2.0, 0.5, 0.2), facts=[unmet])).stated
    assert stated is not None
    assert list(stated) == ["relu: perturbations grow with λ"]


def test_too_little_is_refused() -> None:
    with pytest.raises(InputError, match="at least two gains"):
        d12.ENTRY.run(replace(TINY["d12"][1], gains=(1.0,)), silent)


def test_small_weights_are_covered_to_the_last_layer() -> None:
    result, _ = tiny("d12")
    weights, _, *counts = result.listings[0].rows[0]
    assert (weights, counts) == ("LeCun × 0.02", ["3 of 3"] * 3)
