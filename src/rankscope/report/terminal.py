"""The same findings in a terminal: a short table and a sentence for each variant."""

from collections.abc import Sequence
from typing import Protocol

import polars as pl
from rich.console import Console
from rich.table import Table

_SIDE_BY_SIDE = 4
_STYLE = {"collapse": "bold red", "slow": "yellow", "holds": "green"}


class Told(Protocol):
    """What a finding must have to be shown."""

    @property
    def variant(self) -> str: ...
    @property
    def fate(self) -> str: ...
    @property
    def sentence(self) -> str: ...


def show_findings(summary: pl.DataFrame, findings: Sequence[Told], console: Console) -> None:
    """Relative residual at a few layers for each variant, then what it means."""
    layers = few_layers(summary)
    table = Table(title="relative residual ‖res(X)‖/‖X‖ by layer", title_justify="left", box=None)
    table.add_column("", no_wrap=True)
    for layer in layers:
        table.add_column(str(layer), justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for finding in findings:
        values = _means(summary, finding.variant)
        style = _STYLE.get(finding.fate, "")
        cells = [short(values[layer]) for layer in layers]
        table.add_row(finding.variant, *cells, f"[{style}]{finding.fate}[/]", style=None)
    console.print(table)
    console.print()
    for finding in findings:
        style = _STYLE.get(finding.fate, "")
        console.print(f"[{style}]{finding.variant}[/]  {finding.sentence}", highlight=False)


def show_layers(summary: pl.DataFrame, console: Console) -> None:
    """Every metric's mean by layer, a few metrics at a time so that no figure is cut short."""
    metrics = summary["metric"].unique(maintain_order=True).to_list()
    means = {(row["layer"], row["metric"]): row["mean"] for row in summary.iter_rows(named=True)}
    layers = summary["layer"].unique().sort().to_list()
    for start in range(0, len(metrics), _SIDE_BY_SIDE):
        shown = metrics[start : start + _SIDE_BY_SIDE]
        title = "mean over samples" if start == 0 else None
        table = Table(title=title, title_justify="left", box=None)
        table.add_column("layer", justify="right", no_wrap=True)
        for metric in shown:
            table.add_column(metric, justify="right", no_wrap=True)
        for layer in layers:
            cells = [
                short(means[layer, metric]) if (layer, metric) in means else "" for metric in shown
            ]
            table.add_row(str(layer), *cells)
        console.print(table)


def show_lengths(summary: pl.DataFrame, console: Console) -> None:
    """Shares at the last layer by path length; the biases last."""
    last = summary.filter(pl.col("layer") == pl.col("layer").max())
    metrics = last["metric"].unique(maintain_order=True).to_list()
    table = Table(title="shares at the last layer", title_justify="left", box=None)
    table.add_column("length", justify="right")
    for metric in metrics:
        table.add_column(metric, justify="right")
    lengths = last["length"].unique().sort(nulls_last=True).to_list()
    means = {(row["length"], row["metric"]): row["mean"] for row in last.iter_rows(named=True)}
    for length in lengths:
        cells = [short(means[length, metric]) for metric in metrics]
        table.add_row("bias" if length is None else str(length), *cells)
    console.print(table)


def short(value: float) -> str:
    """Two or three significant digits, in powers of ten where that is easier to read."""
    if value == 0 or 5e-3 <= abs(value) < 1e4:
        return f"{value:.3g}"
    return f"{value:.1e}"


def few_layers(summary: pl.DataFrame, most: int = 6) -> list[int]:
    """The first layers, where most happens, then evenly spaced ones up to the last."""
    layers: list[int] = summary["layer"].unique().sort().to_list()
    if len(layers) <= most:
        return layers
    early, late = layers[: most // 2], layers[most // 2 :]
    steps = most - len(early)
    return early + [late[round((k + 1) * len(late) / steps) - 1] for k in range(steps)]


def _means(summary: pl.DataFrame, variant: str) -> dict[int, float]:
    rows = summary.filter(
        (pl.col("variant") == variant) & (pl.col("metric") == "relative_residual")
    )
    return dict(zip(rows["layer"].to_list(), rows["mean"].to_list(), strict=True))
