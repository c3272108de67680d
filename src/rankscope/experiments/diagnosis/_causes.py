"""Why: which weights are unusual compared with other layers and the untrained twin.

Every weight (a matrix, its bias, a norm's gain, an embedding table) is described by a few figures
(``_weights``), which the same weight has in the other layers and in a freshly drawn model. One that
differs from both is a suspect; a repair shows whether it is the cause (``_repairs``).
"""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple, cast

from torch import nn

from rankscope.core.theory import thresholds
from rankscope.experiments.diagnosis._weights import Figure, Reading, Weight, median
from rankscope.numerals import short

_USUAL_BIAS: Final = 0.3
"""Biases of this size, beside what their matrix gives, are common in trained models."""
_NOTICED: Final = math.log(2.0)
"""Logarithm of the factor from which a difference to other layers and to the twin is a suspicion.
"""
_NOTICED_ALONE: Final = math.log(3.0)
"""The same for embeddings and shared blocks, which have no other layer beside them."""
_DEAD_SHARE: Final = 0.05
_EVERYWHERE: Final = math.log(10.0)
"""Logarithm of the factor between all layers and the twin from which all of them are suspects: what
training alone does is less."""
_AS_DRAWN: Final = 0.1
"""Logarithm of the factor up to which a matrix has the size of an untrained one."""
_ORDER: Final[tuple[Figure, ...]] = (
    *("equal rows", "dead rows", "dead columns", "directions", "size", "gain", "bias"),
)
"""Which figure tells most about a weight, where several are unusual."""
_MOST: Final = math.log(1e6)


class Suspect(NamedTuple):
    """A weight with an unusual figure: that in the other layers, and in the untrained twin.

    ``score`` is the logarithm of the factor by which it differs from what is nearest to it.
    ``elsewhere`` is None where no other layer has such a weight, or where all layers differ from
    the twin alike (``everywhere``).
    """

    weight: Weight
    path: str
    figure: Figure
    value: float
    elsewhere: float | None
    fresh: float
    score: float
    everywhere: bool = False

    @property
    def usual(self) -> float:
        """What the figure should be."""
        return self.fresh if self.elsewhere is None else self.elsewhere

    @property
    def location(self) -> tuple[int, str]:
        """Layer and part, by which suspects are mended together; layer −1 stands for all."""
        return -1 if self.everywhere else self.weight.layer, self.weight.part

    @property
    def is_beside_others(self) -> bool:
        """Whether other layers show it, or it is unusual without them."""
        return self.is_unusual or (self.elsewhere is not None and self.weight.layer > 0)

    @property
    def is_unusual(self) -> bool:
        """Whether it is worth a finding of its own, whatever it does to the tokens."""
        alone = self.elsewhere is None and self.figure != "equal rows"
        factor = thresholds.UNUSUAL_WEIGHT
        if self.everywhere:
            factor = thresholds.UNUSUAL_EVERYWHERE
        elif alone or self.figure in ("gain", "bias"):
            factor = thresholds.UNUSUAL_ALONE
        return self.score >= math.log(factor)


def suspects(readings: Sequence[Reading], fresh: Sequence[Reading]) -> list[Suspect]:
    """Weights with an unusual figure, the most unusual first; ``fresh`` are the twin's."""
    drawn = {(reading.weight.layer, reading.weight.role): reading.figures for reading in fresh}
    by_role: dict[str, list[Reading]] = {}
    for reading in readings:
        by_role.setdefault(reading.weight.role, []).append(reading)
    suspected = []
    for same_role in by_role.values():
        for reading in same_role:
            others = [other.figures for other in same_role if other is not reading]
            twin = drawn.get((reading.weight.layer, reading.weight.role), {})
            noticed = [
                suspect
                for name, value in reading.figures.items()
                if (
                    suspect := _suspect(
                        reading,
                        name,
                        value,
                        [figures[name] for figures in others if name in figures],
                        twin.get(name),
                    )
                )
            ]
            # One figure is enough: a matrix with dead rows is also smaller than others. Trained
            # tables have fewer directions than fresh ones, so that there the size may say more.
            noticed.sort(key=lambda suspect: _ORDER.index(suspect.figure))
            if reading.weight.layer == 0 and noticed and noticed[0].figure == "directions":
                noticed.sort(key=lambda suspect: -suspect.score)
            suspected += noticed[:1]
    return sorted(suspected, key=lambda suspect: -suspect.score)


def _suspect(
    reading: Reading, name: Figure, value: float, others: Sequence[float], twin: float | None
) -> Suspect | None:
    """A suspect, if a figure differs from the median of the others and from the twin's."""
    if not others and twin is None:
        return None
    elsewhere = median(others) if others else None
    fresh = cast(float, elsewhere if twin is None else twin)
    usual = fresh if elsewhere is None else elsewhere
    spread = median([abs(_log(figure, usual)) for figure in others]) if others else 0.0
    score = _score(name, value, usual, fresh)
    if others and name == "size" and abs(_log(value, fresh)) < _AS_DRAWN:
        score = abs(_log(value, usual))  # as large as an untrained one, and the others are not
    score -= 2 * min(spread, 1.0)
    # A twin that starts from zero says nothing about the size of what is learned, but for biases,
    # which are held against what is common.
    known = bool(others) or fresh > 0 or name == "bias"
    if score >= (_NOTICED if others else _NOTICED_ALONE) and known:
        return Suspect(reading.weight, reading.path, name, value, elsewhere, fresh, score)
    shared = _score(name, value, fresh, fresh)
    if fresh > 0 and min(shared, _score(name, usual, fresh, fresh)) >= _EVERYWHERE:
        return Suspect(reading.weight, reading.path, name, value, None, fresh, shared, True)
    return None


def _score(name: Figure, value: float, usual: float, fresh: float) -> float:
    """The logarithm of the factor by which a figure differs from both, if to the same side."""
    if name in ("dead rows", "dead columns"):
        excess = value - max(usual, fresh)
        return _NOTICED * (1.0 + 10 * excess) if excess >= _DEAD_SHARE else 0.0
    if name == "bias":
        return _log(value, max(usual, fresh, _USUAL_BIAS))
    others = [_log(value, reference) for reference in (usual, fresh)]
    if name in ("directions", "equal rows"):
        return max(0.0, -max(others))
    return 0.0 if others[0] * others[1] < 0 else min(map(abs, others))


def _log(value: float, usual: float) -> float:
    """The logarithm of a ratio, of zeros too."""
    if value <= 0 and usual <= 0:
        return 0.0
    if value <= 0 or usual <= 0:
        return math.copysign(_MOST, value - usual)
    return max(-_MOST, min(_MOST, math.log(value / usual)))


Group = tuple[Suspect, ...]
"""Suspects of one part of one layer, the most unusual first."""


def groups(suspected: Sequence[Suspect]) -> list[Group]:
    """Suspects by layer and part, the most unusual group first."""
    by_location: dict[tuple[int, str], list[Suspect]] = {}
    for suspect in suspected:
        by_location.setdefault(suspect.location, []).append(suspect)
    gathered = [
        tuple(sorted(group, key=lambda suspect: -suspect.score)) for group in by_location.values()
    ]
    return sorted(gathered, key=lambda group: -group[0].score)


WORDS: Final[dict[Figure, tuple[str, str]]] = {
    "size": ("root mean square", "has a root mean square of {}"),
    "directions": ("directions (participation ratio)", "has {} directions (participation ratio)"),
    "dead rows": ("share of rows that are zero", "has a share of {} zero rows"),
    "dead columns": ("share of columns that are zero", "has a share of {} zero columns"),
    "bias": (
        "size relative to its matrix's output",
        "has {} times the size of its matrix's output",
    ),
    "gain": ("median gain", "has a median gain of {}"),
    "equal rows": ("relative dispersion of its rows", "has rows of relative dispersion {}"),
}
"""Every figure in a table, and in a sentence."""


def describe(suspect: Suspect) -> str:
    """What is unusual about a weight, after its path."""
    figure, value = suspect.figure, short(suspect.value, digits=2)
    beside = f"{short(suspect.fresh, digits=2)} untrained"
    if suspect.elsewhere is not None:
        beside = f"{short(suspect.elsewhere, digits=2)} in other layers, {beside}"
    path = f"`{suspect.path}`"
    if suspect.weight.value.numel() < suspect.weight.stored.numel():
        path += f" ({suspect.weight.role})"  # of several matrices that are stored as one
    words = isinstance(suspect.weight.module, nn.Embedding)
    if figure == "equal rows" and suspect.value < thresholds.EQUAL_ROWS and words:
        return (
            f"{path} has equal rows (relative dispersion {value}, {beside}), so every word has "
            "the same embedding"
        )
    _, phrase = WORDS[figure]
    if suspect.weight.role.endswith("norm bias"):
        phrase = "has a size of {} relative to the gain of the norm"
    elif figure == "directions" and suspect.weight.value.ndim == 1:
        phrase = "passes {} features (participation ratio)"
    return f"{path} {phrase.format(value)} ({beside})"
