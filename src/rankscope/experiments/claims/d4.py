"""Claim D4: with skips there are infinitely many networks whose residual does not shrink."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from rankscope import tables
from rankscope.deep import Scaled
from rankscope.experiments import depths, kit
from rankscope.experiments.laws import Law, medians
from rankscope.numerals import power_of_ten
from rankscope.theory import keeping_network

ENTRY = kit.entry("D4")
_METRIC = "log10_residual"
_ROUNDING = 1e-9
"""Decades."""


@dataclass(frozen=True)
class Config(depths.DeepConfig):
    """Networks with skips that never write to some of their features, one for each strength."""

    layers: int = 64
    heads: int = 2
    width: int = 32
    kept: int = 8
    """Features that no head writes to."""
    strengths: tuple[float, ...] = (0.0, 0.5, 1.0, 2.0)
    """What the logits are multiplied by: the parameter of the family."""
    values: float = 0.3
    """What is written to the other features is multiplied by this."""


def run(config: Config, on_step: kit.OnStep) -> kit.Result:
    """Members of a continuous family of networks with skips, and each without its skips.

    A member bears the claim out if its residual never falls below that of the features it keeps,
    while the same weights without skips collapse.
    """
    x, token_mask = config.texts()
    whole = {
        f"logits × {strength:g}": keeping_network(
            config.layers,
            config.width,
            kept=config.kept,
            heads=config.heads,
            strength=strength,
            values=config.values,
            seed=config.seed,
        )
        for strength in config.strengths
    }
    bare = {_bare_name(name): network.without("skip") for name, network in whole.items()}
    compared = depths.compare(whole | bare, x, token_mask, on_step=on_step)
    summary = tables.summary(compared.table)
    kept = Scaled.of(x[..., : config.kept], token_mask).log_residual() / math.log(10)
    floor = dict(enumerate(kept.tolist()))
    bare_laws = depths.laws(summary, _METRIC)
    rows = compared.table.filter(metric=_METRIC)
    least = {
        name: rows.filter(variant=name).group_by("sample").agg(pl.min("value")) for name in whole
    }
    stays = {name: never_below(dict(each.iter_rows()), floor) for name, each in least.items()}
    return ENTRY.result(
        config,
        question="Does the residual keep what the skips protect, and is it lost without them?",
        sentences=(
            _sentence(config, summary, name, stays[name], bare_laws[_bare_name(name)])
            for name in whole
        ),
        table=compared.table,
        notes=compared.notes,
        judgement=kit.judged(
            ENTRY.domain,
            {name: stays[name] and bare_laws[_bare_name(name)].kind != "none" for name in whole},
        ),
        drawings=(
            kit.Drawing("by_depth", "A curve for each network.", _METRIC, {"lowest": -30.0}),
        ),
        shown=(_METRIC,),
    )


def never_below(least: Mapping[int, float], floor: Mapping[int, float]) -> bool:
    """Whether each sample's smallest residual is no smaller than its floor, in decades.

    >>> never_below({0: 1.5, 1: 0.9}, {0: 1.5, 1: 1.0})
    False
    """
    return all(least[sample] >= low - _ROUNDING for sample, low in floor.items())


def _bare_name(name: str) -> str:
    return f"{name}, no skip"


def _sentence(config: Config, summary: pl.DataFrame, name: str, stays: bool, bare: Law) -> str:
    curve = medians(summary, _METRIC, variant=name)
    return (
        f"{name}: residual {power_of_ten(curve[0])} at the input, {power_of_ten(curve[-1])} after "
        f"{config.layers} layers, {'never' if stays else 'and somewhere'} below that of the "
        f"{config.kept} features it keeps; without skips {power_of_ten(bare.last)}."
    )
