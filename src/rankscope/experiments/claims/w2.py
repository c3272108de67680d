"""Claim W2: LayerNorm alone stops the collapse of randomly initialised attention."""

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from rankscope import tables
from rankscope.experiments import depths, kit
from rankscope.experiments.studies import _layernorm_outcomes as outcomes
from rankscope.experiments.studies import layernorm
from rankscope.experiments.studies._layernorm_outcomes import Outcome

ENTRY = kit.entry("W2")


@dataclass(frozen=True)
class Config(layernorm.Config):
    """That of the LayerNorm study, from which the verdict is read."""


def run(config: Config, on_step: kit.OnStep) -> kit.Result:
    """Run the LayerNorm study, and judge it."""
    return judge(config, layernorm.measure(config, on_step))


def judge(config: Config, found: depths.Measured) -> kit.Result:
    """The verdict of the LayerNorm study, from scaled arithmetic alone, sample by sample.

    A sample bears the claim out if its relative residual has stopped shrinking before it is small,
    and is still where it was with four times as many layers. What float32 would have said is given
    beside it. Where some samples of a case stay apart and others do not, the table names the two
    groups separately. Drawn are the first case of every law, the one that ends
    highest, and those in which some sample stays apart.
    """
    ends = outcomes.outcomes(found.table)
    searched = outcomes.search_counts(tables.summary(found.table), dict(config.sweeps))
    panels = {name: _panels(name, ends[name]) for name in ends}
    return ENTRY.result(
        config,
        question="Does any sample's residual stop shrinking before its tokens are alike?",
        sentences=(
            outcomes.domain(ends, config.cases),
            *outcomes.poles(ends),
            *(outcomes.noise(ends, form) for form in depths.FORMATS),
            *outcomes.search_domain(searched, config.search_layers),
            layernorm.about(config),
            *(f"{name}: {one}." for name, one in ends.items()),
            *outcomes.counts(searched, config.search_layers),
        ),
        table=_relabel(found.table, panels),
        about={"residuals": "Frobenius norm"},
        notes=found.notes,
        judgement=kit.judged(ENTRY.domain, outcomes.verdicts(ends)),
        drawings=(
            kit.Drawing(
                "by_depth",
                "The first case of every law, the one that ends highest, and those in which some "
                "sample stays apart: scaled arithmetic beside plain numbers.",
                depths.RELATIVE,
                {"lowest": layernorm.LOWEST},
                {
                    "model": tuple(
                        panel
                        for name in _cases_to_draw(ends)
                        for panel in dict.fromkeys(panels[name])
                    )
                },
                depths.FLOORS,
            ),
        ),
        shown=(depths.RELATIVE,),
    )


def _panels(name: str, one: Outcome) -> tuple[str, ...]:
    """What each sample of a case is drawn under: its own name, or which of two groups it is in."""
    if one.staying in (0, one.samples):
        return (name,) * one.samples
    words = {
        True: f"{one.staying} of {one.samples} stay",
        False: f"{one.samples - one.staying} of {one.samples} collapse",
    }
    return tuple(f"{name}: {words[stays]}" for stays in one.stops[depths.SCALED])


def _relabel(table: pl.DataFrame, panels: Mapping[str, tuple[str, ...]]) -> pl.DataFrame:
    """The table with the panels of all cases in the place of their names."""
    new = pl.col("model")
    for name, by_sample in panels.items():
        for sample, panel in enumerate(by_sample):
            if panel != name:
                here = (pl.col("model") == name) & (pl.col("sample") == sample)
                new = pl.when(here).then(pl.lit(panel)).otherwise(new)
    return table.with_columns(new.alias("model"))


def _cases_to_draw(ends: Mapping[str, Outcome]) -> list[str]:
    """Few cases: the curves of all of them would fill a chart of many pages."""
    falling = {name: one for name, one in ends.items() if not one.staying}
    first: dict[str, str] = {}
    for name, one in falling.items():
        if one.law is not None:
            first.setdefault(one.law.kind, name)
    chosen = {*first.values(), *(name for name, one in ends.items() if one.staying)}
    if falling:
        chosen.add(max(falling, key=lambda name: max(falling[name].last[depths.SCALED])))
    return [name for name in ends if name in chosen]
