"""Claim N2: the constant βH for several heads is too small in general, safe at small widths."""

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl

from rankscope import tables
from rankscope.core.theory import TwoHeadLayer
from rankscope.errors import InputError
from rankscope.experiments import kit
from rankscope.experiments.claims._n2_search import Search, climb
from rankscope.numerals import short

ENTRY = kit.claim(
    "N2",
    "The constant βH of the 2021 theorem for several heads is too small in general; it is safe up "
    "to 125 features.",
    source="derived for rankscope",
    domain="one layer of two heads that meets the theorem's condition",
    seconds=22,
    small=False,
    metrics=(
        kit.Metric(
            "bound_ratio",
            "Residual over its bound",
            "r′ / bound",
            "log",
            "Above 1 = the bound is false",
            "The residual after a layer over a bound on it, in the composite norm around the best "
            "center.",
            includes=(1.0,),
            marks=((1.0, "exceeded above"),),
        ),
    ),
)
_METRIC = "bound_ratio"
PAPER_CONSTANT, PROVED_CONSTANT = "βH of Dong et al. 2021", "the constant proved here"
CEILING = "proved ceiling for βH"
MANY = "βH of Dong et al. 2021, many tokens"
SEARCHES = ("βH, search from the construction", "βH, search from random layers")
SAFE_WIDTH = math.floor((math.sqrt(32) + math.sqrt(31)) ** 2)
"""The largest width d with ``½(√d + 1/√d) ≤ √32``: 125."""
_WIDEST = 2**24
"""Up to which the smallest width is looked for."""

Ratios = Mapping[float, float]
"""By the number of features."""
Row = tuple[str, str, float, str, float]


@dataclass(frozen=True)
class Config(kit.Config):
    """Sizes of the counterexample, and a search for one in small layers."""

    sizes: tuple[tuple[int, int], ...] = (
        *((width, 1500) for width in (50, 125, 1_000, 5_000, 10_000, 20_000, 30_000)),
        (1_000_000, 1_000_000),
    )
    """Features and tokens."""
    score_difference: float = 0.05
    """D, the spread of the only scores that differ; the smaller, the tighter the bounds."""
    many: tuple[int, float] = (10**9, 1e-5)
    """Tokens and D of the construction whose smallest width above the bound is looked for."""
    search: Search = field(default_factory=Search)


def run(config: Config, on_step: kit.OnStep) -> kit.Result:
    """The counterexample at many sizes, exactly, and a search for others by hill climbing."""
    on_sizes, on_search = kit.parts(on_step, 0.05, 0.95)
    rows = [*_construction(config, on_sizes), *_searched(config, on_search)]
    table = tables.from_rows(("variant", "parameter", "setting", "metric", "value"), rows)
    judgement, sentences = judge(table)
    largest = max(table.filter(variant=PAPER_CONSTANT)["value"].to_list())
    (first,) = _ratios(table, MANY)
    return ENTRY.result(
        config,
        question="Can two heads leave a larger residual than the theorem's bound with βH?",
        sentences=sentences,
        table=table,
        judgement=judgement,
        key_figures={
            "residual over the bound with βH, largest": largest,
            "smallest width at which it is above": first,
        },
        drawings=(
            kit.Drawing(
                "by_setting",
                "The residual of two heads over bounds on it; the ceiling is what βH can be "
                "exceeded by at most.",
                _METRIC,
                roles={CEILING: "bound"},
            ),
        ),
    )


def _construction(config: Config, on_step: kit.OnStep) -> Iterator[Row]:
    """The ratios at each size, and at the smallest width that many tokens need."""
    for (width, tokens), _ in kit.tracked(config.sizes, on_step):
        layer = TwoHeadLayer(width, tokens, config.score_difference)
        ratios = {
            PAPER_CONSTANT: _over_paper_bound(layer),
            PROVED_CONSTANT: layer.residual / layer.proved_bound,
            CEILING: ceiling(width),
        }
        for name, ratio in ratios.items():
            yield name, "features", width, _METRIC, ratio
    first = first_width(*config.many)
    ratio = _over_paper_bound(TwoHeadLayer(first, *config.many))
    yield MANY, "features", first, _METRIC, ratio


def _searched(config: Config, on_step: kit.OnStep) -> Iterator[Row]:
    """The largest ratio that hill climbing reaches at each width, by where it starts."""
    for width, on_part in kit.tracked(config.search.widths, on_step):
        found = [
            climb(config.search, width, config.seed, start=start, on_step=on_start)
            for start, on_start in kit.tracked(range(1 + config.search.starts), on_part)
        ]
        for name, ends in zip(SEARCHES, (found[:1], found[1:]), strict=True):
            if ends:
                yield name, "features", width, _METRIC, max(ends)


def first_width(tokens: int, score_difference: float) -> int:
    """The smallest width at which the construction exceeds the bound with βH.

    >>> first_width(1500, 0.05)
    19347

    Derived: as long as n is far above √d the ratio grows with the width, as d to the power ¼, so
    that bisection finds it. Scores that differ so much that attention is one-hot stay below.
    """
    widths = range(SAFE_WIDTH, _WIDEST)

    def above(width: int) -> bool:
        return _over_paper_bound(TwoHeadLayer(width, tokens, score_difference)) > 1

    if not above(_WIDEST):
        raise InputError(
            f"many={tokens, score_difference}: the construction stays below βH; use a smaller D."
        )
    return widths[bisect_left(widths, True, key=above)]


def _over_paper_bound(layer: TwoHeadLayer) -> float:
    return layer.residual / layer.paper_bound


def ceiling(width: int) -> float:
    """What no residual over the bound with βH can exceed at this width.

    Derived: ``½(√d + 1/√d)`` for adding the heads (a matrix of d × d has norms ‖·‖₁ and ‖·‖∞ that
    differ by a factor d at most), times √(1/32) because the sharp bound holds.
    """
    root = math.sqrt(width)
    return (root + 1 / root) / 2 / math.sqrt(32)


def judge(table: pl.DataFrame) -> tuple[kit.Judgement, tuple[str, ...]]:
    """Exceeded somewhere, the corrected constant nowhere, and nothing at widths that are safe."""
    paper, proved, *found = (
        _ratios(table, name) for name in (PAPER_CONSTANT, PROVED_CONSTANT, *SEARCHES)
    )
    paper = paper | _ratios(table, MANY)
    over = [width for width, ratio in paper.items() if ratio > 1]
    safe = [
        ratio for each in (paper, *found) for width, ratio in each.items() if width <= SAFE_WIDTH
    ]
    cases = {
        "βH is exceeded": bool(over),
        "the constant proved here is not": max(proved.values()) <= 1,
        f"βH is safe up to {SAFE_WIDTH} features": max(safe, default=0.0) <= 1,
    }
    on = f"βH exceeded at {min(over):,.0f} features and more" if all(cases.values()) else ""
    return kit.judged(ENTRY.domain, cases, on), _sentences(paper, proved, found)


def _ratios(table: pl.DataFrame, variant: str) -> dict[float, float]:
    """By the number of features."""
    rows = table.filter(variant=variant).select("setting", "value")
    return dict(rows.iter_rows())


def _sentences(paper: Ratios, proved: Ratios, found: Sequence[Ratios]) -> tuple[str, ...]:
    over = {width: ratio for width, ratio in paper.items() if ratio > 1}
    first = f"; with tokens enough above it from {min(over):,.0f} features on" if over else ""
    safe = [ratio for width, ratio in paper.items() if width <= SAFE_WIDTH]
    said = [
        f"The residual of two heads over the bound with βH: up to {_at(*_largest(paper))}{first}.",
        f"Over the bound with the constant proved here it is at most {_at(*_largest(proved))}.",
    ]
    if safe:
        said.append(
            f"Up to {SAFE_WIDTH} features βH is proved to be safe; the construction reaches "
            f"{short(max(safe))} there."
        )
    if over and min(over) > SAFE_WIDTH + 1:
        said.append(
            f"Whether βH can fail from {SAFE_WIDTH + 1} to {min(over) - 1:,.0f} features is open."
        )
    for name, ratios in zip(SEARCHES, found, strict=True):
        if ratios:
            reached = ", ".join(_at(*item) for item in ratios.items())
            said.append(f"{name.replace('βH, s', 'S')}, changed step by step: {reached}.")
    searched = [width for ratios in found for width in ratios]
    if searched:
        said.append(_worth(sorted(width for width in set(searched) if width > SAFE_WIDTH)))
    return tuple(said)


def _worth(beyond: Sequence[float]) -> str:
    """What a search that finds nothing shows, by the widths at which nothing is proved."""
    control = f"Up to {SAFE_WIDTH} features the search is a control of the code, not evidence"
    if not beyond:
        return f"{control}."
    widths = ", ".join(f"{width:,.0f}" for width in beyond)
    return f"{control}; at {widths} it proves nothing by what it does not find."


def _largest(ratios: Ratios) -> tuple[float, float]:
    return max(ratios.items(), key=lambda item: item[1])


def _at(width: float, ratio: float) -> str:
    return f"{short(ratio, digits=4)} at {width:,.0f} features"
