"""Finding equilibria, and what is said of each: hand-made steps, and 60 digits."""

import math

import mpmath
import pytest
import torch

from rankscope.errors import InputError, KindError, ShapeError
from rankscope.network import Network, Spec
from rankscope.theory import (
    design_values,
    equilibrium_at,
    find_equilibria,
    stability_of,
    stable_search,
    step_jacobian,
)
from rankscope.theory.equilibria._search import designed_step


def one_step(values, query_key=None, **options):
    """A layer of one head on the sphere, from matrices written as lists."""
    w = torch.as_tensor(values, dtype=torch.float64)[None, None]
    q = torch.zeros_like(w) if query_key is None else query_key[None, None].double()
    return Network.from_matrices(q, w, **({"head_width": 1, "norm": "sphere"} | options))


def two_tokens(sign):
    """Token 2 of the rank-two equilibrium proved in ``equilibria_search``, worked out by hand.

    Uniform causal attention (r = 1), λ₁ = 1, λ₂ = ½, eigenvectors at cosine g = 0.9:
    ``x₂ = −2x₁ + b v₂`` has length one for ``b = 2g ± √(4g² − 3)``.
    """
    g = 0.9
    vectors = torch.tensor([[1.0, 0.0], [g, math.sqrt(1 - g * g)]], dtype=torch.float64)
    w = vectors.inverse() @ torch.diag(torch.tensor([1.0, 0.5], dtype=torch.float64)) @ vectors
    x2 = -2 * vectors[0] + (2 * g + sign * math.sqrt(4 * g * g - 3)) * vectors[1]
    return one_step(w, mask="causal"), torch.stack([vectors[0], x2])


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
    first, second = found.found[:2]
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
    (zero,) = found.found
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
    net = design_values((begin / begin.norm(dim=-1, keepdim=True))[0], net)
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


def test_the_jacobian_is_that_of_central_differences(lively, tokens):
    net = lively(Spec(2, 2, 4, norm="layer", norm_place="post", mask="causal", init="lecun"))
    x, h = tokens(3, 4), 1e-6
    columns = []
    for entry in range(12):
        push = torch.zeros(12, dtype=torch.float64)
        push[entry] = h
        push = push.view(1, 3, 4)
        columns.append(((net(x + push) - net(x - push)) / (2 * h)).flatten().detach())
    assert torch.allclose(step_jacobian(net, x), torch.stack(columns, 1), atol=1e-8)


@pytest.mark.parametrize("norm", ["sphere", "layer"])
def test_the_tangent_space_has_the_spectrum_and_the_rest_is_zero(norm, lively, tokens):
    """The restriction, carried out: a basis of the range's tangent space at each token."""
    spec = Spec(1, 1, 4, mlp_ratio=0, norm=norm, norm_place="post", norm_eps=0.0, init="lecun")
    net = lively(spec)
    after = net.blocks[0].steps[0].after
    x = after(tokens(1, 3, 4))[0].detach()
    net = design_values(x, net)
    jacobian = step_jacobian(net, x)
    bases = []
    for token in x:
        z = token if norm == "sphere" else (token - after.bias) / after.weight
        fixed = [z] if norm == "sphere" else [z, torch.ones_like(z)]
        free = torch.linalg.svd(torch.stack(fixed).detach()).Vh[len(fixed) :].T
        gained = free if norm == "sphere" else after.weight.detach().unsqueeze(-1) * free
        bases.append(torch.linalg.qr(gained).Q)
    basis = torch.block_diag(*bases)
    assert torch.allclose(basis @ basis.T @ jacobian, jacobian, atol=1e-10)
    restricted = torch.linalg.eigvals(basis.T @ jacobian @ basis).abs().sort().values
    whole = torch.linalg.eigvals(jacobian).abs().sort().values
    assert torch.allclose(whole[-len(restricted) :], restricted, rtol=1e-6)
    assert float(whole[: -len(restricted)].max()) < 1e-6
    assert equilibrium_at(net, x).stability.radius == pytest.approx(float(restricted[-1]))


def test_bounds_of_the_radius_hold_far_from_normal():
    shift = torch.diag(torch.ones(5, dtype=torch.float64), 1)
    jordan = 0.9 * torch.eye(6, dtype=torch.float64) + 30 * shift
    assert stability_of(jordan).stable
    assert stability_of(jordan).lower <= 0.9 + 1e-12 <= stability_of(jordan).upper
    # All eigenvalues are zero, but the last place of an entry moves them to 16: no verdict.
    generator = torch.Generator().manual_seed(0)
    turn = torch.linalg.qr(torch.randn(6, 6, generator=generator, dtype=torch.float64)).Q
    hidden = stability_of(1e4 * turn @ shift @ turn.T)
    assert hidden.lower == 0.0
    assert not hidden.unstable
    # This one is stable, but one last place in its corner would make the radius 1.05.
    assert not stability_of(0.98 * torch.eye(6, dtype=torch.float64) + 30 * shift).stable
    turned = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
    assert stability_of(1.01 * turned).unstable
    assert stability_of(0.99 * turned).stable
    huge = stability_of(1e200 * torch.eye(2, dtype=torch.float64))
    assert huge.radius == pytest.approx(1e200)
    assert huge.unstable
    assert stability_of(torch.zeros(2, 2)).margin == 1.0
    assert stability_of(torch.diag(torch.tensor([0.25, -3.0]))).margin == pytest.approx(2.0, 1e-3)


def test_single_precision_networks_are_searched_in_float64_and_the_seed_decides():
    net = two_tokens(-1)[0]
    exact = find_equilibria(net, tokens=2, starts=12, seed=1)
    single = find_equilibria(net.float(), tokens=2, starts=12, seed=1)
    assert single.found[0].x.dtype == torch.float64
    assert len(single) == len(exact)
    again = find_equilibria(net, tokens=2, starts=12, seed=1)
    assert [each.x.tolist() for each in again] == [each.x.tolist() for each in exact]
    other = find_equilibria(net, tokens=2, starts=12, seed=2)
    assert [each.basin for each in other] != [each.basin for each in exact]


@pytest.mark.parametrize("mask", ["causal", "full"])
def test_the_designed_jacobian_is_the_networks_own(mask, tokens):
    x = tokens(1, 3, 3, seed=6)
    x = x / x.norm(dim=-1, keepdim=True)
    c, query_key = tokens(1, 3, seed=7).exp(), tokens(1, 3, 3, seed=8)
    allowed = torch.ones(3, 3).bool() if mask == "full" else torch.ones(3, 3).tril().bool()
    values, jacobian = designed_step(x, c, query_key, allowed)
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
    with pytest.raises(InputError, match="2 or more"):
        stable_search(tokens=(1,))
    with pytest.raises(InputError, match="draws=0"):
        stable_search(draws=0)
