"""``show``: a result in a terminal."""

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
from rankscope.show.report._grids import DOUBT, IN_DOUBT, METRIC, Cell, Grid, grids
from rankscope.show.report._page import titles
from rankscope.show.report._prose import sentences, without_marks
from rankscope.show.report._tables import (
    FATES,
    NOTHING,
    in_how_many,
    is_huge,
    is_numeric,
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
}  # by what is said: a verdict, a fate, a tone
_TONES: Final = {**STYLE, "neutral": "bold", "holds": "bold green"}
_MOST_LISTED, _FEW_LISTED = 10, 5
_MOST_SAID: Final = 3
_NARROWEST: Final = 72  # columns: with fewer figures would be cut, and a terminal breaks lines
_SIDE_BY_SIDE: Final = 4
_COLUMNS: Final = 5  # metrics side by side, where each of many curves has a row
_MOST_ROWS: Final = 16
_MOST_TABLES: Final = 8


def findings_table(findings: Sequence[Finding]) -> Table:
    """What was looked for, whether and where it was found; rules are left to the page."""
    table = Table(box=None, pad_edge=False)
    table.add_column("looked for", no_wrap=True)
    table.add_column("found?", no_wrap=True)
    table.add_column("in words", ratio=1)
    placed = any(where(each) for each in findings)
    counted = any(each.samples for each in findings)
    if placed:
        table.add_column("where")
    if counted:
        table.add_column("samples", justify="right", no_wrap=True)
    for each in findings:
        found = Text(FATES[each.fate], STYLE[each.fate])
        more = [where(each)] * placed + [in_how_many(each)] * counted
        table.add_row(Text(each.kind), found, Text(without_marks(each.sentence)), *map(Text, more))
    return table


def show_listings(console: Console, listings: Sequence[Listing], most: int = _MOST_LISTED) -> None:
    """Each listing under its title; of a long one the first rows, and how many more there are."""
    for listing in listings:
        console.print()
        console.print(Text(without_marks(listing.title), style="italic"))
        table = Table(box=None, pad_edge=False)
        rows = [[_entry(value) for value in row] for row in listing.rows[:most]]
        for column, name in enumerate(listing.columns):
            # Names may be broken into lines, numbers may not.
            widest = max((len(row[column]) for row in rows), default=0)
            if is_numeric(listing, column):
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
    """A number in a few characters; a whole one keeps its digits, unless nobody would read them."""
    if not is_huge(value):
        return short(value)
    return f"{MINUS if value < 0 else ''}{power_of_ten(math.log10(abs(value)))}"


@checked
def show(result: Result, console: Console | None = None, *, full: bool = False) -> None:
    """Print a result: its title and verdict, what was found in words, and the figures behind it.

    >>> from rankscope.experiments import run
    >>> show(run("D8"))
    D8  Most paths of well-known transformers are long: ...

    One with a headline is printed on a screen, with its answer and the first rows of its first
    table, unless it is wanted in ``full``; others are always printed in full.
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
            console.print(_list_sentences([(Text("•"), each) for each in part.sentences]))
        show_listings(console, part.listings)
    _show_figures(console, result)


def has_screen(result: Result) -> bool:
    """Whether its answer is short, and the rest of it printed only if that is asked for."""
    return result.headline is not None


def _top(console: Console, result: Result, *, full: bool) -> None:
    """The title, the question, the answer."""
    title, lead = titles(result)
    if has_screen(result) and not full:  # whoever asks knows what was asked
        title, lead = result.title, ""
    console.print(Text(f"{result.id}  {title}") if result.source else Text(title, "bold"))
    if lead:
        console.print(Text(lead))
    said = [] if result.headline else sentences(result)
    if result.headline is not None:
        console.print()
        console.print(Text(without_marks(result.headline.text), _TONES[result.headline.tone]))
        console.print(_answer(result, full=full))
    judged = {"": result.judgement, "beyond: ": result.beyond}
    answers = [
        (
            Text(f"{which}{judgement.words}", STYLE[judgement.verdict]),
            f"{judgement.rest} ({judgement.domain})".lstrip(),
        )
        for which, judgement in judged.items()
        if judgement is not None
    ]
    for rows in (answers, [(Text("•"), each) for each in said]):
        if rows:
            console.print()
            console.print(_list_sentences(rows))


def _answer(result: Result, *, full: bool) -> Table:
    """What stands below a headline: beside what each sentence answers, or as points."""
    if result.labels:
        rows = [(Text(label, "bold"), said) for label, said in result.answers.items()]
        pairs = zip(result.labels, result.sentences, strict=True)
        rest = [(Text("•"), sentence) for label, sentence in pairs if not label]
        return _list_sentences([*rows, *rest] if full else rows)
    few = result.sentences if full else result.sentences[:_MOST_SAID]
    return _list_sentences((Text("•"), said) for said in few)


def _show_figures(console: Console, result: Result) -> None:
    """The metrics in figures, as far as they do not fill screens."""
    found = grids(result, apart=("model",))
    for grid in found[:_MOST_TABLES]:
        console.print()
        console.print(Text(_heading(grid), style="italic"))
        if grid.place == METRIC and len(grid.curves) > _SIDE_BY_SIDE:
            for start in range(0, len(grid.places), _COLUMNS):
                console.print(_rows_of_figures(grid, grid.places[start : start + _COLUMNS]))
            continue
        for start in range(0, len(grid.curves), _SIDE_BY_SIDE):
            curves = grid.curves[start : start + _SIDE_BY_SIDE]
            few = grid.few(_MOST_ROWS, curves)
            console.print(_table(few))
            if few.has_doubts:
                console.print(Text(IN_DOUBT))
    if len(found) > _MOST_TABLES:
        left = len(found) - _MOST_TABLES
        console.print(Text(f"\n{left} more such table{'s' * (left > 1)} on the page."))


def _told(cell: Cell | None, words: Mapping[str, Metric]) -> str:
    """A number in a few characters; a dash where it is not known, nothing where there is none."""
    if cell is None:
        return ""
    if cell.value is None or math.isnan(cell.value):
        return NOTHING
    exponent = words[cell.metric].scale == "exponent"
    told = power_of_ten(cell.value, digits=3) if exponent else short(cell.value)
    return told + DOUBT * cell.doubt


def _list_sentences(rows: Iterable[tuple[Text, str]]) -> Table:
    """Sentences below each other, each beside its label and broken between words."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    for label, sentence in rows:
        grid.add_row(label, Text(without_marks(sentence)))
    return grid


def _heading(grid: Grid) -> str:
    """Which metric of what, which statistic, and where."""
    title = ""
    if grid.metric and grid.place != METRIC:
        entry = grid.words[grid.metric]
        symbol = "" if entry.symbol in entry.title.lower() else entry.symbol
        title = f"{entry.title} {symbol}".strip()
    words = [
        f"{grid.statistic} over the samples" if grid.statistic else "",
        "after the last layer" if grid.last_layer else "",
    ]
    if not title and not grid.about:
        words = [(", ".join(filter(None, words)) or "in figures").capitalize()]
    return ", ".join(filter(None, [title, grid.about, *words]))


def _table(grid: Grid) -> Table:
    """A row for each place, a column for each curve."""
    table = Table(box=None)
    if grid.place == METRIC:
        table.add_column("", no_wrap=True)
    else:
        table.add_column(grid.place, justify="right", no_wrap=True)
    columns = [[_told(cell, grid.words) for cell in grid.column(curve)] for curve in grid.curves]
    for curve, cells in zip(grid.curves, columns, strict=True):
        # Names may be broken into lines, numbers may not.
        name = Text(grid.name(curve) or grid.statistic or "value")
        table.add_column(name, justify="right", min_width=max(map(len, cells)))
    for place, *cells in zip(grid.places, *columns, strict=True):
        table.add_row(grid.label(place), *cells)
    return table


def _rows_of_figures(grid: Grid, metrics: Sequence[str]) -> Table:
    """Single numbers of many curves: a row for each of them, a column for each metric."""
    table = Table(box=None)
    table.add_column("")
    columns = []
    for name in metrics:
        cells = [_told(grid.cells.get((name, curve)), grid.words) for curve in grid.curves]
        title = grid.label(name)
        table.add_column(Text(title), justify="right", width=max(map(len, cells + title.split())))
        columns.append(cells)
    for curve, *cells in zip(grid.curves, *columns, strict=True):
        table.add_row(Text(grid.name(curve)), *cells)
    return table
