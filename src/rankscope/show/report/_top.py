"""What stands at the top of a page: warnings, the answer, verdicts, the key figures."""

from collections.abc import Mapping, Sequence
from html import escape

from rankscope.results import Headline, Judgement
from rankscope.show.report._prose import inline
from rankscope.show.report._tables import known_figures, number


def warning_box(warnings: Sequence[str]) -> str:
    """What a reader must know before believing anything below."""
    if not warnings:
        return ""
    said = "\n".join(f"<p>{inline(each)}</p>" for each in warnings)
    return f'<div class="warnings" role="note" aria-label="Warning">\n{said}\n</div>'


def headline(given: Headline | None, answer: str) -> str:
    """The answer in a few words, large and in its colour, and below it in prose."""
    large = "" if given is None else f'<p class="headline {given.tone}">{inline(given.text)}</p>'
    said = f'<p class="answer">{inline(answer)}</p>' if answer else ""
    return "\n".join(filter(None, [large, said]))


def judgements(given: Mapping[str, Judgement]) -> str:
    """What a claim comes to, under what each verdict is about."""
    if not given:
        return ""
    entries = "\n".join(
        f"<div><dt>{escape(about)}</dt><dd>{verdict_badge(judgement)} "
        f"{inline(judgement.rest)}</dd></div>"
        for about, judgement in given.items()
    )
    return f'<dl class="judgements">\n{entries}\n</dl>'


def badge(words: str, kind: str) -> str:
    """A few words in the colour of their kind."""
    return f'<span class="{kind}"><span class="tone">{escape(words)}</span></span>'


def verdict_badge(judgement: Judgement) -> str:
    """A verdict in its colour."""
    return badge(judgement.verdict, judgement.verdict.replace(" ", "-"))


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
