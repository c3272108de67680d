"""A data frame → an HTML table with numbers one can read."""

import math
from html import escape
from typing import Any, Final

import polars as pl

_DIGITS: Final = 3
_NARROW_SPACE: Final = "\u202f"
_MINUS: Final = "−"


def table(frame: pl.DataFrame) -> str:
    """The frame as a table: numbers to the right, words to the left, row labels as headings."""
    numeric = [kind.is_numeric() for kind in frame.dtypes]
    heads = "".join(
        f'<th scope="col"{_aligned(right)}>{escape(name.replace("_", " "))}</th>'
        for name, right in zip(frame.columns, numeric, strict=True)
    )
    rows = "\n".join(f"<tr>{_cells(row, numeric)}</tr>" for row in frame.iter_rows())
    return (
        '<div class="table" tabindex="0"><table>\n'
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table></div>"
    )


def number(value: float | int) -> str:
    """A number as HTML, with three significant digits.

    >>> number(2.1345e-7)
    '2.13·10<sup>−7</sup>'

    A whole number keeps all its digits.
    """
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
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def _aligned(right: bool) -> str:
    return ' class="number"' if right else ""
