"""What theory promises beside what happens: every bound, layer by layer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import polars as pl
import torch
from torch import Tensor

from rankscope import tables
from rankscope.ask import Cost, join_deep
from rankscope.core.theory import Bounds, LayerBounds, bounds
from rankscope.experiments import kit
from rankscope.results import Role

ENTRY = kit.question(
    "bounds",
    "What does theory promise?",
    asks=kit.Asks(
        passages=4,
        without="skip,mlp,norm",
        all_tokens="the theorems' bounds are about all tokens",
    ),
)
MEASURED = "measured"
OF_ONE_LAYER: Mapping[str, str] = {
    "log10_sharp_bound": "sharp bound, layer by layer",
    "log10_data_bound": "bound from the data, layer by layer",
    "log10_a_priori_bound": "a-priori bound, layer by layer",
}
"""Bounds on a layer's output given its true input: their names in the theory and in charts."""
OF_ALL_LAYERS: Mapping[str, str] = {
    "log10_depth_data_bound": "bound from the data, all layers",
    "log10_depth_bound": "Dong et al. 2021, all layers",
    "log10_depth_input_bound": "bound from the input's norm, all layers",
}
"""Bounds on the whole way from the input."""
ROLES: Mapping[str, Role] = dict.fromkeys(
    (*OF_ONE_LAYER.values(), *OF_ALL_LAYERS.values()), "bound"
)
_METRIC, _SLACK = "log10_residual", "log10_slack"
_CURVES = {_METRIC: MEASURED, **OF_ONE_LAYER, **OF_ALL_LAYERS}


@dataclass(frozen=True)
class Config(kit.Question):
    """Nothing is to be chosen but the subject, all of whose tokens count."""


def cost(config: Config) -> Cost:
    """What it will take: every layer's scores twice, and best centers."""
    return Cost.of_deep_trace(config.subject).times(2) + Cost.of_centers(config.subject).times(4)


def run(config: Config, on_step: kit.OnStep) -> kit.Result:
    """The residual of every layer beside its bounds; where one does not apply, why."""
    subject = config.subject
    subject.refuse_measured(ENTRY.asks.all_tokens)
    found = _join(
        [
            bounds(subject.network, batch.x, token_mask=batch.token_mask)
            for batch, _ in kit.tracked(subject.batches(), on_step)
        ]
    )
    residuals = _as_residuals(found.table)
    whole = tables.stack([residuals, _slack(residuals)])
    table, drawn, told = _alike(whole)
    return ENTRY.result(
        config,
        title=subject.name,
        question="Does the theory cover this network, and how far is its promise from the truth?",
        # Doubts are notes here.
        sentences=(*subject.reduced, *replace(found, traced=None).sentences, *told),
        table=table,
        about={"residuals": "composite norm, best center"},
        notes={subject.name: "; ".join(found.doubts)} if found.doubts else {},
        drawings=_drawings(table, drawn),
        shown=(_METRIC,),
    )


def _join(parts: Sequence[Bounds]) -> Bounds:
    """The bounds of several batches as one."""
    layers = tuple(map(_join_layer, zip(*(part.layers for part in parts), strict=True)))
    return Bounds(layers, join_deep([part.traced for part in parts if part.traced is not None]))


def _join_layer(parts: Sequence[LayerBounds]) -> LayerBounds:
    """One layer of several batches: their samples one after another, the first reason of any."""
    first = parts[0]
    joined: dict[str, Any] = {
        each.name: torch.cat([getattr(part, each.name) for part in parts])
        for each in fields(first)
        if isinstance(getattr(first, each.name), Tensor)
    }
    for name in ("obstacle", "obstacle_a_priori"):
        joined[name] = next((getattr(part, name) for part in parts if getattr(part, name)), None)
    return replace(first, **joined)


def _alike(
    table: pl.DataFrame,
) -> tuple[pl.DataFrame, dict[str, tuple[str, ...]], tuple[str, ...]]:
    """The samples in runs to which the same bounds apply, which run to draw, and a word on it.

    A median of bounds over some samples beside a median of residuals over all of them would
    compare different samples; with all samples alike there is nothing to tell apart.
    """
    covered: dict[frozenset[tuple[int, str]], list[int]] = {}
    rows = table.filter(metric=_METRIC)
    for (sample,), own in rows.group_by("sample", maintain_order=True):
        places = frozenset(own.select("layer", "variant").iter_rows())
        covered.setdefault(places, []).append(sample)
    if len(covered) == 1:
        return table, {}, ()
    names = {
        places: f"sample{'s' * (len(group) > 1)} {', '.join(map(str, group))}"
        for places, group in covered.items()
    }
    labels = {sample: names[places] for places, group in covered.items() for sample in group}
    best = names[max(covered, key=len)]
    named = pl.col("sample").replace_strict(labels, return_dtype=pl.String).alias("part")
    told = (
        f"The samples differ in which bounds apply to them, so charts show {best} alone, to which "
        "most do; the table has all of them."
    )
    return tables.stack([table.with_columns(named)]), {"part": (best,)}, (told,)


def _drawings(table: pl.DataFrame, drawn: Mapping[str, tuple[str, ...]]) -> tuple[kit.Drawing, ...]:
    """Every chart there are rows for: a network out of the theory's reach has no bound to draw."""
    for column, labels in drawn.items():
        table = table.filter(pl.col(column).is_in(labels))
    present = set(table["variant"])
    one_layer = [name for name in OF_ONE_LAYER.values() if name in present]
    all_layers = [name for name in OF_ALL_LAYERS.values() if name in present]

    def draw(title: str, caption: str, metric: str, *curves: str) -> kit.Drawing:
        only = {"variant": curves, **drawn}
        roles = {name: ROLES[name] for name in curves if name in ROLES}
        return kit.Drawing("by_depth", caption, metric, only=only, roles=roles, title=title)

    charts = []
    if one_layer:
        caption = "What a layer can leave at most, given its true input."
        charts.append(draw("Bounds on one layer", caption, _METRIC, MEASURED, *one_layer))
        caption = "By which factor each is above what was measured."
        charts.append(draw("How far above the truth they are", caption, _SLACK, *one_layer))
    if all_layers or not one_layer:
        caption = (
            "Bounds on the whole way from the input, from the input's norm alone or with each "
            "layer's score differences or their spread γ as measured."
        )
        charts.append(draw("Bounds on all layers", caption, _METRIC, MEASURED, *all_layers))
    return tuple(charts)


def _as_residuals(table: pl.DataFrame) -> pl.DataFrame:
    """Bounds and residuals as variants of one metric; whatever else is known keeps its name."""
    start = table.filter(metric="log10_input_residual", layer=1)
    start = start.with_columns(
        pl.lit(0, dtype=pl.Int64).alias("layer"), pl.lit(_METRIC).alias("metric")
    )
    whole = pl.concat([start, table.filter(pl.col("metric") != "log10_input_residual")])
    known = whole["metric"].is_in(list(_CURVES))
    named = whole.with_columns(
        pl.when(known)
        .then(pl.col("metric").replace(_CURVES))
        .otherwise(pl.lit(MEASURED))
        .alias("variant"),
        pl.when(known).then(pl.lit(_METRIC)).otherwise(pl.col("metric")).alias("metric"),
    )
    order = {name: place for place, name in enumerate(_CURVES.values())}
    place = pl.col("variant").replace_strict(order, default=0, return_dtype=pl.Int64)
    return named.filter(pl.col("value").is_not_null()).sort(place, maintain_order=True)


def _slack(residuals: pl.DataFrame) -> pl.DataFrame:
    """Each bound less what was measured, in decades; where all tokens are equal there is none."""
    rows = residuals.filter(metric=_METRIC)
    measured = rows.filter((pl.col("variant") == MEASURED) & pl.col("value").is_finite())
    doubt = [pl.col("doubt").alias("truth_doubt")] if "doubt" in rows.columns else []
    truth = measured.select("layer", "sample", pl.col("value").alias("truth"), *doubt)
    bounds_only = rows.filter(pl.col("variant") != MEASURED)
    apart = bounds_only.join(truth, on=["layer", "sample"], maintain_order="left")
    either = [pl.col("doubt") | pl.col("truth_doubt")] if doubt else []
    return apart.with_columns(
        (pl.col("value") - pl.col("truth")).alias("value"), pl.lit(_SLACK).alias("metric"), *either
    ).drop("truth", "truth_doubt", strict=False)
