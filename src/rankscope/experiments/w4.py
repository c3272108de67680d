"""Claim W4: with LayerNorm one value matrix has equilibria of every rank, from one to full."""

from collections.abc import Callable
from dataclasses import asdict

from rankscope import tables
from rankscope.experiments.claims import Claim, overall
from rankscope.theory import (
    Designs,
    Equilibrium,
    StableSearch,
    every_rank,
    find_equilibria,
    stable_search,
)
from rankscope.tracing import Provenance

STATEMENT = (
    "Attention and normalisation with suitable values have equilibria of every rank from one to "
    "full."
)
TOKENS = (2, 3, 4, 6, 8)
SEARCHED = (2, 3, 4)
DRAWS, DESCENTS = 100, 2
STARTS, STEPS = 32, 400
_EQUAL = 1e-12
_METRIC = "spectral_radius"


def w4(*, seed: int = 0, on_network: Callable[[], None] | None = None) -> Claim:
    """Build the equilibria, apply the step to each, and look for stable ones of full rank.

    A number of tokens bears the claim out if the step leaves each of its n equilibria where it is,
    to rounding, and their ranks are 1 to n. Stability is another question: what a search found is
    said beside it.
    """
    columns: dict[str, list[object]] = {
        name: [] for name in ("variant", "parameter", "setting", "metric", "value")
    }
    borne_out, reasons = {}, []
    for tokens in TOKENS:
        found = every_rank(tokens).equilibria
        borne_out[f"{tokens} tokens"] = _every(found, tokens)
        reasons.append(_reason(tokens, found))
        for each in found:
            _record(columns, f"{tokens} tokens", "rank", each)
        if on_network is not None:
            on_network()
    searched = stable_search(tokens=SEARCHED, draws=DRAWS, descents=DESCENTS, seed=seed)
    for design in searched.designs:
        name = f"{design.mask} mask, {design.attention} attention"
        _record(columns, f"designed: {name}", "tokens", design.best)
    if on_network is not None:
        on_network()
    table = tables.frame(columns)
    return Claim(
        "W4",
        STATEMENT,
        "Wu, Ajorlou, Wang, Jegelka, Jadbabaie 2024, LayerNorm",
        overall(borne_out),
        (*reasons, *_search_reasons(searched)),
        table,
        tables.summary(table),
        asdict(Provenance("normalise(A X W)", seed=seed)),
        metric=_METRIC,
        figure="by_setting",
    )


def steps() -> int:
    """How often ``on_network`` is called."""
    return len(TOKENS) + 1


def _every(found: tuple[Equilibrium, ...], tokens: int) -> bool:
    ranks = [each.rank for each in found]
    return ranks == list(range(1, tokens + 1)) and all(each.residual < _EQUAL for each in found)


def _record(
    columns: dict[str, list[object]], variant: str, parameter: str, each: Equilibrium
) -> None:
    setting = float(each.rank if parameter == "rank" else len(each.x))
    measured = {
        _METRIC: each.stability.radius,
        "rank": float(each.rank),
        "fixed_point_residual": each.residual,
    }
    for metric, value in measured.items():
        row = (variant, parameter, setting, metric, value)
        for column, entry in zip(columns.values(), row, strict=True):
            column.append(entry)


def _reason(tokens: int, found: tuple[Equilibrium, ...]) -> str:
    ranks = ", ".join(str(each.rank) for each in found)
    worst = max(each.residual for each in found)
    radii = [each.stability.radius for each in found]
    return (
        f"{tokens} tokens, one value matrix: equilibria of rank {ranks}, which the step moves by "
        f"{worst:.1g} at most; all unstable, spectral radius {min(radii):.3g} to {max(radii):.3g}."
        if all(each.stability.unstable for each in found)
        else f"{tokens} tokens, one value matrix: equilibria of rank {ranks}, which the step moves "
        f"by {worst:.1g} at most, {sum(each.stable for each in found)} of them stable."
    )


def _search_reasons(searched: StableSearch) -> tuple[str, ...]:
    return tuple(_design_reason(design) for design in searched.designs)


def _design_reason(design: Designs) -> str:
    verdict = "stable" if design.best.stable else "not stable"
    return (
        f"Search, {design.tokens} tokens, {design.mask} mask, {design.attention} attention: "
        f"{design.drawn_stable} of {design.drawn} random designs of full rank are stable, "
        f"{design.descended_stable} of {design.descended} after descent; the best has spectral "
        f"radius {design.radius:.3g} ({verdict}, rank {design.best.rank}). {_basins(design)}"
    )


def _basins(design: Designs) -> str:
    """Where random starts end up under the best design's values."""
    found = find_equilibria(design.network, tokens=design.tokens, starts=STARTS, steps=STEPS)
    ranks: dict[int, float] = {}
    for each in found.stable:
        ranks[each.rank] = ranks.get(each.rank, 0.0) + (each.basin or 0.0)
    ends = ", ".join(f"{share:.0%} at rank {rank}" for rank, share in sorted(ranks.items()))
    return (
        f"Its values have {len(found.found)} equilibria that {STARTS} starts found, "
        f"{len(found.stable)} of them stable; of the starts end there: {ends or 'none'}."
    )
