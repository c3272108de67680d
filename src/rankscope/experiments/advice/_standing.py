"""How a design stands: what its random networks fall short of, in decades.

Five figures of a random network, each the logarithm of a ratio, and for each how far it may go
before anything is wrong. What is beyond is added up: that is the shortfall, zero for a design that
keeps all five. It is about the first step of training alone, and a network that does nothing has
none: so it says what to mend, not what to build.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


class Spread(NamedTuple):
    """The mean over some networks, the least and the largest of any."""

    mean: float
    low: float
    high: float


PerNetwork = Float[Tensor, "network"]
Values = Mapping[str, Float[Tensor, "layer _ sample"]]


@dataclass(frozen=True)
class Criterion:
    """A figure, in decades, which may lie ``allowed`` below zero, or if ``both`` also above."""

    metric: str
    allowed: float
    both: bool
    words: str
    limit: str

    def beyond(self, figure: PerNetwork) -> PerNetwork:
        """Decades beyond what is allowed; what is not a number is beyond everything."""
        size = figure.abs() if self.both else -figure
        return torch.where(size.isnan(), math.inf, (size - self.allowed).clamp(min=0))


CRITERIA: Final = (
    Criterion(
        "log10_dispersion_kept",
        math.log10(2),
        False,
        "tokens become alike",
        "tokens keep half of their relative dispersion",
    ),
    Criterion(
        "log10_size_growth",
        1.0,
        True,
        "tokens change in size",
        "their size changes by at most a factor of 10",
    ),
    Criterion(
        "log10_gradient_ratio",
        1.0,
        True,
        "gradients are uneven",
        "so does the gradient from the last layer to the first",
    ),
    Criterion(
        "log10_query_share",
        2.0,
        False,
        "queries get no gradient",
        "in no layer are queries' gradients below a hundredth of values'",
    ),
    Criterion(
        "log10_entropy_share",
        1.0,
        False,
        "attention sees one token only",
        "nor the entropy of attention below a tenth of the uniform one's",
    ),
)


@dataclass(frozen=True)
class Standing:
    """The five figures of some random networks of one design, and by how much they fall short."""

    figures: Mapping[str, PerNetwork]

    @classmethod
    def of(cls, values: Values, even: Float[Tensor, "block sample"]) -> "Standing":
        """From metrics by layer, and the entropies of uniform attention (see ``even_entropy``).

        >>> from rankscope import Spec, predict
        >>> from rankscope.core.prediction import even_entropy
        >>> spec, x = Spec(2, 2, 8), torch.eye(5, 8)
        >>> found = predict(spec, x, draws=2, gradients=True)
        >>> Standing.of(found.values, even_entropy(spec, 5, None)[1:]).shortfall.shape
        torch.Size([2])
        """
        apart = values["log10_relative_dispersion"]
        size, gradient = values["token_norm"].log10(), values["state_gradient"].log10()
        queries = values["query_gradient"][1:].log10() - values["value_gradient"][1:].log10()
        entropy = values["attention_entropy"][1:]
        most = even.unsqueeze(1)
        shares = torch.where(most > 0, entropy / most, 1.0).clamp(min=0).log10()
        figures = {
            # More than there was at first is no merit.
            "log10_dispersion_kept": (apart[-1] - apart[0]).clamp(max=0),
            "log10_size_growth": size[-1] - size[0],
            "log10_gradient_ratio": gradient[0] - gradient[-1],
            "log10_query_share": queries.amin(0),
            "log10_entropy_share": shares.amin(0),
        }
        return cls({name: figure.flatten() for name, figure in figures.items()})

    @property
    def shortfalls(self) -> dict[str, PerNetwork]:
        """Of each figure, by network."""
        return {each.metric: each.beyond(self.figures[each.metric]) for each in CRITERIA}

    @property
    def shortfall(self) -> PerNetwork:
        """Of all figures together, by network."""
        return torch.stack(list(self.shortfalls.values())).sum(0)

    @property
    def spread(self) -> Spread:
        """The shortfall over the networks."""
        found = self.shortfall
        return Spread(float(found.mean()), float(found.amin()), float(found.amax()))

    @property
    def kept(self) -> float:
        """Which part of their relative dispersion tokens keep, in decades."""
        return self.mean("log10_dispersion_kept")

    def mean(self, metric: str) -> float:
        """A figure's mean over the networks, in decades."""
        return float(self.figures[metric].mean())
