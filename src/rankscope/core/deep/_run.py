"""A network run in scaled arithmetic, layer by layer."""

import math
from collections import defaultdict
from collections.abc import Iterator

import torch
from torch import Tensor

from rankscope.arguments import checked
from rankscope.core.deep._attention import attend
from rankscope.core.deep._mlp import apply_mlp
from rankscope.core.deep._norms import apply_norm
from rankscope.core.deep._scaled_tensor import ScaledTensor
from rankscope.core.deep._split_state import SplitState, add_states
from rankscope.core.network import Attention, Block, Branch, Network, Step, Visibility
from rankscope.errors import InputError, KindError, RankscopeError, UnsupportedModelError


@checked
def deep_states(
    network: Network, x: Tensor, token_mask: Tensor | None = None
) -> Iterator[tuple[int, SplitState]]:
    """Each layer's number and its hidden state as ``1xᵀ + eˢR``; layer 0 is the input.

    Float64 throughout: a network in another precision is converted, its weights being treated as
    exact, and itself left unchanged.
    """
    network, x, token_mask = prepare(network, x, token_mask)
    state = SplitState.of(x.detach(), token_mask)
    yield 0, state
    yield from later_states(network, state)


def later_states(network: Network, state: SplitState) -> Iterator[tuple[int, SplitState]]:
    """What each layer of a float64 network makes of a state, from layer 1 on."""
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
    """One block applied to a state: the steps of ``rankscope.core.network.block``, part by part."""
    for step in block.steps:
        state = _step(step, state, seen)
    return state


def _step(step: Step, state: SplitState, seen: Visibility) -> SplitState:
    if not step.skip and any(getattr(branch.part, "centered", False) for branch in step.branches):
        raise UnsupportedModelError(
            "scaled arithmetic does not follow centred attention without a skip: what all queries "
            "gather is then a difference of weights that agree to more digits than there are."
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
    """A state on another device; a model may be spread over several."""
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
        raise KindError("the network or its input is on the meta device, which holds no numbers.")
    return network, *network.prepare(x, token_mask)


def _have_finite_biases(network: Network) -> bool:
    """Whether all biases are numbers, with one question to each device."""
    rows: dict[torch.device, list[Tensor]] = defaultdict(list)
    for parameter in network.parameters():
        if parameter.ndim == 1:
            rows[parameter.device].append(parameter.detach())
    return all(bool(torch.cat(some).isfinite().all()) for some in rows.values())


def _check_biases(block: Block, layer: int) -> None:
    """A bias of keys drops out of every softmax, so that no state would show what is wrong."""
    for name, parameter in block.named_parameters():
        if parameter.ndim == 1 and not bool(parameter.isfinite().all()):
            raise InputError(f"layer {layer}: the weights {name} are not finite.")


def _check(state: SplitState, block: Block, layer: int) -> None:
    """Raise, naming the layer, where a state has overflowed."""
    # An entry that is infinite or NaN has made its logarithm so too.
    if bool((torch.maximum(state.common.log, state.log_scale) < math.inf).all()):
        return
    weights = dict(block.named_parameters())
    bad = [name for name, weight in weights.items() if not bool(weight.isfinite().all())]
    if bad:
        raise InputError(f"layer {layer}: the weights {bad[0]} are not finite.")
    raise InputError(
        f"layer {layer}: the hidden state has overflowed; make the weights smaller, or add a norm."
    )
