"""One design tried: predicted, perhaps measured; which designs help, and which comes first."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

import torch

from rankscope.ask import Subject
from rankscope.core.prediction import even_entropy, predict
from rankscope.errors import RankscopeError
from rankscope.experiments.advice._change import Change
from rankscope.experiments.advice._measured import measured_values
from rankscope.experiments.advice._prices import Price
from rankscope.experiments.advice._standing import Spread, Standing, Values

LEAST_GAIN: Final = 0.1
"""Decades of shortfall that a change must take away to be worth telling: a factor of 1.26."""
_DEVIATIONS: Final = 4.0
"""Standard errors by which what is measured may differ from what was predicted."""


@dataclass(frozen=True, eq=False)
class Trial:
    """A design, its price, and how its random networks stand: predicted, and measured if it was.

    ``failure`` says why it could not be measured.
    """

    change: Change
    price: Price
    values: Values
    predicted: Standing
    measured_values: Values | None = None
    measured: Standing | None = None
    failure: str = ""

    @classmethod
    def of(cls, change: Change, subject: Subject, *, draws: int, seed: int) -> "Trial":
        """A design by prediction alone, on what a subject reads."""
        x, token_mask = subject.x, subject.token_mask
        found = predict(
            change.spec, x, draws=draws, seed=seed, token_mask=token_mask, gradients=True
        )
        even = even_entropy(change.spec, x.shape[1], token_mask)[1:]
        price = Price.of(subject.network.spec, change.spec, x.shape[1])
        return cls(change, price, found.values, Standing.of(found.values, even))

    def measure(self, subject: Subject, *, networks: int, seed: int) -> "Trial":
        """The same design, with so many of its networks measured, too."""
        x, token_mask = subject.x, subject.token_mask
        size = self.values["token_norm"].nan_to_num(nan=torch.inf).amax()
        try:
            each = [
                measured_values(
                    self.change.spec, x, token_mask, seed=seed, number=number, largest=float(size)
                )
                for number in range(networks)
            ]
        except RankscopeError as error:
            return replace(self, failure=str(error))
        values = {name: torch.stack([one[name] for one in each], 1) for name in each[0]}
        even = even_entropy(self.change.spec, x.shape[1], token_mask)[1:]
        measured = Standing.of(values, even)
        return replace(self, measured_values=values, measured=measured)

    @property
    def spread(self) -> Spread:
        """The predicted shortfall."""
        return self.predicted.spread

    @property
    def order(self) -> tuple[float, int, float, float]:
        """What it is sorted by: shortfall to a tenth of a decade, price, tokens kept apart.

        Among initialisations, those come first that leave the branches nearest to what they were:
        a network that does nothing falls short of nothing.
        """
        size = self.price.branches
        decades = round(abs(math.log10(size)), 1) if size > 0 else math.inf
        return (round(self.spread.mean, 1), self.price.level, decades, -self.predicted.kept)

    @property
    def agrees(self) -> bool:
        """Whether the shortfall measured is the one predicted, as far as so few networks can tell.

        Means may differ by four standard errors, taken from the predicted networks, and by the
        least that is worth telling.
        """
        if self.measured is None:
            return False
        found, expected = self.measured.shortfall, self.predicted.shortfall
        if float(found.mean()) == float(expected.mean()):
            return True  # also where both are infinite
        errors = math.sqrt(1 / len(found) + 1 / len(expected))
        spread = float(expected.std(correction=0)) * errors
        return abs(float(found.mean() - expected.mean())) <= LEAST_GAIN + _DEVIATIONS * spread


def helps(trial: Trial, original: Trial) -> bool:
    """Whether every network of one falls short of less than any of the other, and enough less."""
    return is_better(trial.spread, original.spread)


def is_confirmed(trial: Trial, original: Trial) -> bool:
    """Whether networks that were measured say the same."""
    if trial.measured is None or original.measured is None:
        return False
    return is_better(trial.measured.spread, original.measured.spread)


def is_better(one: Spread, other: Spread) -> bool:
    """Whether one spread lies below another, apart from it, and by enough.

    >>> is_better(Spread(0.2, 0.1, 0.3), Spread(0.5, 0.4, 0.6))
    True
    >>> is_better(Spread(0.2, 0.1, 0.5), Spread(0.5, 0.4, 0.6))
    False
    """
    return one.high < other.low and not other.mean - one.mean < LEAST_GAIN


def ranked(trials: Iterable[Trial]) -> list[Trial]:
    """The best first."""
    return sorted(trials, key=lambda trial: trial.order)


def best_of_each_kind(trials: Iterable[Trial]) -> list[Trial]:
    """The best of each kind of change, the best first."""
    found: dict[str, Trial] = {}
    for trial in ranked(trials):
        found.setdefault(trial.change.kind, trial)
    return list(found.values())
