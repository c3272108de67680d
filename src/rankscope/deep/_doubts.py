"""From which layer on a residual is in doubt: rounding is made random, and what moves was lost.

Two steps, because measuring takes as long as computing. While a network runs, every sum notes how
many digits it may have lost (``ScaledTensor.lost``): a few in ordinary networks, and then nothing
more is done. Samples in which it is more are run again under random rounding
(``_random_rounding.py``), and what their logarithms then differ by is what rounding makes of them.
"""

import math
from dataclasses import dataclass, replace
from itertools import chain

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rankscope.deep._random_rounding import RandomRounding
from rankscope.deep._run import later_states
from rankscope.deep._scaled_tensor import cancelled, worst
from rankscope.deep._split_state import SplitState
from rankscope.errors import RankscopeError
from rankscope.metrics import Center, Norm
from rankscope.network import Network, Sparsemax
from rankscope.shapes import Hidden, PerSample
from rankscope.streams import stream

Logarithms = Float[Tensor, "2 batch"]

SUSPICIOUS = 4 * math.log(10)
"""Ordinary networks lose one digit in a sum; a logarithm good to 1e-6 may lose nine."""
MOVED = 1e-7
"""How far random rounding may move a logarithm, relative where it is above 1."""
_RUNS = 2
_DEEP = 16
"""In more layers than this errors may grow without any sum that cancels; one sample shows it."""
_STEP = 1e-10
_GROWN = 1e-4
"""A step so long becomes so long where the last digit becomes about the tenth."""


@dataclass(frozen=True)
class Measurement:
    """How residuals are taken: the norm, what is subtracted before, the tokens that count."""

    norm: Norm = "composite"
    center: Center = "mean"
    measured: Bool[Tensor, "batch token"] | None = None

    def logarithms(self, state: SplitState) -> Logarithms:
        """``log ‖res(X)‖`` and ``log ‖X‖``."""
        if self.measured is not None:
            state = replace(state, token_mask=self.measured.to(state.device))
        whole = state.log_norm(norm=self.norm)
        return torch.stack([state.log_residual(norm=self.norm, center=self.center), whole])

    def of(self, samples: Tensor) -> "Measurement":
        """The same for some of the samples."""
        return self if self.measured is None else replace(self, measured=self.measured[samples])


class Doubts:
    """What speaks against a run's logarithms: noted state by state, looked into at the end."""

    def __init__(self, network: Network, start: SplitState, found: Logarithms) -> None:
        self._network, self._start = network, start
        self._suspects = _may_be_lost(start, found)
        self._vanished = torch.full(found.shape[-1:], math.inf, dtype=torch.float64)

    def look_at(
        self, state: SplitState, layer: int, found: Logarithms, *, before: Logarithms
    ) -> None:
        """Note what a layer's state and logarithms say, beside the logarithms before it."""
        self._suspects |= _may_be_lost(state, found)
        gone = _has_vanished(state, before, self._network)
        self._vanished = torch.where(gone, self._vanished.clamp(max=layer), self._vanished)

    def first_layers(
        self, x: Hidden, measurement: Measurement, clean: Float[Tensor, "layer 2 batch"]
    ) -> PerSample:
        """For each sample the first layer in doubt; infinite if there is none.

        ``x`` is the input, which is exact, and ``clean`` what the logarithms are without random
        rounding.
        """
        moved = _first_moved_layers(
            self._network, x, self._start, measurement, clean, self._suspects
        )
        # Tokens that are equal from first to last are so by symmetry, which random rounding breaks.
        equal = self._start.log_scale.isneginf().cpu() & clean[:, 0].isneginf().all(0)
        return torch.minimum(torch.where(equal, math.inf, moved), self._vanished)


def _may_be_lost(state: SplitState, found: Logarithms) -> Bool[Tensor, "batch"]:
    """Whether the residual of a state may have too few digits, as far as its sums tell."""
    # The tokens that count may agree to more digits than all of them do.
    fewer = cancelled(state.log_scale.cpu(), found[0])
    each = (state.common.lost, state.deviation.lost)
    return (
        torch.as_tensor(worst(fewer, *(torch.as_tensor(lost).cpu() for lost in each))) > SUSPICIOUS
    )


def _has_vanished(state: SplitState, before: Logarithms, network: Network) -> Bool[Tensor, "batch"]:
    """Whether tokens have become equal by underflow: before this layer they were not.

    A softmax gives every key some weight, so that queries that differ leave tokens that do, if only
    by e^−1000. Sparsemax gives all its weight to one key and means it.
    """
    equal = state.log_scale.isneginf().cpu() & ~is_beyond(state).cpu() & ~before[0].isneginf()
    if isinstance(network.spec.scores, Sparsemax):
        return equal & (torch.as_tensor(state.deviation.lost).cpu() == math.inf)
    return equal


def is_beyond(state: SplitState) -> Bool[Tensor, "batch"]:
    """Whether a residual is not zero and yet has no logarithm in float64."""
    return state.log_scale.isneginf() & state.mantissa.flatten(1).any(1)


def _first_moved_layers(
    network: Network,
    x: Hidden,
    start: SplitState,
    measurement: Measurement,
    clean: Float[Tensor, "layer 2 batch"],
    suspects: Bool[Tensor, "batch"],
) -> PerSample:
    """For each sample the first layer whose logarithms rounding moves; infinite if there is none.

    ``start`` is the input ``x`` as a state.
    """
    first = torch.full((clean.shape[-1],), math.inf, dtype=torch.float64)
    if network.spec.layers > _DEEP and not bool(suspects.all()):
        suspects = suspects | _errors_grow(network, start, measurement, clean)
    chosen = suspects.nonzero().flatten()
    if len(chosen):
        again = measurement.of(chosen.repeat(_RUNS))
        several = chosen.repeat(_RUNS)
        mask = None if start.token_mask is None else start.token_mask[several]
        moved = _moved(network, x[several], mask, again, clean[..., chosen])
        first[chosen] = _first_above(moved, MOVED)
    return first


def _errors_grow(
    network: Network,
    start: SplitState,
    measurement: Measurement,
    clean: Float[Tensor, "layer 2 batch"],
) -> bool:
    """Whether a small step away from one sample grows by more than a million."""
    one = clean[0, 0].argmax().reshape(1)  # equal tokens, whose residual is least, stay equal
    state, measurement = start.select(one), measurement.of(one)
    away = torch.randn(state.mantissa.shape, generator=stream(0, "a step away")).to(state.mantissa)
    away = state.mantissa * (1 + _STEP * away)
    state = replace(state, deviation=replace(state.deviation, mantissa=away)).recenter()
    return any(
        bool((_apart(measurement.logarithms(later).cpu(), clean[layer, :, one]) > _GROWN).any())
        for layer, later in later_states(network, state)
    )


def _moved(
    network: Network,
    x: Float[Tensor, "run_of_sample token feature"],
    token_mask: Bool[Tensor, "run_of_sample token"] | None,
    measurement: Measurement,
    clean: Float[Tensor, "layer 2 batch"],
) -> Float[Tensor, "layer batch"]:
    """By how much random rounding moves each layer's logarithms, the most of some runs."""
    moved = torch.zeros(len(clean), clean.shape[-1], dtype=torch.float64)
    layer = 0
    try:
        with RandomRounding(stream(0, "rounding of scaled arithmetic")):
            # Already the tokens' mean is rounded, beside which small features have few digits.
            start = SplitState.of(x, token_mask)
            for layer, state in chain([(0, start)], later_states(network, start)):
                now = measurement.logarithms(state).cpu().unflatten(1, (_RUNS, -1))
                moved[layer] = _apart(now, clean[layer].unsqueeze(1)).amax(0)
    except RankscopeError:  # at the edge of what can be computed at all
        moved[layer + 1 :] = math.inf
    return moved


def _apart(
    one: Float[Tensor, "2 *run batch"], other: Float[Tensor, "2 *#run batch"]
) -> Float[Tensor, "*run batch"]:
    """The larger of the two differences, relative where a logarithm is above 1."""
    apart = (one - other).abs() / other.abs().clamp(min=1)
    return torch.where(one == other, 0.0, apart.nan_to_num(math.inf)).amax(0)


def _first_above(moved: Float[Tensor, "layer batch"], limit: float) -> PerSample:
    above = moved > limit
    first = above.to(torch.uint8).argmax(0).double()
    return torch.where(above.any(0), first, math.inf)
