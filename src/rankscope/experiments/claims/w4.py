"""Claim W4: with LayerNorm one value matrix has equilibria of every rank, from one to full."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rankscope import tables
from rankscope.core.theory import Designs, Equilibrium, every_rank, find_equilibria, stable_search
from rankscope.experiments import kit
from rankscope.numerals import short, span_of

ENTRY = kit.claim(
    "W4",
    "Attention and normalisation with suitable values have equilibria of every rank from one to "
    "full.",
    source="Wu et al. 2024, LayerNorm",
    domain="one head on the sphere, causal mask",
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
Row = tuple[str, str, float, str, float]
"""Variant, parameter, setting, metric, value."""


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


def run(config: Config, on_step: kit.OnStep) -> kit.Result:
    """Build the equilibria, apply the step to each, and look for stable ones of full rank."""
    on_built, on_searched = kit.parts(on_step, len(config.tokens), len(config.searched))
    built = {n: every_rank(n).equilibria for n, _ in kit.tracked(config.tokens, on_built)}
    sentences = [_sentence(tokens, found) for tokens, found in built.items()]
    rows: list[Row] = []
    for tokens, equilibria in built.items():
        for each in equilibria:
            rows += _rows(f"{tokens} tokens", "rank", float(each.rank), each)
    for tokens, _ in kit.tracked(config.searched, on_searched):
        found = stable_search(
            tokens=(tokens,), draws=config.draws, descents=config.descents, seed=config.seed
        )
        for design in found.designs:
            name = f"designed: {design.mask} mask, {design.attention} attention"
            rows += _rows(name, "tokens", float(design.tokens), design.best)
            sentences.append(_design_sentence(config, design))
    return ENTRY.result(
        config,
        question="Does one step leave states of every rank where they are, and are they stable?",
        sentences=sentences,
        table=tables.from_rows(("variant", "parameter", "setting", "metric", "value"), rows),
        judgement=judge(config, built),
        beyond=judge_stability(built),
        key_figures={
            "largest rank built": max(each.rank for found in built.values() for each in found),
            "largest move by a step": max(
                each.residual for found in built.values() for each in found
            ),
        },
        drawings=(kit.Drawing("by_setting", "A panel for what was varied.", _METRIC),),
    )


def judge(config: Config, built: Mapping[int, Sequence[Equilibrium]]) -> kit.Judgement:
    """The verdict on the equilibria that were built, by their number of tokens.

    A number of tokens n bears the claim out if the step leaves each of its equilibria where it is,
    to rounding, and their ranks are 1 to n. Stability is another question: what a search found is
    said beside it.
    """
    return kit.judged(
        ENTRY.domain,
        {
            f"{tokens} tokens": [each.rank for each in found] == list(range(1, tokens + 1))
            and all(each.residual < config.equal for each in found)
            for tokens, found in built.items()
        },
    )


def judge_stability(built: Mapping[int, Sequence[Equilibrium]]) -> kit.Judgement:
    """Whether the equilibria of rank two and more that were built are where tokens would end."""
    return kit.judged(
        "the same equilibria, asked to be stable",
        {
            f"{tokens} tokens, rank {each.rank}": each.stable
            for tokens, found in built.items()
            for each in found
            if each.rank > 1
        },
    )


def _rows(variant: str, parameter: str, setting: float, each: Equilibrium) -> list[Row]:
    numbers = {
        _METRIC: each.stability.radius,
        "rank": float(each.rank),
        "fixed_point_residual": each.residual,
    }
    return [(variant, parameter, setting, metric, value) for metric, value in numbers.items()]


def _sentence(tokens: int, found: Sequence[Equilibrium]) -> str:
    ranks = ", ".join(str(each.rank) for each in found)
    worst = max(each.residual for each in found)
    built = (
        f"{tokens} tokens, one value matrix: equilibria of rank {ranks}, which the step moves by "
        f"{short(worst, digits=1)} at most"
    )
    if not all(each.stability.unstable for each in found):
        return f"{built}, {sum(each.stable for each in found)} of them stable."
    radii = [each.stability.radius for each in found]
    return f"{built}; all unstable, spectral radius {span_of(min(radii), max(radii))}."


def _design_sentence(config: Config, design: Designs) -> str:
    verdict = "stable" if design.best.stable else "not stable"
    return (
        f"Search, {design.tokens} tokens, {design.mask} mask, {design.attention} attention: "
        f"{design.drawn_stable} of {design.drawn} random designs of full rank are stable, "
        f"{design.descended_stable} of {design.descended} after descent; the best has spectral "
        f"radius {short(design.radius)} ({verdict}, rank {design.best.rank}). "
        f"{_basins(config, design)}"
    )


def _basins(config: Config, design: Designs) -> str:
    """Where random starts end up under the best design's values, and the design itself."""
    found = find_equilibria(
        design.network,
        tokens=design.tokens,
        starts=config.starts,
        steps=config.steps,
        seed=config.seed,
        extra_starts=design.best.x,
    )
    ranks: dict[int, float] = {}
    for each in found.stable:
        ranks[each.rank] = ranks.get(each.rank, 0.0) + (each.basin or 0.0)
    ends = ", ".join(f"{share:.0%} at rank {rank}" for rank, share in sorted(ranks.items()))
    return (
        f"The design and {config.starts} random starts lead to {len(found.found)} equilibria of "
        f"its values, {len(found.stable)} of them stable; the share of random starts that end in "
        f"one of those: {ends or 'none'}."
    )
