"""Plain text → HTML: everything escaped, then paragraphs, bold and code."""

import re
from html import escape

_CODE = re.compile(r"`([^`\n]+)`")
_BOLD = re.compile(r"\*\*(\S(?:[^*\n]*\S)?)\*\*")


def inline(text: str) -> str:
    """A line of text, with ``**bold**`` and code in backticks.

    >>> inline("`x` < **1**")
    '<code>x</code> &lt; <strong>1</strong>'
    """
    # Split at code first, so that stars inside it stay stars: every other part is code.
    parts = _CODE.split(text)
    return "".join(
        f"<code>{escape(part)}</code>" if index % 2 else _bold(part)
        for index, part in enumerate(parts)
    )


def paragraphs(text: str) -> str:
    """Paragraphs, told apart by empty lines."""
    found = (part.strip() for part in re.split(r"\n\s*\n", text))
    return "\n".join(f"<p>{inline(part)}</p>" for part in found if part)


def _bold(text: str) -> str:
    return _BOLD.sub(r"<strong>\1</strong>", escape(text))
