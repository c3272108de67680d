"""Plain text → HTML: everything escaped, then paragraphs, lists, bold, code and powers of ten."""

import re
from html import escape

from rankscope.results import Result

_CODE = re.compile(r"`([^`\n]+)`")
_BOLD = re.compile(r"\*\*(\S(?:[^*\n]*\S)?)\*\*")
# Powers of ten, 10^−47,003, and numbers in scientific notation, 2.1e−7.
_POWER = re.compile(
    r"\b10\^([-−]?)(\d+(?:[.,]\d+)*(?:e\d+)?)|(?<![\w.#])(\d(?:\.\d+)?)e([-−]?)(\d+)\b"
)
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_POINT = "- "
_MANY = 6
"""Points from which a list is set in columns."""


def inline(text: str) -> str:
    """A line of text, with ``**bold**``, code in backticks, and powers of ten raised.

    >>> inline("`x` < **1**, 10^-5, 2e−7")
    '<code>x</code> &lt; <strong>1</strong>, 10<sup>−5</sup>, 2·10<sup>−7</sup>'
    """
    # Split at code first, so that stars inside it stay stars: every other part is code.
    parts = _CODE.split(text)
    return "".join(
        f"<code>{escape(part)}</code>" if index % 2 else _mark(part)
        for index, part in enumerate(parts)
    )


def paragraphs(text: str) -> str:
    """Paragraphs and lists, separated by empty lines."""
    found = (part.strip() for part in re.split(r"\n\s*\n", text))
    return "\n".join(_block(part) for part in found if part)


def sentences(result: Result) -> list[str]:
    """What a result says beside its findings, which are shown on their own."""
    shown = [each.sentence for each in result.findings]
    return [said for said in result.sentences if not any(each in said for each in shown)]


def without_marks(text: str) -> str:
    r"""The text alone, for where nothing is set in bold, and nothing that would steer a terminal.

    >>> without_marks("**a** `**b**`\x1b[2J")
    'a **b**�[2J'
    """
    parts = _CODE.split(text)
    plain = "".join(
        part if index % 2 else _BOLD.sub(r"\1", part) for index, part in enumerate(parts)
    )
    return _CONTROLS.sub("�", plain)


def _block(text: str) -> str:
    lines = text.split("\n")
    if not all(line.startswith(_POINT) for line in lines):
        return f"<p>{inline(text)}</p>"
    points = "\n".join(f"<li>{inline(line.removeprefix(_POINT))}</li>" for line in lines)
    many = ' class="many"' if len(lines) > _MANY else ""
    return f"<ul{many}>\n{points}\n</ul>"


def _mark(text: str) -> str:
    text = _BOLD.sub(r"<strong>\1</strong>", escape(text))
    return _POWER.sub(_raise, text)


def _raise(found: re.Match[str]) -> str:
    sign, exponent, mantissa, other_sign, power = found.groups()
    if mantissa is None:
        return f"10<sup>{'−' * bool(sign)}{exponent}</sup>"
    return f"{mantissa}·10<sup>{'−' * bool(other_sign)}{power}</sup>"
