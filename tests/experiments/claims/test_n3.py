"""Poles ±x: softmax written out by hand, Monte Carlo beside the digammas, and each outcome."""

import math

import polars as pl
import pytest
import torch

from rankscope import tables
from rankscope.core.network import Network
from rankscope.errors import InputError
from rankscope.experiments.claims import n3
from rankscope.process.progress import silent

from .small import TINY, tiny


def one_layer(kappa: float, values: torch.Tensor) -> Network:
    """A layer in which the first unit vector has this κ."""
    width = len(values)
    query_key = torch.randn(width, width, generator=torch.Generator().manual_seed(1)).double()
    query_key[0, 0] = kappa
    shape = (1, 1, width, width)
    return Network.from_matrices(
        query_key.view(shape), values.view(shape), head_width=1, norm="sphere"
    )


@pytest.mark.parametrize("kappa", [-2.0, -0.55, -0.54, 0.0, 0.3, 0.54, 0.55, 2.0])
def test_poles_of_three_and_one_meet_below_half_the_logarithm_of_three(kappa: float) -> None:
    """By hand: ½ ln 3 = 0.5493."""
    values = torch.eye(3, dtype=torch.float64)
    ((seen, derived),) = n3.pole_fates(one_layer(kappa, values), 3, 1)
    by_hand = "met" if abs(kappa) < 0.5493 else "kept" if kappa > 0 else "swapped"
    assert seen == derived == by_hand


@pytest.mark.parametrize("kappa", [-1.5, 0.2, 3.0])
def test_a_bend_grows_as_the_derivative_of_softmax_written_out_says(kappa: float) -> None:
    """Automatic differentiation of the layer, in other code."""
    values = torch.randn(4, 4, generator=torch.Generator().manual_seed(2)).double()
    network = one_layer(kappa, values)
    ((seen, derived),) = n3.bend_growth(network)
    signs = torch.tensor([1.0, -1.0, -1.0, 1.0], dtype=torch.float64)
    x, z = torch.eye(4, dtype=torch.float64)[:2]
    query_key = n3.head_weights(network.blocks[0].attention).query_key[0]

    def step(size: torch.Tensor) -> torch.Tensor:
        tokens = signs[:, None] * x + size * z
        weights = torch.softmax(tokens @ query_key @ tokens.T, -1)
        out = weights @ tokens @ values
        return out / out.norm(dim=-1, keepdim=True)

    slope = torch.autograd.functional.jacobian(step, x.new_zeros(()))
    assert slope.std(0).max() < 1e-12, "all tokens bend alike"
    assert seen == pytest.approx(float(slope[0].norm().log()), abs=1e-6)
    assert derived == pytest.approx(seen, abs=1e-6)


@pytest.mark.parametrize("kind", [n3.GAUSSIAN, n3.ORTHOGONAL])
@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
def test_the_expected_growth_is_that_of_many_draws(kind: str, scale: float) -> None:
    generator = torch.Generator().manual_seed(3)
    draws, width = 400_000, 5

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    growth = -torch.log(torch.tanh((scale * normal(draws)).abs()))
    if kind == n3.GAUSSIAN:
        x, z = normal(draws, width), normal(draws, width)
        along = (x * z).sum(-1) / x.norm(dim=-1)
        growth = growth + torch.log((z.square().sum(-1) - along.square()).sqrt() / x.norm(dim=-1))
    mean, deviation = n3.expected_growth(width, scale, kind)
    assert mean == pytest.approx(float(growth.mean()), abs=5 * deviation / math.sqrt(draws))
    assert deviation == pytest.approx(float(growth.std()), rel=0.02)


def test_orthogonal_values_are_orthogonal_and_gaussian_ones_are_not() -> None:
    config = n3.Config(layers=2)
    for kind, off in ((n3.ORTHOGONAL, 1e-12), (n3.GAUSSIAN, 10.0)):
        network = n3.draw_network(config, 6, 1.0, kind, 0)
        values = n3.head_weights(network.blocks[1].attention).values[0]
        assert ((values @ values.T - torch.eye(6)).abs().max() < off).item()
        assert ((values @ values.T - torch.eye(6)).abs().max() > 0.1).item() == (off > 1)


GOOD = {
    "weak": 1.0, "strong": -1.0, "orthogonal": 0.5, "met": 0.5, "wrong": 0.0, "error": 0.0,
    "normed": 1.0,
}  # fmt: skip


def made_up(**changed: float) -> pl.DataFrame:
    """All as derived, but for what is changed."""
    figure = GOOD | changed
    rows: list[n3.Row] = []
    for kind, setting, name, expected in (
        (n3.GAUSSIAN, 1.0, "weak", 1.0),
        (n3.GAUSSIAN, 64.0, "strong", -1.0),
        (n3.ORTHOGONAL, 1.0, "orthogonal", 0.5),
    ):
        rows.append(("4 features", kind, setting, 0, n3.GROWTH, figure[name], None))
        rows.append(("4 features", kind, setting, 0, n3.ERROR, figure["error"], None))
        rows.append(("4 features", kind + n3.EXPECTED, setting, 0, n3.GROWTH, expected, 0.05))
    for counts, met, expected, error in (
        ("3 and 1 tokens", figure["met"], 0.5, 0.01),
        ("2 and 2 tokens", figure.get("equal", 0.0), 0.0, 0.0),
    ):
        rows.append((n3.POLES, counts, 1.0, 0, n3.MET, met, None))
        rows.append((n3.POLES, counts, 1.0, 0, n3.WRONG, figure["wrong"], None))
        rows.append((n3.POLES, counts + n3.EXPECTED, 1.0, 0, n3.MET, expected, error))
    for setting, growth in ((1.0, figure["normed"]), (4.0, -0.1)):
        rows.append((n3.LAYERNORM, n3.LAYERNORM, setting, 0, n3.GROWTH, growth, None))
        rows.append((n3.LAYERNORM, n3.LAYERNORM, setting, 0, n3.ERROR, 0.0, None))
    return tables.from_rows(n3._NAMES, rows)


@pytest.mark.parametrize(
    ("changed", "broken", "beyond"),
    [
        ({}, [], [True, True]),
        ({"wrong": 1.0}, ["fate of poles in every layer"], [True, True]),
        ({"met": 0.55}, ["how often poles meet"], [True, True]),
        ({"equal": 0.01}, ["how often poles meet"], [True, True]),
        ({"strong": -1.3}, ["mean growth"], [True, True]),
        ({"strong": 0.1}, ["mean growth", "its sign", "Gaussian values attract"], [True, True]),
        ({"orthogonal": -0.1}, ["mean growth", "its sign", "orthogonal values never"], [True] * 2),
        ({"error": 0.1}, ["growth of a bend, Gauss", "growth of a bend, ortho"], [True, True]),
        ({"normed": -1.0}, [], [True, False]),
    ],
)
def test_each_outcome(changed: dict[str, float], broken: list[str], beyond: list[bool]) -> None:
    answer = n3.judge(n3.Config(), made_up(**changed))
    against = [check for check, held in (answer.stated or {}).items() if not held]
    assert len(against) == len(broken)
    assert all(check.startswith(start) for check, start in zip(against, broken, strict=True))
    assert list((answer.beyond or {}).values()) == beyond


def test_the_small_run_sees_both_signs() -> None:
    result, _ = tiny("n3")
    signs = {row[3] > 0 for row in result.listings[0].rows if row[1] == n3.GAUSSIAN}
    assert signs == {True, False}
    module, config = TINY["n3"]
    assert module.ENTRY.run(config, silent).table.equals(result.table)


@pytest.mark.parametrize("fields", [{"widths": (2,)}, {"scales": ()}, {"counts": ()}])
def test_nothing_to_measure_is_refused(fields) -> None:
    with pytest.raises(InputError):
        n3.ENTRY.run(n3.Config(**fields), silent)
