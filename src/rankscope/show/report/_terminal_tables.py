"""Findings and listings as tables in a terminal."""

import math
from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rankscope.numerals import MINUS, power_of_ten, short
from rankscope.results import Entry, Finding, Listing
from rankscope.show.report._findings import FATES, in_how_many, where
from rankscope.show.report._prose import without_marks
from rankscope.show.report._tables import is_huge, is_numeric

STYLE: Final = {
    "collapse": "bold red",
    "slow": "yellow",
    "noted": "yellow",
    "holds": "green",
    "fails": "bold red",
    "depends": "yellow",
    "not tried": "dim",
    "unknown": "dim",
}
"""By what is said: a verdict, a fate, a tone."""
_MOST_ROWS: Final = 10


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
        more = [where(each)] * placed + [in_how_many(each)] * counted
        table.add_row(
            Text(each.kind),
            Text(FATES[each.fate], STYLE[each.fate]),
            Text(without_marks(each.sentence)),
            *map(Text, more),
        )
    return table


def show_listings(console: Console, listings: Sequence[Listing]) -> None:
    """Each listing under its title; of a long one the first rows, and how many more there are."""
    for listing in listings:
        console.print()
        console.print(Text(without_marks(listing.title), style="italic"), highlight=False)
        console.print(_table(listing))
        left = len(listing.rows) - _MOST_ROWS
        if left > 0:
            console.print(Text(f"{left:,} more row{'s' * (left > 1)} on the page."))
        if listing.note:
            console.print(Text(without_marks(listing.note), style="dim"), highlight=False)


def _table(listing: Listing) -> Table:
    table = Table(box=None, pad_edge=False)
    for column, name in enumerate(listing.columns):
        if is_numeric(listing, column):
            # Names may be broken into lines, numbers may not.
            widest = max(len(_entry(row[column])) for row in listing.rows[:_MOST_ROWS])
            table.add_column(Text(name), justify="right", min_width=widest)
        else:
            table.add_column(Text(name))
    for row in listing.rows[:_MOST_ROWS]:
        table.add_row(*(Text(_entry(value)) for value in row))
    return table


def _entry(value: Entry) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    return without_marks(value) if isinstance(value, str) else number(value)


def number(value: float) -> str:
    """A number in a few characters; a whole one keeps its digits, unless nobody would read them."""
    if not is_huge(value):
        return short(value)
    return f"{MINUS if value < 0 else ''}{power_of_ten(math.log10(abs(value)))}"
