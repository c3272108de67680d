"""How values show themselves: short texts, and small pieces of HTML for notebooks.

The HTML is escaped and self-contained; nothing is loaded.
"""

import math
from collections.abc import Iterable, Sequence
from html import escape
from itertools import groupby

from rankscope.numerals import short

MOST_ROWS = 25
"""Tables in notebooks have no more rows than this; of more, some evenly spaced ones are shown."""

_FONT = "font-family:system-ui,sans-serif;font-size:13px"


def card(title: str, *parts: str) -> str:
    """A title above pieces of HTML.

    >>> from rankscope.display import card
    >>> print(card("a < b"))
    <div style="font-family:system-ui,sans-serif;font-size:13px"><b>a &lt; b</b></div>
    """
    return f'<div style="{_FONT}"><b>{escape(title)}</b>{"".join(parts)}</div>'


def paragraph(text: str) -> str:
    """Text as it is."""
    return f'<div style="margin:4px 0">{escape(text)}</div>'


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Cells under a header, shown as their text.

    >>> from rankscope.display import table
    >>> table(["mask"], [["a<b"]])
    '<table><tr><th>mask</th></tr><tr><td>a&lt;b</td></tr></table>'
    """
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def grid(rows: Sequence[Sequence[bool]], label: str) -> str:
    """A picture of small squares, filled where True; ``label`` says what it shows."""
    height, width = len(rows), len(rows[0])
    runs = []
    for y, row in enumerate(rows):
        start = 0
        for filled, same in groupby(row):
            length = len(list(same))
            if filled:
                runs.append(f"M{start} {y}h{length}v.9h-{length}z")
            start += length
    size = max(4, min(12, 192 // max(width, height)))
    return (
        f'<svg role="img" aria-label="{escape(label)}" width="{size * width}" '
        f'height="{size * height}" viewBox="0 0 {width} {height}" fill="currentColor">'
        f'<path d="M0 0h{width}v{height}h-{width}z" fill-opacity=".08"/>'
        f'<path d="{"".join(runs)}"/></svg>'
    )


def some(values: Sequence[int]) -> list[int]:
    """All values, or evenly spaced ones from the first to the last where there are too many.

    >>> from rankscope.display import some
    >>> some(range(1000))[:3]
    [0, 42, 83]
    """
    if len(values) <= MOST_ROWS:
        return list(values)
    step = (len(values) - 1) / (MOST_ROWS - 1)
    return [values[round(number * step)] for number in range(MOST_ROWS)]


def mean(values: Iterable[float]) -> float:
    """The mean of what is a number; NaN if nothing is."""
    numbers = [value for value in values if not math.isnan(value)]
    return sum(numbers) / len(numbers) if numbers else math.nan


def list_words(words: Sequence[str], most: int = 6) -> str:
    """Words in a row, the first few of many.

    >>> from rankscope.display import list_words
    >>> list_words(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    if len(words) <= most:
        return ", ".join(words)
    return f"{', '.join(words[:most])} and {len(words) - most} more"


def setting_text(value: str | float | None) -> str:
    """A setting along an axis as it is printed.

    >>> setting_text(True), setting_text(None), setting_text(0.1 + 0.2), setting_text("layer")
    ('true', 'none', '0.3', 'layer')
    """
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else short(value)


def span(values: Iterable[float]) -> str:
    """The least and the greatest of some numbers.

    >>> from rankscope.display import span
    >>> span([2.0, 1.0])
    '1 to 2'
    """
    numbers = sorted(values)
    if not numbers:
        return "none"
    ends = short(numbers[0]), short(numbers[-1])
    return ends[0] if ends[0] == ends[1] else " to ".join(ends)


def cut(text: str, most: int = 200) -> str:
    """A text, or its beginning."""
    return text if len(text) <= most else f"{text[: most - 1]}…"
