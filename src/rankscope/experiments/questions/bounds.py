"""Bounds of the theory compared with measurements: every bound, layer by layer."""

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
    "What does theory guarantee?",
    asks=kit.Asks(
        samples=4,
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
"""Bounds from the input to a layer."""
ROLES: Mapping[str, Role] = dict.fromkeys(
    (*OF_ONE_LAYER.values(), *OF_ALL_LAYERS.values()), "bound"
)
_METRIC, _SLACK = "log10_residual", "log10_slack"
_CURVES = {_METRIC: MEASURED, **OF_ONE_LAYER, **OF_ALL_LAYERS}


@dataclass(frozen=True)
class Config(kit.Question):
    """Only the subject; all of its tokens count."""


def cost(config: Config) -> Cost:
    """The cost: every layer's scores twice, and optimal centers."""
    return Cost.of_deep_trace(config.subject).times(2) + Cost.of_centers(config.subject).times(4)


def run(config: Config, on_step: kit.OnStep) -> kit.Result:
    """The residual of every layer and its bounds; if one does not apply, the reason."""
    subject = config.subject
    subject.refuse_measured(ENTRY.asks.all_tokens)
    joined = _join(
        [
            bounds(subject.network, batch.x, token_mask=batch.token_mask)
            for batch, _ in kit.tracked(subject.batches(), on_step)
        ]
    )
    residuals = _as_residuals(joined.table)
    table, drawn = _alike(tables.stack([residuals, _slack(residuals)]))
    # Doubts are notes here.
    sentences = [*subject.reduced, *replace(joined, traced=None).sentences]
    if drawn:
        sentences.append(
            f"Not all bounds apply to all samples: charts show only {drawn}, to which most bounds "
            "apply; the table has all samples."
        )
    return ENTRY.result(
        config,
        question="Does the theory cover this network, and how tight are its bounds?",
        sentences=sentences,
        table=table,
        about={"residuals": "composite norm, best center"},
        notes={subject.name: "; ".join(joined.doubts)} if joined.doubts else {},
        drawings=_drawings(table, drawn),
        shown=(_METRIC,),
    )


def _join(parts: Sequence[Bounds]) -> Bounds:
    """The bounds of several batches as one: their samples one after another, the first reason of
    any why a bound does not apply."""

    def joined(layers: Sequence[LayerBounds]) -> LayerBounds:
        values: dict[str, Any] = {}
        for name in (field.name for field in fields(LayerBounds)):
            entries = [getattr(layer, name) for layer in layers]
            if isinstance(entries[0], Tensor):
                values[name] = torch.cat(entries)
            elif name in ("obstacle", "obstacle_a_priori"):
                values[name] = next(filter(None, entries), None)
        return replace(layers[0], **values)

    layers = tuple(map(joined, zip(*(part.layers for part in parts), strict=True)))
    return Bounds(layers, join_deep([part.traced for part in parts if part.traced is not None]))


def _alike(table: pl.DataFrame) -> tuple[pl.DataFrame, str]:
    """The samples in parts to which the same bounds apply, and which part to draw.

    A median of bounds over some samples beside a median of residuals over all of them would compare
    different samples; if the same bounds apply to all samples, there is one part.
    """
    covered: dict[frozenset[tuple[int, str]], list[int]] = {}
    rows = table.filter(metric=_METRIC)
    for (sample,), rows_of_sample in rows.group_by("sample", maintain_order=True):
        places = frozenset(rows_of_sample.select("layer", "variant").iter_rows())
        covered.setdefault(places, []).append(sample)
    if len(covered) == 1:
        return table, ""
    names = {
        places: f"sample{'s' * (len(group) > 1)} {', '.join(map(str, group))}"
        for places, group in covered.items()
    }
    labels = {sample: names[places] for places, group in covered.items() for sample in group}
    named = pl.col("sample").replace_strict(labels, return_dtype=pl.String).alias("part")
    return tables.stack([table.with_columns(named)]), names[max(covered, key=len)]


def _drawings(table: pl.DataFrame, drawn: str) -> tuple[kit.Drawing, ...]:
    """Every chart with rows: a network that the theory does not cover has no bounds."""
    part = {"part": (drawn,)} if drawn else {}
    present = set((table.filter(part=drawn) if drawn else table)["variant"])
    one_layer, all_layers = (
        [name for name in names.values() if name in present]
        for names in (OF_ONE_LAYER, OF_ALL_LAYERS)
    )
    charts = []

    def draw(title: str, caption: str, metric: str, *curves: str) -> None:
        roles = {name: ROLES[name] for name in curves if name in ROLES}
        only = {"variant": curves, **part}
        charts.append(kit.Drawing("by_depth", caption, metric, only=only, roles=roles, title=title))

    if one_layer:
        caption = "An upper bound on what a layer leaves, given its true input."
        draw("Bounds on one layer", caption, _METRIC, MEASURED, *one_layer)
        caption = "The factor between each bound and the measurement."
        draw("How tight the bounds are", caption, _SLACK, *one_layer)
    if all_layers or not one_layer:
        caption = (
            "Bounds over all layers, from the input's norm alone or with each layer's measured "
            "score differences or their spread γ."
        )
        draw("Bounds on all layers", caption, _METRIC, MEASURED, *all_layers)
    return tuple(charts)


def _as_residuals(table: pl.DataFrame) -> pl.DataFrame:
    """Bounds and residuals as variants of one metric; other metrics keep their names."""
    metric = pl.col("metric")
    start = table.filter(metric="log10_input_residual", layer=1).with_columns(
        pl.lit(0, dtype=pl.Int64).alias("layer"), pl.lit(_METRIC).alias("metric")
    )
    with_start = pl.concat([start, table.filter(metric != "log10_input_residual")])
    named = with_start.with_columns(
        metric.replace_strict(_CURVES, default=MEASURED).alias("variant"),
        pl.when(metric.is_in(list(_CURVES)))
        .then(pl.lit(_METRIC))
        .otherwise(metric)
        .alias("metric"),
    )
    order = {name: position for position, name in enumerate(_CURVES.values())}
    position = pl.col("variant").replace_strict(order, return_dtype=pl.Int64)
    return named.filter(pl.col("value").is_not_null()).sort(position, maintain_order=True)


def _slack(residuals: pl.DataFrame) -> pl.DataFrame:
    """Each bound less what was measured, in decades; where all tokens are equal there is none."""
    rows = residuals.filter(metric=_METRIC)
    measured = rows.filter((pl.col("variant") == MEASURED) & pl.col("value").is_finite())
    columns = [name for name in ("layer", "sample", "value", "doubt") if name in rows.columns]
    apart = rows.filter(pl.col("variant") != MEASURED).join(
        measured.select(columns), on=["layer", "sample"], suffix=" measured", maintain_order="left"
    )
    either = [pl.col("doubt") | pl.col("doubt measured")] if "doubt" in columns else []
    return apart.select(
        pl.exclude("value", "metric", "doubt", "value measured", "doubt measured"),
        pl.lit(_SLACK).alias("metric"),
        pl.col("value") - pl.col("value measured"),
        *either,
    )
