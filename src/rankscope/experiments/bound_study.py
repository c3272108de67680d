"""What theory promises beside what happens: every bound, layer by layer."""

from collections.abc import Callable
from dataclasses import asdict

import polars as pl
from torch import Tensor

from rankscope import tables
from rankscope.experiments.study import Drawing, Study
from rankscope.network import Network
from rankscope.theory import bounds
from rankscope.tracing import Provenance

MEASURED = "measured"
CURVES = {
    "log10_residual": MEASURED,
    "log10_sharp_bound": "sharp bound, layer by layer",
    "log10_data_bound": "bound from the data, layer by layer",
    "log10_a_priori_bound": "a-priori bound, layer by layer",
    "log10_depth_data_bound": "bound from the data, whole depth",
    "log10_depth_bound": "D's theorem, whole depth",
    "log10_depth_input_bound": "bound from the input's norm, whole depth",
}
"""What is drawn as the residual, under which name."""
_METRIC = "log10_residual"
_SLACK = "log10_slack"


def bound_study(
    network: Network,
    x: Tensor,
    token_mask: Tensor | None = None,
    *,
    title: str = "",
    on_done: Callable[[], None] | None = None,
) -> Study:
    """The residual of every layer between its bounds; where one does not apply, why."""
    found = bounds(network, x, token_mask=token_mask)
    if on_done is not None:
        on_done()
    residuals = _drawn_as_residuals(found.table)
    table = pl.concat([residuals, _slack(residuals)])
    summary = tables.summary(table)
    origin = Provenance(network.name, network.spec.digest(seed=network.seed), network.seed)
    return Study(
        name="bounds",
        title=title,
        question="Does the theory cover this network, and how far is its promise from the truth?",
        sentences=found.sentences,
        table=table,
        summary=summary,
        provenance=asdict(origin) | {"norm": "composite", "center": "optimal"},
        drawings=_drawings(table),
        shown=(_METRIC,),
    )


def _drawings(table: pl.DataFrame) -> tuple[Drawing, ...]:
    """Every chart there are rows for: a network out of the theory's reach has no bound to draw."""
    present = table["variant"].unique(maintain_order=True).to_list()
    by_layer = tuple(name for name in present if name.endswith("layer by layer"))
    whole = tuple(name for name in present if name.endswith("whole depth"))
    drawn = []
    if by_layer:
        drawn += [
            Drawing(
                "by_depth",
                "Bounds on one layer, given its true input.",
                _METRIC,
                only={"variant": (MEASURED, *by_layer)},
            ),
            Drawing(
                "by_depth",
                "By which factor each of them is above what was measured.",
                _SLACK,
                only={"variant": by_layer},
            ),
        ]
    if whole or not by_layer:
        drawn.append(
            Drawing(
                "by_depth",
                "Bounds on the whole way from the input, from the input's norm alone or with each "
                "layer's score differences or their spread γ as measured.",
                _METRIC,
                only={"variant": (MEASURED, *whole)},
            )
        )
    return tuple(drawn)


def _drawn_as_residuals(table: pl.DataFrame) -> pl.DataFrame:
    """Bounds and residuals as variants of one metric; whatever else is known keeps its name."""
    start = table.filter((pl.col("metric") == "log10_input_residual") & (pl.col("layer") == 1))
    start = start.with_columns(
        pl.lit(0, dtype=pl.Int64).alias("layer"), pl.lit(_METRIC).alias("metric")
    )
    whole = pl.concat([start, table.filter(pl.col("metric") != "log10_input_residual")])
    known = whole["metric"].is_in(list(CURVES))
    named = whole.with_columns(
        pl.when(known)
        .then(pl.col("metric").replace(CURVES))
        .otherwise(pl.lit(MEASURED))
        .alias("variant"),
        pl.when(known).then(pl.lit(_METRIC)).otherwise(pl.col("metric")).alias("metric"),
    )
    order = {name: place for place, name in enumerate(CURVES.values())}
    kept = named.filter(pl.col("value").is_not_null()).sort(
        pl.col("variant").replace_strict(order, default=0, return_dtype=pl.Int64),
        maintain_order=True,
    )
    return kept.select([name for name in tables.COLUMNS if name in kept.columns])


def _slack(residuals: pl.DataFrame) -> pl.DataFrame:
    """Each bound less what was measured, in decades; where all tokens are equal there is none."""
    rows = residuals.filter(pl.col("metric") == _METRIC)
    measured = rows.filter((pl.col("variant") == MEASURED) & pl.col("value").is_finite())
    truth = measured.select("layer", "sample", pl.col("value").alias("truth"))
    bounds_only = rows.filter(pl.col("variant") != MEASURED)
    apart = bounds_only.join(truth, on=["layer", "sample"], maintain_order="left")
    return apart.with_columns(
        (pl.col("value") - pl.col("truth")).alias("value"), pl.lit(_SLACK).alias("metric")
    ).select(residuals.columns)
