"""Claim W4: with LayerNorm one value matrix has equilibria of every rank, from one to full.

Figure 1 of the paper, as summarised, shows two tokens of two features that end in a state of full
rank from many starts. Its values are not at hand; those here are the ones of docs/theory.md,
section 7, for which the multipliers are known.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from rankscope import tables
from rankscope.core.network import Network
from rankscope.core.theory import (
    Designs,
    Equilibria,
    Equilibrium,
    equilibrium_at,
    every_rank,
    find_equilibria,
    stable_search,
)
from rankscope.experiments import kit
from rankscope.experiments.claims.w5 import absolute_cosine
from rankscope.numerals import short, span_of
from rankscope.streams import stream

ENTRY = kit.claim(
    "W4",
    "Attention and normalisation with suitable values have equilibria of every rank from one to "
    "full, and can have a stable one of full rank.",
    source="Wu et al. 2024, on LayerNorm, and figure 1 (as summarised)",
    question="Are there states of every rank that one step leaves unchanged, and are they stable?",
    domain="one head on the sphere, causal mask",
    beyond="whether the equilibria built here are stable and anisotropic",
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
            "‖F(X) − X‖ in the Frobenius norm: how far one step moves a point that should be "
            "fixed.",
        ),
    ),
)
_METRIC = "spectral_radius"
CHARTS = (kit.Drawing("by_setting", "A panel for each parameter.", _METRIC),)


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
    many_starts: int = 4000  # of the two tokens of figure 1
    many_steps: int = 100


class Built(NamedTuple):
    """Equilibria by their number of tokens, and one of two tokens with the share of starts that end
    there; designs, and all equilibria of the values of each."""

    equilibria: Mapping[int, Sequence[Equilibrium]]
    two_tokens: Equilibrium
    reached: float
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
    example, share = two_tokens(config)
    return kit.Measured(table, facts=Built(built, example, share, designs))


def two_tokens(config: Config) -> tuple[Equilibrium, float]:
    """Two tokens in a stable state of full rank, and the share of random starts that end there.

    Causal mask, uniform attention. The first token is an eigenvector x of the values for 1, the
    second ``−2x + te`` with e that for ½: both have length one for ``t² − 4ct + 3 = 0``, c being
    the cosine of the eigenvectors; the smaller t is the stable one (docs/theory.md, section 7).
    """
    c = 0.9
    t = 2 * c - math.sqrt(4 * c**2 - 3)
    eigenvectors = torch.tensor([[1.0, 0.0], [c, math.sqrt(1 - c**2)]], dtype=torch.float64)
    eigenvalues = torch.diag(torch.tensor([1.0, 0.5], dtype=torch.float64))
    values = (torch.linalg.inv(eigenvectors) @ eigenvalues @ eigenvectors)[None, None]
    network = Network.from_matrices(
        torch.zeros_like(values), values, head_width=2, norm="sphere", mask="causal"
    )
    state = torch.stack((eigenvectors[0], t * eigenvectors[1] - 2 * eigenvectors[0]))
    x = torch.randn(
        config.many_starts, 2, 2, generator=stream(config.seed, "two tokens"), dtype=state.dtype
    )
    x = torch.nn.functional.normalize(x, dim=-1)
    with torch.no_grad():
        for _ in range(config.many_steps):
            x = network(x)
    # Of a state and its opposite either is reached.
    off = torch.minimum((x - state).abs().amax((1, 2)), (x + state).abs().amax((1, 2)))
    return equilibrium_at(network, state, polish=False), float((off < 1e-6).double().mean())


def judge(config: Config, measured: kit.Measured[Built]) -> kit.Answer:
    """Numbers of tokens, and each of their equilibria.

    The claim is supported for n tokens if the step leaves each of its equilibria where it is,
    to rounding, and their ranks are 1 to n. Beyond it, those of rank two and more are asked to be
    stable, so that tokens would end there, and those of full rank to have larger absolute cosines
    than isotropic tokens; what a search found is said beside it.
    """
    built, example, reached, designs = measured.facts
    points = [point for equilibria in built.values() for point in equilibria]
    cosines = {
        tokens: float(absolute_cosine(equilibria[-1].x)) for tokens, equilibria in built.items()
    }
    return kit.Answer(
        (
            f"Two tokens of two features, values built here: a state of rank {example.rank} with "
            f"spectral radius {short(example.stability.radius)}, where {reached:.1%} of random "
            "starts end.",
            *(_sentence(tokens, equilibria) for tokens, equilibria in built.items()),
            "Mean absolute cosine of those of full rank, and of isotropic tokens: "
            + "; ".join(
                f"{n} tokens {short(cosine)}, {short(isotropic_cosine(n))}"
                for n, cosine in cosines.items()
            )
            + ".",
            *(_design_sentence(config, *design) for design in designs),
        ),
        stated={
            f"{tokens} tokens": [point.rank for point in equilibria] == list(range(1, tokens + 1))
            and all(point.residual < config.equal for point in equilibria)
            for tokens, equilibria in built.items()
        }
        | {
            "two tokens: a stable state of full rank": example.rank == 2
            and example.residual < config.equal
            and example.stable
            and reached > 0
        },
        beyond={
            f"{tokens} tokens, rank {point.rank}": point.stable
            for tokens, equilibria in built.items()
            for point in equilibria
            if point.rank > 1
        }
        | {
            f"{tokens} tokens, full rank: anisotropic": cosine > isotropic_cosine(tokens)
            for tokens, cosine in cosines.items()
        },
        key_figures={
            "largest rank built": max(point.rank for point in points),
            "largest move by a step": max(point.residual for point in points),
            "two tokens, share of starts that end at full rank": reached,
            "largest absolute cosine at full rank": max(cosines.values()),
        },
        shown=(),
    )


def isotropic_cosine(features: int) -> float:
    """The mean of ``|cos|`` of two random directions.

    >>> round(isotropic_cosine(2), 4)
    0.6366
    """
    return math.gamma(features / 2) / (math.sqrt(math.pi) * math.gamma((features + 1) / 2))


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
        f"The design and {config.starts} random starts lead to {len(reached)} equilibria of "
        f"its values, {len(reached.stable)} of them stable; the share of random starts that end in "
        f"one of those: {ends or 'none'}."
    )
