"""The search for stable designs: its Jacobian, what it finds, and what it says if it finds none."""

import pytest
import torch

from rankscope.core.theory import find_equilibria, stable_search, step_jacobian
from rankscope.core.theory.equilibria._search import design_step

from .steps import one_step


@pytest.mark.parametrize("mask", ["causal", "full"])
def test_the_designed_jacobian_is_the_networks_own(mask, tokens):
    x = tokens(1, 3, 3, seed=6)
    x = x / x.norm(dim=-1, keepdim=True)
    c, query_key = tokens(1, 3, seed=7).exp(), tokens(1, 3, 3, seed=8)
    allowed = torch.ones(3, 3).bool() if mask == "full" else torch.ones(3, 3).tril().bool()
    values, jacobian = design_step(x, c, query_key, allowed)
    net = one_step(values[0], query_key[0], mask=mask)
    assert torch.allclose(net(x), x, atol=1e-9)
    assert torch.allclose(step_jacobian(net, x[0]), jacobian[0], rtol=1e-7, atol=1e-8)


def test_the_search_finds_stable_equilibria_of_full_rank():
    result = stable_search(tokens=(2, 3), draws=60, descents=2, steps=40)
    assert [(each.mask, each.attention, each.tokens) for each in result.designs] == [
        (mask, attention, tokens)
        for mask, attention in [("causal", "uniform"), ("causal", "content"), ("full", "content")]
        for tokens in (2, 3)
    ]
    for each in result.designs:
        assert each.best.rank == each.tokens
        assert each.best.residual < 1e-12
        assert each.descended_stable <= each.descended == 2
        assert each.drawn == 60
        eigenvalues = torch.linalg.eigvals(step_jacobian(each.network, each.best.x))
        assert each.radius == pytest.approx(float(eigenvalues.abs().max()), rel=1e-6)
        assert bool(each.descended_stable) == (each.radius < 1)
    assert result.designs[0].drawn_stable > 0
    best = result.best
    assert best is not None
    assert best.tokens == best.best.rank == 3
    assert best.best.stable


def test_the_seed_decides_what_is_searched():
    one, same, other = (
        [each.radius for each in stable_search(tokens=(2,), draws=5, steps=2, seed=seed).designs]
        for seed in (1, 1, 2)
    )
    assert one == same != other


def test_descent_keeps_the_best_it_has_seen():
    drawn, descended = (
        stable_search(tokens=(2, 3), draws=30, descents=1, steps=steps).designs for steps in (0, 1)
    )
    for before, after in zip(drawn, descended, strict=True):
        assert after.radius <= before.radius * (1 + 1e-9)


def test_nothing_stable_is_no_best():
    result = stable_search(tokens=(5,), draws=3, descents=1, steps=0)
    assert all(not each.best.stable for each in result.designs)
    assert result.best is None


def test_the_designed_point_is_found_where_random_starts_miss_it():
    """What the search calls stable, ``find_equilibria`` reports, if it is given the point."""
    design = stable_search(tokens=(3,), draws=60, descents=1, steps=40).designs[0]
    assert design.best.stable

    def is_designed(each):
        return float((each.x - design.best.x).abs().max()) < 1e-6

    alone = find_equilibria(design.network, tokens=3, starts=1, steps=50)
    assert not any(map(is_designed, alone))
    both = find_equilibria(design.network, tokens=3, starts=1, steps=50, extra_starts=design.best.x)
    (there,) = filter(is_designed, both)
    assert there.stable
    assert there.rank == 3
    assert there.basin == 0.0


def test_short_reprs():
    result = stable_search(tokens=(2, 3), draws=20, descents=1, steps=2)
    assert "StableSearch(6 designs for 2 to 3 tokens" in repr(result)
    assert "Designs(2 tokens, causal mask, uniform attention" in repr(result.designs[0])
    none = stable_search(tokens=(5,), draws=3, descents=1, steps=0)
    assert repr(none).endswith("none stable)")
    for each in (result, none, *result.designs):
        assert len(repr(each)) < 400
