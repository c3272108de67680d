"""From which layer on a residual is in doubt: rounding is made random, and what moves was lost.

Two steps, because measuring takes as long as computing. While a network runs, every sum notes how
many digits it may have lost (``ScaledTensor.lost``): a few in ordinary networks, and then nothing
more is done. Samples in which it is more are run again under random rounding
(``_random_rounding.py``), and what their logarithms then differ by is what rounding makes of them.
"""

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rankscope.deep._random_rounding import RandomRounding
from rankscope.deep._run import deep_states
from rankscope.deep._scaled_tensor import cancelled, worst
from rankscope.deep._split_state import SplitState
from rankscope.errors import RankscopeError
from rankscope.metrics import Center, Norm
from rankscope.network import Network
from rankscope.shapes import PerSample
from rankscope.streams import stream

Logarithms = Float[Tensor, "2 batch"]

SUSPICIOUS = 4 * math.log(10)
"""Ordinary networks lose one digit in a sum; a logarithm good to 1e-6 may lose nine."""
MOVED = 1e-7
"""How far random rounding may move a logarithm, relative where it is above 1."""
_RUNS = 2
_DEEP = 16
"""In more layers than this errors may grow without any sum that cancels; one sample shows it."""
_GROWN = 1e-9


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


def may_be_lost(state: SplitState, found: Logarithms) -> Bool[Tensor, "batch"]:
    """Whether the residual of a state may have too few digits, as far as its sums tell."""
    # The tokens that count may agree to more digits than all of them do.
    lost = worst(cancelled(state.log_scale, found[0]), state.common.lost, state.deviation.lost)
    return torch.as_tensor(lost) > SUSPICIOUS


def first_doubtful_layers(
    network: Network,
    x: Tensor,
    token_mask: Tensor | None,
    measurement: Measurement,
    clean: Float[Tensor, "layer 2 batch"],
    suspects: Bool[Tensor, "batch"],
) -> PerSample:
    """For each sample the first layer whose logarithms rounding moves; infinite if there is none.

    ``clean`` is what they are without.
    """
    first = torch.full((len(x),), math.inf, dtype=torch.float64)
    suspects = suspects.clone()
    if network.spec.layers > _DEEP:
        suspects[0] = True
    grown = False
    while bool(suspects.any()):
        chosen = suspects.nonzero().flatten()
        mask = None if token_mask is None else token_mask[chosen]
        moved = _moved(network, x[chosen], mask, measurement.of(chosen), clean[..., chosen])
        first[chosen] = _first_above(moved, MOVED)
        if grown or network.spec.layers <= _DEEP or not bool((moved[:, 0] > _GROWN).any()):
            break
        grown = True  # then look at the others, too
        suspects = ~suspects
    return first


def _moved(
    network: Network,
    x: Tensor,
    token_mask: Tensor | None,
    measurement: Measurement,
    clean: Float[Tensor, "layer 2 batch"],
) -> Float[Tensor, "layer batch"]:
    """By how much random rounding moves each layer's logarithms, the most of some runs."""
    most = torch.zeros(len(clean), len(x), dtype=torch.float64)
    for run in range(_RUNS):
        states = deep_states(network, x, token_mask)
        layer, _ = next(states)  # the input is what it is
        try:
            with RandomRounding(stream(run, "rounding of scaled arithmetic")):
                for layer, state in states:
                    now = measurement.logarithms(state).cpu()
                    most[layer] = torch.maximum(most[layer], _apart(now, clean[layer]))
        except RankscopeError:  # at the edge of what can be computed at all
            most[layer + 1 :] = math.inf
    return most


def _apart(one: Logarithms, other: Logarithms) -> PerSample:
    """The larger of the two differences, relative where a logarithm is above 1."""
    apart = (one - other).abs() / other.abs().clamp(min=1)
    return torch.where(one == other, 0.0, apart.nan_to_num(math.inf)).amax(0)


def _first_above(moved: Float[Tensor, "layer batch"], limit: float) -> PerSample:
    above = moved > limit
    first = above.to(torch.uint8).argmax(0).double()
    return torch.where(above.any(0), first, math.inf)
