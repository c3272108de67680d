"""Which law a residual follows with depth, read off its logarithms and not its size."""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import linear_regression, mean, median, stdev
from typing import Literal, TypeVar

import polars as pl

from rankscope.numerals import power_of_ten

LawKind = Literal["doubly exponential", "between", "exponential", "equal", "none", "undecided"]
"""``between``: steps grow by an amount a layer, so that the exponent grows like its square."""
Case = TypeVar("Case", bound=Hashable)
_NAMED = {"none": "no collapse", "equal": "all tokens equal"}

_FEWEST = 3
"""Steps without which nothing is decided."""
_CUBIC = 0.1
_SLOWEST = 1e-6
"""Decades per layer: slower than one in a million layers is no collapse."""
_LASTING = 0.5
"""What later steps must be of earlier ones: a fall that dies away ends somewhere."""
_OVER = 1e-2
"""Decades per layer: a fall that dies away is over when it is slower than this."""
_BENDING = 0.25
"""What later steps must grow by, of their own mean, before it counts as more than a drift. Steps
that grow from nothing in proportion to the layer grow by two thirds of it in the second half."""
_STRAIGHT = 5
"""Steps without which a straight line through them shows nothing."""
_CERTAIN = 2.0
"""Standard errors to either side of a fitted constant that are written beside it."""


@dataclass(frozen=True)
class Evidence:
    """What a curve must show before a law is read off it; a test that is ``None`` is not made.

    A law is what holds in the long run, so the later part of the curve is asked: its second half,
    or its ``last_steps`` if that is shorter.
    """

    last_steps: int = 4
    """Steps at the end whose ratios show how much each grows over the one before."""
    least_growth: float | None = None
    """Doubly exponential only if each of these ratios is above this."""
    cubic_within: float | None = None
    """Doubly exponential only if their median is as close to 3 as this."""
    least_fall: float | None = None
    """Doubly exponential only if the last steps lose more decades than this."""
    least_bend: float | None = None
    """Doubly exponential only if the end lies this many times as low as the middle; a straight
    line that starts at 0 ends twice as low."""
    linear: float | None = None
    """Between only if the slope of the later steps is this many standard errors below zero."""
    scatter: float | None = None
    """Exponential only if the mean step is this many standard errors below zero, and later steps
    do not die away."""
    level: float | None = None
    """No collapse if the last quarter of the layers is not this many decades below the one before.
    """


SMOOTH = Evidence(least_growth=2.0, least_fall=1.0, linear=10.0, scatter=2.0)
"""For layers that are alike: the last steps show the law, and scatter must not pass for one."""
UNEVEN = Evidence(cubic_within=0.5, least_bend=3.0, level=0.1)
"""For curves that fresh layers make go up and down: the last steps may show anything, so the whole
second half has to bear them out. The slowest collapse seen under a window, by a hundredth of a
decade a layer, loses a quarter of a decade between quarters of a hundred layers."""


@dataclass(frozen=True)
class Law:
    """How a residual ends: the law, its constants, and where it arrived.

    ``growth`` is the ratio of successive steps of ``log r``: 3 for ``r' = Cr³``, 1 for ``r' = cr``.
    ``rate`` is the later steps' mean change of ``log10 r`` per layer, ``bend`` by how much each of
    them differs from the one before (the slope of a straight line through them), ``last`` the final
    value. Errors are standard errors, as if layers scattered independently. ``sure_to`` is the last
    layer it was read off, where there are later ones whose figures are in doubt.
    """

    kind: LawKind
    growth: float
    rate: float
    last: float
    growth_error: float = 0.0
    rate_error: float = 0.0
    bend: float = 0.0
    bend_error: float = 0.0
    sure_to: int | None = None

    @property
    def cubic(self) -> bool:
        """Whether the last steps grow threefold, to within 0.1, as ``r' = Cr³`` makes them."""
        return abs(self.growth - 3) < _CUBIC

    @property
    def decided(self) -> bool:
        """Whether the curve shows a law at all, be it that nothing shrinks."""
        return self.kind != "undecided"

    @property
    def collapses(self) -> bool:
        """Whether the residual goes to zero, by whichever law."""
        return self.kind not in ("none", "undecided")

    @property
    def name(self) -> str:
        """Its kind in a word or two, and up to which layer, where figures beyond are in doubt.

        >>> law([0.0, -1.0, -2.0, -3.0]).name, Law("none", 1.0, 0.0, 0.0, sure_to=5).name
        ('exponential', 'no collapse (to layer 5)')
        """
        named = _NAMED.get(self.kind, self.kind)
        return named if self.sure_to is None else f"{named} (to layer {self.sure_to})"

    @property
    def pace(self) -> str:
        """Its constant in a few characters: of steps of the logarithm, or of layers.

        >>> law([0.0, -1.0, -4.0, -13.0]).pace, law([0.0, -1.0, -2.0, -3.0]).pace
        ('step × 3.00', 'layer × 0.1')
        """
        if self.kind == "doubly exponential":
            return f"step × {_with_error(self.growth, self.growth_error)}"
        if self.kind == "between":
            return f"step + {_with_error(-self.bend, self.bend_error)}"
        return "" if self.kind == "equal" else f"layer × {self._factor()}"

    def __str__(self) -> str:
        if self.sure_to is None:
            return self._in_words()
        if not self.sure_to:
            return "figures are in doubt from layer 1 on"
        return f"{self._in_words()}, to layer {self.sure_to}, beyond which figures are in doubt"

    def _in_words(self) -> str:
        factor = self._factor()
        if self.kind == "doubly exponential":
            growth = _with_error(self.growth, self.growth_error)
            return f"doubly exponential: each step is {growth} times the one before"
        if self.kind == "between":
            return (
                "between exponential and doubly exponential: each step is "
                f"{_with_error(-self.bend, self.bend_error)} decades larger than the one before"
            )
        if self.kind == "exponential":
            return f"exponential: each layer multiplies the residual by {factor}"
        if self.kind == "equal":
            return "all tokens are equal, or agree beyond what logarithms resolve"
        if self.kind == "undecided":
            return (
                f"too few layers, or too uneven, to see a law; "
                f"the last ones multiply the residual by {factor}"
            )
        return f"no collapse: each layer multiplies the residual by {factor}"

    def _factor(self) -> str:
        """What a layer leaves of the residual, and within which bounds where they differ."""
        off = _CERTAIN * self.rate_error
        at, low, high = (
            power_of_ten(rate, digits=3) for rate in (self.rate, self.rate - off, self.rate + off)
        )
        return at if low == high else f"{at} ({low} to {high})"


def as_stated(found: Mapping[Case, Law], stated: Callable[[Case, Law], bool]) -> dict[Case, bool]:
    """By case whether its law is as stated; a case that shows no law yet says nothing, so goes.

    >>> laws = {"deep": law([0.0, -1.0, -2.0, -3.0, -4.0]), "shallow": law([0.0, -1.0])}
    >>> as_stated(laws, lambda case, law: law.kind == "exponential")
    {'deep': True}
    """
    return {case: stated(case, one) for case, one in found.items() if one.decided}


def law(log10: Sequence[float], evidence: Evidence = SMOOTH) -> Law:
    """The law of residuals given by their base-10 logarithms, layer by layer.

    >>> law([0.0, -1.0, -4.0, -13.0]).kind
    'doubly exponential'
    >>> law([0.0, -0.1, -0.2, -0.3, -0.4, -0.5, -0.52, -0.6], UNEVEN).kind
    'exponential'
    """
    finite = [value for value in log10 if math.isfinite(value)]
    steps = [after - before for before, after in pairwise(finite)]
    last = log10[-1] if len(log10) else math.nan
    if last == -math.inf:
        return Law("equal", math.nan, -math.inf, last)
    if len(steps) < _FEWEST or any(math.isnan(value) for value in log10):
        return Law("undecided", math.nan, steps[-1] if steps else 0.0, last)
    end = steps[-evidence.last_steps :]
    later = steps[-max(evidence.last_steps, len(steps) // 2) :]
    ratios = [b / a for a, b in pairwise(end) if a < 0]
    if evidence.level is not None and levels_off(log10, within=evidence.level):
        kind: LawKind = "none"
    elif _accelerates(ratios, end, finite, evidence):
        kind = "doubly exponential"
    elif evidence.linear is not None and _quickens(later, evidence.linear):
        kind = "between"
    else:
        kind = "exponential" if evidence.scatter is None else _steady(later, evidence.scatter)
    growth = median(ratios) if ratios else math.nan
    return Law(
        kind, growth, mean(later), last, _error(ratios), _error(later), *_slope_with_error(later)
    )


def levels_off(log10: Sequence[float], *, within: float = 0.1) -> bool:
    """Whether a residual has stopped shrinking: its last quarter is level with the one before.

    >>> levels_off([0.0, -1.0, -2.0, -2.0, -2.0, -2.0, -2.0, -2.0])
    True

    Medians of whole quarters, because fresh layers make the residual of tokens that stay apart go
    up and down.
    """
    quarter = max(1, len(log10) // 4)
    before, after = median(log10[-2 * quarter : -quarter]), median(log10[-quarter:])
    return after > before - within


def _accelerates(
    ratios: Sequence[float], end: Sequence[float], curve: Sequence[float], evidence: Evidence
) -> bool:
    """Whether steps grow by a factor, in all tests that are made; scatter has ratios, too."""
    asked, middle = evidence, curve[len(curve) // 2]
    return (
        len(ratios) > 1
        and (asked.least_growth is None or min(ratios) > asked.least_growth)
        and (asked.cubic_within is None or abs(median(ratios) - 3) < asked.cubic_within)
        and (asked.least_fall is None or sum(end) < -asked.least_fall)
        and (asked.least_bend is None or curve[-1] < asked.least_bend * middle)
    )


def _quickens(steps: Sequence[float], certain: float) -> bool:
    """Whether steps grow by the same amount each, clear of scatter and by more than a drift."""
    if len(steps) < _STRAIGHT:
        return False
    bend, error = _slope_with_error(steps)
    grown = bend * (len(steps) - 1)
    return bend < -certain * error and grown < _BENDING * mean(steps) < 0


def _slope_with_error(steps: Sequence[float]) -> tuple[float, float]:
    """The slope of a straight line through the steps, and its standard error."""
    count, size = len(steps), max(map(abs, steps)) or 1.0
    scaled = [step / size for step in steps]  # squares of steps may be beyond a float
    slope, start = linear_regression(range(count), scaled)
    missed = sum((step - start - slope * place) ** 2 for place, step in enumerate(scaled))
    spread = count * (count * count - 1) / 12
    return size * slope, size * math.sqrt(missed / (count - 2) / spread)


def _with_error(value: float, error: float) -> str:
    """Two digits after the point, and the error where it shows in them."""
    return f"{value:.2f}" if error < 0.005 else f"{value:.2f} ± {error:.2f}"


def _error(values: Sequence[float]) -> float:
    """The standard error of their mean; none of a single one."""
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def _steady(steps: Sequence[float], scatter: float) -> LawKind:
    """Whether steps point downwards beyond their scatter, and later ones as much as earlier."""
    rate, half = mean(steps), len(steps) // 2
    error = _error(steps)
    late = mean(steps[half:])
    if rate > -_SLOWEST or rate > -error:
        return "none"
    if rate > -scatter * error:
        return "undecided"
    if late <= _LASTING * mean(steps[:half]):
        return "exponential"
    return "none" if late > -_OVER else "undecided"


def medians(summary: pl.DataFrame, metric: str, **labels: str) -> list[float]:
    """The medians of a metric layer by layer, for the rows with these labels."""
    return summary.filter(metric=metric, **labels).sort("layer")["median"].to_list()


def sure_medians(summary: pl.DataFrame, metric: str, **labels: str) -> list[float]:
    """The same, up to the first layer in which a sample is in doubt.

    >>> summary = pl.DataFrame({"layer": [0, 1, 2], "metric": "r", "median": [0.0, -1.0, -9.0],
    ...                         "doubt": [False, False, True]})
    >>> sure_medians(summary, "r")
    [0.0, -1.0]
    """
    rows = summary.filter(metric=metric, **labels).sort("layer")
    return _before_doubts(rows)["median"].to_list()


def law_of_medians(
    summary: pl.DataFrame, metric: str, evidence: Evidence = SMOOTH, **labels: str
) -> Law:
    """The law of a metric's medians, as far as none of the samples is in doubt."""
    return _law_before_doubts(
        summary.filter(metric=metric, **labels).sort("layer"), "median", evidence
    )


def _law_before_doubts(rows: pl.DataFrame, column: str, evidence: Evidence = SMOOTH) -> Law:
    """The law of a curve, which says how far it is sure if that is not to its end."""
    sure = _before_doubts(rows)
    found = law(sure[column].to_list(), evidence)
    return found if len(sure) == len(rows) else replace(found, sure_to=len(sure) - 1)


def _before_doubts(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows, sorted by layer, before the first that is in doubt; the input never is."""
    if "doubt" not in rows.columns:
        return rows
    doubts = rows["doubt"].to_list()
    return rows.head(max(1, doubts.index(True))) if True in doubts else rows


def disagreement(table: pl.DataFrame, metric: str, **labels: str) -> str:
    """In words, where the samples follow different laws; nothing where they agree.

    Each sample counts up to its first layer in doubt.

    >>> disagreement(pl.DataFrame({
    ...     "layer": [0, 1, 2, 3, 4] * 2, "sample": [0] * 5 + [1] * 5, "metric": "r",
    ...     "value": [0.0, -1.0, -2.0, -3.0, -4.0, 0.0, 0.0, 0.0, 0.0, 0.0]}), "r")
    'the samples disagree: 1 of 2 exponential, 1 of 2 no collapse; they end between 10^−4.0 and 1'
    """
    counted, found = _count_laws(table, metric, labels)
    if not counted:
        return ""
    low, high = (power_of_ten(end(each.last for each in found)) for end in (min, max))
    sure = "" if all(each.sure_to is None for each in found) else ", as far as they are sure"
    return f"the samples disagree: {counted}; they end between {low} and {high}{sure}"


def different_laws(table: pl.DataFrame, metric: str, **labels: str) -> str:
    """How many samples follow which law, where they differ; nothing where they agree."""
    return _count_laws(table, metric, labels)[0]


def _count_laws(
    table: pl.DataFrame, metric: str, labels: Mapping[str, str]
) -> tuple[str, list[Law]]:
    """The same, and the laws of the samples that say something."""
    curves = table.filter(metric=metric, **labels).sort("layer")
    every = [
        _law_before_doubts(own, "value")
        for _, own in curves.group_by("sample", maintain_order=True)
    ]
    # Where doubts leave too little of a curve, it agrees with any other.
    found = [each for each in every if each.decided or each.sure_to is None]
    kinds = Counter(each.kind for each in found)
    if len(kinds) < 2:
        return "", found
    counts = {_NAMED.get(kind, kind): many for kind, many in kinds.items()}
    if len(found) < len(every):
        counts["in doubt too early to tell"] = len(every) - len(found)
    return ", ".join(f"{many} of {len(every)} {words}" for words, many in counts.items()), found
