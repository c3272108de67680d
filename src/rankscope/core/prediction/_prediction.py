"""``Prediction``: metrics by layer, draw and sample, and their bands."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from rankscope.arguments import checked
from rankscope.core.network import Spec
from rankscope.core.prediction._outcomes import PredictedOutcome, read_prediction
from rankscope.core.tabular import Tabular
from rankscope.errors import InputError
from rankscope.numerals import list_words, plural

if TYPE_CHECKING:
    import polars

LOW, HIGH = 0.1, 0.9


class Band(NamedTuple):
    """A metric by layer: its mean over all draws and samples, and its 10% and 90% quantiles.

    >>> import torch
    >>> from rankscope import Spec, predict
    >>> mean, low, high = predict(Spec(2, 2, 8), torch.eye(4, 8), draws=4).band("mean_cosine")
    >>> bool((low <= high).all()), len(mean)
    (True, 3)
    """

    mean: Float[Tensor, "layer"]
    low: Float[Tensor, "layer"]
    high: Float[Tensor, "layer"]


@checked
@dataclass(frozen=True, repr=False)
class Prediction(Tabular):
    """What random networks of a spec do to tokens, by layer (0 is the input), draw and sample.

    >>> from rankscope import predict
    >>> predict(Spec(2, 2, 8), torch.eye(4, 8)[None], draws=3).values["mean_cosine"].shape
    torch.Size([3, 3, 1])

    ``values`` holds one tensor ``(layer, draw, sample)`` for each metric; metrics that the input
    does not have, such as entropies and gradients of weights, are NaN at layer 0.
    """

    spec: Spec
    seed: int
    values: Mapping[str, Float[Tensor, "layer draw sample"]]
    width_error: float
    """The relative error due to finite width; zero if the prediction is exact at every width."""
    even_entropy: Float[Tensor, "layer sample"] | None = None
    """The entropy of uniform attention over the keys each query may see; NaN at layer 0."""
    doubtful: int = 0
    """The number of networks for which scaled arithmetic may have lost ten or more digits."""

    @property
    def verdict(self) -> tuple[PredictedOutcome, ...]:
        """What happens to tokens, attention and token norms, and to gradients if computed.

        >>> import torch
        >>> from rankscope import Spec, predict
        >>> pure = predict(Spec.pure_attention(6, 2, 8), torch.randn(5, 8), draws=4)
        >>> pure.verdict[0].kind, pure.verdict[0].is_sure
        ('depth collapse', True)
        """
        return read_prediction(self)

    @property
    def notes(self) -> dict[str, str]:
        """Figures in doubt, under ``doubt``; empty if there are none."""
        from rankscope.show import words

        doubt = words.prediction_doubt(self)
        return {"doubt": doubt} if doubt else {}

    @property
    def only_floats(self) -> bool:
        """Whether only plain floats are possible: centred attention without a skip."""
        return self.spec.centered and not self.spec.skips[0]

    @property
    def metrics(self) -> tuple[str, ...]:
        """The predicted metrics."""
        return tuple(self.values)

    @property
    def draws(self) -> int:
        """The number of networks drawn."""
        return next(iter(self.values.values())).shape[1]

    @property
    def samples(self) -> int:
        """The number of inputs per network."""
        return next(iter(self.values.values())).shape[2]

    @property
    def layers(self) -> int:
        """The number of layers, with repetitions."""
        return next(iter(self.values.values())).shape[0] - 1

    def band(self, metric: str) -> Band:
        """The mean and the 10 to 90 % band of a metric, by layer.

        >>> import torch
        >>> from rankscope import Spec, predict
        >>> prediction = predict(Spec(2, 2, 8), torch.eye(5, 8), draws=4)
        >>> band = prediction.band("mean_cosine")
        >>> bool((band.low <= band.high).all()), len(band.mean)
        (True, 3)
        """
        if metric not in self.values:
            raise InputError(f"{metric!r} is not predicted; choose {', '.join(self.metrics)}.")
        every = self.values[metric].flatten(1).double()
        return Band(every.mean(1), *(_percentile(every, part) for part in (LOW, HIGH)))

    @property
    def table(self) -> "polars.DataFrame":
        """All values as a polars frame; samples are numbered consecutively over draws."""
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
    """An interpolated quantile, also between infinite numbers."""
    ordered = rows.sort(1).values
    at = part * (rows.shape[1] - 1)
    below, above = ordered[:, int(at)], ordered[:, min(int(at) + 1, rows.shape[1] - 1)]
    part_way = at - int(at)
    between = below + part_way * torch.where(below == above, 0.0, above - below)
    return torch.where(below.isinf() | (part_way == 0), below, between)
