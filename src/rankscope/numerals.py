"""Numbers formatted for sentences and tables, and short texts about them.

Conventions: a true minus sign (−), commas between thousands, and exponents without a plus sign or
leading zeros. A number given by its base-10 logarithm is written as a power of ten,
``10^−47,003``, or ``10^(−3.3·10³⁰)``; a very large or small number in scientific notation,
``2.1e−7``. Pages raise exponents: ``10<sup>−47,003</sup>``, ``2.13·10<sup>−7</sup>``.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Final

MINUS: Final = "−"
_PLAIN: Final = (-3, 6)  # powers of ten between which a number is written out
_NEAR: Final = 100.0  # smaller exponents get one more digit after the point
_RAISED: Final = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_LONG: Final = 1e7  # exponents from here on are themselves in scientific notation

MOST_ROWS: Final = 25
"""Largest number of rows of a table in a notebook; of longer ones, evenly spaced rows are shown."""


def power_of_ten(log10: float | None, *, digits: int = 2) -> str:
    """Format a number given by its base-10 logarithm, to a few significant digits.

    >>> power_of_ten(-0.92), power_of_ten(-4.52), power_of_ten(-47003.12)
    ('0.12', '10^−4.5', '10^−47,003')

    Minus infinity is the logarithm of zero; None and NaN give "none".
    """
    return _power(log10, digits, "10^{}")


def power_of_ten_html(log10: float | None, *, digits: int = 2) -> str:
    """``power_of_ten`` as HTML.

    >>> power_of_ten_html(-47003.12)
    '10<sup>−47,003</sup>'
    """
    return _power(log10, digits, "10<sup>{}</sup>")


def short(value: float, *, digits: int = 3) -> str:
    """A number to a few significant digits, in scientific notation if it is large or small.

    >>> short(0.91234), short(12345.6), short(2.1345e-7), short(109482240)
    ('0.912', '1.23e4', '2.13e−7', '109,482,240')

    An integer keeps all of its digits.
    """
    special = _special(value)
    if special is not None:
        return special
    mantissa, power = _split(value, digits)
    text = _plain(value, digits) if -3 <= power <= 3 else f"{_trim(mantissa)}e{power}"
    return text.replace("-", MINUS)


def short_html(value: float, *, digits: int = 3) -> str:
    """A number as HTML for a column of figures: always the same number of significant digits.

    >>> short_html(2.1e-7), short_html(1.0), short_html(-12.345)
    ('2.10·10<sup>−7</sup>', '1.00', '−12.3')
    """
    special = _special(value)
    if special is not None:
        return special
    mantissa, power = _split(value, digits)
    written_out = f"{value:,.{max(0, digits - 1 - power)}f}"
    text = written_out if -3 <= power <= 3 else f"{mantissa}·10<sup>{power}</sup>"
    return text.replace("-", MINUS)


def span_of(low: float, high: float) -> str:
    """Two numbers as a range, or one of them if they agree to three digits.

    >>> span_of(0.5, 2.0), span_of(3.0, 3.0001)
    ('0.5 to 2', '3')
    """
    same = math.isclose(low, high, rel_tol=1e-3)
    return short(low) if same else f"{short(low)} to {short(high)}"


def course(first: float, last: float) -> str:
    """The first and the last value of a quantity, in words.

    >>> course(1.0, 0.25), course(0.998, 1.001)
    ('goes from 1 to 0.25', 'stays near 1')
    """
    start, end = short(first, digits=2), short(last, digits=2)
    return f"stays near {start}" if start == end else f"goes from {start} to {end}"


def sentence_case(text: str) -> str:
    """Capitalise the first letter and leave the rest unchanged.

    >>> sentence_case("random weights, LeCun × 2")
    'Random weights, LeCun × 2'
    """
    return text[:1].upper() + text[1:]


def plural(count: int, noun: str) -> str:
    """A count with its noun in the singular or the plural.

    >>> plural(1, "layer"), plural(1200, "layer")
    ('1 layer', '1,200 layers')
    """
    return f"{count:,} {noun}{'s' * (count != 1)}"


def duration(seconds: float) -> str:
    """A duration in words.

    >>> duration(8), duration(100), duration(5000), duration(1e6)
    ('8 seconds', '2 minutes', '83 minutes', '12 days')
    """
    if seconds < 60:
        return plural(max(1, round(seconds)), "second")
    if seconds < 7200:
        return plural(round(seconds / 60), "minute")
    if seconds < 2 * 86400:
        return plural(round(seconds / 3600), "hour")
    return f"{short(round(seconds / 86400))} days"


def gigabytes(size: float) -> str:
    """A number of bytes in GiB.

    >>> gigabytes(3 * 2**29)
    '1.5 GiB'
    """
    return f"{short(size / 2**30, digits=2)} GiB"


def exponent_text(exponent: float, *, decimals: int = 0) -> str:
    """An exponent of ten.

    >>> exponent_text(-47003.12, decimals=1), exponent_text(-2.5e300)
    ('−47,003.1', '−2.5·10³⁰⁰')
    """
    if abs(exponent) >= _LONG:
        mantissa, power = _split(exponent, 3)
        text = f"{_trim(mantissa)}·10{str(power).translate(_RAISED)}"
    else:
        text = f"{exponent:,.{decimals}f}"
    return "0" if text.strip("-0.") == "" else text.replace("-", MINUS)


def some(values: Sequence[int]) -> list[int]:
    """All values, or evenly spaced ones from the first to the last if there are too many.

    >>> some(range(1000))[:3]
    [0, 42, 83]
    """
    if len(values) <= MOST_ROWS:
        return list(values)
    step = (len(values) - 1) / (MOST_ROWS - 1)
    return [values[round(number * step)] for number in range(MOST_ROWS)]


def mean(values: Iterable[float]) -> float:
    """The mean of the values that are not NaN; NaN if there is none."""
    numbers = [value for value in values if not math.isnan(value)]
    return sum(numbers) / len(numbers) if numbers else math.nan


def list_words(words: Sequence[str], most: int = 6) -> str:
    """Words separated by commas; of many, only the first few.

    >>> list_words(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more


def setting_text(value: str | float | None) -> str:
    """A setting along an axis, formatted.

    >>> setting_text(True), setting_text(None), setting_text(0.1 + 0.2), setting_text("layer")
    ('true', 'none', '0.3', 'layer')
    """
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else short(value)


def span(values: Iterable[float]) -> str:
    """The smallest and the largest of some numbers.

    >>> span([2.0, 1.0])
    '1 to 2'
    """
    numbers = sorted(values)
    if not numbers:
        return "none"
    ends = short(numbers[0]), short(numbers[-1])
    return ends[0] if ends[0] == ends[1] else " to ".join(ends)


def cut(text: str, most: int = 200) -> str:
    """A text, truncated to ``most`` characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _power(log10: float | None, digits: int, written: str) -> str:
    if log10 is None or math.isnan(log10):
        return "none"
    if math.isinf(log10):
        return "exactly 0" if log10 < 0 else "infinite"
    low, high = _PLAIN
    if low <= log10 < high:
        return _plain(10**log10, digits)
    decimals = max(0, digits - 1 if abs(log10) < _NEAR else digits - 2)
    exponent = exponent_text(log10, decimals=decimals)
    return written.format(f"({exponent})" if "·" in exponent and "^" in written else exponent)


def _special(value: float) -> str | None:
    """The text of integers, zero, NaN and infinity; None for other numbers."""
    if isinstance(value, int):
        return f"{value:,}".replace("-", MINUS)
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else f"{MINUS}∞"
    return "0" if value == 0 else None


def _plain(value: float, digits: int) -> str:
    """A number without an exponent; digits before the point are never rounded away."""
    if abs(value) >= 10**digits - 0.5:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def _split(value: float, digits: int) -> tuple[str, int]:
    """Mantissa and power of ten after rounding, so that 9.999 counts as 10."""
    mantissa, power = f"{value:.{digits - 1}e}".split("e")
    return mantissa, int(power)


def _trim(mantissa: str) -> str:
    return mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
