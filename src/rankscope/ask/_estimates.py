"""Estimates of time and memory: operations are counted and converted at fixed speeds.

Whether a run is refused for its duration depends on its operations only, not on the load of this
machine. Speeds are those of two idle cores of a laptop; ``tests/ask/test_estimates.py`` has the
commands with which they were measured, and checks the estimates to a factor of two.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch

from rankscope.core.network import Spec
from rankscope.core.tracing import choose_measures
from rankscope.errors import InputError
from rankscope.numerals import duration, gigabytes
from rankscope.process import available_memory

if TYPE_CHECKING:
    from rankscope.ask._subject import Subject

MOST_TOKENS_CUBED: Final = 512
"""The largest number of tokens for which metrics of cubic cost are computed by default."""
_LONG: Final = 300.0
"""Seconds that a run may take without ``--yes``."""
_PRODUCTS, _TOUCHED, _LAYERS = 7.5e10, 5e8, 600.0
"""Speeds per second: multiplications in matrix products, elementwise operations, layers."""
_SPARED: Final = 0.9
"""The fraction of the available memory that a question may use."""


@dataclass(frozen=True)
class Cost:
    """Multiplications in matrix products, elementwise operations, peak memory in bytes, and layers,
    each of which has a constant overhead."""

    products: float = 0.0
    touched: float = 0.0
    bytes: float = 0.0
    layers: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        """The cost of both, one after the other."""
        return Cost(
            self.products + other.products,
            self.touched + other.touched,
            max(self.bytes, other.bytes),
            self.layers + other.layers,
        )

    def times(self, factor: float) -> "Cost":
        """The same operations several times, in the same memory."""
        work = (self.products * factor, self.touched * factor)
        return Cost(*work, self.bytes, self.layers * factor)

    @property
    def seconds(self) -> float:
        """Seconds on two idle cores of a laptop; independent of this machine."""
        return self.products / _PRODUCTS + self.touched / _TOUCHED + self.layers / _LAYERS

    def __str__(self) -> str:
        return f"about {duration(self.seconds)} and {gigabytes(self.bytes)} of memory"

    @classmethod
    def of_weights(cls, spec: Spec, number: int = 4) -> "Cost":
        """The memory of the weights of a spec, with this number of bytes each."""
        return cls(bytes=float(_numbers_in_a_block(spec) * spec.layers * number))

    @classmethod
    def of_forward(cls, subject: "Subject") -> "Cost":
        """One pass of every sample through the network."""
        spec, (samples, tokens, _) = subject.network.spec, subject.x.shape
        pairs = float(samples * spec.layers * spec.heads) * tokens**2
        products = float(samples * spec.layers * tokens * _numbers_in_a_block(spec))
        widest = samples * tokens * max(spec.mlp_width, 4 * spec.width)
        memory = cls.of_weights(spec).bytes + 4.0 * widest
        return cls(products + 2 * pairs * spec.head_width, 2 * pairs, memory, spec.layers)

    @classmethod
    def of_trace(cls, subject: "Subject", metrics: Sequence[str]) -> "Cost":
        """A traced forward pass; singular values and attention matrices dominate the cost."""
        if subject.traced is not None:
            return cls._of_recording(subject, metrics)
        spec, (samples, tokens, width) = subject.network.spec, subject.x.shape
        kinds = Counter(measure.of for measure in choose_measures(metrics))
        matrices = float(samples * spec.layers * spec.heads)
        cost = cls.of_forward(subject)
        if kinds["spectrum"]:
            few, many = sorted((tokens, width))
            cost += cls(products=12.0 * samples * (spec.layers + 1) * many * few**2)
        if kinds["attention"]:
            cost += _matrices(subject, copies=6, times=kinds["attention"])
        for name in CUBIC_METRICS.keys() & set(metrics):
            cost += CUBIC_METRICS[name].times(matrices * tokens**3)
        return cost

    @classmethod
    def _of_recording(cls, subject: "Subject", metrics: Sequence[str]) -> "Cost":
        """The same of a model that is not converted, by the number of its weights."""
        assert subject.traced is not None
        traced, (samples, tokens, width) = subject.traced, subject.x.shape
        weights = float(sum(weight.numel() for weight in traced.model.parameters()))
        layers = len(traced.stack)
        pairs = float(samples * layers * traced.heads) * tokens**2
        cost = cls(weights * samples * tokens, 2 * pairs, 4 * weights, layers)
        kinds = Counter(measure.of for measure in choose_measures(metrics))
        if kinds["spectrum"]:
            few, many = sorted((tokens, width))
            cost += cls(products=12.0 * samples * (layers + 1) * many * few**2)
        return cost + cls(touched=6.0 * kinds["attention"] * pairs)

    @classmethod
    def of_deep_trace(cls, subject: "Subject") -> "Cost":
        """A pass in scaled arithmetic: float64, and several copies of every attention matrix."""
        double = cls(bytes=cls.of_weights(subject.network.spec, 12).bytes)
        return cls.of_forward(subject).times(3) + double + _matrices(subject, copies=12)

    @classmethod
    def of_prediction(cls, subject: "Subject", draws: int, *, gradients: bool = False) -> "Cost":
        """Random networks drawn on the device of the tokens, each run on every sample."""
        spec, (samples, tokens, width) = subject.network.spec, subject.x.shape
        inner, units = spec.heads * spec.head_width, (1 + spec.gated) * spec.mlp_width
        layers = float(draws * samples * spec.layers)
        products = layers * tokens**2 * (7 * inner + 4 * units)
        touched = layers * tokens * (8 * (inner + units) + 6 * spec.heads * tokens)
        widest = tokens * max(inner, units, spec.heads * tokens)
        if gradients:  # in all of the width, and every layer is kept
            products += 4 * layers * tokens * width * (inner + units + tokens)
            touched *= 4
            widest *= spec.layers
        return cls(products, touched, 48.0 * min(draws * samples, 2) * widest)

    @classmethod
    def of_centers(cls, subject: "Subject") -> "Cost":
        """The search for the optimal centers of every layer."""
        samples, tokens, width = subject.x.shape
        return cls(touched=400.0 * samples * subject.network.spec.layers * tokens * width)

    @classmethod
    def lasting(cls, seconds: float) -> "Cost":
        """A cost of which only the duration is known."""
        return cls(touched=seconds * _TOUCHED)


CUBIC_METRICS: Final = {
    "second_singular_value": Cost(products=12.0),
    "dobrushin": Cost(touched=0.25),
}
"""Metrics of attention matrices with cubic cost: the factor of the cubed number of tokens."""


def refuse_unasked(cost: Cost, smaller: str) -> None:
    """Raise if this takes more than a few minutes, or more memory than is available.

    ``smaller`` names the options that reduce the cost.
    """
    too_much = _beyond_memory(cost)
    if too_much:
        raise InputError(f"{too_much}; make it smaller ({smaller}), or say --yes to try.")
    if cost.seconds > _LONG:
        raise InputError(f"this takes {cost}; say --yes to run it, or make it smaller ({smaller}).")


def refuse_impossible(spec: Spec, dtype: torch.dtype) -> None:
    """Raise if the weights of a network alone exceed the available memory."""
    too_much = _beyond_memory(Cost.of_weights(spec, dtype.itemsize))
    if too_much:
        raise InputError(f"{too_much}; make the network smaller (--layers, --width).")


def _beyond_memory(cost: Cost) -> str:
    there = available_memory()
    if there is None or cost.bytes <= _SPARED * there:
        return ""
    return (
        f"this needs about {gigabytes(cost.bytes)} of memory, and {gigabytes(there)} are available"
    )


def _matrices(subject: "Subject", *, copies: int, times: int = 1) -> Cost:
    """Float64 copies of attention matrices, and passes over them."""
    spec, (samples, tokens, _) = subject.network.spec, subject.x.shape
    at_once = max(batch.x.shape[0] for batch in subject.batches())
    matrix = float(spec.heads) * tokens**2
    touched = times * copies * matrix * spec.layers * samples
    return Cost(touched=touched, bytes=8 * copies * matrix * at_once)


def _numbers_in_a_block(spec: Spec) -> int:
    queries, keys = spec.heads * spec.head_width, spec.kv_heads * spec.head_width
    maps = 2 * queries + 2 * keys
    return spec.width * (maps + (3 if spec.gated else 2) * spec.mlp_width)
