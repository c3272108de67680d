"""Smallest weights: products multiplied out, gaps of exact polynomials, and each outcome."""

import math

import polars as pl
import pytest
import sympy
import torch

from rankscope import tables
from rankscope.core.masks import as_mask
from rankscope.core.theory import ergodicity
from rankscope.errors import InputError
from rankscope.experiments.claims import w9
from rankscope.process.progress import silent

from .small import TINY, tiny

CONFIG = w9.Config(tokens=6, layers=7)


@pytest.mark.parametrize("mask", ["full", "causal", "window:1"])
@pytest.mark.parametrize("focus", [w9.ITSELF, w9.OTHERS])
def test_patterns_are_stochastic_and_have_the_epsilon_they_are_listed_under(mask, focus) -> None:
    patterns = torch.stack(list(w9.focused(CONFIG, mask, 0.03, focus, 0)))
    assert torch.allclose(patterns.sum(-1), torch.ones(7, 6, dtype=torch.float64))
    allowed = as_mask(mask).matrix(6)
    assert float(patterns[:, allowed].min()) == pytest.approx(0.03)
    assert not patterns[:, ~allowed].any()
    largest = patterns.argmax(-1)
    assert bool((largest == torch.arange(6)).all()) == (focus == w9.ITSELF)


def test_choices_are_the_same_for_every_epsilon() -> None:
    first, second = (
        torch.stack(list(w9.focused(CONFIG, "window:2", eps, w9.OTHERS, 1))).argmax(-1)
        for eps in (0.1, 0.01)
    )
    assert torch.equal(first, second)


def test_gaps_of_two_wells_are_those_of_exact_characteristic_polynomials() -> None:
    """Radius 1 by hand: eigenvalues 1, 1 − ε and 0, so that the gap is ε."""
    eps = sympy.Rational(1, 50)
    for radius in (1, 2, 3):
        pattern = w9.two_wells(radius, float(eps))
        rows = [[sympy.nsimplify(round(x, 6)) for x in row] for row in pattern.tolist()]
        exact = sympy.Matrix(rows)
        assert all(sum(exact.row(i)) == 1 for i in range(exact.rows))
        x = sympy.Symbol("x")
        roots = sympy.Poly(exact.charpoly(x).as_expr(), x).nroots(n=30)
        sizes = sorted((abs(complex(root)) for root in roots), reverse=True)
        gap = 1 - float(w9.second_modulus(pattern))
        assert sizes[0] == pytest.approx(1.0)
        assert gap == pytest.approx(1 - sizes[1], rel=1e-6)
        if radius == 1:
            assert gap == pytest.approx(0.02)


def test_wells_under_the_radius_they_are_named_by() -> None:
    for radius in (1, 2, 3):
        pattern = w9.two_wells(radius, 0.1)
        assert float(pattern[pattern > 0].min()) == pytest.approx(0.1)
        assert w9.graph_facts(pattern > 0).radius == radius
        assert torch.equal(pattern, pattern.flip(0, 1))


def test_products_above_the_bound_are_counted() -> None:
    logs = ergodicity([torch.tensor([[0.9, 0.1], [0.2, 0.8]], dtype=torch.float64)] * 4)
    assert float(logs.products[-1]) == pytest.approx(0.7**4)
    assert w9.count_above(logs.log_products, 0.1, 1) == 0
    assert w9.count_above(logs.log_products, 0.3, 1) == 0  # exactly the bound
    assert w9.count_above(logs.log_products, 0.4, 1) == 4
    assert (
        w9.count_above(logs.log_products, 0.8, 2) == 2
    )  # after an odd layer, the bound of the one before


def made_up(
    *, itself: float = 0.5, others: float = 0.5, above: float = 0.0, power: float = 2.0
) -> pl.DataFrame:
    """Losses at ε = 0.1 are 1, at ε = 0.01 these; gaps fall with a power of ε."""
    rows: list[tuple[object, ...]] = []
    for eps, factor in ((0.1, None), (0.01, 1.0)):
        for variant, loss in ((w9.ITSELF, itself), (w9.OTHERS, others), (w9.BOUND, 0.1)):
            rows.append(("full", variant, eps, 0, w9.LOSS, loss if factor else 1.0))
        rows.append(("full", w9.ITSELF, eps, 0, w9.ABOVE, above))
        rows.append((w9.WELLS, "radius 2", eps, 0, w9.GAP, 3 * eps**power))
    return tables.from_rows(("model", "variant", "setting", "sample", "metric", "value"), rows)


@pytest.mark.parametrize(
    ("changed", "broken", "beyond"),
    [
        ({}, [], [True, True]),
        ({"others": 1.5}, [], [True, False]),
        ({"power": 1.5}, [], [False, True]),
        ({"itself": 1.5}, ["full: slower for smaller ε"], [True, True]),
        ({"above": 1.0}, ["full: below the bound"], [True, True]),
    ],
)
def test_each_outcome(changed: dict[str, float], broken: list[str], beyond: list[bool]) -> None:
    config = w9.Config(masks=("full",), epsilons=(0.1, 0.01), radii=(2,))
    answer = w9.judge(config, made_up(**changed))
    assert [check for check, held in (answer.stated or {}).items() if not held] == broken
    assert list((answer.beyond or {}).values()) == beyond
    assert answer.key_figures["exponent of the gap, radius 2"] == pytest.approx(
        changed.get("power", 2.0)
    )


def test_a_token_that_sees_itself_alone_attains_the_bound() -> None:
    """Under a star tokens mostly at themselves lose exactly ε a layer, as the bound says."""
    result, _ = tiny("w9")
    rows = [row for row in result.listings[0].rows if row[0] == "star:1"]
    assert all(row[3] == pytest.approx(row[5]) and math.isclose(row[5], row[2]) for row in rows)
    module, config = TINY["w9"]
    assert module.ENTRY.run(config, silent).table.equals(result.table)


@pytest.mark.parametrize(
    "fields",
    [{"epsilons": (0.2,)}, {"masks": ()}, {"well_epsilons": (0.1,)}, {"well_epsilons": (0.5, 0.1)}],
)
def test_weights_that_cannot_be_are_refused(fields) -> None:
    with pytest.raises(InputError):
        w9.ENTRY.run(w9.Config(**fields), silent)
