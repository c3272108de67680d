"""The law that a curve follows with depth, read from its logarithms.

``law`` is for residuals that may end at 10^−1000: doubly exponential, exponential or no collapse.
``trend`` is for any positive figure of a prediction: exponential, polynomial or level. Both use the
later part of a curve, since a law holds in the long run.
"""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import linear_regression, mean, median, stdev
from typing import Literal, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

LawKind = Literal["doubly exponential", "between", "exponential", "equal", "none", "undecided"]
"""``between``: steps grow by a constant amount per layer, so the exponent grows quadratically."""
TrendKind = Literal["level", "exponential", "faster than exponential", "polynomial", "unclear"]
Case = TypeVar("Case", bound=Hashable)

_FEWEST = 3
"""The least number of steps for a decision."""
_CUBIC = 0.1
_SLOWEST = 1e-6
"""Decades per layer: a decay slower than one decade in a million layers is no collapse."""
_LASTING = 0.5
"""Least ratio of later steps to earlier ones: a decay that slows down levels off."""
_OVER = 1e-2
"""Decades per layer: a slowing decay has ended below this rate."""
_BENDING = 0.25
"""Least growth of later steps, relative to their mean, that counts as more than drift. Steps
proportional to the layer grow by two thirds of their mean in the second half."""
_STRAIGHT = 5
"""The least number of steps for a straight-line fit."""
_FASTER = 1.5
"""Least ratio of later to earlier steps of a logarithm for faster than exponential: 1 if it is
exponential, 3 for the decay of pure attention."""
_CLEARLY = 2.0
"""How many times larger the squared error of the other straight line must be for a law."""
LEVEL = 1.1
"""Factor over the second half of the layers within which (or its inverse) a figure is level."""
_FEWEST_LAYERS = 4
"""The least number of layers in the second half for a trend."""


@dataclass(frozen=True)
class LawCriteria:
    """What a curve must show for each law; a test that is ``None`` is not made.

    A law holds in the long run, so the later part of the curve decides: its second half, or its
    ``last_steps`` if that is shorter.
    """

    last_steps: int = 4
    """Number of last steps whose growth ratios are tested."""
    least_growth: float | None = None
    """Doubly exponential only if each of these ratios exceeds this."""
    cubic_within: float | None = None
    """Doubly exponential only if their median is within this distance of 3."""
    least_fall: float | None = None
    """Doubly exponential only if the last steps lose more decades than this."""
    least_bend: float | None = None
    """Doubly exponential only if the end is this many times as low as the middle; a straight line
    from 0 ends twice as low."""
    linear: float | None = None
    """Between only if the slope of the later steps is this many standard errors below zero."""
    scatter: float | None = None
    """Exponential only if the mean step is this many standard errors below zero, and later steps
    do not die away."""
    level: float | None = None
    """No collapse unless the last quarter of the layers is this many decades below the one before.
    """


SMOOTH = LawCriteria(least_growth=2.0, least_fall=1.0, linear=10.0, scatter=2.0)
"""For similar layers: the last steps show the law, and scatter must not look like one."""
UNEVEN = LawCriteria(cubic_within=0.5, least_bend=3.0, level=0.1)
"""For random layers, whose curves fluctuate: the last steps may be anything, so the whole second
half must agree. The slowest collapse seen under a window, 0.01 decades per layer, loses a quarter
of a decade between quarters of a hundred layers."""


@dataclass(frozen=True)
class Law:
    """The law of a residual, its constants and its final value.

    ``growth`` is the ratio of successive steps of ``log r``: 3 for ``r' = Cr³``, 1 for ``r' = cr``.
    ``rate`` is the mean change of ``log10 r`` per layer in the later steps, ``bend`` the mean
    difference between successive steps (the slope of a straight line through them), ``last`` the
    final value. Errors are standard errors for independent layers. ``sure_to`` is the last layer
    used, if figures of later layers are in doubt.
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
        """Whether the ratio of the last steps is 3 to within 0.1, as for ``r' = Cr³``."""
        return abs(self.growth - 3) < _CUBIC

    @property
    def decided(self) -> bool:
        """Whether the curve shows a law; "no collapse" is one, too."""
        return self.kind != "undecided"

    @property
    def collapses(self) -> bool:
        """Whether the residual tends to zero, by any law."""
        return self.kind not in ("none", "undecided")

    @property
    def name(self) -> str:
        """The kind of the law, and the last layer used if later figures are in doubt.

        >>> law([0.0, -1.0, -2.0, -3.0]).name, Law("none", 1.0, 0.0, 0.0, sure_to=5).name
        ('exponential', 'no collapse (to layer 5)')
        """
        from rankscope.show import words

        return words.law_name(self)

    @property
    def pace(self) -> str:
        """The constant of the law: of steps of the logarithm, or of layers.

        >>> law([0.0, -1.0, -4.0, -13.0]).pace, law([0.0, -1.0, -2.0, -3.0]).pace
        ('step × 3.00', 'layer × 0.1')
        """
        from rankscope.show import words

        return words.law_pace(self)

    def __str__(self) -> str:
        from rankscope.show import words

        return words.describe_law(self)


def law(log10: Sequence[float], criteria: LawCriteria = SMOOTH) -> Law:
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
    end = steps[-criteria.last_steps :]
    later = steps[-max(criteria.last_steps, len(steps) // 2) :]
    ratios = [b / a for a, b in pairwise(end) if a < 0]
    if criteria.level is not None and levels_off(log10, within=criteria.level):
        kind: LawKind = "none"
    elif _accelerates(ratios, end, finite, criteria):
        kind = "doubly exponential"
    elif criteria.linear is not None and _quickens(later, criteria.linear):
        kind = "between"
    else:
        kind = "exponential" if criteria.scatter is None else _steady(later, criteria.scatter)
    growth = median(ratios) if ratios else math.nan
    return Law(
        kind, growth, mean(later), last, _error(ratios), _error(later), *_slope_with_error(later)
    )


def as_stated(laws: Mapping[Case, Law], stated: Callable[[Case, Law], bool]) -> dict[Case, bool]:
    """Whether the law of each case is as stated; undecided cases are left out.

    >>> laws = {"deep": law([0.0, -1.0, -2.0, -3.0, -4.0]), "shallow": law([0.0, -1.0])}
    >>> as_stated(laws, lambda case, law: law.kind == "exponential")
    {'deep': True}
    """
    return {case: stated(case, law) for case, law in laws.items() if law.decided}


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
    ratios: Sequence[float], end: Sequence[float], curve: Sequence[float], criteria: LawCriteria
) -> bool:
    """Whether steps grow by a factor, by all tests that are made."""
    need, middle = criteria, curve[len(curve) // 2]
    return (
        len(ratios) > 1
        and (need.least_growth is None or min(ratios) > need.least_growth)
        and (need.cubic_within is None or abs(median(ratios) - 3) < need.cubic_within)
        and (need.least_fall is None or sum(end) < -need.least_fall)
        and (need.least_bend is None or curve[-1] < need.least_bend * middle)
    )


def _quickens(steps: Sequence[float], certain: float) -> bool:
    """Whether steps grow by a constant amount, by more than scatter and drift."""
    if len(steps) < _STRAIGHT:
        return False
    bend, error = _slope_with_error(steps)
    grown = bend * (len(steps) - 1)
    return bend < -certain * error and grown < _BENDING * mean(steps) < 0


def _steady(steps: Sequence[float], scatter: float) -> LawKind:
    """Whether steps are negative beyond their scatter, and later ones as large as earlier ones."""
    rate, error, half = mean(steps), _error(steps), len(steps) // 2
    late = mean(steps[half:])
    if rate > -_SLOWEST or rate > -error:
        return "none"
    if rate > -scatter * error:
        return "undecided"
    if late <= _LASTING * mean(steps[:half]):
        return "exponential"
    return "none" if late > -_OVER else "undecided"


def _slope_with_error(steps: Sequence[float]) -> tuple[float, float]:
    """The slope of a straight line through the steps, and its standard error."""
    count, size = len(steps), max(map(abs, steps)) or 1.0
    scaled = [step / size for step in steps]  # squares of steps may overflow
    slope, start = linear_regression(range(count), scaled)
    missed = sum((step - start - slope * index) ** 2 for index, step in enumerate(scaled))
    spread = count * (count * count - 1) / 12
    return size * slope, size * math.sqrt(missed / (count - 2) / spread)


def _error(values: Sequence[float]) -> float:
    """The standard error of the mean; zero for a single value."""
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


@dataclass(frozen=True)
class Trend:
    """How a positive figure develops: its law, and its constants under either law.

    ``rate`` is the natural logarithm of the factor per layer; ``power`` the exponent of the layer.
    """

    kind: TrendKind
    rate: float
    power: float

    @property
    def factor(self) -> float:
        """The factor per layer; infinite on overflow."""
        return math.exp(self.rate) if self.rate < 700 else math.inf


def trend(logs: Float[Tensor, "layer"]) -> Trend:
    """The trend of one curve, given by its natural logarithms, over the second half of its layers.

    >>> layers = torch.arange(9.0)
    >>> trend(-0.2 * layers).kind, trend(-0.1 * 3**layers).kind, trend(layers.log()).kind
    ('exponential', 'faster than exponential', 'polynomial')

    Exponential or polynomial: whichever of two straight lines, over the layers and over their
    logarithms, comes clearly closer.
    """
    start = _second_half(len(logs))
    half = logs[start:].double()
    layers = torch.arange(start, start + len(half), dtype=torch.float64)
    if not bool(half.isfinite().all()):  # all tokens equal, or out of the range of floats
        return Trend("unclear", *([float(half[-1])] * 2))
    (rate, by_layer), (power, by_power) = (_line(x, half) for x in (layers, layers.log()))
    return Trend(_trend_kind(half, rate, by_layer, by_power), rate, power)


def later_factors(sizes: Float[Tensor, "layer curve"]) -> Float[Tensor, "curve"]:
    """The factor of each curve over the second half of its layers.

    A curve that left the range of floats has kept growing or shrinking; one that was zero from the
    start has 1.
    """
    before, after = sizes[_second_half(len(sizes))], sizes[-1]
    factor = torch.where(before == after, 1.0, after / before)
    factor = torch.where((after == 0) & (sizes[0] > 0), 0.0, factor)
    return torch.where(after.isinf(), math.inf, factor)


def _second_half(count: int) -> int:
    """The first layer of the second half of layers 0 to ``count − 1``, at least 1."""
    return max(1, count // 2)


def _trend_kind(
    half: Float[Tensor, "half"], rate: float, by_layer: float, by_power: float
) -> TrendKind:
    steps = half.diff()
    if abs(rate) * len(steps) < math.log(LEVEL):
        return "level"
    if len(half) < _FEWEST_LAYERS:
        return "unclear"
    few = len(steps) // 2
    earlier, later = (float(part.mean()) for part in (steps[:few], steps[len(steps) - few :]))
    if earlier * later > 0 and abs(later) > _FASTER * abs(earlier):
        return "faster than exponential"
    if _CLEARLY * by_layer < by_power:
        return "exponential"
    return "polynomial" if _CLEARLY * by_power < by_layer else "unclear"


def _line(x: Float[Tensor, "half"], y: Float[Tensor, "half"]) -> tuple[float, float]:
    """The slope of the straight line through some points, and its squared error."""
    x, y = x - x.mean(), y - y.mean()
    slope = float(x @ y / (x @ x)) if len(x) > 1 else 0.0
    return slope, float(((y - slope * x) ** 2).sum())


def power_exponent(xs: Sequence[float], ys: Sequence[float]) -> float:
    """The exponent k of y ∝ xᵏ, by least squares in logarithms.

    >>> round(power_exponent([1, 2, 4], [3, 12, 48]), 6)
    2.0
    """
    a = torch.tensor(xs, dtype=torch.float64).log()
    b = torch.tensor(ys, dtype=torch.float64).log()
    a = a - a.mean()
    return float((a * b).sum() / (a * a).sum())


def late_exponent(values: Sequence[float]) -> float:
    """The exponent of a curve from layer 1 on, over its second half."""
    half = len(values) // 2
    return power_exponent(range(half + 1, len(values) + 1), values[half:])


def growth_exponent(values: Sequence[float], errors: Sequence[float]) -> tuple[float, float]:
    """The exponent of the gain of a curve, from the middle layer to the last, and its error.

    >>> growth_exponent([1.0 + layer for layer in range(9)], [0.0] * 9)
    (1.0, 0.0)
    """
    half, last = (len(values) - 1) // 2, len(values) - 1
    gained = [values[end] - values[0] for end in (half, last)]
    if min(gained) <= 0:
        return 0.0, 0.0
    steps = math.log(last / half)
    error = math.hypot(errors[half] / gained[0], errors[last] / gained[1])
    return math.log(gained[1] / gained[0]) / steps, error / steps


def steadiness(logs: Sequence[float]) -> float:
    """The decrease of a curve in its later half over the decrease in its earlier half."""
    half = len(logs) // 2
    return (logs[half] - logs[-1]) / (logs[0] - logs[half])
