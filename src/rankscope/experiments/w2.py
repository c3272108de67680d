"""Claim W2: LayerNorm alone stops the collapse of randomly initialised attention."""

from collections.abc import Callable, Mapping

import polars as pl

from rankscope.experiments import layernorm_study as study
from rankscope.experiments.claims import Claim, overall
from rankscope.experiments.deep_study import FORMATS, SCALED
from rankscope.experiments.depths import RELATIVE
from rankscope.experiments.laws import power_of_ten
from rankscope.experiments.layernorm_cases import FACTORS, SWEEPS, Setting
from rankscope.experiments.layernorm_study import Outcome

STATEMENT = "LayerNorm alone stops μ → 0 in randomly initialised models."
_POLES = 1.05
"""A stable rank below this is rank one with a little beside it."""


def w2(
    *,
    layers: int = study.LAYERS,
    factors: Mapping[str, Mapping[str, Setting]] = FACTORS,
    sweeps: Mapping[str, Setting] = SWEEPS,
    seeds: int = study.SEEDS,
    seed: int = 0,
    on_case: Callable[[], None] | None = None,
) -> Claim:
    """The verdict of the LayerNorm study, from scaled arithmetic alone.

    A case bears the claim out if its relative residual has stopped shrinking, and is still where
    it was with four times as many layers. What float32 would have said is told beside it.
    """
    found = study.layernorm_study(
        layers=layers, factors=factors, sweeps=sweeps, seeds=seeds, seed=seed, on_case=on_case
    )
    ends = study.outcomes(found.summary)
    stopped = {name: one.fate[SCALED] == "stops" for name, one in ends.items()}
    curves = pl.col("metric") == RELATIVE
    return Claim(
        "W2",
        STATEMENT,
        "Wu, Ajorlou, Wang, Jegelka, Jadbabaie 2024, figure 2",
        overall(stopped),
        (
            *_domain(ends),
            *(study.noise(ends, form) for form in FORMATS),
            *(_reason(name, one) for name, one in ends.items()),
            *study.boundaries(found.summary),
        ),
        found.table,
        found.summary.filter(curves).drop("parameter", "setting", strict=False),
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


def _domain(ends: Mapping[str, Outcome]) -> tuple[str, ...]:
    """Where it stops, where not, and whether what is left has more than one direction."""
    stopped = {name: one for name, one in ends.items() if one.fate[SCALED] == "stops"}
    going = [name for name in ends if name not in stopped]
    told = []
    if going:
        told.append(f"Cases in which the residual goes on shrinking: {'; '.join(going)}.")
    if stopped:
        poles = [name for name, one in stopped.items() if one.rank < _POLES]
        told.append(f"Cases in which it stops: {'; '.join(stopped)}.")
        told.append(
            f"Of the latter {len(poles)} out of {len(stopped)} end with tokens on two opposite "
            f"poles (stable rank below {_POLES:g}): different, and yet of rank one."
        )
    return tuple(told)


def _reason(name: str, one: Outcome) -> str:
    ends = ", ".join(f"{form} {power_of_ten(last)}" for form, last in one.last.items())
    if one.fate[SCALED] == "stops":
        fate = f"stays apart for {one.layers} layers, stable rank {one.rank:.2f}"
    else:
        fate = one.law
    return f"{name}: {fate}; relative residual at the end: {ends}."
