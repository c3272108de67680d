"""Claim W4: with LayerNorm one value matrix has equilibria of every rank, from one to full."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rankscope import tables
from rankscope.core.theory import (
    Designs,
    Equilibria,
    Equilibrium,
    every_rank,
    find_equilibria,
    stable_search,
)
from rankscope.experiments import kit
from rankscope.numerals import short, span_of

ENTRY = kit.claim(
    "W4",
    "Attention and normalisation with suitable values have equilibria of every rank from one to "
    "full.",
    source="Wu et al. 2024, LayerNorm",
    question="Does one step leave states of every rank where they are, and are they stable?",
    domain="one head on the sphere, causal mask",
    beyond="the same equilibria, asked to be stable",
    seconds=9,
    metrics=(
        kit.Metric(
            "rank",
            "Rank",
            "rank(X)",
            "linear",
            "1 = one direction; higher = more in use",
            "The numerical rank of an equilibrium.",
            "down",
            includes=(0.0,),
        ),
        kit.Metric(
            "fixed_point_residual",
            "Error of the fixed point",
            "‖F(X) − X‖",
            "log",
            "Rounding, if X is an equilibrium",
            "‖F(X) − X‖ in the Frobenius norm: how far one step moves a point that it should "
            "leave.",
        ),
    ),
)
_METRIC = "spectral_radius"
CHARTS = (kit.Drawing("by_setting", "A panel for what was varied.", _METRIC),)


@dataclass(frozen=True)
class Config(kit.Config):
    """Numbers of tokens to build equilibria for, and a search for stable ones of full rank.

    Among ``draws`` random designs the best ``descents`` are improved; ``starts`` random states then
    run for ``steps`` layers under the best values. A state that a step moves by less than
    ``equal`` is an equilibrium.
    """

    tokens: tuple[int, ...] = (2, 3, 4, 6, 8)
    searched: tuple[int, ...] = (2, 3, 4)
    draws: int = 100
    descents: int = 2
    starts: int = 32
    steps: int = 400
    equal: float = 1e-12


class Built(NamedTuple):
    """Equilibria by their number of tokens; designs, and all equilibria of the values of each."""

    equilibria: Mapping[int, Sequence[Equilibrium]]
    designs: Sequence[tuple[Designs, Equilibria]] = ()


def measure(config: Config, on_step: kit.OnStep) -> kit.Measured[Built]:
    """Build the equilibria, apply the step to each, and look for stable ones of full rank."""
    on_built, on_searched = kit.parts(on_step, len(config.tokens), len(config.searched))
    built = {n: every_rank(n).equilibria for n, _ in kit.tracked(config.tokens, on_built)}
    designs = []
    for tokens, _ in kit.tracked(config.searched, on_searched):
        searched = stable_search(
            tokens=(tokens,), draws=config.draws, descents=config.descents, seed=config.seed
        )
        for design in searched.designs:
            reached = find_equilibria(
                design.network,
                tokens=design.tokens,
                starts=config.starts,
                steps=config.steps,
                seed=config.seed,
                extra_starts=design.best.x,
            )
            designs.append((design, reached))
    points = [
        (f"{tokens} tokens", "rank", float(point.rank), point)
        for tokens, equilibria in built.items()
        for point in equilibria
    ]
    for design, _ in designs:
        name = f"designed: {design.mask} mask, {design.attention} attention"
        points.append((name, "tokens", float(design.tokens), design.best))
    rows = []
    for *labels, point in points:
        rows += [
            (*labels, _METRIC, point.stability.radius),
            (*labels, "rank", float(point.rank)),
            (*labels, "fixed_point_residual", point.residual),
        ]
    table = tables.from_rows(("variant", "parameter", "setting", "metric", "value"), rows)
    return kit.Measured(table, facts=Built(built, designs))


def judge(config: Config, measured: kit.Measured[Built]) -> kit.Answer:
    """Numbers of tokens, and each of their equilibria.

    A number of tokens n bears the claim out if the step leaves each of its equilibria where it is,
    to rounding, and their ranks are 1 to n. Beyond it, those of rank two and more are asked to be
    stable, so that tokens would end there; what a search found is said beside it.
    """
    built, designs = measured.facts
    points = [point for equilibria in built.values() for point in equilibria]
    return kit.Answer(
        (
            *(_sentence(tokens, equilibria) for tokens, equilibria in built.items()),
            *(_design_sentence(config, *design) for design in designs),
        ),
        stated={
            f"{tokens} tokens": [point.rank for point in equilibria] == list(range(1, tokens + 1))
            and all(point.residual < config.equal for point in equilibria)
            for tokens, equilibria in built.items()
        },
        beyond={
            f"{tokens} tokens, rank {point.rank}": point.stable
            for tokens, equilibria in built.items()
            for point in equilibria
            if point.rank > 1
        },
        key_figures={
            "largest rank built": max(point.rank for point in points),
            "largest move by a step": max(point.residual for point in points),
        },
        shown=(),
    )


def _sentence(tokens: int, equilibria: Sequence[Equilibrium]) -> str:
    ranks = ", ".join(str(point.rank) for point in equilibria)
    worst = max(point.residual for point in equilibria)
    built = (
        f"{tokens} tokens, one value matrix: equilibria of rank {ranks}, which the step moves by "
        f"{short(worst, digits=1)} at most"
    )
    if not all(point.stability.unstable for point in equilibria):
        return f"{built}, {sum(point.stable for point in equilibria)} of them stable."
    radii = [point.stability.radius for point in equilibria]
    return f"{built}; all unstable, spectral radius {span_of(min(radii), max(radii))}."


def _design_sentence(config: Config, design: Designs, reached: Equilibria) -> str:
    """What the search found, and where random starts end up under the best design's values."""
    verdict = "stable" if design.best.stable else "not stable"
    ranks: dict[int, float] = {}
    for point in reached.stable:
        ranks[point.rank] = ranks.get(point.rank, 0.0) + (point.basin or 0.0)
    ends = ", ".join(f"{share:.0%} at rank {rank}" for rank, share in sorted(ranks.items()))
    return (
        f"Search, {design.tokens} tokens, {design.mask} mask, {design.attention} attention: "
        f"{design.drawn_stable} of {design.drawn} random designs of full rank are stable, "
        f"{design.descended_stable} of {design.descended} after descent; the best has spectral "
        f"radius {short(design.radius)} ({verdict}, rank {design.best.rank}). "
        f"The design and {config.starts} random starts lead to {len(reached.found)} equilibria of "
        f"its values, {len(reached.stable)} of them stable; the share of random starts that end in "
        f"one of those: {ends or 'none'}."
    )
