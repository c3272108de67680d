"""``show``: a result in a terminal."""

import math
from collections.abc import Iterable, Sequence
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rankscope.metric_catalogue import metric as entry_of
from rankscope.numerals import power_of_ten, short
from rankscope.report._grids import Curve, Grid, grids
from rankscope.report._prose import sentences, without_marks
from rankscope.report._tables import is_huge, known_figures
from rankscope.results import Result

_SIDE_BY_SIDE: Final = 4
_MOST_ROWS: Final = 16
_STYLE: Final = {
    "collapse": "bold red",
    "slow": "yellow",
    "holds": "green",
    "fails": "bold red",
    "depends": "yellow",
}


def show(result: Result, console: Console | None = None) -> None:
    """Print a result: its title and verdict, what was found in words, and the figures behind it.

    >>> show(result)
    """
    console = console or Console()
    _print(console, _title(result))
    if result.question != result.title:
        _print(console, Text(result.question))
    if result.findings:
        console.print()
        for each in result.findings:
            _print(console, Text(each.variant, style=_STYLE[each.fate]) + f"  {each.sentence}")
    said = sentences(result)
    if said:
        console.print()
        console.print(_listed(said))
    known = known_figures(result.key_figures)
    if known:
        console.print()
        quoted = (f"{name} {_figure(value)}" for name, value in known.items())
        _print(console, Text("; ".join(quoted)))
    for grid in grids(result, apart=("model",), most=_MOST_ROWS):
        console.print()
        _print(console, Text(_heading(grid), style="italic"))
        for start in range(0, len(grid.curves), _SIDE_BY_SIDE):
            console.print(_table(grid, grid.curves[start : start + _SIDE_BY_SIDE]))


def tell(value: float | None, metric: str) -> str:
    """A value of a metric in a few characters; a dash where there is none."""
    if value is None or math.isnan(value):
        return "–"
    return power_of_ten(value, digits=3) if entry_of(metric).scale == "exponent" else short(value)


def _figure(value: float) -> str:
    return power_of_ten(math.log10(value)) if is_huge(value) else short(value)


def _title(result: Result) -> Text:
    """The title; for a claim also its id and its verdict."""
    if result.verdict is None:
        return Text(result.title, style="bold")
    verdict = Text(result.verdict, style=_STYLE[result.verdict])
    return Text(f"{result.id}  {result.title}  ") + verdict


def _listed(sentences: Iterable[str]) -> Table:
    """Sentences below each other, each with its own margin."""
    listed = Table.grid(padding=(0, 1))
    listed.add_column(no_wrap=True)
    listed.add_column(overflow="fold")
    for sentence in sentences:
        listed.add_row("•", Text(without_marks(sentence)))
    return listed


def _heading(grid: Grid) -> str:
    told = [
        grid.heading,
        f"{grid.statistic} over the samples" if grid.statistic else "",
        "after the last layer" if grid.last_layer else "",
    ]
    text = ", ".join(filter(None, told)) or f"by {grid.place}"
    return text[:1].upper() + text[1:]


def _table(grid: Grid, curves: Sequence[Curve]) -> Table:
    table = Table(box=None)
    table.add_column(grid.place, justify="right", no_wrap=True)
    for curve in curves:
        shown = [tell(value, curve.metric) for value in grid.column(curve)]
        # Names may be broken into lines, numbers may not.
        table.add_column(
            Text(curve.metric if grid.by_metric else curve.name),
            justify="right",
            min_width=max(map(len, shown)),
        )
    for place in grid.places:
        known = [(place, curve) in grid.values for curve in curves]
        cells = [
            tell(grid.values[place, curve], curve.metric) if there else ""
            for curve, there in zip(curves, known, strict=True)
        ]
        table.add_row(grid.label(place), *cells)
    return table


def _print(console: Console, text: Text) -> None:
    console.print(text, highlight=False)
