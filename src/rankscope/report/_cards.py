"""What stands at the top of a page: the answer, the verdicts as cards, the key figures."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

from rankscope.report._prose import inline
from rankscope.report._tables import known_figures, number
from rankscope.results import Judgement

_WORDS: Final = {
    "collapse": "collapses",
    "slow": "collapses slowly",
    "holds": "stays apart",
    "unknown": "cannot be told",
    "neutral": "",
}


def answers(given: Mapping[str, Judgement]) -> str:
    """What the whole comes to, under what each answer is about."""
    if not given:
        return ""
    entries = "\n".join(
        f"<div><dt>{escape(about)}</dt><dd>{badge(judgement)} {inline(judgement.rest)}</dd></div>"
        for about, judgement in given.items()
    )
    return f'<dl class="answers">\n{entries}\n</dl>'


def badge(judgement: Judgement) -> str:
    """A verdict in its colour."""
    kind = judgement.verdict.replace(" ", "-")
    return f'<span class="{kind}"><span class="tone">{judgement.verdict}</span></span>'


def cards(verdicts: Sequence[tuple[str, str, str]]) -> str:
    """One card per verdict; nothing if there is none."""
    if not verdicts:
        return ""
    return (
        '<ul class="verdicts">\n' + "\n".join(_card(*verdict) for verdict in verdicts) + "\n</ul>"
    )


def key_figures(figures: Mapping[str, float]) -> str:
    """Each figure that is known, large, with its name below."""
    known = known_figures(figures)
    if not known:
        return ""
    entries = "\n".join(
        f"<div><dt>{escape(name)}</dt><dd>{number(value)}</dd></div>"
        for name, value in known.items()
    )
    return f'<dl class="key">\n{entries}\n</dl>'


def _card(label: str, sentence: str, tone: str) -> str:
    word = f'<span class="tone">{_WORDS[tone]}</span>' if _WORDS[tone] else ""
    return (
        f'<li class="verdict {tone}"><p class="label">{escape(label)}{word}</p>'
        f"<p>{inline(sentence)}</p></li>"
    )
