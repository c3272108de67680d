"""Convert plain text to HTML: paragraphs, lists, bold, code, powers of ten, links to papers."""

import re
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup, escape

from rankscope.numerals import MINUS
from rankscope.results import Result

_CODE = re.compile(r"`([^`\n]+)`")
_BOLD = re.compile(r"\*\*(\S(?:[^*\n]*\S)?)\*\*")
# Powers of ten, 10^−47,003 and 10^(−3.3·10³⁰), and scientific notation, 2.1e−7.
_POWER = re.compile(
    r"\b10\^(?:\(([-−]?[^()]+)\)|([-−]?\d+(?:[.,]\d+)*(?:e\d+)?))"
    r"|(?<![\w.#])(\d(?:\.\d+)?)e([-−]?\d+)\b"
)
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_POINT = "- "
_MANY = 6  # a longer list is set in columns


def inline(text: str) -> Markup:
    """Convert a line of text, with ``**bold**``, code in backticks and raised exponents.

    >>> print(inline("`x` < **1**, 10^-5, 2e−7"))
    <code>x</code> &lt; <strong>1</strong>, 10<sup>−5</sup>, 2·10<sup>−7</sup>
    """
    marked = []
    # Split at code first, so that code keeps its stars: every other part is code.
    for index, part in enumerate(str(escape(part)) for part in _CODE.split(text)):
        bold = _BOLD.sub(r"<strong>\1</strong>", part)
        marked.append(f"<code>{part}</code>" if index % 2 else _POWER.sub(_raise, bold))
    return Markup("".join(marked))


def paragraphs(text: str) -> Markup:
    """Paragraphs and lists, separated by empty lines."""
    blocks = []
    for part in filter(None, (part.strip() for part in re.split(r"\n\s*\n", text))):
        lines = part.split("\n")
        if all(line.startswith(_POINT) for line in lines):
            points = (f"<li>{inline(line.removeprefix(_POINT))}</li>" for line in lines)
            many = ' class="many"' * (len(lines) > _MANY)
            blocks.append("\n".join([f"<ul{many}>", *points, "</ul>"]))
        else:
            blocks.append(f"<p>{inline(part)}</p>")
    return Markup("\n".join(blocks))


def sentences(result: Result) -> list[str]:
    """The sentences of a result without those of its findings, which are shown separately."""
    shown = [finding.sentence for finding in result.findings]
    return [text for text in result.sentences if not any(words in text for words in shown)]


def without_marks(text: str) -> str:
    r"""Remove markup and control characters, for a terminal.

    >>> without_marks("**a** `**b**`\x1b[2J")
    'a **b**�[2J'
    """
    parts = enumerate(_CODE.split(text))
    plain = "".join(part if index % 2 else _BOLD.sub(r"\1", part) for index, part in parts)
    return _CONTROLS.sub("�", plain)


def _raise(match: re.Match[str]) -> str:
    in_brackets, exponent, mantissa, power = match.groups()
    factor = "" if mantissa is None else f"{mantissa}·"
    return f"{factor}10<sup>{(in_brackets or exponent or power).replace('-', MINUS)}</sup>"


@dataclass(frozen=True)
class Paper:
    """Citation, title and arXiv number of a paper."""

    name: str
    title: str
    arxiv: str

    @property
    def link(self) -> Markup:
        """The citation as a link."""
        address = f"https://arxiv.org/abs/{self.arxiv}"
        return Markup('<a href="{}" rel="noreferrer">{}</a>').format(address, self.name)


PAPERS: Final = (
    Paper(
        "Dong et al. 2021",
        "Attention is not all you need: pure attention loses rank doubly exponentially with depth",
        "2103.03404",
    ),
    Paper(
        "Wu et al. 2024",
        "On the role of attention masks and LayerNorm in transformers",
        "2405.18781",
    ),
    Paper(
        "Giorlandino and Goldt 2026",
        "Two failure modes of deep transformers and how to avoid them: a unified theory of signal "
        "propagation at initialisation",
        "2505.24333",
    ),
    Paper(
        "Noci et al. 2022",
        "Signal propagation in transformers: theoretical perspectives and the role of rank "
        "collapse",
        "2206.03126",
    ),
    Paper("Sun et al. 2025", "The curse of depth in large language models", "2502.05795"),
    Paper(
        "Kim et al. 2025",
        "Peri-LN: revisiting normalization layer in the transformer architecture",
        "2502.02732",
    ),
    Paper("Karagodin et al. 2025", "Normalization in attention dynamics", "2510.22026"),
    Paper(
        "Zhai et al. 2023",
        "Stabilizing transformer training by preventing attention entropy collapse",
        "2303.06296",
    ),
    Paper(
        "Nait Saada et al. 2025",
        "Mind the gap: a spectral analysis of rank collapse and signal propagation in attention "
        "layers",
        "2410.07799",
    ),
    Paper(
        "Barbero et al. 2024",
        "Transformers need glasses! Information over-squashing in language tasks",
        "2406.04267",
    ),
    Paper(
        "Cowsik et al. 2024",
        "Geometric dynamics of signal propagation predict trainability of transformers",
        "2403.02579",
    ),
)
"""Papers cited by claims and definitions."""
_BY_NAME: Final = {paper.name: paper for paper in PAPERS}
_NAMED: Final = re.compile("|".join(re.escape(name) for name in _BY_NAME))


def linked(html: Markup) -> Markup:
    """Turn the citations in HTML into links.

    >>> print(linked(Markup("Dong et al. 2021, section 2")))
    <a href="https://arxiv.org/abs/2103.03404" rel="noreferrer">Dong et al. 2021</a>, section 2
    """
    return Markup(_NAMED.sub(lambda match: _BY_NAME[match[0]].link, str(html)))


def address(url: str) -> Markup:
    """The address of a page of the documentation: a link, or a path in the repository.

    >>> print(address("docs/rules.md#cone"))
    docs/rules.md#cone
    """
    if not url.startswith(("https://", "http://")):
        return escape(url)
    return Markup('<a href="{}" rel="noreferrer">what it means</a>').format(url)


def named_in(text: str) -> list[Paper]:
    """The papers that a text cites."""
    names = set(_NAMED.findall(text))
    return [paper for paper in PAPERS if paper.name in names]
