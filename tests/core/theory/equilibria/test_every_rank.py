"""Equilibria of every rank for one value matrix, redone in 60 digits."""

import mpmath
import pytest
import torch

from rankscope.core.theory import every_rank, step_jacobian
from rankscope.errors import InputError, KindError


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
        with pytest.raises(InputError, match="expected 1 to 24"):
            every_rank(tokens)
    for growth in (2.0, 17.0, float("nan")):
        with pytest.raises(InputError, match="room for a direction"):
            every_rank(3, growth=growth)
