"""Claim W2: LayerNorm alone stops the collapse of randomly initialised attention."""

from collections.abc import Callable, Mapping

import polars as pl

from rankscope.experiments import layernorm_outcomes as outcomes
from rankscope.experiments import layernorm_study as study
from rankscope.experiments.claims import Claim, overall
from rankscope.experiments.deep_study import FORMATS
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

    A sample bears the claim out if its relative residual has stopped shrinking, and is still where
    it was with four times as many layers. What float32 would have said is told beside it. Drawn are
    the first case of every factor and those in which some sample stays apart.
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
            outcomes.poles(ends),
            *(outcomes.noise(ends, form) for form in FORMATS),
            *outcomes.search_domain(study.search_of(found.summary, sweeps), deep),
            study.about(layers, seeds),
            *(f"{name}: {one}." for name, one in ends.items()),
            *outcomes.counts(found.summary, deep),
        ),
        found.table,
        _drawn(found.summary, ends, factors).filter(pl.col("layer") <= layers),
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


def _drawn(
    summary: pl.DataFrame,
    ends: Mapping[str, Outcome],
    factors: Mapping[str, Mapping[str, Setting]],
) -> pl.DataFrame:
    """The curves of few cases: all of them would fill a chart of many pages."""
    first = [next(iter(group)) for group in factors.values()]
    shown = [name for name, one in ends.items() if one.staying or name in first]
    rows = summary.filter((pl.col("metric") == RELATIVE) & pl.col("model").is_in(shown))
    return rows.drop("parameter", "setting", strict=False)
