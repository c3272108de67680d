"""Samples of one case that end differently, so that no median runs over both."""

from collections.abc import Mapping

import polars as pl

from rankscope.experiments.depths import SCALED
from rankscope.experiments.studies._layernorm_outcomes import Outcome


def panels(name: str, one: Outcome) -> tuple[str, ...]:
    """What each sample of a case is drawn under: its own name, or which of two groups it is in."""
    if one.staying in (0, one.samples):
        return (name,) * one.samples
    words = {
        True: f"{one.staying} of {one.samples} stay",
        False: f"{one.samples - one.staying} of {one.samples} collapse",
    }
    return tuple(f"{name}: {words[stays]}" for stays in one.stops[SCALED])


def relabel(table: pl.DataFrame, by_case: Mapping[str, tuple[str, ...]]) -> pl.DataFrame:
    """The table with the panels of all cases in the place of their names."""
    new = pl.col("model")
    for name, by_sample in by_case.items():
        for sample, panel in enumerate(by_sample):
            if panel != name:
                here = (pl.col("model") == name) & (pl.col("sample") == sample)
                new = pl.when(here).then(pl.lit(panel)).otherwise(new)
    return table.with_columns(new.alias("model"))


def cases_to_draw(ends: Mapping[str, Outcome]) -> list[str]:
    """Few cases: the curves of all of them would fill a chart of many pages."""
    falling = {name: one for name, one in ends.items() if not one.staying}
    first: dict[str, str] = {}
    for name, one in falling.items():
        if one.law is not None:
            first.setdefault(one.law.kind, name)
    chosen = {*first.values(), *(name for name, one in ends.items() if one.staying)}
    if falling:
        chosen.add(max(falling, key=lambda name: max(falling[name].last[SCALED])))
    return [name for name in ends if name in chosen]
