"""The papers that texts name, and where to read them; a page links to them and loads nothing."""

import re
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Paper:
    """How texts name it, what it is called, and where it is."""

    name: str
    title: str
    address: str

    @property
    def link(self) -> str:
        """Its name, as a link."""
        return f'<a href="{self.address}" rel="noreferrer">{self.name}</a>'


def _arxiv(name: str, title: str, number: str) -> Paper:
    return Paper(name, title, f"https://arxiv.org/abs/{number}")


PAPERS: Final = (
    _arxiv(
        "Dong et al. 2021",
        "Attention is not all you need: pure attention loses rank doubly exponentially with depth",
        "2103.03404",
    ),
    _arxiv(
        "Wu et al. 2024",
        "On the role of attention masks and LayerNorm in transformers",
        "2405.18781",
    ),
    _arxiv(
        "Giorlandino and Goldt 2026",
        "Two failure modes of deep transformers and how to avoid them: a unified theory of signal "
        "propagation at initialisation",
        "2505.24333",
    ),
    _arxiv(
        "Noci et al. 2022",
        "Signal propagation in transformers: theoretical perspectives and the role of rank "
        "collapse",
        "2206.03126",
    ),
    _arxiv("Sun et al. 2025", "The curse of depth in large language models", "2502.05795"),
    _arxiv(
        "Kim et al. 2025",
        "Peri-LN: revisiting normalization layer in the transformer architecture",
        "2502.02732",
    ),
    _arxiv("Karagodin et al. 2025", "Normalization in attention dynamics", "2510.22026"),
    _arxiv(
        "Zhai et al. 2023",
        "Stabilizing transformer training by preventing attention entropy collapse",
        "2303.06296",
    ),
    _arxiv(
        "Nait Saada et al. 2025",
        "Mind the gap: a spectral analysis of rank collapse and signal propagation in attention "
        "layers",
        "2410.07799",
    ),
    _arxiv(
        "Barbero et al. 2024",
        "Transformers need glasses! Information over-squashing in language tasks",
        "2406.04267",
    ),
    _arxiv(
        "Cowsik et al. 2024",
        "Geometric dynamics of signal propagation predict trainability of transformers",
        "2403.02579",
    ),
)
"""Those that sources of claims and definitions name."""
_BY_NAME: Final = {paper.name: paper for paper in PAPERS}
_NAMED: Final = re.compile("|".join(re.escape(name) for name in _BY_NAME))


def linked(html: str) -> str:
    """HTML whose texts name papers, with the names as links.

    >>> linked("Dong et al. 2021, section 2")
    '<a href="https://arxiv.org/abs/2103.03404" rel="noreferrer">Dong et al. 2021</a>, section 2'
    """
    return _NAMED.sub(lambda found: _BY_NAME[found[0]].link, html)


def named_in(text: str) -> list[Paper]:
    """The papers a text names."""
    found = set(_NAMED.findall(text))
    return [paper for paper in PAPERS if paper.name in found]
