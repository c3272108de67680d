"""Curves of masked attention, read off a table: laws, radii, and how they compare with bounds."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations

import polars as pl

from rankscope import tables
from rankscope.core.masks import Mask
from rankscope.core.theory import SMOOTH, UNEVEN, Law, graph_facts
from rankscope.experiments import depths
from rankscope.experiments.claims._mask_theorem import PROMISED, SMALLEST, full_columns

WINDOWS, OTHERS, NO_CENTER = "two-sided windows", "other masks", "masks without a center"
FEW = "few tokens, weak scores"
CHANGING, VALUES = "masks that change", "other values"
"""Panels of the table."""
_ROUNDING = 1e-6
"""Decades by which a bound may seem to be passed."""

Pair = tuple[str, str]
"""Two masks, the one of smaller radius first."""
Radii = Mapping[str, Mapping[str, float]]
"""By panel and mask, the layers until every token has heard of some one; infinite if never."""


@dataclass(frozen=True)
class Curve:
    """One mask, or one kind of values: two laws, and how it compares with the bound.

    A bound that is not below the input's own μ says nothing, so only those below are compared.
    """

    relative: Law
    dispersion: Law
    radius: float
    smallest: float
    compared: int
    above: int
    nearest: float
    """The largest μ over its bound, in decades."""


def radius_of(masks: tuple[Mask, ...], tokens: int) -> float:
    """Of masks that layers take in turn: the layers until every token has heard of some one."""
    if len(masks) == 1:
        return graph_facts(masks[0], tokens).contracts_after
    turns = [mask.matrix(tokens) for mask in masks] * tokens
    return next(full_columns(turns), math.inf)


def read_curves(table: pl.DataFrame, radii: Radii) -> dict[str, Curve]:
    relative, dispersion = (
        _by_panel(table, m) for m in (depths.RELATIVE_DISPERSION, depths.DISPERSION)
    )
    radius = {name: each for panel in radii.values() for name, each in panel.items()}
    met = _met(table)
    curves = {}
    for name in relative:
        over = met.filter(variant=name)["over"].to_list()
        smallest = table.filter(metric=SMALLEST, variant=name)["value"].to_list()
        curves[name] = Curve(
            relative[name],
            dispersion[name],
            radius.get(name, math.inf),
            min(smallest, default=math.nan),
            len(over),
            sum(each > _ROUNDING for each in over),
            max(over, default=-math.inf),
        )
    return curves


def _met(table: pl.DataFrame) -> pl.DataFrame:
    """μ over the bounds that promise a smaller μ than the input's, in decades, as ``over``."""
    found = table.filter(metric=depths.DISPERSION)
    first = found.filter(layer=0).select("variant", "sample", first="value")
    bounds = table.filter(metric=PROMISED).select("variant", "layer", "sample", bound="value")
    met = found.join(bounds, on=("variant", "layer", "sample")).join(
        first, on=("variant", "sample")
    )
    says = met.filter(pl.col("bound") < pl.col("first") - _ROUNDING)
    return says.with_columns(over=pl.col("value") - pl.col("bound"))


def _by_panel(table: pl.DataFrame, metric: str) -> dict[str, Law]:
    """The law of every curve; attention that hardens as states grow makes uneven ones."""
    found: dict[str, Law] = {}
    for part in table.partition_by("model", maintain_order=True):
        evidence = UNEVEN if part["model"][0] == VALUES else SMOOTH
        found |= depths.laws(tables.summary(part), metric, evidence=evidence)
    return found


def names_of(table: pl.DataFrame, panel: str) -> list[str]:
    names: list[str] = table.filter(model=panel)["variant"].unique(maintain_order=True).to_list()
    return names


def pairs_by_radius(curves: Mapping[str, Curve]) -> list[Pair]:
    """Masks that shrink at a rate, two and two, as far as their radii differ."""
    steady = [
        name
        for name, one in curves.items()
        if one.relative.kind == "exponential" and math.isfinite(one.radius)
    ]
    by_radius = sorted(steady, key=lambda name: curves[name].radius)
    return [(a, b) for a, b in combinations(by_radius, 2) if curves[a].radius < curves[b].radius]


def reversals(pairs: Iterable[Pair], curves: Mapping[str, Curve]) -> list[Pair]:
    """The pairs in which the larger radius shrinks faster."""
    return [(a, b) for a, b in pairs if curves[b].relative.rate < curves[a].relative.rate]
