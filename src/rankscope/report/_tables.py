"""A data frame or a grid → an HTML table with numbers one can read."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

import polars as pl

from rankscope.report._draw_for_now import metric as words_of
from rankscope.report._draw_for_now import power_of_ten
from rankscope.report._grids import BIAS, Curve, Grid
from rankscope.report._prose import raised

_DIGITS: Final = 3
READ_OUT: Final = 10**15
"""Whole numbers below it are written with all their digits."""
_NARROW_SPACE: Final = "\u202f"
_MINUS: Final = "−"
_NOTHING: Final = "–"


def table(rows: pl.DataFrame | Grid) -> str:
    """Rows as a table: numbers to the right, words to the left, row labels as headings."""
    return _of_grid(rows) if isinstance(rows, Grid) else _of_frame(rows)


def number(value: float | int) -> str:
    """A number as HTML, with three significant digits.

    >>> number(2.1345e-7)
    '2.13·10<sup>−7</sup>'

    A whole number keeps all its digits, unless nobody would read them.
    """
    if isinstance(value, int) and abs(value) >= READ_OUT:
        return raised(power_of_ten(math.log10(value)))
    if isinstance(value, int):
        return f"{value:,}".replace(",", _NARROW_SPACE).replace("-", _MINUS)
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else f"{_MINUS}∞"
    if value == 0:
        return "0"
    mantissa, exponent = f"{value:.{_DIGITS - 1}e}".split("e")  # rounded, so 9.999 counts as 10
    power = int(exponent)
    if -3 <= power <= 3:
        text = f"{value:.{max(0, _DIGITS - 1 - power)}f}"
    else:
        text = f"{mantissa}·10<sup>{power}</sup>"
    return text.replace("-", _MINUS)


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
    return words_of(curve.metric).title if grid.by_metric else curve.name


def _place(grid: Grid, place: Any) -> str:
    label = grid.label(place)
    if label == BIAS:
        return label
    return f"{grid.place} {label}" if label else "value"


def _figures(curve: Curve, values: Sequence[float | None]) -> list[str]:
    """A curve's values; whole numbers throughout are told as such."""
    exponents = words_of(curve.metric).scale == "exponent"
    known = [value for value in values if value is not None and not math.isnan(value)]
    whole = all(value.is_integer() for value in known)
    cells = []
    for value in values:
        if value is None or math.isnan(value):
            shown = _NOTHING
        elif exponents:
            shown = raised(escape(power_of_ten(value)))
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
