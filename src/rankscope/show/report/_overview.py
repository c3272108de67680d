"""``write_overview``: every claim in one table, with how its runs in a folder ended."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Final, Protocol, cast, runtime_checkable

from rankscope.arguments import checked
from rankscope.numerals import plural
from rankscope.results import Judgement, Verdict
from rankscope.run._journal import Run
from rankscope.show.report._document import Markup, Report, Section
from rankscope.show.report._html import write_html
from rankscope.show.report._papers import linked
from rankscope.show.report._prose import inline
from rankscope.show.report._tables import head, html_table, number
from rankscope.show.report._top import verdict_badge
from rankscope.version import __version__

_HEADS: Final = ("Claim", "Source", "As stated", "Beyond it", "Key figure", "Time")
_ENDED: Final = {
    "holds": ("holds", "hold"),
    "depends": ("depends", "depend"),
    "fails": ("fails", "fail"),
    "not tried": ("was not tried", "were not tried"),
}
"""How one claim ended, and how several did."""


@runtime_checkable
class Claim(Protocol):
    """What is asked of a claim: its id, what it states, who says so."""

    @property
    def id(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def source(self) -> str: ...


@checked
def write_overview(claims: Iterable[Claim], runs: Sequence[Run], path: str | Path) -> Path:
    """Write the page about all runs; a claim that was not run has a line that says so."""
    listed = list(claims)
    rows = [row for claim in listed for row in _rows(claim, runs)]
    table = html_table(
        [head(each) for each in _HEADS], rows, caption="Verdicts by claim", kind="table overview"
    )
    return write_html(
        Report(
            "Both papers, claim by claim",
            _lead(listed, runs),
            sections=[Section("All claims", _HOW, [Markup(table)])],
            provenance={"rankscope": __version__},
        ),
        path,
    )


_HOW: Final = (
    "**As stated** is the verdict on the domain that a claim was stated for, **Beyond it** that on "
    "what was tried outside of it. Verdicts are computed from figures measured here; each claim's "
    "own page shows them and how they were made."
)


def _lead(claims: Sequence[Claim], runs: Sequence[Run]) -> str:
    """How many claims were run, and how the last run of each ended."""
    last = {run.id: run for run in runs}
    ended = Counter(run.judgement["verdict"] for run in last.values() if run.judgement)
    told = [
        f"{ended[verdict]} {words[ended[verdict] > 1]}"
        for verdict, words in _ENDED.items()
        if ended[verdict]
    ]
    failed = sum(bool(run.failure) for run in last.values())
    told += [f"{failed} could not be run"] if failed else []
    counted = f"{plural(len(last), 'claim')} of {len(claims)} run"
    return f"{counted}: {', '.join(told)}." if told else f"{counted}."


def _rows(claim: Claim, runs: Sequence[Run]) -> list[str]:
    own = [run for run in runs if run.id == claim.id]
    if not own:
        return [_row(_claim(claim, None), linked(escape(claim.source)), "", "", "", "")]
    return [
        _row(
            _claim(claim, run),
            linked(escape(claim.source)),
            escape(run.failure) if run.failure else _judged(run.judgement),
            _judged(run.beyond),
            _figure(run.key_figure),
            _time(run.seconds),
        )
        for run in own
    ]


def _row(claim: str, *cells: str) -> str:
    data = "".join(f"<td>{cell}</td>" for cell in cells)
    return f'<th scope="row">{claim}</th>{data}'


def _claim(claim: Claim, run: Run | None) -> str:
    """Its id, which leads to its page, what it states, and which run this is."""
    id_, title = escape(claim.id), inline(claim.title)
    if run is None:
        said = f"rankscope reproduce {id_}"
        return f'<span class="unrun"><span class="id">{id_}</span> {title}</span>' + _small(said)
    which = "could not be run" if run.failure else f"seed {run.seed}, {run.scale} scale"
    named = f'<a class="id" href="{escape(run.stem)}.html">{id_}</a>' if run.stem else id_
    return f"{named} {title}{_small(which)}"


def _judged(kept: Mapping[str, str] | None) -> str:
    if kept is None:
        return ""
    judgement = Judgement(cast(Verdict, kept["verdict"]), kept["domain"], kept["on"])
    rest = f" {inline(judgement.rest)}" if judgement.rest else ""
    return f"{verdict_badge(judgement)}{rest}{_small(judgement.domain)}"


def _figure(kept: tuple[str, float] | None) -> str:
    if kept is None:
        return ""
    name, value = kept
    return f"{number(value)}{_small(name.replace('_', ' '))}"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds:.{int(seconds < 10)}f} s" if seconds < 100 else f"{seconds / 60:.1f} min"


def _small(words: str) -> str:
    return f'<span class="small">{inline(words)}</span>'
