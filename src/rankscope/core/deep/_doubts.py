"""The first layer from which a residual is in doubt, found by rounding at random.

Two steps, because the second takes as long as the computation itself. While a network runs, every
sum records how many digits it may have lost (``ScaledTensor.lost``): a few in ordinary networks,
and then nothing more is done. Samples that lose more are run again under ``RandomRounding``, and
the change of their logarithms is the effect of rounding.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rankscope.core.deep._run import later_states
from rankscope.core.deep._scaled_tensor import cancelled
from rankscope.core.deep._split_state import SplitState
from rankscope.core.metrics import Center, Norm
from rankscope.core.network import Block, Network
from rankscope.core.shapes import Hidden, PerSample
from rankscope.errors import RankscopeError
from rankscope.streams import stream

Logarithms = Float[Tensor, "2 batch"]
PerLayer = Float[Tensor, "layer batch"]

SUSPICIOUS = 4 * math.log(10)
"""Ordinary networks lose one digit in a sum; a logarithm accurate to 1e-6 may lose nine."""
MOVED = 1e-7
"""How far random rounding may move a logarithm; relative if it is above 1."""
_RUNS = 2
_DEEP = 16
"""In more layers than this, errors may grow without cancellation; a run beside one sample shows it.
"""
_STEP = 1e-10
_GROWN = 1e-4
"""A step of ``_STEP`` that grows to ``_GROWN`` moves the last digit to about the tenth."""
_ULP = 2.0**-52
_DRAWN = 1 << 16
"""Random numbers drawn at once."""
_SUMMED = {
    "mm": 0,
    "bmm": 0,
    "addmm": 1,
    "baddbmm": 1,
    "sum": 0,
    "mean": 0,
    "cumsum": 0,
    "addcmul": 1,
}
"""The error of a sum is the rounding of its terms, which may be far larger than the sum. The value
is the argument that holds the terms."""
_ROUNDED = {
    *_SUMMED,
    *("add", "sub", "rsub", "mul", "div", "reciprocal", "square", "pow", "sqrt", "rsqrt"),
    *("exp", "expm1", "_softmax", "log", "log1p", "logaddexp", "_log_softmax"),
    *("erfc", "sigmoid", "tanh", "linalg_vector_norm"),
}


@dataclass(frozen=True)
class Measurement:
    """How residuals are measured: the norm, the center and the tokens that count."""

    norm: Norm = "composite"
    center: Center = "mean"
    measured: Bool[Tensor, "batch token"] | None = None

    def logarithms(self, state: SplitState) -> Logarithms:
        """``log ‖res(X)‖`` and ``log ‖X‖``."""
        if self.measured is not None:
            state = replace(state, token_mask=self.measured.to(state.device))
        log_norm = state.log_norm(norm=self.norm)
        return torch.stack([state.log_residual(norm=self.norm, center=self.center), log_norm])

    def of(self, samples: Tensor) -> "Measurement":
        """The same measurement for some of the samples."""
        return self if self.measured is None else replace(self, measured=self.measured[samples])

    def with_one_more(self, of: Int[Tensor, "1"]) -> "Measurement":
        """The same measurement for all samples, with one of them repeated."""
        if self.measured is None:
            return self
        return replace(self, measured=torch.cat([self.measured, self.measured[of]]))


class Beside(NamedTuple):
    """A perturbed copy of one sample, run beside all samples."""

    of: Int[Tensor, "1"]
    """The index of the perturbed sample."""
    state: SplitState


def step_away(network: Network, start: SplitState, logs: Logarithms) -> Beside | None:
    """A small perturbation of one sample, if the network is so deep that errors may grow unseen."""
    if network.spec.layers <= _DEEP:
        return None
    sample = logs[0].argmax().reshape(1)  # equal tokens, whose residual is smallest, stay equal
    state = start.select(sample)
    away = torch.randn(state.mantissa.shape, generator=stream(0, "a step away")).to(state.mantissa)
    away = state.mantissa * (1 + _STEP * away)
    return Beside(
        sample, replace(state, deviation=replace(state.deviation, mantissa=away)).recenter()
    )


class Notes:
    """Records of the states of a run, kept on their device until they are read."""

    def __init__(self) -> None:
        self._rows: list[Float[Tensor, "6 batch"]] = []
        self._beside: list[Float[Tensor, "2 1"]] = []

    def add(self, state: SplitState, logs: Logarithms) -> None:
        """Record a layer; ``logs`` may have one more sample, that of a ``Beside``."""
        batch = len(state.mantissa)
        lost = [
            torch.as_tensor(part.lost, dtype=logs.dtype, device=logs.device).expand(batch)
            for part in (state.common, state.deviation)
        ]
        # Beyond: a residual that is not zero and yet has no logarithm in float64.
        beyond = state.log_scale.isneginf() & state.mantissa.flatten(1).any(1)
        self._rows.append(
            torch.stack([*logs[:, :batch], state.log_scale, *lost, beyond.to(logs.dtype)])
        )
        if logs.shape[1] > batch:
            self._beside.append(logs[:, batch:])

    def read(self) -> "LayerRecords":
        """Read all records, in one transfer if they are on one device."""
        rows = _on_host(self._rows)
        scale, common_lost, lost, beyond = rows[:, 2:].unbind(1)
        beside = _on_host(self._beside) if self._beside else None
        return LayerRecords(rows[:, :2], scale, common_lost, lost, beyond, beside)


def _on_host(rows: list[Tensor]) -> Tensor:
    if len({row.device for row in rows}) > 1:  # a model may be spread over several devices
        rows = [row.cpu() for row in rows]
    return torch.stack(rows).cpu()


class LayerRecords(NamedTuple):
    """The records of every layer; the input comes first."""

    clean: Float[Tensor, "layer 2 batch"]
    """The logarithms without random rounding."""
    scale: PerLayer
    common_lost: PerLayer
    lost: PerLayer
    beyond: PerLayer
    beside: Float[Tensor, "later 2 1"] | None
    """The logarithms of the perturbed sample, from layer 1 on."""

    def may_be_lost(self) -> Bool[Tensor, "batch"]:
        """Whether a residual may have too few digits, judging by the sums."""
        # The measured tokens may agree to more digits than all tokens do.
        fewer = cancelled(self.scale, self.clean[:, 0])
        lost = torch.maximum(torch.maximum(self.common_lost, self.lost), fewer)
        return (lost > SUSPICIOUS).any(0)

    def first_vanished(self, network: Network) -> PerSample:
        """The first layer in which tokens are equal by underflow although they differed before.

        A softmax gives every key some weight, so queries that differ give tokens that differ, if
        only by e^−1000. A sparse score can give all its weight to one key.
        """
        equal = self.scale.isneginf() & (self.beyond == 0)
        if all(cast(Block, block).attention.scores.sparse for block in network.blocks):
            equal = equal & (self.lost == math.inf)
        equal[1:] &= ~self.clean[:-1, 0].isneginf()
        equal[0] = False
        return _first(equal)

    def grew(self, of: Int[Tensor, "1"]) -> bool:
        """Whether a small perturbation of one sample grew by more than a million."""
        assert self.beside is not None
        return bool((_apart(self.beside, self.clean[1:, :, of.cpu()], dim=1) > _GROWN).any())


def first_layers_in_doubt(
    network: Network,
    x: Hidden,
    start: SplitState,
    measurement: Measurement,
    read: LayerRecords,
    beside: Beside | None,
) -> PerSample:
    """The first layer in doubt for each sample; infinite if there is none.

    ``x`` is the input, which is exact, and ``start`` is the same input as a state.
    """
    suspects = read.may_be_lost()
    if beside is not None and read.grew(beside.of):
        suspects = torch.ones_like(suspects)
    first = torch.full((len(suspects),), math.inf, dtype=torch.float64)
    chosen = suspects.nonzero().flatten()
    if len(chosen):
        several = chosen.repeat(_RUNS)
        mask = None if start.token_mask is None else start.token_mask[several]
        again = measurement.of(several)
        moved = _moved(network, x[several], mask, again, read.clean[..., chosen])
        first[chosen] = _first(moved > MOVED)
    # Tokens equal in every layer are equal by symmetry, which random rounding breaks.
    equal = read.scale[0].isneginf() & read.clean[:, 0].isneginf().all(0)
    return torch.minimum(torch.where(equal, math.inf, first), read.first_vanished(network))


def _moved(
    network: Network,
    x: Float[Tensor, "run_of_sample token feature"],
    token_mask: Bool[Tensor, "run_of_sample token"] | None,
    measurement: Measurement,
    clean: Float[Tensor, "layer 2 batch"],
) -> Float[Tensor, "layer batch"]:
    """The largest change of each layer's logarithms over several randomly rounded runs.

    Layers after the first layer in doubt of every sample are skipped.
    """
    moved = torch.zeros(len(clean), clean.shape[-1], dtype=torch.float64)
    layer = 0
    try:
        with RandomRounding(stream(0, "rounding of scaled arithmetic")):
            # The mean of the tokens is rounded, too; small features have few digits next to it.
            start = SplitState.of(x, token_mask)
            for layer, state in chain([(0, start)], later_states(network, start)):
                now = measurement.logarithms(state).cpu().unflatten(1, (_RUNS, -1))
                moved[layer] = _apart(now, clean[layer].unsqueeze(1)).amax(0)
                if bool((moved > MOVED).any(0).all()):
                    break  # only the first layer in doubt is needed
    except RankscopeError:  # at the limit of what can be computed
        moved[layer + 1 :] = math.inf
    return moved


def _apart(moved: Tensor, reference: Tensor, *, dim: int = 0) -> Tensor:
    """The larger of the two differences along an axis; relative if a logarithm is above 1."""
    apart = (moved - reference).abs() / reference.abs().clamp(min=1)
    return torch.where(moved == reference, 0.0, apart.nan_to_num(math.inf)).amax(dim)


def _first(layers: Bool[Tensor, "layer batch"]) -> PerSample:
    """The first layer for which the condition is true, by sample; infinite if there is none."""
    first = layers.to(torch.uint8).argmax(0).double()
    return torch.where(layers.any(0), first, math.inf)


class RandomRounding(TorchDispatchMode):
    """A context in which float64 results are off by up to one unit in the last place.

    >>> from rankscope.core.deep._doubts import RandomRounding
    >>> from rankscope.streams import stream
    >>> one = torch.ones(3, dtype=torch.float64)
    >>> with RandomRounding(stream(0, "rounding")):
    ...     third = one / 3
    >>> bool((third != 1 / 3).any()), bool(torch.allclose(third, one / 3, rtol=1e-15))
    (True, True)

    Discrete stochastic arithmetic (Vignes 1993: CESTAC): digits of an outcome that move are made of
    rounding, wherever they were lost. Selections, comparisons and copies round nothing.
    """

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._generator = generator
        self._factors = torch.empty(0, dtype=torch.float64)
        self._used = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here; a wrapper around every operation would cost 20% more time."""
        return False

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name, in_place = _spelled(func)
        if name not in _ROUNDED:
            return func(*args, **(kwargs or {}))
        if name in _SUMMED:
            args = [*args]
            args[_SUMMED[name]] = self._round(args[_SUMMED[name]])
        terms = [args[0].clone(), *args[1:]] if in_place else args
        out = func(*args, **(kwargs or {}))
        if not isinstance(out, Tensor) or out.dtype != torch.float64:
            return out
        exact = _is_exact(name, terms, out)
        rounded = self._round(out)
        if exact is not False:
            rounded = out if exact is True else torch.where(exact, out, rounded)
        return out.copy_(rounded) if in_place else rounded

    def _round(self, value: Tensor) -> Tensor:
        """The value times one plus or minus at most one ulp, using the next random numbers.

        Random numbers are drawn many at a time because operations are small.
        """
        if value.dtype != torch.float64:
            return value
        count = value.numel()
        if self._used + count > len(self._factors):
            drawn = torch.rand(max(_DRAWN, count), generator=self._generator, dtype=torch.float64)
            fresh = 1 + _ULP * (2 * drawn - 1)
            self._factors = torch.cat([self._factors[self._used :], fresh])
            self._used = 0
        factors = self._factors[self._used : self._used + count].view(value.shape)
        self._used += count
        return value * factors.to(value.device)


@cache
def _spelled(func: Callable[..., Any]) -> tuple[str, bool]:
    """The name of an operation, and whether it works in place."""
    spelled: str = func.overloadpacket.__name__  # type: ignore[attr-defined]
    name = spelled.removesuffix("_")
    return name, spelled != name


def _is_exact(name: str, terms: Sequence[Any], out: Tensor) -> Tensor | bool:
    """Where an operation does not round, as in the difference of equal numbers."""
    if name in ("add", "sub"):
        left, right = (torch.as_tensor(term, dtype=out.dtype) for term in terms[:2])
        part = out - left  # Knuth's TwoSum: the rounding error of the sum
        rest = right - part if name == "add" else -(right + part)
        return (left - (out - part)) + rest == 0
    if name in ("mul", "div"):
        exact = _is_power_of_two(terms[1], out)
        if name == "div" or exact is True:
            return exact
        return exact | _is_power_of_two(terms[0], out)
    return False


def _is_power_of_two(value: Any, like: Tensor) -> Tensor | bool:
    if isinstance(value, int | float):
        return abs(math.frexp(value)[0]) == 0.5
    return torch.frexp(torch.as_tensor(value, dtype=like.dtype)).mantissa.abs() == 0.5
