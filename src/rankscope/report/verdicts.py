"""The verdicts at the top of a report, as cards."""

from collections.abc import Sequence
from html import escape
from typing import Final

from rankscope.report.prose import inline

# Each tone as a small curve of residual against depth, so that it does not rest on colour alone.
_CURVES: Final = {
    "collapse": "M2 4C10 4 11 22 18 22H54",
    "slow": "M2 4C18 6 36 15 54 19",
    "holds": "M2 5C14 9 22 3 34 6S48 5 54 5",
    "neutral": "M2 13H54",
}
_WORDS: Final = {
    "collapse": "collapses",
    "slow": "collapses slowly",
    "holds": "holds",
    "neutral": "",
}


def cards(verdicts: Sequence[tuple[str, str, str]]) -> str:
    """One card per verdict; nothing if there is none."""
    if not verdicts:
        return ""
    return (
        '<ul class="verdicts">\n' + "\n".join(_card(*verdict) for verdict in verdicts) + "\n</ul>"
    )


def _card(label: str, sentence: str, tone: str) -> str:
    word = f'<span class="tone">{_WORDS[tone]}</span>' if _WORDS[tone] else ""
    return (
        f'<li class="verdict {tone}">'
        f'<p class="sign"><svg viewBox="0 0 56 26" width="56" height="26" aria-hidden="true">'
        f'<path d="{_CURVES[tone]}"/></svg>{word}</p>'
        f'<p class="label">{escape(label)}</p><p>{inline(sentence)}</p></li>'
    )
