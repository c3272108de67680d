"""Finding equilibria, and what is said of each: hand-made steps, and 60 digits."""

import math

import mpmath
import pytest
import torch

from rankscope.core.theory import (
    design_values,
    equilibrium_at,
    every_rank,
    find_equilibria,
    stability_of,
    stable_search,
    step_jacobian,
)
from rankscope.errors import InputError, KindError, ShapeError

from .steps import one_step, two_tokens


def test_one_token_rests_on_the_eigenvectors():
    found = find_equilibria(one_step(torch.diag(torch.tensor([3.0, 2.0, 1.0]))), tokens=1)
    by_axis = {tuple(each.x[0].round().int().tolist()): each for each in found}
    assert set(by_axis) == {
        (sign * (k == 0), sign * (k == 1), sign * (k == 2)) for k in range(3) for sign in (1, -1)
    }
    for axis, each in by_axis.items():
        # The multipliers are the ratios of the other eigenvalues to one's own.
        expected = {0: 2 / 3, 1: 3 / 2, 2: 3.0}[[abs(entry) for entry in axis].index(1)]
        assert each.stability.radius == pytest.approx(expected)
        assert each.stable == (expected < 1)
        assert each.stability.unstable == (expected > 1)
        assert each.residual < 1e-14
        assert float((each.x - each.x.round()).norm()) <= each.distance < 1e-14
    first, second = found.equilibria[:2]
    assert first.stable
    assert second.stable
    assert first.basin + second.basin == 1.0
    assert first.basin_error == pytest.approx(math.sqrt(first.basin * second.basin / 64))
    assert abs(first.basin - 0.5) < 4 * first.basin_error
    assert found.settled == found.starts == 64
    assert len(found.stable) == 2
    assert found.ranks == (1,)


@pytest.mark.parametrize(("sign", "stable"), [(-1, True), (1, False)])
def test_two_tokens_of_rank_two_are_stable_at_an_obtuse_angle(sign, stable):
    net, x = two_tokens(sign)
    there = equilibrium_at(net, x)
    cosine = float(x[0] @ x[1])
    assert float((there.x - x).abs().max()) < 1e-14
    assert there.rank == 2
    assert there.stability.radius == pytest.approx(max(0.5, abs(2 * (1 + cosine))), rel=1e-9)
    assert there.stable == stable
    assert there.stability.unstable != stable


def test_the_stable_pair_is_found_and_attracts():
    net, x = two_tokens(-1)
    found = find_equilibria(net, tokens=2, starts=100)
    (there,) = (each for each in found if float((each.x - x).abs().max()) < 1e-9)
    assert there.stable
    assert 0 < there.basin < 0.5
    assert {each.rank for each in found.stable} == {1, 2}
    assert sum(each.basin for each in found) == pytest.approx(1.0)
    assert all(each.collapsed == (each.rank == 1) for each in found.stable)


def test_opposite_tokens_have_rank_one_and_are_not_collapsed():
    """Token 2 at −x₁: its multiplier is λ₂A₂₂/(λ₁(A₂₂ − A₂₁)), and A₂₁/A₂₂ = e⁻² here."""
    net = one_step([[1.0, 0.0], [0.0, 0.3]], torch.eye(2), mask="causal")
    opposite = [
        each
        for each in find_equilibria(net, tokens=2).stable
        if each.rank == 1 and not each.collapsed
    ]
    assert len(opposite) == 2
    for each in opposite:
        assert torch.allclose(each.x[0], -each.x[1])
        assert each.stability.radius == pytest.approx(0.3 / (1 - math.exp(-2)))


def test_a_cycle_is_counted_as_one():
    found = find_equilibria(one_step([[-2.0, 0.0], [0.0, 1.0]]), tokens=1, starts=20)
    assert found.cycles == ((2, 20),)
    assert (found.settled, found.diverged, found.wandering) == (0, 0, 0)
    assert {abs(round(float(each.x[0, 1]))) for each in found} == {1}
    assert all(each.stability.radius == pytest.approx(2.0) for each in found)
    assert not found.stable


def test_the_starts_lie_in_the_range_of_the_norm():
    """On the sphere the identity leaves them where they are, so that one step is enough."""
    found = find_equilibria(one_step(torch.eye(2)), tokens=1, starts=5, steps=1)
    assert found.settled == 5


def test_a_rotation_wanders_and_has_no_equilibrium():
    turn = [[math.cos(1.0), math.sin(1.0)], [-math.sin(1.0), math.cos(1.0)]]
    found = find_equilibria(one_step(turn), tokens=1, starts=5, steps=50)
    assert len(found) == 0
    assert found.wandering == 5


def test_without_a_norm_it_may_diverge_and_zero_is_an_equilibrium():
    found = find_equilibria(one_step([[3.0]], norm="none"), tokens=1, starts=4)
    assert found.diverged == 4
    (zero,) = found.equilibria
    assert float(zero.x.abs().max()) < 1e-10
    assert zero.stability.radius == pytest.approx(3.0)
    assert zero.basin == 0.0


def test_a_continuum_is_neither_stable_nor_unstable_nor_isolated():
    found = find_equilibria(one_step(torch.eye(2)), tokens=3, starts=10)
    assert found.settled == 10
    resting = [each for each in found if each.basin]
    assert resting
    for each in resting:
        assert each.collapsed
        assert each.stability.radius == pytest.approx(1.0)
        assert not each.stable
        assert not each.stability.unstable
        assert each.stability.margin < 1e-6
        assert not each.isolated
    assert set(resting) <= set(found.collapsed)


def test_sixty_digits_confirm_the_equilibrium_and_its_distance(tokens):
    """Newton in mpmath on a step with softmax attention, from the tokens we found."""
    query_key = 0.5 * tokens(3, 3, seed=2)
    net = one_step(torch.eye(3), query_key, mask="causal")
    begin = tokens(1, 3, 3, seed=3)
    net = design_values(net, (begin / begin.norm(dim=-1, keepdim=True))[0])
    attention = net.blocks[0].attention
    weights = (attention.value.weight.T @ attention.output.weight.T).detach()
    start = begin[0] / begin[0].norm(dim=-1, keepdim=True)
    found = equilibrium_at(net, start + 1e-3 * tokens(3, 3, seed=4))
    with mpmath.workdps(60):
        w, q = mpmath.matrix(weights.tolist()), mpmath.matrix(query_key.tolist())

        def missed(*entries):
            x = mpmath.matrix([entries[:3], entries[3:6], entries[6:]])
            logits, values, out = x * q * x.T, x * w, []
            for i in range(3):
                e = [mpmath.exp(logits[i, j]) for j in range(i + 1)]
                row = [mpmath.fsum(e[j] * values[j, k] for j in range(i + 1)) for k in range(3)]
                length = mpmath.norm(row, 2)
                out += [row[k] / length - x[i, k] for k in range(3)]
            return out

        begin = [mpmath.mpf(entry) for entry in found.x.flatten().tolist()]
        end = mpmath.findroot(missed, begin, tol=mpmath.mpf(10) ** -110)
        assert mpmath.norm(missed(*end), mpmath.inf) < mpmath.mpf(10) ** -50
        off = mpmath.norm(end - mpmath.matrix(begin), 2)
        assert off <= found.distance < 1e-10
        reached = [float(entry) for entry in end]
    assert reached == pytest.approx(start.flatten().tolist(), abs=1e-10)
    # Unpolished tokens lie far from the equilibrium, and the estimate knows it.
    near = equilibrium_at(net, start + 1e-7, polish=False)
    assert float((near.x - start).norm()) <= near.distance < 1e-4


def test_single_precision_networks_are_searched_in_float64_and_the_seed_decides():
    net = two_tokens(-1)[0]
    exact = find_equilibria(net, tokens=2, starts=12, seed=1)
    single = find_equilibria(net.float(), tokens=2, starts=12, seed=1)
    assert single.equilibria[0].x.dtype == torch.float64
    assert len(single) == len(exact)
    again = find_equilibria(net, tokens=2, starts=12, seed=1)
    assert [each.x.tolist() for each in again] == [each.x.tolist() for each in exact]
    other = find_equilibria(net, tokens=2, starts=12, seed=2)
    assert [each.basin for each in other] != [each.basin for each in exact]


def test_extra_starts_add_equilibria_and_change_no_share():
    net, x = two_tokens(-1)
    alone = find_equilibria(net, tokens=2, starts=3)
    known = find_equilibria(net, tokens=2, starts=30)
    missed = [each for each in known if each.isolated and not _in(each, alone)]
    assert missed
    extra = torch.stack([each.x for each in missed])
    both = find_equilibria(net, tokens=2, starts=3, extra_starts=extra + 1e-3)
    for each in missed:
        assert _in(each, both)
    assert len(both) == len(alone) + len(missed)
    for each in both:
        assert each.basin == next((e.basin for e in alone if _near(e, each)), 0.0)
    counts = ("starts", "settled", "cycles", "diverged", "wandering")
    assert all(getattr(both, name) == getattr(alone, name) for name in counts)
    single = find_equilibria(net, tokens=2, starts=3, extra_starts=x.float())
    assert any(float((each.x - x).abs().max()) < 1e-9 for each in single)


def _near(one, other):
    return float((one.x - other.x).abs().max()) < 1e-6


def _in(one, found):
    return any(_near(one, other) for other in found)


def test_extra_starts_are_iterated_too():
    """From near the saddle of ``diag(3, 2)``, Newton returns to it and iteration leaves it."""
    net = one_step([[3.0, 0.0], [0.0, 2.0]])
    only = find_equilibria(net, tokens=1, starts=1, extra_starts=torch.tensor([[[1e-3, -1.0]]]))
    ends = {tuple(each.x[0].round().int().tolist()) for each in only}
    assert {(0, -1), (1, 0)} <= ends


def test_extra_starts_of_a_wrong_kind_are_refused():
    net = one_step(torch.eye(2))
    for shape in [(3, 2), (2, 3), (0, 2, 2), (1, 1, 2, 2)]:
        with pytest.raises(ShapeError, match=r"extra_starts has shape .*\(2 tokens, 2 features"):
            find_equilibria(net, tokens=2, extra_starts=torch.zeros(shape))
    with pytest.raises(KindError, match="extra_starts is a list"):
        find_equilibria(net, tokens=2, extra_starts=[[0.0, 1.0]])
    with pytest.raises(InputError, match="extra_starts is nan"):
        find_equilibria(net, tokens=2, extra_starts=torch.full((2, 2), math.nan))


def test_short_reprs():
    found = find_equilibria(one_step(torch.diag(torch.tensor([3.0, 2.0, 1.0]))), tokens=1)
    assert repr(found) == (
        "Equilibria(6 found, 2 stable, 6 collapsed, ranks 1; of 64 random starts 64 settled, "
        "0 cycled, 0 diverged, 0 wandered)"
    )
    assert repr(found.equilibria[0]).startswith(
        "Equilibrium(1 token × 3 features, rank 1, collapsed, stable, spectral radius 0.6667, "
    )
    assert "unstable" in repr(found.equilibria[-1])
    continuum = find_equilibria(one_step(torch.eye(2)), tokens=3, starts=3).equilibria[0]
    assert "undecided" in repr(continuum)
    assert "basin" not in repr(equilibrium_at(one_step(torch.eye(2)), torch.eye(2)))
    family = every_rank(6)
    assert "EveryRank(6 tokens; equilibria of rank 1 to 6, 0 stable, spectral radius" in repr(
        family
    )
    assert len(repr(family)) < 200
    assert max(len(repr(each)) for each in family.equilibria) < 300


def test_bad_arguments_are_answered_with_sentences():
    net = one_step(torch.eye(2))
    with pytest.raises(KindError, match=r"tokens=2\.0 is a float"):
        find_equilibria(net, tokens=2.0)
    with pytest.raises(InputError, match="starts=0 is out of range"):
        find_equilibria(net, tokens=2, starts=0)
    with pytest.raises(InputError, match="tolerance"):
        find_equilibria(net, tokens=2, tolerance=0.0)
    with pytest.raises(ShapeError, match=r"expected \(token, feature\)"):
        equilibrium_at(net, torch.ones(2, 2, 2))
    with pytest.raises(ShapeError, match="the network takes"):
        equilibrium_at(net, torch.ones(2, 3))
    with pytest.raises(ShapeError, match=r"expected \(token, feature\)"):
        step_jacobian(net, torch.ones(1, 2, 2))
    with pytest.raises(ShapeError, match="square"):
        stability_of(torch.ones(2, 3))
    with pytest.raises(InputError, match="nan at"):
        stability_of(torch.full((2, 2), float("nan")))
    with pytest.raises(InputError, match="2 to 24"):
        stable_search(tokens=(1,))
    with pytest.raises(InputError, match="draws=0"):
        stable_search(draws=0)
