"""A network run in scaled arithmetic: what each layer, attention and MLP make of ``1xᵀ + eˢR``.

Derived (docs/theory.md, section 5). ``P`` is row-stochastic, so ``P(1xᵀ + eˢR) = 1xᵀ + eˢPR``, and
with ``P = 1qᵀ + e^λΔ`` the output of attention is

    ``1(x + eˢRᵀq)ᵀ W + e^{s+λ} ΔRW``.

For plain scores and one support λ is ``2s``: that is the cubic step. Where queries see different
keys, or the scores depend on the pair of positions, λ is about 0 and the step is linear.

MLPs need ``φ(a + h) − φ(a)`` without cancellation. ``a`` is common to all tokens, so one Taylor
polynomial at ``a`` serves them all where h is small; where it is not, the plain difference is exact
enough. Activations are homogeneous far from 1, ``φ(cz) = cφ(z)`` up to rounding for tiny c and for
huge c, so inputs outside the range of floats are moved back into it first.
"""

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from rankscope.arguments import checked
from rankscope.core.deep._norms import apply_norm
from rankscope.core.deep._scaled_tensor import (
    ScaledTensor,
    bounded_exp,
    expand_like,
    in_units,
    log_of_longest,
    rescale,
    scaled_sum,
    worst,
)
from rankscope.core.deep._scores import split_attention
from rankscope.core.deep._split_attention import SplitAttention, common_support, first_query
from rankscope.core.deep._split_state import (
    SplitState,
    add_states,
    apply_linear,
    apply_linear_to_common,
    log_typical_output,
    map_rows,
)
from rankscope.core.network import (
    MLP,
    Attention,
    BareMLP,
    Block,
    Branch,
    Network,
    PiecewiseLinear,
    SelfGated,
    Squared,
    Step,
    Visibility,
    activation,
)
from rankscope.core.shapes import PerSample
from rankscope.errors import InputError, KindError, RankscopeError, UnsupportedModelError

_RANGE = 300.0
"""Beyond ``e^±300`` an activation is homogeneous to all digits."""
REACH = 1 / 32
"""Up to steps of this size the series has sixteen digits."""
_TAIL = 40.0
"""Beyond this an activation is zero or the identity to all digits."""


@checked
def deep_states(
    network: Network, x: Tensor, token_mask: Tensor | None = None
) -> Iterator[tuple[int, SplitState]]:
    """Each layer's number and its hidden state as ``1xᵀ + eˢR``; layer 0 is the input.

    >>> import torch
    >>> from rankscope import Network, Spec
    >>> from rankscope.core.deep import deep_states
    >>> san = Network.random(Spec.pure_attention(3, 1, 4), seed=0)
    >>> states = deep_states(san, torch.eye(4)[None])
    >>> [round(float(state.log_residual())) for _, state in states]
    [0, -15, -61, -200]

    Float64 throughout: a network in another precision is converted, its weights being treated as
    exact, and itself left unchanged.
    """
    network, x, token_mask = prepare(network, x, token_mask)
    state = SplitState.of(x.detach(), token_mask)
    yield 0, state
    yield from later_states(network, state)


def later_states(network: Network, state: SplitState) -> Iterator[tuple[int, SplitState]]:
    """The states after each layer of a float64 network, from layer 1 on."""
    tokens, biased = state.mantissa.shape[1], _have_finite_biases(network)
    for layer, (block, seen) in enumerate(
        network.sighted_blocks(tokens, state.token_mask), start=1
    ):
        if not biased:
            _check_biases(block, layer)
        try:
            state = apply_block(block, move_to(state, block.device), seen)
        except RankscopeError as error:
            raise type(error)(f"layer {layer}: {error}") from error
        _check(state, block, layer)
        yield layer, state


@torch.no_grad()
def apply_block(block: Block, state: SplitState, seen: Visibility) -> SplitState:
    """Apply one block to a state: the steps of ``rankscope.core.network.block``, part by part."""
    for step in block.steps:
        state = _step(step, state, seen)
    return state


def _step(step: Step, state: SplitState, seen: Visibility) -> SplitState:
    if not step.skip and any(getattr(branch.part, "centered", False) for branch in step.branches):
        raise UnsupportedModelError(
            "scaled arithmetic does not support centred attention without a skip: its outputs are "
            "differences of weights that agree to all digits of float64."
        )
    outputs = [_branch(branch, state, seen) for branch in step.branches]
    if step.skip:
        outputs.insert(0, state.times(step.skip))
    return apply_norm(step.after, outputs[0] if len(outputs) == 1 else add_states(*outputs))


def _branch(branch: Branch, state: SplitState, seen: Visibility) -> SplitState:
    state = apply_norm(branch.before, state)
    if isinstance(branch.part, Attention):
        state = attend(branch.part, state, seen)
    else:
        state = apply_mlp(branch.part, state)
    return apply_norm(branch.inside, state)


def move_to(state: SplitState, device: torch.device) -> SplitState:
    """Move a state to another device; a model may be spread over several."""
    if state.mantissa.device == device:
        return state

    def to(part: ScaledTensor) -> ScaledTensor:
        lost = part.lost.to(device) if isinstance(part.lost, Tensor) else part.lost
        return ScaledTensor(part.mantissa.to(device), part.log.to(device), lost)

    mask = None if state.token_mask is None else state.token_mask.to(device)
    return SplitState(to(state.common), to(state.deviation), mask)


def prepare(
    network: Network, x: Tensor, token_mask: Tensor | None
) -> tuple[Network, Tensor, Tensor | None]:
    """Network and input in float64, the input and its mask by sample."""
    if not isinstance(network, Network):
        raise KindError(
            f"network is a {type(network).__name__}, expected a rankscope Network; "
            "a model becomes one with rankscope.load(model).network."
        )
    if isinstance(x, Tensor) and x.is_floating_point():
        x = x.double()
    if any(parameter.dtype != torch.float64 for parameter in network.parameters()):
        network = network.double()
    network.check(x)
    if x.is_meta or any(parameter.is_meta for parameter in network.parameters()):
        raise KindError("the network or its input is on the meta device, which holds no data.")
    return network, *network.prepare(x, token_mask)


def _have_finite_biases(network: Network) -> bool:
    """Whether all biases are finite, with one GPU synchronisation per device."""
    rows: dict[torch.device, list[Tensor]] = defaultdict(list)
    for parameter in network.parameters():
        if parameter.ndim == 1:
            rows[parameter.device].append(parameter.detach())
    return all(bool(torch.cat(some).isfinite().all()) for some in rows.values())


def _check_biases(block: Block, layer: int) -> None:
    """Check key biases: they cancel in every softmax, so no state would show a fault."""
    for name, parameter in block.named_parameters():
        if parameter.ndim == 1 and not bool(parameter.isfinite().all()):
            raise InputError(f"layer {layer}: the weights {name} are not finite.")


def _check(state: SplitState, block: Block, layer: int) -> None:
    """Raise if a state has overflowed; the error names the layer."""
    # An infinite or NaN entry makes the logarithm infinite or NaN, too.
    if bool((torch.maximum(state.common.log, state.log_scale) < math.inf).all()):
        return
    weights = dict(block.named_parameters())
    bad = [name for name, weight in weights.items() if not bool(weight.isfinite().all())]
    if bad:
        raise InputError(f"layer {layer}: the weights {bad[0]} are not finite.")
    raise InputError(
        f"layer {layer}: the hidden state has overflowed; use smaller weights or add a norm."
    )


class MixedHeads(NamedTuple):
    """The outputs of all heads: the part of each token, and the part common to all tokens."""

    deviation: ScaledTensor  # batch token inner
    passed: ScaledTensor
    """The common row of the values, which attention weights do not change."""
    moved: ScaledTensor
    """The deviations of the values, averaged with the weights common to all queries."""

    def state(self, token_mask: Tensor | None) -> SplitState:
        """Both parts as a state, before the output projection."""
        return SplitState(
            scaled_sum(self.passed, self.moved), self.deviation, token_mask
        ).recenter()


@checked
def attend(attention: Attention, state: SplitState, visibility: Visibility) -> SplitState:
    """Apply one attention sublayer to a state.

    >>> import torch
    >>> from rankscope import Network, Spec, masks
    >>> from rankscope.core.deep import SplitState, attend
    >>> from rankscope.core.network import Visibility
    >>> attention = Network.random(Spec(1, 2, 4), seed=0).double().blocks[0].attention
    >>> x = torch.eye(4, dtype=torch.float64)[None]
    >>> seen = Visibility.of(masks.Causal(), 4, None, x.device)
    >>> torch.allclose(attend(attention, SplitState.of(x), seen).tensor(), attention(x, seen))
    True
    """
    if attention.gate is not None or attention.latent:
        part = "latent projections" if attention.gate is None else "gates on its output"
        raise UnsupportedModelError(
            f"scaled arithmetic does not support attention with {part}; use rankscope.trace or "
            "rankscope.path_lengths."
        )
    output = attention.output.weight
    size = log_typical_output(output)
    weights = split_attention(attention, state, visibility)
    mixed = mix_heads(attention, state, weights, visibility)
    passed = apply_linear_to_common(mixed.passed, output, attention.output.bias, size)
    common = scaled_sum(passed, map_rows(mixed.moved, output, size))
    deviation = map_rows(mixed.deviation, output, size)
    return SplitState(common, deviation, state.token_mask).recenter()


def mix_heads(
    attention: Attention, state: SplitState, weights: SplitAttention, visibility: Visibility
) -> MixedHeads:
    """``P_h X W_V,h`` of all heads; the common part is ``(x + eˢRᵀq) W``. Removed heads give zero.

    The rows of centred attention sum to zero, so x drops out.
    """
    if attention.centered:
        weights = _center(weights, state, visibility)
    value = attention.value
    values = apply_linear(state, value.weight, value.bias)
    split = attention.split(values.mantissa, attention.kv_heads)
    deviation = rescale(
        attention.join(weights.delta @ split),
        values.log_scale + weights.log,
        terms=values.log_scale + weights.log + log_of_longest(weights.delta),
        lost=worst(values.deviation.lost, weights.lost),
    )
    row = values.common.mantissa.unsqueeze(1)
    common_heads = attention.split(row * 0.0 if attention.centered else row, attention.kv_heads)
    passed = rescale(
        attention.join(common_heads).squeeze(1), values.common.log, lost=values.common.lost
    )
    shift = attention.join(weights.shared @ split).squeeze(1)
    terms = values.log_scale if attention.centered else None
    lost = values.deviation.lost
    moved = rescale(shift, values.log_scale, terms=terms, lost=lost)
    return MixedHeads(deviation, passed, moved)


def _center(weights: SplitAttention, state: SplitState, visibility: Visibility) -> SplitAttention:
    """Subtract the uniform weights over the keys that each query sees."""
    uniform = visibility.uniform(weights.shared.dtype)
    _, several = common_support(visibility, state)
    if not several:
        return replace(weights, shared=weights.shared - first_query(uniform, state))
    mean = uniform.mean(-2, keepdim=True)
    delta = weights.delta * expand_like(bounded_exp(weights.log), weights.delta) - (uniform - mean)
    return replace(weights, shared=weights.shared - mean, delta=delta, log=weights.log * 0.0)


@checked
def apply_mlp(mlp: MLP | BareMLP, state: SplitState) -> SplitState:
    """Apply a row-wise MLP to a state.

    >>> import torch
    >>> from rankscope import Network, Spec
    >>> from rankscope.core.deep import SplitState, apply_mlp
    >>> mlp = Network.random(Spec(1, 2, 4), seed=0).double().blocks[0].mlp
    >>> state = SplitState.of(torch.eye(4, dtype=torch.float64)[None])
    >>> torch.allclose(apply_mlp(mlp, state).tensor(), mlp(state.tensor(), None))
    True
    """
    if isinstance(mlp, BareMLP):
        phi = mlp.activation
        return state if phi is None else apply_activation(phi, state).recenter()
    if mlp.router is not None:
        raise UnsupportedModelError(
            "scaled arithmetic does not support mixtures of experts; use rankscope.trace or "
            "rankscope.path_lengths."
        )
    up = apply_linear(state, mlp.up.weight, mlp.up.bias)
    if mlp.gate is None:
        hidden = apply_activation(mlp.activation, up)
    else:
        gate = apply_linear(state, mlp.gate.weight, mlp.gate.bias)
        hidden = multiply(apply_activation(mlp.activation, gate), up)
    return apply_linear(hidden, mlp.down.weight, mlp.down.bias).recenter()


@checked
def apply_activation(name: str, state: SplitState) -> SplitState:
    """Apply an activation to every entry of a state.

    >>> import torch
    >>> from rankscope.core.deep import SplitState, apply_activation
    >>> x = torch.tensor([[[1.0, -2.0], [3.0, 4.0]]], dtype=torch.float64)
    >>> torch.allclose(apply_activation("relu", SplitState.of(x)).tensor(), x.relu())
    True
    """
    form = activation(name).scaled
    if isinstance(form, Squared):
        root = apply_activation(form.of, state)
        return multiply(root, root)
    unit = state.unit()
    beyond = unit - unit.clamp(-_RANGE, _RANGE)
    a = in_units(state.common, beyond)
    s = state.log_scale - beyond
    h = state.mantissa
    if form is None:
        raise UnsupportedModelError(
            f"scaled arithmetic does not support the activation {name!r}; use rankscope.trace."
        )
    terms = state.log_scale
    if isinstance(form, PiecewiseLinear):
        deviation = _piecewise_change(form, a, h, s)
        terms = torch.where(
            deviation.flatten(1).any(1), terms, -math.inf
        )  # units that are off are off
    else:
        deviation = _smooth_change(form, a, h, s)
    return SplitState(
        rescale(form.exact(a), beyond, lost=state.common.lost),
        rescale(deviation, s + beyond, terms=terms, lost=state.deviation.lost),
        state.token_mask,
    )


def multiply(left: SplitState, right: SplitState) -> SplitState:
    """``(1aᵀ + eˢA) ∘ (1bᵀ + eᵗB) = 1(ab)ᵀ + …``, entry by entry, as a gated MLP needs it."""
    a, b = left.common, right.common
    deviation, theirs = left.deviation, right.deviation
    rows = [replace(part, mantissa=part.mantissa.unsqueeze(1)) for part in (a, b)]
    products = (
        _product(deviation, rows[1]),
        _product(theirs, rows[0]),
        _product(deviation, theirs),
    )
    return SplitState(_product(a, b), scaled_sum(*products), left.token_mask)


def _product(left: ScaledTensor, right: ScaledTensor) -> ScaledTensor:
    log, lost = left.log + right.log, worst(left.lost, right.lost)
    return rescale(left.mantissa * right.mantissa, log, terms=log, lost=lost)


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
    largest = float(reach.detach().amax())
    terms = [c.unsqueeze(1) for c in form.coefficients(a)]
    order = _order(largest, len(terms) - 1)
    out = terms[order]
    for k in range(order - 1, 0, -1):
        out = torch.addcmul(terms[k], out, step)
    out = out * h
    if largest <= REACH:
        return out
    # φ(z) = relu(z) + φ(−|z|), and the latter is small, so a large a costs the step no digits.
    rest = form.exact(-(a.unsqueeze(1) + step).abs()) - form.exact(-a.abs()).unsqueeze(1)
    plain = _relu_change(a, h, s) + rest / torch.where(size > 0, size, 1.0)
    return torch.where(reach > REACH, plain, out)


def _order(largest: float, most: int) -> int:
    """The number of terms needed for sixteen digits if no step is larger than this."""
    if largest == 0 or not largest < REACH:  # nor is what is no number
        return most
    return min(most, 2 + math.floor(-40 / math.log(largest)))


def _piecewise_change(
    form: PiecewiseLinear,
    a: Float[Tensor, "batch unit"],
    h: Float[Tensor, "batch token unit"],
    s: PerSample,
) -> Float[Tensor, "batch token unit"]:
    """``_smooth_change`` for ``φ(z) = left·z + (right − left)·relu(z)``."""
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
    )  # infinite, with the right sign, if eˢ underflows
    kink = torch.where(a.unsqueeze(1) == 0, 0.0, kink)
    return torch.where(kink < 0, torch.maximum(h, kink), (h - kink).clamp(min=0.0))
