"""Metrics against the layer: a panel for each metric, or for each model."""

from collections.abc import Sequence

import altair as alt
import polars as pl

from rankscope.errors import InputError
from rankscope.figures._layout import lay_out
from rankscope.figures._panel import Look, panel
from rankscope.figures._validation import require_values

_NEEDED = ("layer", "metric", "count", "mean", "low", "median", "high")


def by_layer(
    summary: pl.DataFrame, *, metrics: Sequence[str] | None = None, title: str | None = None
) -> alt.ConcatChart:
    """Each metric against the layer, in a panel of its own: mean, and band of 10 to 90 per cent.

    >>> from rankscope import tables
    >>> cosines = {"layer": [0, 1], "metric": ["mean_cosine"] * 2, "value": [0.1, 0.8]}
    >>> chart = by_layer(tables.summary(tables.frame(cosines)), metrics=["mean_cosine"])

    ``summary`` is what ``tables.summary`` returns; with a ``variant`` column each variant has its
    line, in the colour it has in every figure. ``metrics`` chooses the panels and their order.
    Pointing at a line, or clicking on a name in the legend, brings that variant to the front.
    """
    names = _choose_metrics(summary, metrics)
    shown = summary.filter(pl.col("metric").is_in(names))
    look = _look(shown)
    panels = [
        panel(name, shown.filter(pl.col("metric") == name).to_dicts(), look, number=number)
        for number, name in enumerate(names)
    ]
    return lay_out(panels, title=title, names=look.variants, shapes=True)


def by_model(
    summary: pl.DataFrame, *, metric: str = "relative_residual", title: str | None = None
) -> alt.ConcatChart:
    """One metric against the layer, in a panel for each model (Dong et al. 2021, figure 2).

    >>> from rankscope import tables
    >>> cosines = {"model": ["a", "b"], "layer": [0, 0], "value": [0.1, 0.8]}
    >>> table = tables.frame({**cosines, "metric": ["mean_cosine"] * 2})
    >>> chart = by_model(tables.summary(table), metric="mean_cosine")

    ``summary`` has the columns of ``by_layer`` and a ``model`` column.
    """
    if "model" not in summary.columns:
        raise InputError("the table lacks the column model; by_model draws a panel for each.")
    models = summary["model"].unique(maintain_order=True).to_list()
    for model in models:
        _choose_metrics(summary.filter(pl.col("model") == model), [metric])
    shown = summary.filter(pl.col("metric") == metric)
    look = _look(shown)
    panels = [
        panel(
            metric,
            shown.filter(pl.col("model") == model).to_dicts(),
            look,
            number=number,
            heading=model,
        )
        for number, model in enumerate(models)
    ]
    return lay_out(panels, title=title, names=look.variants, shapes=True)


def _look(shown: pl.DataFrame) -> Look:
    layers = shown["layer"].to_list()
    return Look(_variants(shown), (min(layers), max(layers)))


def _choose_metrics(summary: pl.DataFrame, metrics: Sequence[str] | None) -> list[str]:
    """The metrics to draw, after a check that the table can be drawn at all."""
    missing = [name for name in _NEEDED if name not in summary.columns]
    if missing:
        raise InputError(
            f"the table lacks {', '.join(missing)}; by_layer draws what tables.summary returns."
        )
    present = summary["metric"].unique(maintain_order=True).to_list()
    asked = [metrics] if isinstance(metrics, str) else list(present if metrics is None else metrics)
    unknown = [name for name in asked if name not in present]
    if unknown or not asked:
        got = f"no rows for metric {unknown[0]!r}" if unknown else "there is nothing to draw"
        raise InputError(f"{got}; the table has {', '.join(present) or 'no metric at all'}.")
    rows = summary.filter(pl.col("metric").is_in(asked))  # the others need not have layers
    require_values(rows, ["layer"])
    keys = [name for name in ("variant", "metric", "layer") if name in rows.columns]
    twice = rows.filter(rows.select(keys).is_duplicated())
    if twice.height:
        row = twice.row(0, named=True)
        raise InputError(
            f"several rows for {row['metric']} at layer {row['layer']}; by_layer draws one table: "
            "keep one run, model and length, or name them in the variant column."
        )
    return list(dict.fromkeys(asked))


def _variants(summary: pl.DataFrame) -> tuple[str, ...]:
    if "variant" not in summary.columns:
        return ()
    return tuple(summary["variant"].unique(maintain_order=True).to_list())
