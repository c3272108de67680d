"""Curves of masked attention, read off a table: laws, radii, and how they compare with bounds."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations

import polars as pl

from rankscope import tables
from rankscope.experiments import depths
from rankscope.experiments.claims._mask_theorem import PROMISED, SMALLEST, full_columns
from rankscope.experiments.laws import SMOOTH, UNEVEN, Law
from rankscope.masks import Mask
from rankscope.theory import graph_facts

WINDOWS, OTHERS, NO_CENTER = "two-sided windows", "other masks", "masks without a center"
CHANGING, VALUES = "masks that change", "other values"
"""Panels of the table."""
_ROUNDING = 1e-6
"""Decades by which a bound may seem to be passed."""

Pair = tuple[str, str]
"""Two masks, the one of smaller radius first."""
Masks = Mapping[str, Mapping[str, tuple[Mask, ...]]]
"""By panel and name, the masks that layers take in turn."""


@dataclass(frozen=True)
class Curve:
    """One mask, or one kind of values: two laws, and how it compares with the bound."""

    relative: Law
    dispersion: Law
    radius: float
    smallest: float
    compared: int
    above: int


def radii_of(masks: Masks, tokens: int) -> dict[str, float]:
    """Layers until every token has heard of some one; infinite if that never is."""
    found: dict[str, float] = {}
    for panel in masks.values():
        for name, each in panel.items():
            if len(each) == 1:
                found[name] = graph_facts(each[0], tokens).contracts_after
            else:
                turns = [mask.matrix(tokens) for mask in each] * tokens
                found[name] = next(full_columns(turns), math.inf)
    return found


def read_curves(table: pl.DataFrame, radii: Mapping[str, float]) -> dict[str, Curve]:
    relative, dispersion = (_by_panel(table, m) for m in (depths.RELATIVE, depths.DISPERSION))
    keys = ("variant", "layer", "sample")
    bounds = table.filter(metric=PROMISED).select(*keys, pl.col("value").alias("bound"))
    met = table.filter(metric=depths.DISPERSION).join(bounds, on=keys)
    curves = {}
    for name in relative:
        own = met.filter(variant=name)
        smallest = table.filter(metric=SMALLEST, variant=name)["value"].to_list()
        curves[name] = Curve(
            relative[name],
            dispersion[name],
            radii.get(name, math.inf),
            min(smallest, default=math.nan),
            own.height,
            int((own["value"] > own["bound"] + _ROUNDING).sum()),
        )
    return curves


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
