"""``Result``: the outcome of every experiment, and the only type that reports depend on.

Does not import torch, nor do the modules that draw, write and print results.
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
from rankscope.process import is_installed, stem

Fate = Literal["collapse", "slow", "noted", "absent", "unknown"]
"""Of a finding: present; partial; present but harmless; absent; undetermined."""
Tone = Literal["collapse", "slow", "holds", "neutral"]
"""Of a headline: bad, partly bad, good, neutral."""
_SHOWN_BY: Final = "rankscope.show.report"
_DRAWN_BY: Final = "rankscope.show.figures"
"""By name: what shows results knows them, and is only needed where one is shown."""
Role = Literal["measured", "bound", "floor"]
"""What a curve shows: a measurement, a bound, or the limit of a number format."""


@checked
def literal(text: str) -> str:
    """Escape the markup of a text by setting it as code, for sentences and listings.

    >>> literal("**x**")
    '`**x**`'
    """
    return f"`{text.replace('`', 'ˋ')}`" if text.strip() else text


@checked
@dataclass(frozen=True)
class Drawing:
    """One chart of a result: the name of a figure in ``figures.FIGURES``, and its options."""

    figure: str
    caption: str = ""
    metric: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    only: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Filter: for a column, the labels to draw; by default all."""
    roles: Mapping[str, Role] = field(default_factory=dict)
    """By the name of a curve; the default is measured."""
    title: str = ""  # by default made from the metric and the x-axis


@checked
@dataclass(frozen=True)
class Finding:
    """Whether one kind of collapse is present, by which rule, and where.

    ``rule`` states the criterion with its thresholds. ``figure`` is the number it is applied to,
    ``layer`` where the criterion is met or closest, and ``part`` the component that causes it. It
    is met in ``found_in`` of ``samples``. ``module`` is the path of the responsible weight in the
    original model; ``cause`` explains why, ``remedy`` says what was tried and its effect. ``url``
    is the page that explains the rule.
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
    url: str = ""


@checked
@dataclass(frozen=True)
class Headline:
    """The answer in a few words, and whether it is good or bad."""

    text: str
    tone: Tone = "neutral"


Entry = str | int | float | None


@checked
@dataclass(frozen=True)
class Listing:
    """A table of text and numbers, instead of many similar sentences.

    ``title`` is its caption; ``note``, below the table, explains it. Text may have the markup of
    sentences (see ``report``).
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    note: str = ""

    def __post_init__(self) -> None:
        if not self.columns:
            raise InputError(f"{self.title}: got no columns, expected at least one.")
        for row in self.rows:
            if len(row) != len(self.columns):
                raise InputError(
                    f"{self.title}: got a row of {len(row)} entries, expected {len(self.columns)}."
                )


@checked
@dataclass(frozen=True)
class Part:
    """A section of a long result: sentences, tables and drawings, in this order."""

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

    ``sentences`` are computed from the table, the most important first. ``judgement`` is the
    verdict on a claim, on the domain it was stated for; ``beyond`` is that on other domains.
    ``headline`` is the answer in a few words, ``warnings`` are caveats that come before it,
    ``findings`` has one entry per kind of collapse, and ``key_figures`` are the numbers to quote.
    Similar figures are in ``listings`` instead of sentences, and a long result has ``parts``.
    ``provenance`` records how to reproduce the numbers; if it has the ``digest`` of a
    configuration, files are named by that digest.
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
    """Metrics to show in tables; by default all, or none if the result has parts."""
    headline: Headline | None = None
    warnings: tuple[str, ...] = ()
    listings: tuple[Listing, ...] = ()
    parts: tuple[Part, ...] = ()
    labels: tuple[str, ...] = ()
    """The question that each sentence answers, such as "where" and "why". Sentences with an empty
    label are details."""
    metrics: tuple[Metric, ...] = ()
    """Metrics of this experiment that are not in ``metric_catalogue``."""

    @property
    def all_drawings(self) -> tuple[Drawing, ...]:
        """The drawings of the result, then those of its parts."""
        return self.drawings + tuple(drawing for part in self.parts for drawing in part.drawings)

    def __post_init__(self) -> None:
        if self.labels and len(self.labels) != len(self.sentences):
            raise InputError(
                f"{self.id}: got {len(self.labels)} labels for {len(self.sentences)} sentences."
            )

    @property
    def answers(self) -> dict[str, str]:
        """The sentences by label, in order of first appearance; empty without labels."""
        answers: dict[str, str] = {}
        for label, sentence in zip(self.labels, self.sentences, strict=False):
            if label:
                answers[label] = f"{answers[label]} {sentence}" if label in answers else sentence
        return answers

    @cached_property
    def summary(self) -> pl.DataFrame:
        """Statistics of the table over samples; see ``tables.summary``."""
        return tables.summary(self.table)

    @property
    def verdict(self) -> Verdict | None:
        """The verdict of a claim, on its own domain."""
        return None if self.judgement is None else self.judgement.verdict

    @property
    def verdict_in_words(self) -> str:
        """The full verdict, such as "holds; beyond: depends on the weights' scale"."""
        return in_words(self.judgement, self.beyond)

    @property
    def stem(self) -> str:
        """The name of its files, without suffix."""
        return stem(self.id, str(self.provenance.get("digest") or ""))

    def __repr__(self) -> str:
        verdict = "" if self.verdict is None else f", verdict={self.verdict!r}"
        first = cut(self.sentences[0], 160) if self.sentences else ""
        return f"Result({self.id!r}{verdict}, {self.table.height:,} rows: {first})"

    def _repr_html_(self) -> str:
        """For notebooks: the answer, the findings and the first chart."""
        if not is_installed("altair"):
            return super()._repr_html_()
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
    """Write a whole result; equal results make equal files.

    >>> from rankscope import results
    >>> from rankscope.experiments import run
    >>> results.write(run("D8"), "d8.parquet").name
    'd8.parquet'
    """
    return result.save(path)


@checked
def read(path: str | Path) -> Result:
    """A result as written by ``write``.

    >>> from rankscope import results
    >>> from rankscope.experiments import run
    >>> results.read(results.write(run("D8"), "d8.parquet")).verdict
    'holds'
    """
    return Result.load(path)
