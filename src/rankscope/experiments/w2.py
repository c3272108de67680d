"""Claim W2: LayerNorm alone stops the collapse of randomly initialised attention."""

from collections.abc import Callable, Mapping
from typing import Any

import polars as pl

from rankscope import tables
from rankscope.experiments import layernorm_outcomes as outcomes
from rankscope.experiments import layernorm_study as study
from rankscope.experiments.claims import Claim, overall
from rankscope.experiments.deep_study import FORMATS, SCALED
from rankscope.experiments.depths import RELATIVE
from rankscope.experiments.layernorm_cases import FACTORS, SWEEPS, Setting
from rankscope.experiments.layernorm_outcomes import Outcome

STATEMENT = "LayerNorm alone stops μ → 0 in randomly initialised models."


def w2(
    *,
    layers: int = study.LAYERS,
    factors: Mapping[str, Mapping[str, Setting]] = FACTORS,
    sweeps: Mapping[str, Setting] = SWEEPS,
    seeds: int = study.SEEDS,
    seed: int = 0,
    on_case: Callable[[], None] | None = None,
) -> Claim:
    """The verdict of the LayerNorm study, from scaled arithmetic alone, sample by sample.

    A sample bears the claim out if its relative residual has stopped shrinking before it is small,
    and is still where it was with four times as many layers. What float32 would have said is told
    beside it. Drawn are the first case of every law, the one that ends highest, and those in which
    some sample stays apart, split into samples that do and do not.
    """
    found = study.layernorm_study(
        layers=layers, factors=factors, sweeps=sweeps, seeds=seeds, seed=seed, on_case=on_case
    )
    ends = outcomes.outcomes(found.table)
    deep = study.search_layers(layers)
    return Claim(
        "W2",
        STATEMENT,
        "Wu, Ajorlou, Wang, Jegelka, Jadbabaie 2024, figure 2",
        overall(outcomes.verdicts(ends)),
        (
            outcomes.domain(ends, study.settings_of(factors)),
            *outcomes.poles(ends),
            *(outcomes.noise(ends, form) for form in FORMATS),
            *outcomes.search_domain(study.search_of(found.summary, sweeps), deep),
            study.about(layers, seeds),
            *(f"{name}: {one}." for name, one in ends.items()),
            *outcomes.counts(found.summary, deep),
        ),
        found.table,
        tables.summary(_drawn(found.table, ends, layers)),
        found.provenance,
        metric=RELATIVE,
        figure="by_depth",
        lowest=-24.0,
    )


def steps(
    factors: Mapping[str, Mapping[str, Setting]] = FACTORS,
    sweeps: Mapping[str, Setting] = SWEEPS,
) -> int:
    """How often ``on_case`` is called."""
    return study.cases(factors, sweeps)


def _drawn(table: pl.DataFrame, ends: Mapping[str, Outcome], layers: int) -> pl.DataFrame:
    """The curves of few cases: all of them would fill a chart of many pages."""
    panels: dict[str, list[Any]] = {"model": [], "sample": [], "panel": []}
    for name in _shown(ends):
        one = ends[name]
        for sample, stays in enumerate(one.stops[SCALED]):
            many = one.staying if stays else one.samples - one.staying
            fate = f"{many} of {one.samples} {'stay' if stays else 'collapse'}"
            mixed = 0 < one.staying < one.samples
            row = (name, sample, f"{name}: {fate}" if mixed else name)
            for column, entry in zip(panels.values(), row, strict=True):
                column.append(entry)
    rows = table.filter((pl.col("metric") == RELATIVE) & (pl.col("layer") <= layers))
    named = rows.join(pl.DataFrame(panels), on=["model", "sample"], maintain_order="left")
    whole = named.with_columns(pl.col("panel").alias("model")).drop("panel")
    return whole.drop("parameter", "setting", strict=False)


def _shown(ends: Mapping[str, Outcome]) -> list[str]:
    falling = {name: one for name, one in ends.items() if not one.staying}
    first: dict[str, str] = {}
    for name, one in falling.items():
        if one.law is not None:
            first.setdefault(one.law.kind, name)
    chosen = {*first.values(), *(name for name, one in ends.items() if one.staying)}
    if falling:
        chosen.add(max(falling, key=lambda name: max(falling[name].last[SCALED])))
    return [name for name in ends if name in chosen]
