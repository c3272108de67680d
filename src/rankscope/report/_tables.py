"""A data frame or a grid → an HTML table with numbers one can read."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

import polars as pl

from rankscope.metric_catalogue import metric as entry_of
from rankscope.numerals import power_of_ten_html, short_html
from rankscope.report._grids import BIAS, Curve, Grid

_NOTHING: Final = "–"


def table(rows: pl.DataFrame | Grid) -> str:
    """Rows as a table: numbers to the right, words to the left, row labels as headings."""
    return _of_grid(rows) if isinstance(rows, Grid) else _of_frame(rows)


def number(value: float | int) -> str:
    """A number as HTML; a whole one keeps its digits, unless nobody would read them."""
    return power_of_ten_html(math.log10(value)) if is_huge(value) else short_html(value)


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


def _of_frame(frame: pl.DataFrame) -> str:
    numeric = [kind.is_numeric() for kind in frame.dtypes]
    heads = [
        _head(name.replace("_", " "), right=right)
        for name, right in zip(frame.columns, numeric, strict=True)
    ]
    return _framed(heads, [_cells(row, numeric) for row in frame.iter_rows()])


def _of_grid(grid: Grid) -> str:
    """A row for each curve, a column for each place."""
    heads = [_head("metric" if grid.by_metric else "curve", right=False)]
    heads += [_head(_place(grid, place), right=True) for place in grid.places]
    rows = [
        f'<th scope="row">{escape(_name(grid, curve))}</th>'
        + "".join(_figures(curve, grid.column(curve)))
        for curve in grid.curves
    ]
    return _framed(heads, rows)


def _name(grid: Grid, curve: Curve) -> str:
    return entry_of(curve.metric).title if grid.by_metric else curve.name


def _place(grid: Grid, place: Any) -> str:
    label = grid.label(place)
    if label == BIAS:
        return label
    return f"{grid.place} {label}" if label else "value"


def _figures(curve: Curve, values: Sequence[float | None]) -> list[str]:
    """A curve's values; whole numbers throughout are told as such."""
    exponents = entry_of(curve.metric).scale == "exponent"
    known = [value for value in values if value is not None and not math.isnan(value)]
    whole = all(value.is_integer() for value in known)
    cells = []
    for value in values:
        if value is None or math.isnan(value):
            shown = _NOTHING
        elif exponents:
            shown = power_of_ten_html(value, digits=3)
        else:
            shown = number(int(value) if whole else value)
        title = "" if shown == _NOTHING or exponents else f' title="{value!r}"'
        cells.append(f'<td class="number"{title}>{shown}</td>')
    return cells


def _framed(heads: Sequence[str], rows: Sequence[str]) -> str:
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    return (
        '<div class="table" tabindex="0"><table>\n'
        f"<thead><tr>{''.join(heads)}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>"
    )


def _head(name: str, *, right: bool) -> str:
    return f'<th scope="col"{_aligned(right)}>{escape(name)}</th>'


def _cells(row: tuple[Any, ...], numeric: list[bool]) -> str:
    return "".join(
        _cell(value, right=right, label=index == 0 and not right)
        for index, (value, right) in enumerate(zip(row, numeric, strict=True))
    )


def _cell(value: Any, *, right: bool, label: bool) -> str:
    if label:
        return f'<th scope="row">{escape(_words(value))}</th>'
    if isinstance(value, float):
        return f'<td{_aligned(right)} title="{value!r}">{number(value)}</td>'
    if right and isinstance(value, int):
        return f"<td{_aligned(right)}>{number(value)}</td>"
    return f"<td{_aligned(right)}>{escape(_words(value))}</td>"


def _words(value: Any) -> str:
    if value is None:
        return _NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def _aligned(right: bool) -> str:
    return ' class="number"' if right else ""
