"""A data frame, a grid or a listing → an HTML table with numbers one can read."""

import math
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

import polars as pl

from rankscope.metric_catalogue import metric as entry_of
from rankscope.numerals import MINUS, power_of_ten_html, short_html
from rankscope.results import Entry, Listing
from rankscope.show.report._glossary import term
from rankscope.show.report._grids import DOUBT, IN_DOUBT, METRIC, Cell, Grid
from rankscope.show.report._prose import inline

_NOTHING: Final = "–"
_NUMERAL: Final = re.compile(r"[-−+]?(\d|10\^)")
_SHORT: Final = 16  # characters of a word that may stand in a column of numbers
_NUMBER: Final = ' class="number"'


def table(
    rows: pl.DataFrame | Grid | Listing,
    caption: str = "",
    note: str = "",
    terms: Sequence[str] = (),
) -> str:
    """Rows as a table: numbers to the right, words to the left, row labels as headings.

    Metrics among the ``terms`` that the page defines are linked to their definitions.
    """
    if isinstance(rows, Grid):
        doubts = IN_DOUBT if rows.has_doubts else ""
        return _of_grid(rows, caption, terms) + _note(" ".join(filter(None, [note, doubts])))
    if isinstance(rows, Listing):
        return _of_listing(rows, caption or rows.title) + _note(note or rows.note)
    return _of_frame(rows, caption) + _note(note)


def number(value: float | int) -> str:
    """A number as HTML; a whole one keeps its digits, unless nobody would read them."""
    if not is_huge(value):
        return short_html(value)
    return f"{MINUS if value < 0 else ''}{power_of_ten_html(math.log10(abs(value)))}"


def is_huge(value: float | int) -> bool:
    """Whether a whole number has more digits than anybody reads."""
    return isinstance(value, int) and abs(value) >= 10**15


def known_figures(figures: Mapping[str, float]) -> dict[str, float]:
    """Figures under names as words, less those that are NaN."""
    return {
        name.replace("_", " "): value
        for name, value in figures.items()
        if isinstance(value, int) or not math.isnan(value)  # whole numbers may be beyond all floats
    }


def is_numeric(listing: Listing, column: int) -> bool:
    """Whether a column of a listing holds numbers, also as words, or a few short words instead."""
    entries = [row[column] for row in listing.rows if row[column] is not None]
    numbers = sum(not isinstance(each, str) or bool(_NUMERAL.match(each)) for each in entries)
    short_words = all(not isinstance(each, str) or len(each) <= _SHORT for each in entries)
    return 2 * numbers > len(entries) and short_words


def _of_listing(listing: Listing, caption: str) -> str:
    right = [is_numeric(listing, column) for column in range(len(listing.columns))]
    heads = [head(name, right=side) for name, side in zip(listing.columns, right, strict=True)]
    rows = []
    for row in listing.rows:
        first, *others = map(_entry, row, right)
        rows.append("".join([first if right[0] else row_head(_words(row[0])), *others]))
    return html_table(heads, rows, caption=caption)


def _entry(value: Entry, right: bool) -> str:
    """An entry of a listing: words may carry marks, numbers are as in every other table."""
    if isinstance(value, str) or value is None:
        return _data(_NOTHING if value is None else inline(value), right=right)
    return _cell(value, right)


def _note(text: str) -> str:
    return f'\n<p class="note">{inline(text)}</p>' if text else ""


def _of_frame(frame: pl.DataFrame, caption: str) -> str:
    numeric = [kind.is_numeric() for kind in frame.dtypes]
    heads = [
        head(name.replace("_", " "), right=right)
        for name, right in zip(frame.columns, numeric, strict=True)
    ]
    rows = []
    for values in frame.iter_rows():
        first, *others = map(_cell, values, numeric)
        rows.append("".join([first if numeric[0] else row_head(_words(values[0])), *others]))
    return html_table(heads, rows, caption=caption)


def _of_grid(grid: Grid, caption: str, terms: Sequence[str]) -> str:
    """A row for each curve, a column for each place."""
    heads = [head("metric" if grid.by_metric else "", right=False)]
    heads += [
        f'<th scope="col"{_NUMBER}>{term(place, terms)}</th>'
        if grid.place == METRIC
        else head(_place(grid, place), right=True)
        for place in grid.places
    ]
    own = "value" if grid.place == METRIC else entry_of(grid.metric).title
    whole = {
        metric: all(_is_whole(cell) for cell in grid.cells.values() if cell.metric == metric)
        for metric in grid.metrics
    }
    rows = [
        (_linked_head(curve, terms) if grid.by_metric else row_head(grid.name(curve) or own))
        + "".join(_figure(cell, whole) for cell in grid.column(curve))
        for curve in grid.curves
    ]
    return html_table(heads, rows, caption=caption, after=_definition(grid, terms))


def _definition(grid: Grid, terms: Sequence[str]) -> str:
    """Beside the caption of a table about one metric, the way to its definition."""
    if grid.by_metric or grid.place == METRIC or grid.metric not in terms:
        return ""
    return f' <span class="defined">{term(grid.metric, terms, "definition")}</span>'


def _place(grid: Grid, place: Any) -> str:
    label = grid.label(place)
    return label if place is None or grid.place == METRIC else f"{grid.place} {label}"


def _is_whole(cell: Cell) -> bool:
    return cell.value is None or not math.isfinite(cell.value) or cell.value.is_integer()


def _figure(cell: Cell | None, whole: Mapping[str, bool]) -> str:
    """A number of a grid; one of a metric that is whole throughout is shown as such."""
    if cell is None or cell.value is None or math.isnan(cell.value):
        return _data(_NOTHING)
    value, mark = cell.value, DOUBT * cell.doubt
    if entry_of(cell.metric).scale == "exponent":
        return _data(power_of_ten_html(value, digits=3) + mark)
    shown = number(int(value) if whole[cell.metric] and math.isfinite(value) else value)
    return _data(shown + mark, exact=value)


def _cell(value: Any, right: bool) -> str:
    """A value of a data frame."""
    if isinstance(value, float):
        return _data(number(value), exact=value)
    if right and isinstance(value, int):
        return _data(number(value))
    return _data(escape(_words(value)), right=right)


def _words(value: Any) -> str:
    if value is None:
        return _NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def html_table(
    heads: Sequence[str],
    rows: Sequence[str],
    *,
    caption: str = "",
    after: str = "",
    kind: str = "table",
) -> str:
    """A table of cells that are HTML already; a keyboard can scroll one that is too wide."""
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    region = f' role="region" aria-label="{escape(caption)}"' if caption else ""
    said = f"<caption>{inline(caption)}{after}</caption>\n" if caption else ""
    return (
        f'<div class="{kind}" tabindex="0"{region}><table>\n{said}'
        f"<thead><tr>{''.join(heads)}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>"
    )


def head(name: str, *, right: bool = False) -> str:
    """The heading of a column."""
    return f'<th scope="col"{_NUMBER * right}>{escape(name)}</th>'


def _linked_head(metric: str, terms: Sequence[str]) -> str:
    return f'<th scope="row">{term(metric, terms)}</th>'


def row_head(name: str) -> str:
    """The heading of a row."""
    return f'<th scope="row">{inline(name)}</th>'


def _data(shown: str, *, right: bool = True, exact: float | None = None) -> str:
    title = "" if exact is None else f' title="{exact!r}"'
    return f"<td{_NUMBER * right}{title}>{shown}</td>"
