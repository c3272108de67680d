"""``show``: print a result in a terminal."""

import math
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rankscope.arguments import checked
from rankscope.metric_catalogue import Metric
from rankscope.numerals import MINUS, power_of_ten, short
from rankscope.results import Entry, Finding, Listing, Result
from rankscope.show.report._grids import DOUBT, IN_DOUBT, METRIC, Cell, MetricGrid, grids
from rankscope.show.report._page import titles
from rankscope.show.report._prose import sentences, without_marks
from rankscope.show.report._tables import (
    FATES,
    NOTHING,
    in_how_many,
    is_huge,
    is_numeric,
    is_seen,
    known_figures,
    where,
)

STYLE: Final = {
    "collapse": "bold red",
    "slow": "yellow",
    "noted": "yellow",
    "holds": "green",
    "absent": "green",
    "fails": "bold red",
    "depends": "yellow",
    "not tried": "dim",
    "unknown": "dim",
}  # by verdict, fate or tone
_TONES: Final = {**STYLE, "neutral": "bold", "holds": "bold green"}
_MOST_LISTED, _FEW_LISTED = 10, 5
_MOST_SENTENCES: Final = 3
_NARROWEST: Final = 72  # narrower terminals wrap lines themselves
_SIDE_BY_SIDE: Final = 4
_COLUMNS: Final = 5  # metrics per table, if each of many curves has a row
_MOST_ROWS: Final = 16
_MOST_TABLES: Final = 8


def findings_table(findings: Sequence[Finding]) -> Table:
    """A table of findings, without the criteria, which the page shows."""
    table = Table(box=None, pad_edge=False)
    table.add_column("kind", no_wrap=True)
    table.add_column("status", no_wrap=True)
    table.add_column("details", ratio=1)
    located = any(where(finding) for finding in findings)
    counted = any(finding.samples for finding in findings)
    if located:
        table.add_column("where")
    if counted:
        table.add_column("samples", justify="right", no_wrap=True)
    for finding in findings:
        status = Text(FATES[finding.fate], STYLE[finding.fate])
        details = Text(without_marks(finding.sentence))
        if finding.url and is_seen(finding):
            details.append(f"\n{without_marks(finding.url)}", "dim")
        more = [where(finding)] * located + [in_how_many(finding)] * counted
        table.add_row(Text(finding.kind), status, details, *map(Text, more))
    return table


def show_listings(console: Console, listings: Sequence[Listing], most: int = _MOST_LISTED) -> None:
    """Print listings with their titles, up to ``most`` rows of each."""
    for listing in listings:
        console.print()
        console.print(Text(without_marks(listing.title), style="italic"))
        table = Table(box=None, pad_edge=False)
        rows = [[_entry(value) for value in row] for row in listing.rows[:most]]
        for column, name in enumerate(listing.columns):
            if is_numeric(listing, column):
                widest = _widest(name, [row[column] for row in rows])
                table.add_column(Text(name), justify="right", min_width=widest)
            else:
                table.add_column(Text(name))
        for row in rows:
            table.add_row(*map(Text, row))
        console.print(table)
        left = len(listing.rows) - most
        if left > 0:
            console.print(Text(f"{left:,} more row{'s' * (left > 1)} on the page."))
        if listing.note:
            console.print(Text(without_marks(listing.note), style="dim"))


def _entry(value: Entry) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return NOTHING
    return without_marks(value) if isinstance(value, str) else number(value)


def number(value: float) -> str:
    """A formatted number; integers keep their digits, unless there are too many."""
    if not is_huge(value):
        return short(value)
    return f"{MINUS if value < 0 else ''}{power_of_ten(math.log10(abs(value)))}"


@checked
def show(result: Result, console: Console | None = None, *, full: bool = False) -> None:
    """Print a result: title, verdict, answer and measurements.

    >>> from rankscope.experiments import run
    >>> show(run("D8"))
    D8  Most paths of well-known transformers are long: ...

    A result with a headline fits one screen: its answer and the first rows of its first table,
    unless ``full``; other results are always printed in full.
    """
    console = copy(console or Console())
    console.width = max(console.width, _NARROWEST)
    for warning in result.warnings:
        console.print(Text(f"Warning: {without_marks(warning)}", STYLE["slow"]))
    _top(console, result, full=full)
    if has_screen(result) and not full:
        show_listings(console, result.listings[:1], most=_FEW_LISTED)
        return
    if result.findings:
        console.print()
        console.print(findings_table(result.findings))
    known = known_figures(result.key_figures)
    if known:
        console.print()
        quoted = (f"{name} {number(value)}" for name, value in known.items())
        console.print(Text("; ".join(quoted)))
    show_listings(console, result.listings)
    for part in result.parts:
        if not part.sentences and not part.listings:
            continue
        console.print()
        console.print(Text(part.title, style="bold"))
        if part.sentences:
            console.print(_list_sentences([(Text("•"), sentence) for sentence in part.sentences]))
        show_listings(console, part.listings)
    _show_figures(console, result)


def has_screen(result: Result) -> bool:
    """Whether the result has a short answer, with details only on request."""
    return result.headline is not None


def _top(console: Console, result: Result, *, full: bool) -> None:
    """The title, the question, the answer."""
    title, lead = titles(result)
    if has_screen(result) and not full:  # the user knows the question
        title, lead = result.title, ""
    console.print(Text(f"{result.id}  {title}") if result.source else Text(title, "bold"))
    if lead:
        console.print(Text(lead))
    texts = [] if result.headline else sentences(result)
    if result.headline is not None:
        console.print()
        console.print(Text(without_marks(result.headline.text), _TONES[result.headline.tone]))
        console.print(_answer(result, full=full))
        pages = [finding.url for finding in result.findings if is_seen(finding) and finding.url]
        if pages and not full:
            console.print(Text(f"What it means: {without_marks(pages[0])}", "dim"))
    judged = {"": result.judgement, "beyond: ": result.beyond}
    answers = [
        (
            Text(f"{which}{judgement.words}", STYLE[judgement.verdict]),
            f"{judgement.on} ({judgement.domain})".lstrip(),
        )
        for which, judgement in judged.items()
        if judgement is not None
    ]
    for rows in (answers, [(Text("•"), sentence) for sentence in texts]):
        if rows:
            console.print()
            console.print(_list_sentences(rows))


def _answer(result: Result, *, full: bool) -> Table:
    """The text below a headline: sentences with their labels, or as a list."""
    if result.labels:
        rows = [(Text(label, "bold"), text) for label, text in result.answers.items()]
        pairs = zip(result.labels, result.sentences, strict=True)
        rest = [(Text("•"), sentence) for label, sentence in pairs if not label]
        return _list_sentences([*rows, *rest] if full else rows)
    few = result.sentences if full else result.sentences[:_MOST_SENTENCES]
    return _list_sentences((Text("•"), sentence) for sentence in few)


def _show_figures(console: Console, result: Result) -> None:
    """Print the tables of metrics, up to a limit."""
    tables = grids(result, apart=("model",))
    for grid in tables[:_MOST_TABLES]:
        console.print()
        console.print(Text(_heading(grid), style="italic"))
        if grid.axis == METRIC and len(grid.curves) > _SIDE_BY_SIDE:
            for start in range(0, len(grid.positions), _COLUMNS):
                console.print(_rows_of_figures(grid, grid.positions[start : start + _COLUMNS]))
            continue
        for start in range(0, len(grid.curves), _SIDE_BY_SIDE):
            curves = grid.curves[start : start + _SIDE_BY_SIDE]
            few = grid.few(_MOST_ROWS, curves)
            console.print(_table(few))
            if few.has_doubts:
                console.print(Text(IN_DOUBT))
    if len(tables) > _MOST_TABLES:
        left = len(tables) - _MOST_TABLES
        console.print(Text(f"\n{left} more table{'s' * (left > 1)} on the page."))


def _number_text(cell: Cell | None, words: Mapping[str, Metric]) -> str:
    """A formatted number; a dash if it is not known, empty if there is none."""
    if cell is None:
        return ""
    if cell.value is None or math.isnan(cell.value):
        return NOTHING
    exponent = words[cell.metric].scale == "exponent"
    text = power_of_ten(cell.value, digits=3) if exponent else short(cell.value)
    return text + DOUBT * cell.doubt


def _list_sentences(rows: Iterable[tuple[Text, str]]) -> Table:
    """Sentences with their labels, wrapped between words."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    for label, sentence in rows:
        grid.add_row(label, Text(without_marks(sentence)))
    return grid


def _heading(grid: MetricGrid) -> str:
    """The heading of a table: its metric, statistic and layer."""
    title = ""
    if grid.metric and grid.axis != METRIC:
        entry = grid.words[grid.metric]
        symbol = "" if entry.symbol in entry.title.lower() else entry.symbol
        title = f"{entry.title} {symbol}".strip()
    words = [
        f"{grid.statistic} over the samples" if grid.statistic else "",
        "after the last layer" if grid.last_layer else "",
    ]
    if not title and not grid.about:
        words = [(", ".join(filter(None, words)) or "measurements").capitalize()]
    return ", ".join(filter(None, [title, grid.about, *words]))


def _table(grid: MetricGrid) -> Table:
    """One row per position, one column per curve."""
    table = Table(box=None)
    if grid.axis == METRIC:
        table.add_column("", no_wrap=True)
    else:
        table.add_column(grid.axis, justify="right", no_wrap=True)
    columns = [
        [_number_text(cell, grid.words) for cell in grid.column(curve)] for curve in grid.curves
    ]
    for curve, cells in zip(grid.curves, columns, strict=True):
        name = grid.name(curve) or grid.statistic or "value"
        table.add_column(Text(name), justify="right", min_width=_widest(name, cells))
    for position, *cells in zip(grid.positions, *columns, strict=True):
        table.add_row(grid.label(position), *cells)
    return table


def _rows_of_figures(grid: MetricGrid, metrics: Sequence[str]) -> Table:
    """Single numbers of many curves: one row per curve, one column per metric."""
    table = Table(box=None)
    table.add_column("")
    columns = []
    for name in metrics:
        cells = [_number_text(grid.cells.get((name, curve)), grid.words) for curve in grid.curves]
        title = grid.label(name)
        table.add_column(Text(title), justify="right", width=_widest(title, cells))
        columns.append(cells)
    for curve, *cells in zip(grid.curves, *columns, strict=True):
        table.add_row(Text(grid.name(curve)), *cells)
    return table


def _widest(title: str, cells: Sequence[str]) -> int:
    """The minimum width of a column: titles wrap between words, and cells do not wrap."""
    return max(map(len, [*cells, *title.split(), ""]))
