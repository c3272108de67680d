"""Claim N2: the constant βH for several heads is too small in general, safe at small widths."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl

from rankscope import tables
from rankscope.experiments import kit
from rankscope.experiments.claims._n2_search import Search, climb
from rankscope.numerals import short
from rankscope.theory.residual_bounds import TwoHeadLayer

ENTRY = kit.entry("N2")
_METRIC = "bound_ratio"
PAPER_CONSTANT, PROVED_CONSTANT = "βH of Dong et al. 2021", "the constant proved here"
CEILING = "proved ceiling for βH"
SEARCHES = ("βH, search from the construction", "βH, search from random layers")
SAFE_WIDTH = math.floor((math.sqrt(32) + math.sqrt(31)) ** 2)
"""The largest width d with ``½(√d + 1/√d) ≤ √32``: 125."""

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
    search: Search = field(default_factory=Search)


def run(config: Config, on_step: kit.OnStep) -> kit.Result:
    """The counterexample at many sizes, exactly, and a search at small ones as a control."""
    on_sizes, on_search = kit.parts(on_step, 0.05, 0.95)
    rows: list[Row] = []
    for (width, tokens), _ in kit.tracked(config.sizes, on_sizes):
        layer = TwoHeadLayer(width, tokens, config.score_difference)
        ratios = {
            PAPER_CONSTANT: layer.residual / layer.paper_bound,
            PROVED_CONSTANT: layer.residual / layer.proved_bound,
            CEILING: ceiling(width),
        }
        rows += [(name, "features", width, _METRIC, ratio) for name, ratio in ratios.items()]
    for width, on_part in kit.tracked(config.search.widths, on_search):
        found = [
            climb(config.search, width, config.seed, start=start, on_step=on_start)
            for start, on_start in kit.tracked(range(1 + config.search.starts), on_part)
        ]
        for name, ends in zip(SEARCHES, (found[:1], found[1:]), strict=True):
            rows += [(name, "features", width, _METRIC, max(ends))] if ends else []
    table = tables.from_rows(("variant", "parameter", "setting", "metric", "value"), rows)
    judgement, sentences = judge(table)
    largest = max(table.filter(variant=PAPER_CONSTANT)["value"].to_list())
    return ENTRY.result(
        config,
        question="Can two heads leave a larger residual than the theorem's bound with βH?",
        sentences=sentences,
        table=table,
        judgement=judgement,
        key_figures={"residual over the bound with βH, largest": largest},
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
        dict(table.filter(variant=name).select("setting", "value").iter_rows())
        for name in (PAPER_CONSTANT, PROVED_CONSTANT, *SEARCHES)
    )
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


def _sentences(paper: Ratios, proved: Ratios, found: Sequence[Ratios]) -> tuple[str, ...]:
    over = {width: ratio for width, ratio in paper.items() if ratio > 1}
    first = f"; exceeded first with {_at(*min(over.items()))}" if over else ""
    safe = [ratio for width, ratio in paper.items() if width <= SAFE_WIDTH]
    told = [
        f"The residual of two heads over the bound with βH: up to {_at(*_largest(paper))}{first}.",
        f"Over the bound with the constant proved here it is at most {_at(*_largest(proved))}.",
    ]
    if safe:
        told.append(
            f"Up to {SAFE_WIDTH} features βH is proved to be safe; the construction reaches "
            f"{short(max(safe))} there."
        )
    if over and min(over) > SAFE_WIDTH + 1:
        told.append(
            f"Whether βH can fail between {SAFE_WIDTH + 1} and {min(over):,.0f} features is open."
        )
    for name, ratios in zip(SEARCHES, found, strict=True):
        if ratios:
            reached = ", ".join(_at(*item) for item in ratios.items())
            told.append(f"{name.replace('βH, s', 'S')}, changed step by step: {reached}.")
    return tuple(told)


def _largest(ratios: Ratios) -> tuple[float, float]:
    return max(ratios.items(), key=lambda item: item[1])


def _at(width: float, ratio: float) -> str:
    return f"{short(ratio, digits=4)} at {width:,.0f} features"
