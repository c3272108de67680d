"""Equilibria of every rank, and what a search for stable ones says."""

from dataclasses import replace

import pytest

from rankscope import tables
from rankscope.core.theory import Stability, every_rank
from rankscope.experiments import kit
from rankscope.experiments.claims.w4 import ENTRY, Built, Config

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


def judged(built, config: Config = SMALL) -> kit.Result:
    table = tables.from_rows(("metric", "value"), [("rank", 1.0)])
    return kit.conclude(ENTRY, config, kit.Measured(table, facts=Built(built)))


def test_what_was_built_is_not_where_tokens_end(built) -> None:
    assert judged(built).beyond.verdict == "fails"
    calm = {2: tuple(replace(each, stability=Stability(0.5, 0.4, 0.6)) for each in built[2])}
    assert judged(calm).beyond.verdict == "holds"
    assert judged({**built, **calm}).beyond.verdict == "depends"


def test_every_verdict_can_be_reached(built) -> None:
    assert judged(built).verdict == "holds"
    moved = tuple(replace(each, residual=1e-3) for each in built[3])
    assert judged({**built, 3: moved}).verdict == "depends"
    assert judged({3: moved}).verdict == "fails"
    assert judged({3: built[3][:-1]}).verdict == "fails"  # no equilibrium of full rank
    # Nothing is equal to the last digit.
    assert judged(built, replace(SMALL, equal=0.0)).verdict == "fails"
