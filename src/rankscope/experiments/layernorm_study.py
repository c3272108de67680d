"""Does LayerNorm alone stop the collapse? Attention and a norm, nothing else, in three formats.

What happens near rank one (derived). Rows of P sum to one, so ``P(1xᵀ + eˢR) = 1xᵀ + eˢPR``; once
tokens agree their logits do, so that P is uniform over what each token sees, whatever the scale of
the logits; and a norm divides all tokens by nearly the same number. Under the full mask the step
stays cubic: rank one attracts from nearby. Under other masks it is linear: averaging shrinks the
deviations, and values may stretch them more than the common row, which random ones are only
measured not to do. Tokens that never come near rank one may stay apart under any mask.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

import polars as pl
import torch
from torch import Tensor

from rankscope import tables
from rankscope.deep import deep_trace
from rankscope.experiments.deep_study import FORMATS, SCALED
from rankscope.experiments.depths import RELATIVE, Texts
from rankscope.experiments.layernorm_cases import FACTORS, SCALES, SWEEPS, Setting, random_network
from rankscope.experiments.layernorm_outcomes import (
    APART,
    DIFFERENT,
    SHARE,
    STABLE,
    Searched,
    counts,
    domain,
    noise,
    outcomes,
    searched,
)
from rankscope.experiments.study import Drawing, Study
from rankscope.metrics import residual, stable_rank
from rankscope.network import Network
from rankscope.tracing import Provenance, trace

LAYERS = 100
_SEARCHED = 60
"""Layers of the search's networks: with 16 tokens, three times what one-hot attention needs."""
_DEEPER = 4
"""Where tokens are still apart, so many times more layers are asked whether they stay so."""
SAMPLES = 3
"""Passages, for every draw of weights."""
SEEDS = 4
"""Draws of weights in the search."""

_FRESH, _REPEATED = "fresh layers", "one layer repeated"


def layernorm_study(
    *,
    layers: int = LAYERS,
    factors: Mapping[str, Mapping[str, Setting]] = FACTORS,
    sweeps: Mapping[str, Setting] = SWEEPS,
    seeds: int = SEEDS,
    seed: int = 0,
    on_case: Callable[[], None] | None = None,
) -> Study:
    """Each case in scaled arithmetic, float64 and float32, and a search for logits that stop it.

    The search looks at tokens that end further apart than a hundredth of their size, which plain
    float64 can tell.
    """
    found: list[pl.DataFrame] = []
    for name, setting in settings_of(factors).items():
        found.append(_case(name, setting, layers, seed))
        if on_case is not None:
            on_case()
    for name, setting in sweeps.items():
        found.append(_swept(name, setting, search_layers(layers), range(seed, seed + seeds)))
        if on_case is not None:
            on_case()
    merged = pl.concat(found, how="diagonal")
    table = merged.select([name for name in tables.COLUMNS if name in merged.columns])
    summary = tables.summary(table)
    return Study(
        name="layernorm",
        title="Attention and LayerNorm, without skips and MLPs",
        question="Does LayerNorm alone stop the collapse at initialisation, or does the number "
        "format stop?",
        sentences=_sentences(table, summary, settings_of(factors), layers),
        table=table,
        summary=summary,
        provenance=asdict(Provenance("attention and norm", spec=about(layers, seeds), seed=seed))
        | {"norm": "fro"},
        drawings=tuple(_drawings(factors, sweeps)),
        shown=(RELATIVE,),
    )


def cases(
    factors: Mapping[str, Mapping[str, Setting]] = FACTORS,
    sweeps: Mapping[str, Setting] = SWEEPS,
) -> int:
    """How often ``on_case`` is called."""
    return sum(map(len, factors.values())) + len(sweeps)


def about(layers: int, seeds: int) -> str:
    """What all cases have in common."""
    return (
        f"Base: {Setting()}; {layers} layers, {_DEEPER} times as many where a sample is still "
        f"apart, one draw of weights, {SAMPLES} passages. Every case differs from it in what "
        f"its name says. The search has {seeds} draws of weights and {SAMPLES} passages for each "
        "setting."
    )


def settings_of(factors: Mapping[str, Mapping[str, Setting]]) -> dict[str, Setting]:
    """All cases by their names."""
    return {name: setting for group in factors.values() for name, setting in group.items()}


def search_of(
    summary: pl.DataFrame, sweeps: Mapping[str, Setting]
) -> list[tuple[Searched, Setting]]:
    """What the search counted, each with the setting it was counted in."""
    return [
        (one, replace(sweeps[one.model], logits=one.logits, shared=one.variant == _REPEATED))
        for one in searched(summary)
    ]


def search_layers(layers: int) -> int:
    """How deep the search's networks are in a study of so many layers."""
    return min(layers, _SEARCHED)


def _case(name: str, setting: Setting, layers: int, seed: int) -> pl.DataFrame:
    """All three formats; where some sample has not collapsed, with many more layers."""
    x, token_mask = Texts(setting.width, setting.tokens, SAMPLES, seed)()
    network = random_network(setting, layers, seed)
    scaled = _relative(network, x, token_mask)
    if any(map(_open, scaled.partition_by("sample"))):
        network = random_network(setting, _DEEPER * layers, seed)
        scaled = _relative(network, x, token_mask)
    found = {SCALED: scaled}
    for format_, dtype in FORMATS.items():
        plain = network if dtype == torch.float64 else network.float()
        metrics = {RELATIVE: _log10_relative, STABLE: stable_rank}
        found[format_] = trace(plain, x.to(dtype), metrics=metrics, token_mask=token_mask).table
    return tables.joined({name: tables.joined(found)}, column="model")


def _relative(network: Network, x: Tensor, token_mask: Tensor) -> pl.DataFrame:
    table = deep_trace(network, x, norm="fro", token_mask=token_mask).table
    return table.filter(pl.col("metric") == RELATIVE)


def _open(sample: pl.DataFrame) -> bool:
    """Whether a residual is too large yet to say that it goes on shrinking."""
    return float(sample.sort("layer")["value"][-1]) > math.log10(DIFFERENT)


def _swept(name: str, setting: Setting, layers: int, seeds: range) -> pl.DataFrame:
    """Which runs' tokens stay apart, their share, and their stable rank, by logit scale."""
    columns: dict[str, list[Any]] = {
        key: [] for key in ("model", "variant", "parameter", "setting", "sample", "metric", "value")
    }
    for shared in (False, True):
        for logits in SCALES:
            one = replace(setting, logits=logits, shared=shared)
            ends = [_end(one, layers, seed) for seed in seeds]
            apart = torch.cat([each for each, _ in ends]).double()
            ranks = torch.cat([rank for _, rank in ends])
            rows = [(SHARE, 0, float(apart.mean()))]  # chart and words then have one figure
            rows += [(APART, run, value) for run, value in enumerate(apart.tolist())]
            rows += [
                (f"{STABLE}_apart", run, float(ranks[run]))
                for run in apart.nonzero()[:, 0].tolist()
            ]
            label = _REPEATED if shared else _FRESH
            for metric, run, value in rows:
                row = (name, label, "logit_scale", logits, run, metric, value)
                for key, entry in zip(columns, row, strict=True):
                    columns[key].append(entry)
    return tables.frame(columns)


def _end(setting: Setting, layers: int, seed: int) -> tuple[Tensor, Tensor]:
    """Of every passage under one draw of weights: whether tokens still differ; the stable rank."""
    x, token_mask = Texts(setting.width, setting.tokens, SAMPLES, seed)()
    with torch.no_grad():
        y = random_network(setting, layers, seed)(x, token_mask)
    size = residual(y, norm="fro", relative=True, token_mask=token_mask)
    return size > DIFFERENT, stable_rank(y, token_mask=token_mask)


def _log10_relative(x: Tensor, *, token_mask: Tensor | None = None) -> Tensor:
    size: Tensor = residual(x, norm="fro", relative=True, token_mask=token_mask)
    return size.log10()


def _sentences(
    table: pl.DataFrame, summary: pl.DataFrame, settings: Mapping[str, Setting], layers: int
) -> tuple[str, ...]:
    found = outcomes(table)
    return (
        *([domain(found, settings)] if found else []),
        *(f"{name}: {one}." for name, one in found.items()),
        *(noise(found, form) for form in FORMATS),
        *counts(summary, search_layers(layers)),
    )


def _drawings(
    factors: Mapping[str, Mapping[str, Setting]], sweeps: Mapping[str, Setting]
) -> Iterator[Drawing]:
    for factor, group in factors.items():
        yield Drawing(
            "by_depth",
            f"{factor.capitalize()}: scaled arithmetic beside plain numbers.",
            RELATIVE,
            {"lowest": -24.0},
            {"model": tuple(group)},
        )
    if sweeps:
        yield Drawing(
            "by_setting",
            "The share of runs whose tokens still differ by a hundredth of their size at the end.",
            SHARE,
        )
