'''Everything that an experiment needs, in one import.

An experiment is one file in ``claims``, ``studies`` or ``questions``, which is discovered. It
begins with an ``ENTRY`` of literals, from which help texts, listings and the README are generated,
and defines how to measure and how to judge:

.. code-block:: python

    """Claim X1: wider layers keep tokens apart."""

    ENTRY = kit.claim(
        "X1",
        "Wider layers keep tokens apart.",
        source="Someone et al. 2030, figure 1",
        question="Does the last layer's residual grow with the width?",
        domain="random attention without skips",
        beyond="the same with skips",  # only if it is judged there, too
        seconds=3,  # how long it takes at its usual sizes
        metrics=(kit.Metric("gap", "Gap", "g", "log", "0 = none", "The gap of ..."),),
    )
    CHARTS = (kit.Drawing("by_setting", "A panel for each depth.", "gap"),)


    @dataclass(frozen=True)
    class Config(kit.Config):  # everything that numbers depend on; it has a seed already
        widths: tuple[int, ...] = (16, 32, 64)


    def measure(config: Config, on_step: kit.OnStep) -> pl.DataFrame:
        """The one long table (see ``tables``): every number that is shown or judged."""
        rows = [(float(w), gap(config, w)) for w, _ in kit.tracked(config.widths, on_step)]
        names = ("setting", "metric", "value")
        return tables.from_rows(names, [(width, "gap", value) for width, value in rows])


    def judge(config: Config, table: pl.DataFrame) -> kit.Answer:
        """Supported if the gap grows with the width."""
        gaps = table.sort("setting")["value"].to_list()
        return kit.Answer(
            [f"The gap grows from {short(gaps[0])} to {short(gaps[-1])}."],
            stated={"wider is better": gaps[0] < gaps[-1]},  # each check: its name, and its outcome
            key_figures={"largest gap": max(gaps)},
        )

The rest is derived: verdicts, their words, the ``Result`` and its provenance. A check is an entry
of ``stated`` (on the claim's ``domain``) or of ``beyond``; a claim is supported if all checks are
met. A check that could not be tested is None: the verdict is that of the others, and names it. A
check is a plain expression next to its name, so that it can be read, debugged and tested on tables
made by hand. If verdicts need facts that are not in the table, ``measure`` returns a ``Measured``,
which is passed to ``judge``. ``PAPER`` has the fields of a ``Config`` at the sizes of the papers. A
question, whose words depend on its subject, has ``run(config, on_step)`` instead and makes its
result with ``ENTRY.result``; one whose chapters take time has ``run_in_turn(config, on_step)``,
which yields a result of the answer alone, and then the whole.
'''

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any, Generic, NamedTuple, TypeVar

import polars as pl

from rankscope.ask import Asks as Asks
from rankscope.ask import Subject as Subject
from rankscope.experiments.catalogue import Entry as Entry
from rankscope.experiments.catalogue import claim as claim
from rankscope.experiments.catalogue import question as question
from rankscope.experiments.catalogue import study as study
from rankscope.experiments.config import Config as Config
from rankscope.experiments.config import Question as Question
from rankscope.metric_catalogue import Metric as Metric
from rankscope.models.text import InputCheck as InputCheck
from rankscope.process import OnStep as OnStep
from rankscope.process import parts as parts
from rankscope.process import silent as silent
from rankscope.process import tracked as tracked
from rankscope.results import Drawing as Drawing
from rankscope.results import Judgement as Judgement
from rankscope.results import Listing as Listing
from rankscope.results import Part as Part
from rankscope.results import Result as Result
from rankscope.results import Verdict as Verdict

_FEW = 3  # cases that a verdict names one by one
_ROUNDING = 1e-6  # what float32 cannot tell apart, in which predictions are made

Facts = TypeVar("Facts")
Checks = Mapping[str, bool | None]
"""The outcome of each check by name; None if it could not be tested."""
Phrase = str | Mapping[Verdict, str]
"""Words that complete a verdict: the same for each, or by verdict."""


@dataclass(frozen=True)
class Measured(Generic[Facts]):
    """A table, and further facts that a verdict needs."""

    table: pl.DataFrame
    notes: Mapping[str, str] = field(default_factory=dict)
    """Doubts about the numbers, by case."""
    facts: Facts = None  # type: ignore[assignment]
    about: Mapping[str, str | Mapping[str, str]] = field(default_factory=dict)
    """Further entries of the provenance."""


@dataclass(frozen=True)
class Answer:
    """The answer in words: the most important sentence first.

    ``stated`` and ``beyond`` are checks by name, on the claim's own domain and beyond it; ``on``
    and ``on_beyond`` complete their verdicts (see ``judged``). A study has none of them.
    """

    sentences: Iterable[str]
    stated: Checks | None = None
    beyond: Checks | None = None
    on: Phrase = ""
    on_beyond: Phrase = ""
    key_figures: Mapping[str, float] = field(default_factory=dict)
    listings: tuple[Listing, ...] = ()
    parts: tuple[Part, ...] = ()
    charts: tuple[Drawing, ...] | None = None
    """Default: the module's ``CHARTS``."""
    shown: tuple[str, ...] | None = None
    """Metrics whose numbers are listed; default: those of the charts."""
    about: Mapping[str, str | Mapping[str, str]] = field(default_factory=dict)


def results(entry: Entry, config: Any, on_step: OnStep) -> Iterator[Result]:
    """Run an experiment: measure, then judge what was measured; the last result is the whole."""
    module = entry.module()
    if hasattr(module, "run_in_turn"):
        yield from module.run_in_turn(config, on_step)
    elif hasattr(module, "run"):
        yield module.run(config, on_step)
    else:
        yield conclude(entry, config, module.measure(config, on_step))


def conclude(entry: Entry, config: Any, measured: Any) -> Result:
    """The result of an experiment, given what it has measured."""
    module = entry.module()
    answer: Answer = module.judge(config, measured)
    measurement = measured if isinstance(measured, Measured) else Measured(measured)
    charts = module.CHARTS if answer.charts is None else answer.charts
    drawn = tuple(dict.fromkeys(chart.metric for chart in charts if chart.metric))
    judgement, beyond = (
        None if checks is None else judged(domain, checks, on)
        for domain, checks, on in (
            (entry.domain, answer.stated, answer.on),
            (entry.beyond, answer.beyond, answer.on_beyond),
        )
    )
    return entry.result(
        config,
        sentences=answer.sentences,
        table=measurement.table,
        about={**measurement.about, **answer.about},
        notes=measurement.notes,
        judgement=judgement,
        beyond=beyond,
        key_figures=answer.key_figures,
        listings=answer.listings,
        parts=answer.parts,
        drawings=charts,
        shown=drawn if answer.shown is None else answer.shown,
    )


def judged(domain: str, checks: Checks, on: Phrase = "") -> Judgement:
    """Judge a statement: supported if every case is, not supported if none is, else in part.

    >>> str(judged("random networks", {"one head": True, "two heads": False}))
    'Supported for one head; not for two heads'
    >>> str(judged("trained models", {}, "pass one with --pretrained"))
    'Not tested: pass one with --pretrained'
    >>> str(judged("models", {"random weights": True, "pretrained ones": None}))
    'Supported where tested; not tested: pretrained ones'

    ``on`` completes the verdict (see ``Judgement``). Without it, a verdict "in part" names or
    counts the cases on either side. Cases that could not be tested (None) are named last.
    """
    tested = {case: holds for case, holds in checks.items() if holds is not None}
    untested = ", ".join(case for case, holds in checks.items() if holds is None)
    verdict: Verdict = "depends"
    if not tested:
        verdict = "not tried"
    elif len(set(tested.values())) == 1:
        verdict = "holds" if all(tested.values()) else "fails"
    words = on if isinstance(on, str) else on.get(verdict, "")
    if verdict == "depends" and not words:
        supported, unsupported = (
            [case for case, holds in tested.items() if holds is side] for side in (True, False)
        )
        words = f"supported in {len(supported)} of {len(tested)} cases"
        if max(len(supported), len(unsupported)) <= _FEW:
            words = f"supported for {', '.join(supported)}; not for {', '.join(unsupported)}"
    if tested and untested:
        words = f"{words or 'where tested'}; not tested: {untested}"
    return Judgement(verdict, domain, words, dict(tested))


def on_all(sources: Sequence[str], check: Callable[[str], Mapping[str, bool]]) -> dict[str, bool]:
    """Checks that must hold for every source, such as predictions and networks.

    >>> on_all(["predicted", "networks"], lambda source: {"short": len(source) < 9})
    {'short': False}
    """
    outcomes = [check(source) for source in sources]
    return {name: all(outcome[name] for outcome in outcomes) for name in outcomes[0]}


class Mean(NamedTuple):
    """A mean over draws, its standard error, and their number; one draw alone has no error."""

    value: float
    error: float
    draws: int = 1

    @classmethod
    def of(cls, values: Sequence[float]) -> "Mean":
        """Of independent draws.

        >>> Mean.of([1.0, 3.0])
        Mean(value=2.0, error=1.0, draws=2)
        """
        error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
        return cls(fmean(values), error, len(values))

    def errors_from(self, other: "Mean") -> float:
        """The distance of two means, in standard errors of their difference.

        The standard deviation is pooled over the draws of both. Means that differ only by float32
        rounding, the precision of predictions, count as equal.
        """
        off = abs(self.value - other.value)
        if off <= _ROUNDING * max(abs(self.value), abs(other.value)):
            return 0.0
        free = self.draws + other.draws - 2
        squares = [(mean.draws - 1) * mean.draws * mean.error**2 for mean in (self, other)]
        variance = sum(squares) / free if free else 0.0
        error = math.sqrt(variance * (1 / self.draws + 1 / other.draws))
        return off / error if error else math.inf


Curves = Mapping[tuple[str, str, str], Mapping[float, Mean]]
"""By model, variant and metric: the mean over samples at each position."""


def curves(table: pl.DataFrame, along: str = "setting") -> Curves:
    """A table as curves over a column, in its order; samples are independent draws.

    >>> from rankscope import tables
    >>> names = ("model", "variant", "layer", "metric", "value")
    >>> rows = [("a", "b", 1, "rank", 2.0), ("a", "b", 0, "rank", 4.0)]
    >>> list(curves(tables.from_rows(names, rows), "layer")["a", "b", "rank"])
    [0, 1]
    """
    grouped = table.group_by("model", "variant", "metric", along, maintain_order=True).agg("value")
    by_key: dict[tuple[str, str, str], dict[float, Mean]] = {}
    for model, variant, metric, position, values in grouped.iter_rows():
        by_key.setdefault((model, variant, metric), {})[position] = Mean.of(values)
    return {key: dict(sorted(curve.items())) for key, curve in by_key.items()}
