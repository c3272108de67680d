"""Equilibria of every rank, and what a search for stable ones says."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from rankscope import tables
from rankscope.core.theory import Stability, every_rank
from rankscope.experiments import kit
from rankscope.experiments.claims.w4 import (
    ENTRY,
    Built,
    Config,
    isotropic_cosine,
    two_tokens,
)

from ..shown import can_be_shown, steps_of

SMALL = Config(tokens=(2, 3), searched=(2,), draws=40, descents=1, starts=8, steps=200)


def test_it_holds_and_says_which_equilibria_are_stable() -> None:
    found, seen = steps_of(ENTRY.run, SMALL)
    assert found.verdict == "holds"
    assert len(seen) == 3
    can_be_shown(found)
    said = " ".join(found.sentences)
    assert "all unstable, spectral radius 16." in said  # growth to the power of n − 1
    assert "(stable, rank 2)" in said
    assert "The design and 8 random starts lead to" in said
    ranks = found.table.filter(parameter="rank", metric="rank", variant="3 tokens")["value"]
    assert ranks.to_list() == [1.0, 2.0, 3.0]


@pytest.fixture(scope="module")
def built():
    return {tokens: every_rank(tokens).equilibria for tokens in (2, 3)}


EXAMPLE, REACHED = two_tokens(SMALL)


def judged(built, config: Config = SMALL, example=EXAMPLE, reached=REACHED) -> kit.Result:
    table = tables.from_rows(("metric", "value"), [("rank", 1.0)])
    return kit.conclude(ENTRY, config, kit.Measured(table, facts=Built(built, example, reached)))


def test_two_tokens_end_at_full_rank_by_hand() -> None:
    assert EXAMPLE.rank == 2
    assert EXAMPLE.stable
    assert EXAMPLE.stability.radius == pytest.approx(0.5)  # the larger of 0.5 and 0.358
    first, second = EXAMPLE.x.numpy()
    assert first @ second == pytest.approx(-0.821, abs=1e-3)
    # Row vectors: eigenvectors (1, 0) of 1 and (0.9, √0.19) of ½.
    root = 0.19**0.5
    values = np.array([[1.0, 0.0], [-0.45 / root, 0.5]])
    rng = np.random.default_rng(0)
    x = rng.standard_normal((20_000, 2, 2))
    for _ in range(80):
        x[:, 1] += x[:, 0]  # uniform attention; lengths are normalised anyway
        x = x @ values
        x /= np.linalg.norm(x, axis=-1, keepdims=True)
    apart = np.abs((x[:, 0] * x[:, 1]).sum(-1)) < 0.99
    assert apart.mean() == pytest.approx(0.08, abs=0.01)
    assert pytest.approx(apart.mean(), abs=0.02) == REACHED


def test_a_stable_state_of_full_rank_is_asked_for(built) -> None:
    unstable = replace(EXAMPLE, stability=Stability(1.5, 1.4, 1.6))
    for example, reached in ((unstable, 0.1), (EXAMPLE, 0.0), (replace(EXAMPLE, rank=1), 0.1)):
        assert judged(built, example=example, reached=reached).verdict == "depends"


def test_anisotropy_is_measured_beside_isotropic_tokens(built) -> None:
    result = judged(built)
    full = built[3][-1].x.numpy()
    cosines = [abs(full[i] @ full[j]) for i in range(3) for j in range(i)]
    largest = max(np.mean(cosines), abs(built[2][-1].x[0] @ built[2][-1].x[1]).item())
    assert result.key_figures["largest absolute cosine at full rank"] == pytest.approx(largest)
    rng = np.random.default_rng(1)
    pairs = rng.standard_normal((2, 50_000, 3))
    pairs /= np.linalg.norm(pairs, axis=-1, keepdims=True)
    assert isotropic_cosine(3) == pytest.approx(np.abs((pairs[0] * pairs[1]).sum(-1)).mean(), 0.02)
    alike = replace(built[2][-1], x=torch.tensor([[1.0, 0.0], [0.9, 0.19**0.5]]))
    beyond = judged({2: (built[2][0], alike)}).beyond
    assert "Supported for 2 tokens, full rank: anisotropic" in str(beyond)


def test_what_was_built_is_not_where_tokens_end(built) -> None:
    assert judged(built).beyond.verdict == "fails"
    calm = {2: tuple(replace(each, stability=Stability(0.5, 0.4, 0.6)) for each in built[2])}
    assert "Supported for 2 tokens, rank 2" in str(judged(calm).beyond)
    assert judged({**built, **calm}).beyond.verdict == "depends"


def test_every_verdict_can_be_reached(built) -> None:
    assert judged(built).verdict == "holds"
    moved = tuple(replace(each, residual=1e-3) for each in built[3])
    assert judged({**built, 3: moved}).verdict == "depends"
    worse = replace(EXAMPLE, rank=1)
    assert judged({3: moved}, example=worse).verdict == "fails"
    # No equilibrium of full rank.
    assert judged({3: built[3][:-1]}, example=worse).verdict == "fails"
    # Nothing is equal to the last digit.
    assert judged(built, replace(SMALL, equal=0.0)).verdict == "fails"
