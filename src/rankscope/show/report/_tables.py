"""Convert rows to the cells of an HTML table, with formatted numbers."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl
from markupsafe import Markup, escape

from rankscope.metric_catalogue import Metric
from rankscope.numerals import MINUS, power_of_ten_html, short_html
from rankscope.results import Fate, Finding, Listing
from rankscope.show.report._grids import DOUBT, IN_DOUBT, METRIC, Cell, MetricGrid
from rankscope.show.report._prose import address, inline

NOTHING: Final = "–"
_NUMERAL: Final = re.compile(r"[-−+]?(\d|10\^)")
_SHORT: Final = 16  # maximum length of text in a numeric column
_NUMBER: Final = "number"
# Status of a finding, as text.
FATES: Final[dict[Fate, str]] = {
    "collapse": "present",
    "slow": "under way",
    "noted": "harmless",
    "absent": "absent",
    "unknown": "undetermined",
}


@dataclass(frozen=True)
class TableCell:
    """A cell: HTML, or text to be escaped, its style, and the exact number."""

    content: str | Markup
    style: str = ""
    exact: str = ""
    heading: bool = False


@dataclass(frozen=True)
class TableView:
    """The content of an HTML table; ``definition`` links to the definition of its metric."""

    heads: Sequence[TableCell]
    rows: Sequence[Sequence[TableCell]]
    caption: str = ""
    note: str = ""
    style: str = "table"
    definition: str | Markup = ""


# Types that can be shown as a table.
Rows = pl.DataFrame | MetricGrid | Listing | Sequence[Finding] | TableView


def table_view(
    rows: Rows, caption: str = "", note: str = "", terms: Mapping[str, Metric] | None = None
) -> TableView:
    """Convert rows to a table: numbers right-aligned, text left-aligned, row labels as headings.

    Metrics in ``terms`` are linked to their definitions on the page.
    """
    if isinstance(rows, TableView):
        return rows
    if isinstance(rows, MetricGrid):
        return _of_grid(rows, caption, note, terms or {})
    if isinstance(rows, Listing):
        right = [is_numeric(rows, column) for column in range(len(rows.columns))]
        return _plain(rows.columns, rows.rows, right, caption or rows.title, note or rows.note)
    if isinstance(rows, pl.DataFrame):
        right = [kind.is_numeric() for kind in rows.dtypes]
        names = [name.replace("_", " ") for name in rows.columns]
        # Text of a data frame has no markup.
        values = [
            [v if v is None or isinstance(v, bool | int | float) else escape(str(v)) for v in row]
            for row in rows.iter_rows()
        ]
        return _plain(names, values, right, caption, note)
    return _of_findings(rows, caption)


def number(value: float | int) -> Markup:
    """A number as HTML; integers keep their digits, unless there are too many."""
    if not is_huge(value):
        return Markup(short_html(value))
    return Markup(f"{MINUS if value < 0 else ''}{power_of_ten_html(math.log10(abs(value)))}")


def is_huge(value: float | int) -> bool:
    """Whether an integer has too many digits to read."""
    return isinstance(value, int) and abs(value) >= 10**15


def known_figures(figures: Mapping[str, float]) -> dict[str, float]:
    """Figures without NaN, with underscores in names replaced."""
    return {
        name.replace("_", " "): value
        for name, value in figures.items()
        if isinstance(value, int)
        or not math.isnan(value)  # integers may exceed the range of floats
    }


def is_numeric(listing: Listing, column: int) -> bool:
    """Whether a column of a listing has mostly numbers, also as text, and otherwise short text."""
    entries = [row[column] for row in listing.rows if row[column] is not None]
    numbers = sum(not isinstance(entry, str) or bool(_NUMERAL.match(entry)) for entry in entries)
    short_words = all(not isinstance(entry, str) or len(entry) <= _SHORT for entry in entries)
    return 2 * numbers > len(entries) and short_words


def is_seen(finding: Finding) -> bool:
    """Whether it is present, in full or in part."""
    return finding.fate in ("collapse", "slow", "noted")


def where(finding: Finding) -> str:
    """The layer and component of a finding, if it is present."""
    if not is_seen(finding):
        return ""
    layer = "" if finding.layer is None else f"layer {finding.layer:,}"
    return ", ".join(filter(None, [layer, finding.part]))


def in_how_many(finding: Finding) -> str:
    """The number of samples with the finding; empty if samples were not counted."""
    counted = finding.samples and finding.fate != "unknown"
    return f"{finding.found_in:,} of {finding.samples:,}" if counted else ""


def term(entry: Metric, terms: Mapping[str, Metric], words: str = "") -> str | Markup:
    """The title of a metric, or ``words``; as a link if the page defines the metric."""
    title = words or entry.title
    if entry.name not in terms:
        return title
    return Markup('<a class="term" href="#term-{}">{}</a>').format(entry.name, title)


def _plain(
    names: Sequence[str], rows: Iterable[Sequence[Any]], right: Sequence[bool], *words: str
) -> TableView:
    """A table of plain values; the first cell of a row is its heading, unless it is a number."""
    sides = [_NUMBER * side for side in right]
    heads = [TableCell(name, side) for name, side in zip(names, sides, strict=True)]
    body = []
    for row in rows:
        cells: list[TableCell] = []
        for value, side in zip(row, sides, strict=True):
            if not cells and not side:
                cells.append(TableCell(_in_words(value), heading=True))
            elif isinstance(value, float):
                cells.append(TableCell(number(value), _NUMBER, repr(value)))
            else:
                is_count = side and isinstance(value, int)
                cells.append(TableCell(number(value) if is_count else _in_words(value), side))
        body.append(cells)
    return TableView(heads, body, *words)


def _in_words(value: Any) -> str | Markup:
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, Markup) else inline(str(value))


def _of_grid(grid: MetricGrid, caption: str, note: str, terms: Mapping[str, Metric]) -> TableView:
    """One row per curve, one column per position."""
    heads = [TableCell("metric" if grid.by_metric else "")]
    for position in grid.positions:
        label: str | Markup = grid.label(position)
        if grid.axis == METRIC:
            label = term(grid.words[position], terms)
        elif position is not None:
            label = f"{grid.axis} {label}"
        heads.append(TableCell(label, _NUMBER))
    single = "value" if grid.axis == METRIC or grid.by_metric else grid.words[grid.metric].title
    # Metrics with only integer values are shown as integers.
    broken = {
        cell.metric
        for cell in grid.cells.values()
        if cell.value is not None and math.isfinite(cell.value) and not cell.value.is_integer()
    }
    rows = []
    for curve in grid.curves:
        name = term(grid.words[curve], terms) if grid.by_metric else grid.name(curve) or single
        label = name if isinstance(name, Markup) else inline(name)
        cells = [_figure(cell, grid.words, broken) for cell in grid.column(curve)]
        rows.append([TableCell(label, heading=True), *cells])
    about_one = not grid.by_metric and grid.axis != METRIC and grid.metric in terms
    definition = term(grid.words[grid.metric], terms, "definition") if about_one else ""
    notes = " ".join(filter(None, [note, IN_DOUBT * grid.has_doubts]))
    return TableView(heads, rows, caption, notes, definition=definition)


def _figure(cell: Cell | None, words: Mapping[str, Metric], broken: set[str]) -> TableCell:
    if cell is None or cell.value is None or math.isnan(cell.value):
        return TableCell(NOTHING, _NUMBER)
    value, mark = cell.value, DOUBT * cell.doubt
    if words[cell.metric].scale == "exponent":
        return TableCell(Markup(power_of_ten_html(value, digits=3)) + mark, _NUMBER)
    is_integer = cell.metric not in broken and math.isfinite(value)
    return TableCell(number(int(value) if is_integer else value) + mark, _NUMBER, repr(value))


def _of_findings(findings: Sequence[Finding], caption: str) -> TableView:
    """One row per finding, without empty columns."""
    columns = {
        "kind": [TableCell(inline(finding.kind), heading=True) for finding in findings],
        "status": [TableCell(badge(FATES[finding.fate], finding.fate)) for finding in findings],
        "details": [TableCell(inline(finding.sentence), "words") for finding in findings],
        "where": [TableCell(inline(where(finding)), "where") for finding in findings],
        "samples": [TableCell(in_how_many(finding), _NUMBER) for finding in findings],
        "criterion": [TableCell(_criterion(finding), "words rule") for finding in findings],
    }
    filled = {name: cells for name, cells in columns.items() if any(cell.content for cell in cells)}
    heads = [TableCell(name, _NUMBER * (name == "samples")) for name in filled]
    rows = list(zip(*filled.values(), strict=True))
    return TableView(heads, rows, caption, style="table findings")


def _criterion(finding: Finding) -> Markup:
    """The rule, and the page about it."""
    page = Markup(' <span class="small">({})</span>').format(address(finding.url))
    return inline(finding.rule) + (page if finding.url else "")


def badge(words: str, kind: str) -> Markup:
    """Coloured text."""
    return Markup('<span class="{}"><span class="tone">{}</span></span>').format(kind, words)
