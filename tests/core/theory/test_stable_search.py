"""The search for stable designs: its Jacobian, what it finds, and what it says if it finds none."""

import mpmath
import pytest
import torch

from rankscope.core.theory import every_rank, find_equilibria, stable_search, step_jacobian
from rankscope.core.theory._stable_search import design_step
from rankscope.errors import InputError, KindError

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


def mp_step(x, eigenvalues):
    """Causal uniform attention, a diagonal value matrix, the unit sphere: the definition."""
    n = x.rows
    out = mpmath.zeros(n, n)
    for i in range(n):
        row = [mpmath.fsum(x[j, k] for j in range(i + 1)) * eigenvalues[k] for k in range(n)]
        length = mpmath.sqrt(mpmath.fsum(entry**2 for entry in row))
        for k in range(n):
            out[i, k] = row[k] / length
    return out


def mp_configuration(n, rank):
    """The construction of theory.md section 7, with ``λ_k = 4^k`` as it is written there."""
    eigenvalues = [mpmath.mpf(4) ** (k + 1) for k in range(n)]
    x = mpmath.zeros(n, n)
    for i in range(n):
        pull = [mpmath.fsum(x[j, k] for j in range(i)) * eigenvalues[k] for k in range(n)]
        used = range(min(i, rank))

        def along(value, pull=pull, used=used):
            return [pull[k] / (value - eigenvalues[k]) for k in used]

        if i < rank:
            part = along(eigenvalues[i])
            x[i, i] = mpmath.sqrt(1 - mpmath.fsum(entry**2 for entry in part))
        else:
            top = eigenvalues[rank - 1]
            bracket = (top + abs(pull[rank - 1]) / 2, top + mpmath.norm(pull, 2) * 2)
            value = mpmath.findroot(
                lambda t, along=along: mpmath.norm(along(t), 2) - 1, bracket, solver="anderson"
            )
            part = along(value)
        for k, entry in zip(used, part, strict=True):
            x[i, k] = entry
    return x, eigenvalues


@pytest.mark.parametrize("rank", range(1, 7))
def test_six_tokens_have_an_equilibrium_of_each_rank_in_sixty_digits(rank):
    found = every_rank(6).equilibria[rank - 1]
    with mpmath.workdps(60):
        x, eigenvalues = mp_configuration(6, rank)
        assert mpmath.norm(mp_step(x, eigenvalues) - x, mpmath.inf) < mpmath.mpf(10) ** -50
        off = mpmath.norm(mpmath.matrix(found.x.tolist()) - x, mpmath.inf)
        assert off < 2e-15
        assert off <= found.distance
    assert found.residual < 2e-15
    assert found.rank == rank
    # Exactly: no direction beyond the first k, and a triangle with a full diagonal within them.
    assert not found.x[:, rank:].any()
    assert torch.equal(found.x[:rank].tril(), found.x[:rank])
    assert bool((found.x[:rank].diagonal() > 0.9).all())


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_newton_in_sixty_digits_stays_where_we_are(rank):
    """The equation alone, without the construction: Newton from our float64 tokens."""
    found = every_rank(3).equilibria[rank - 1]
    with mpmath.workdps(60):
        eigenvalues = [mpmath.mpf(4) ** k for k in range(3)]

        def missed(*entries):
            x = mpmath.matrix(3, 3)
            for place, entry in enumerate(entries):
                x[place // 3, place % 3] = entry
            return list(mp_step(x, eigenvalues) - x)

        begin = [mpmath.mpf(entry) for entry in found.x.flatten().tolist()]
        end = mpmath.findroot(missed, begin, tol=mpmath.mpf(10) ** -110)
        assert mpmath.norm(missed(*end), mpmath.inf) < mpmath.mpf(10) ** -50
        assert mpmath.norm(end - mpmath.matrix(begin), 2) <= found.distance < 1e-14


@pytest.mark.parametrize("tokens", [2, 3, 6])
def test_all_are_unstable_by_the_ratio_of_the_eigenvalues(tokens):
    family = every_rank(tokens)
    for each in family.equilibria:
        assert each.stability.radius == pytest.approx(4.0 ** (tokens - 1), rel=1e-9)
        assert each.stability.unstable
        assert not each.stable
        assert each.collapsed == (each.rank == 1)


def test_a_saddle_that_is_not_isolated_says_so():
    """From four tokens on, rank one: token 4's multiplier in direction 2 is λ₂/(4λ₁) = 1."""
    lowest = every_rank(4).equilibria[0]
    eigenvalues = torch.linalg.eigvals(step_jacobian(every_rank(4).network, lowest.x))
    assert float((eigenvalues - 1).abs().min()) < 1e-12
    assert not lowest.isolated
    assert all(each.isolated for each in every_rank(4).equilibria[1:])


def test_one_token_and_another_growth():
    (single,) = every_rank(1).equilibria
    assert single.x.tolist() == [[1.0]]
    assert [each.rank for each in every_rank(4, growth=9.0).equilibria] == [1, 2, 3, 4]
    assert every_rank(3, growth=9.0).equilibria[2].stability.radius == pytest.approx(81.0)


def test_many_tokens_keep_their_digits():
    family = every_rank(12)
    assert [each.rank for each in family.equilibria] == list(range(1, 13))
    assert max(each.residual for each in family.equilibria) < 4e-15


def test_bad_arguments_are_answered_with_sentences():
    with pytest.raises(KindError, match="expected a whole number"):
        every_rank(3.0)
    for tokens in (0, 25):
        with pytest.raises(InputError, match="1 to 24"):
            every_rank(tokens)
    for growth in (2.0, 17.0, float("nan")):
        with pytest.raises(InputError, match="4 to 16"):
            every_rank(3, growth=growth)
