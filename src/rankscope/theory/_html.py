"""A small table for notebooks: plain HTML, every cell escaped, nothing loaded from elsewhere."""

from collections.abc import Iterable, Sequence
from html import escape


def html_table(caption: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A captioned table; cells are shown as their text.

    >>> html_table("masks", ("mask",), [("a<b",)])
    '<table><caption>masks</caption><tr><th>mask</th></tr><tr><td>a&lt;b</td></tr></table>'
    """
    head = "".join(f"<th>{escape(str(cell))}</th>" for cell in header)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows
    )
    top = f"<tr>{head}</tr>" if head else ""
    return f"<table><caption>{escape(caption)}</caption>{top}{body}</table>"
