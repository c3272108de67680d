"""The one value everything measured ends in; what shows it knows this value and nothing else.

Torch-free, as are the rooms that draw, write and print it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Literal

import polars as pl

from rankscope import tables
from rankscope.arguments import Exact, checked
from rankscope.core.tabular import Tabular
from rankscope.errors import InputError
from rankscope.judgements import Judgement as Judgement
from rankscope.judgements import Verdict as Verdict
from rankscope.judgements import in_words
from rankscope.metric_catalogue import Metric
from rankscope.numerals import cut
from rankscope.process import stem

Fate = Literal["collapse", "slow", "noted", "absent", "unknown"]
"""Of something that was looked for: found; under way; found, but no loss; not found; or it could
not be told."""
Tone = Literal["collapse", "slow", "holds", "neutral"]
"""Of what is said: bad news, half of it, good news, neither."""
_SHOWN_BY: Final = "rankscope.show.report"
_DRAWN_BY: Final = "rankscope.show.figures"
"""By name: what shows results knows them, and is only needed where one is shown."""
Role = Literal["measured", "bound", "floor"]
"""What a curve is: something measured, a bound on it, or where a number format ends."""


@checked
def literal(text: str) -> str:
    """A text in which nothing is a mark, for sentences and listings: code, set as it is.

    >>> literal("**x**")
    '`**x**`'
    """
    return f"`{text.replace('`', 'ˋ')}`" if text.strip() else text


@checked
@dataclass(frozen=True)
class Drawing:
    """One chart of a result: a figure by its name in ``figures.FIGURES``, and what it draws."""

    figure: str
    caption: str = ""
    metric: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    only: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Rows to draw: for a column, the labels kept; all of them unless given."""
    roles: Mapping[str, Role] = field(default_factory=dict)
    """By the name of a curve; one that is not named is measured."""
    title: str = ""  # what it is headed; unless given, its metric and what that is drawn against


@checked
@dataclass(frozen=True)
class Finding:
    """Whether one of the things that were looked for was found, by which rule, and where.

    ``rule`` says with its thresholds when it counts as found. ``figure`` is the number the rule was
    asked about, ``layer`` where it was found or came closest, and ``part`` what is to blame. Of
    ``samples`` it was found in ``found_in``. ``module`` is the weight to blame, by its path in
    the original model; ``cause`` says what about it or about the design makes it so, ``remedy``
    what was tried against it and what that gave.
    """

    kind: str
    fate: Fate
    sentence: str
    rule: str
    figure: float | None = None
    layer: int | None = None
    part: str = ""
    found_in: int = 0
    samples: int = 0
    module: str = ""
    cause: str = ""
    remedy: str = ""


@checked
@dataclass(frozen=True)
class Headline:
    """The answer in a few words, and what it means for whoever asked."""

    text: str
    tone: Tone = "neutral"


Entry = str | int | float | None


@checked
@dataclass(frozen=True)
class Listing:
    """A table of words and numbers, for what would otherwise be many sentences of one shape.

    ``title`` is its caption; ``note`` says below it how to read it. In words, marks are as in
    sentences (see ``report``).
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    note: str = ""

    def __post_init__(self) -> None:
        if not self.columns:
            raise InputError(f"{self.title}: a listing has at least one column.")
        for row in self.rows:
            if len(row) != len(self.columns):
                raise InputError(
                    f"{self.title}: a row has {len(row)} entries for {len(self.columns)} columns."
                )


@checked
@dataclass(frozen=True)
class Part:
    """What stands under a heading of a long result: sentences, tables, drawings, in this order."""

    title: str
    sentences: tuple[str, ...] = ()
    listings: tuple[Listing, ...] = ()
    drawings: tuple[Drawing, ...] = ()


@checked
@dataclass(frozen=True, repr=False)
class Result(Tabular):
    """A question, what was measured, and what it comes to in words.

    >>> table = tables.frame({"layer": [0, 1], "metric": ["rank"] * 2, "value": [4.0, 2.0]})
    >>> Result("ranks", "Ranks", "Does the rank fall?", ("It falls from 4 to 2.",), table, {})
    Result('ranks', 2 rows: It falls from 4 to 2.)

    ``sentences`` are computed from the table, the most important first. ``judgement`` is for
    claims, on the domain they were stated for; what lies ``beyond`` it is judged separately.
    ``headline`` is the answer in a few words, ``warnings`` are what a reader must know before
    believing it, ``findings`` what was looked for one by one, and ``key_figures`` are the few
    numbers a reader would quote. Figures of one shape stand in ``listings`` instead of sentences,
    and a long result has ``parts``. ``provenance`` says what would give the same numbers again;
    where it holds the ``digest`` of a configuration, that digest names the files.
    """

    id: str
    title: str
    question: str
    sentences: tuple[str, ...]
    table: pl.DataFrame
    provenance: Mapping[str, Any]
    source: str = ""
    judgement: Judgement | None = None
    beyond: Judgement | None = None
    findings: tuple[Finding, ...] = ()
    key_figures: Mapping[str, Exact] = field(default_factory=dict)
    drawings: tuple[Drawing, ...] = ()
    shown: tuple[str, ...] = ()
    """Metrics that are told in figures; unless given all of them, or none of a result in parts."""
    headline: Headline | None = None
    warnings: tuple[str, ...] = ()
    listings: tuple[Listing, ...] = ()
    parts: tuple[Part, ...] = ()
    labels: tuple[str, ...] = ()
    """What each of the sentences answers, such as "where" and "why"; none unless given. Those of an
    empty label are for readers who want all of it."""
    metrics: tuple[Metric, ...] = ()
    """What this experiment alone measures, in words; the others are in ``metric_catalogue``."""

    @property
    def all_drawings(self) -> tuple[Drawing, ...]:
        """Its own, then those of its parts: the order in which they are drawn."""
        return self.drawings + tuple(one for part in self.parts for one in part.drawings)

    def __post_init__(self) -> None:
        if self.labels and len(self.labels) != len(self.sentences):
            raise InputError(
                f"{self.id}: {len(self.labels)} labels for {len(self.sentences)} sentences."
            )

    @property
    def answers(self) -> dict[str, str]:
        """The sentences under their labels, in the order of the first of each; {} without any."""
        answers: dict[str, str] = {}
        for label, sentence in zip(self.labels, self.sentences, strict=False):
            if label:
                answers[label] = f"{answers[label]} {sentence}" if label in answers else sentence
        return answers

    @cached_property
    def summary(self) -> pl.DataFrame:
        """The table over its samples; see ``tables.summary``."""
        return tables.summary(self.table)

    @property
    def verdict(self) -> Verdict | None:
        """Of a claim, on its own domain."""
        return None if self.judgement is None else self.judgement.verdict

    @property
    def verdict_in_words(self) -> str:
        """The whole verdict, such as "holds; beyond: depends on the weights' scale"."""
        return in_words(self.judgement, self.beyond)

    @property
    def stem(self) -> str:
        """What its files are called, up to the ending."""
        return stem(self.id, str(self.provenance.get("digest") or ""))

    def __repr__(self) -> str:
        verdict = "" if self.verdict is None else f", verdict={self.verdict!r}"
        first = cut(self.sentences[0], 160) if self.sentences else ""
        return f"Result({self.id!r}{verdict}, {self.table.height:,} rows: {first})"

    def _repr_html_(self) -> str:
        """For notebooks: the answer, what was looked for, the first chart."""
        return str(import_module(_SHOWN_BY).notebook(self))

    def plot(self, metric: str | None = None) -> Any:
        """Its first chart, or the first that shows a ``metric``; else that metric by layer."""
        figures, known = import_module(_DRAWN_BY), self.table["metric"].unique(maintain_order=True)
        if metric is not None and metric not in known:
            raise InputError(f"there is no metric {metric!r}; choose one of {', '.join(known)}.")
        for drawing in self.all_drawings:
            if metric is None or metric in figures.metrics_of(drawing, self):
                return figures.draw(drawing, self)
        options = {} if metric is None else {"metrics": [metric]}
        return figures.draw(Drawing("by_layer", options=options), self)


__all__ = ["read", "write"]


@checked
def write(result: Result, path: str | Path) -> Path:
    """Write a whole result; equal results make equal files."""
    return result.save(path)


@checked
def read(path: str | Path) -> Result:
    """A result as written by ``write``."""
    return Result.load(path)
