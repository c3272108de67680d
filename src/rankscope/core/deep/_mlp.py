"""MLPs on ``1xᵀ + eˢR``: ``φ(a + h) − φ(a)`` without cancellation.

Derived (docs/theory.md, section 5). ``a`` is common to all tokens, so one Taylor polynomial at
``a`` serves them all where h is small; where it is not, the plain difference is exact enough.
Activations are homogeneous far from 1, ``φ(cz) = cφ(z)`` up to rounding for tiny c and for huge c,
so inputs outside the range of floats are moved back into it first.
"""

import math
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from rankscope.arguments import checked
from rankscope.core.deep._scaled_tensor import (
    ScaledTensor,
    bounded_exp,
    expand_like,
    in_units,
    rescale,
    scaled_sum,
    worst,
)
from rankscope.core.deep._split_state import SplitState, apply_linear
from rankscope.core.network import MLP, IdentityMLP, PiecewiseLinear, SelfGated, activation
from rankscope.core.shapes import PerSample
from rankscope.errors import UnsupportedModelError

_RANGE = 300.0
"""Beyond ``e^±300`` an activation is homogeneous to the last digit."""
REACH = 1 / 32
"""Up to steps of this size the series has sixteen digits."""
_TAIL = 40.0
"""Beyond it an activation is zero or the identity in all the digits there are."""


@checked
def apply_mlp(mlp: MLP | IdentityMLP, state: SplitState) -> SplitState:
    """A row-wise MLP applied to a state."""
    if isinstance(mlp, IdentityMLP):
        return state
    up = apply_linear(state, mlp.up.weight, mlp.up.bias)
    if mlp.gate is None:
        hidden = apply_activation(mlp.activation, up)
    else:
        gate = apply_linear(state, mlp.gate.weight, mlp.gate.bias)
        hidden = multiply(apply_activation(mlp.activation, gate), up)
    return apply_linear(hidden, mlp.down.weight, mlp.down.bias).recenter()


@checked
def apply_activation(name: str, state: SplitState) -> SplitState:
    """An activation applied to every entry of a state."""
    unit = state.unit()
    beyond = unit - unit.clamp(-_RANGE, _RANGE)
    a = in_units(state.common, beyond)
    s = state.log_scale - beyond
    h = state.mantissa
    form = activation(name).scaled
    if form is None:
        raise UnsupportedModelError(
            f"the activation {name!r} has no form for scaled arithmetic; use rankscope.trace, "
            "which measures in plain numbers."
        )
    terms = state.log_scale
    if isinstance(form, PiecewiseLinear):
        own = _piecewise_change(form, a, h, s)
        terms = torch.where(own.flatten(1).any(1), terms, -math.inf)  # units that are off are off
    else:
        own = _smooth_change(form, a, h, s)
    return SplitState(
        rescale(form.exact(a), beyond, lost=state.common.lost),
        rescale(own, s + beyond, terms=terms, lost=state.deviation.lost),
        state.token_mask,
    )


def multiply(one: SplitState, other: SplitState) -> SplitState:
    """``(1aᵀ + eˢA) ∘ (1bᵀ + eᵗB) = 1(ab)ᵀ + …``, entry by entry, as a gated MLP needs it."""
    a, b = one.common, other.common
    own, theirs = one.deviation, other.deviation
    rows = [replace(part, mantissa=part.mantissa.unsqueeze(1)) for part in (a, b)]
    products = (_product(own, rows[1]), _product(theirs, rows[0]), _product(own, theirs))
    return SplitState(_product(a, b), scaled_sum(*products), one.token_mask)


def _product(one: ScaledTensor, other: ScaledTensor) -> ScaledTensor:
    log, lost = one.log + other.log, worst(one.lost, other.lost)
    return rescale(one.mantissa * other.mantissa, log, terms=log, lost=lost)


def _smooth_change(
    form: SelfGated,
    a: Float[Tensor, "batch unit"],
    h: Float[Tensor, "batch token unit"],
    s: PerSample,
) -> Float[Tensor, "batch token unit"]:
    """``(φ(a + eˢh) − φ(a)) / eˢ``."""
    size = expand_like(bounded_exp(s), h)
    step = h * size
    # Far from zero an activation's tail changes by a factor where h·a is about 1.
    reach = step.abs() * a.abs().clamp(1.0, _TAIL).unsqueeze(1)
    largest = float(reach.amax())
    terms = [c.unsqueeze(1) for c in form.coefficients(a)]
    order = _order(largest, len(terms) - 1)
    out = terms[order]
    for k in range(order - 1, 0, -1):
        out = torch.addcmul(terms[k], out, step)
    out = out * h
    if largest <= REACH:
        return out
    # φ(z) = relu(z) + φ(−|z|), and the latter is small: a large a takes no digits from the step.
    rest = form.exact(-(a.unsqueeze(1) + step).abs()) - form.exact(-a.abs()).unsqueeze(1)
    plain = _relu_change(a, h, s) + rest / torch.where(size > 0, size, 1.0)
    return torch.where(reach > REACH, plain, out)


def _order(largest: float, most: int) -> int:
    """How many terms sixteen digits take when no step is larger than this."""
    if largest == 0 or not largest < REACH:  # nor is what is no number
        return most
    return min(most, 2 + math.floor(-40 / math.log(largest)))


def _piecewise_change(
    form: PiecewiseLinear,
    a: Float[Tensor, "batch unit"],
    h: Float[Tensor, "batch token unit"],
    s: PerSample,
) -> Float[Tensor, "batch token unit"]:
    """The same for ``φ(z) = left·z + (right − left)·relu(z)``."""
    bent = _relu_change(a, h, s)
    if (form.left, form.right) == (0.0, 1.0):
        return bent
    return form.left * h + (form.right - form.left) * bent


def _relu_change(
    a: Float[Tensor, "batch unit"], h: Float[Tensor, "batch token unit"], s: PerSample
) -> Float[Tensor, "batch token unit"]:
    """``(relu(a + eˢh) − relu(a)) / eˢ``, exactly: in units of eˢ the kink is at ``−a/eˢ``."""
    kink = (-a.unsqueeze(1)) / expand_like(
        bounded_exp(s), h
    )  # infinite, of the right sign, if eˢ is nothing
    kink = torch.where(a.unsqueeze(1) == 0, 0.0, kink)
    return torch.where(kink < 0, torch.maximum(h, kink), (h - kink).clamp(min=0.0))
