"""What was predicted: figures by layer, draw and sample, and the band they make."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from rankscope.arguments import checked
from rankscope.core.network import Spec
from rankscope.core.prediction._outcomes import Outcome, read_prediction
from rankscope.core.tabular import Tabular
from rankscope.errors import InputError
from rankscope.numerals import list_words, plural

if TYPE_CHECKING:
    import polars

LOW, HIGH = 0.1, 0.9


class Band(NamedTuple):
    """A figure by layer: its mean over all draws and samples, and where 10 to 90 % of them lie."""

    mean: Float[Tensor, "layer"]
    low: Float[Tensor, "layer"]
    high: Float[Tensor, "layer"]


@checked
@dataclass(frozen=True, repr=False)
class Prediction(Tabular):
    """What random networks of a spec do to tokens, by layer (0 is the input), draw and sample.

    ``values`` holds one tensor ``(layer, draw, sample)`` for each metric; what a layer has and the
    input has not, such as entropies and gradients of weights, is NaN at layer 0.
    """

    spec: Spec
    seed: int
    values: Mapping[str, Float[Tensor, "layer draw sample"]]
    width_error: float
    """The relative error left by the width; zero where the law is exact at every width."""
    even_entropy: Float[Tensor, "layer sample"] | None = None
    """The entropy of attention that is even over the keys each query may see; NaN at layer 0."""
    doubtful: int = 0
    """Networks of which scaled arithmetic may have lost ten digits or more."""

    @property
    def verdict(self) -> tuple[Outcome, ...]:
        """What will happen to tokens, attention and sizes, and to gradients if they are there.

        >>> import torch
        >>> from rankscope import Spec, predict
        >>> pure = predict(Spec.pure_attention(6, 2, 8), torch.randn(5, 8), draws=4)
        >>> pure.verdict[0].kind, pure.verdict[0].is_sure
        ('depth collapse', True)
        """
        return read_prediction(self)

    @property
    def notes(self) -> dict[str, str]:
        """What the arithmetic leaves uncertain, under ``doubt``; nothing if all is sure."""
        from rankscope.show import words

        doubt = words.prediction_doubt(self)
        return {"doubt": doubt} if doubt else {}

    @property
    def only_floats(self) -> bool:
        """Whether scaled arithmetic cannot follow: it cannot hold what centred attention shares."""
        return self.spec.centered and not self.spec.skips[0]

    @property
    def metrics(self) -> tuple[str, ...]:
        """What is predicted."""
        return tuple(self.values)

    @property
    def draws(self) -> int:
        """How many networks were drawn."""
        return next(iter(self.values.values())).shape[1]

    @property
    def samples(self) -> int:
        """How many inputs each of them was given."""
        return next(iter(self.values.values())).shape[2]

    @property
    def layers(self) -> int:
        """How many layers were run, repeated ones counted each time."""
        return next(iter(self.values.values())).shape[0] - 1

    def band(self, metric: str) -> Band:
        """The mean and the 10 to 90 % band of a metric, by layer.

        >>> import torch
        >>> from rankscope import Spec, predict
        >>> found = predict(Spec(2, 2, 8), torch.eye(5, 8), draws=4)
        >>> band = found.band("mean_cosine")
        >>> bool((band.low <= band.high).all()), len(band.mean)
        (True, 3)
        """
        if metric not in self.values:
            raise InputError(f"{metric!r} is not predicted; choose {', '.join(self.metrics)}.")
        every = self.values[metric].flatten(1).double()
        return Band(every.mean(1), *(_percentile(every, part) for part in (LOW, HIGH)))

    @property
    def table(self) -> "polars.DataFrame":
        """All figures as a polars frame; samples are numbered through, draw after draw."""
        from rankscope import tables

        rows = [
            (layer, sample, name, value)
            for name, values in self.values.items()
            for layer, row in enumerate(values.flatten(1).tolist())
            for sample, value in enumerate(row)
            if value == value
        ]
        return tables.from_rows(("layer", "sample", "metric", "value"), rows)

    def __repr__(self) -> str:
        return (
            f"Prediction for {self.spec!r}: {plural(self.draws, 'draw')}, layers 0 to "
            f"{self.layers}; {list_words(list(self.metrics))}"
        )

    def _repr_html_(self) -> str:
        from rankscope.show import words

        return words.prediction_html(self)


def _percentile(rows: Float[Tensor, "layer draw"], part: float) -> Float[Tensor, "layer"]:
    """Interpolated, also between numbers that are infinite."""
    ordered = rows.sort(1).values
    at = part * (rows.shape[1] - 1)
    below, above = ordered[:, int(at)], ordered[:, min(int(at) + 1, rows.shape[1] - 1)]
    part_way = at - int(at)
    between = below + part_way * torch.where(below == above, 0.0, above - below)
    return torch.where(below.isinf() | (part_way == 0), below, between)
