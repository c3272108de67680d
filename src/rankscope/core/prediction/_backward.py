"""Norms of gradients by layer: predicted for random networks, and measured by autograd."""

import copy
import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.nn.utils import skip_init

from rankscope.arguments import Seed, checked
from rankscope.core.checks import finite, real
from rankscope.core.network import Block, Network, Projection, Spec, Visibility
from rankscope.core.prediction._coordinates import Coordinates
from rankscope.core.prediction._gradients import Differentiable, Ghosted
from rankscope.core.prediction._layer import Layer
from rankscope.core.prediction._measure import Course
from rankscope.core.prediction._streams import Streams
from rankscope.core.prediction._weights import Weights
from rankscope.core.shapes import PerSample
from rankscope.errors import InputError
from rankscope.streams import stream

_WEIGHTS = {
    "query_gradient": "attention.query",
    "key_gradient": "attention.key",
    "value_gradient": "attention.value",
    "output_gradient": "attention.output",
    "up_gradient": "mlp.up",
    "gate_gradient": "mlp.gate",
    "down_gradient": "mlp.down",
}
GRADIENTS = ("state_gradient", *_WEIGHTS)


@torch.enable_grad()
def predicted_gradients(
    spec: Spec, x: Coordinates, token_mask: Tensor | None, streams: Streams
) -> Course:
    """Norms of the gradients of a random linear function of the last layer, by layer."""
    weights = Weights(spec, streams, torch.float64)
    state = Ghosted(pad(x, (0, spec.width - x.shape[-1])).requires_grad_(), x.shape[-1])
    states, collected = [state.x], []
    layer = Layer.of(spec)
    for at, mask in enumerate(spec.masks):
        removed = frozenset(head for where, head in spec.removed_heads if where == at)
        seen = Visibility.of(mask, x.shape[1], token_mask, x.device)
        parts = Differentiable(weights, seen, removed)
        state, _ = layer.apply(parts, state)
        states.append(state.x)
        collected.append(parts.norms)
    towards = _linear(weights.normal(*state.x.shape[1:]), token_mask)
    gradients = torch.autograd.grad(states[-1], states, towards)
    return _by_layer([_size(each) for each in gradients], collected)


@checked
def measured_gradients(
    network: Network, x: Tensor, *, token_mask: Tensor | None = None, seed: Seed = 0
) -> Course:
    """The same figures of one network by autograd, ``(layer, sample)``, for the same kind of loss.

    >>> import torch
    >>> from rankscope import Network, Spec
    >>> from rankscope.core.prediction import measured_gradients
    >>> found = measured_gradients(Network.random(Spec(2, 2, 8)), torch.randn(1, 5, 8))
    >>> found["query_gradient"].shape
    torch.Size([3, 1])

    Layers that share their weights are taken apart: each layer's own part of the gradient is told.
    """
    with torch.inference_mode(False):
        return _of_samples(network, x, token_mask, seed)


def _of_samples(network: Network, x: Tensor, token_mask: Tensor | None, seed: int) -> Course:
    blocks = cast(list[Block], list(network.double().blocks))
    apart = Network(network.spec, [_with_own_weights(block) for block in blocks])
    x = real(x, name="x", axes="(batch, token, feature)", least=3).double().clone()
    x, token_mask = apart.prepare(x, token_mask)
    finite(x, name="x")
    generator = stream(seed, "gradient", "measured")
    found = []
    for sample in range(len(x)):
        padding = None if token_mask is None else token_mask[sample : sample + 1]
        towards = torch.randn(1, *x.shape[1:], generator=generator, dtype=torch.float64)
        found.append(_measured(apart, x[sample : sample + 1], padding, towards))
    return {name: torch.cat([each[name] for each in found], 1) for name in found[0]}


@torch.enable_grad()
def _measured(network: Network, x: Tensor, token_mask: Tensor | None, towards: Tensor) -> Course:
    start = x.detach().requires_grad_()
    states = [start, *network.states(start, token_mask)]
    beyond = [layer for layer, state in enumerate(states) if not bool(state.isfinite().all())]
    if beyond:
        raise InputError(f"layer {beyond[0]}: the hidden state has overflowed: no gradient.")
    matrices = [_matrices(cast(Block, block)) for block in network.blocks]
    wanted = [*states, *(matrix for layer in matrices for matrix in layer.values())]
    towards = _linear(towards, token_mask)
    gradients = iter(torch.autograd.grad(states[-1], wanted, towards))
    sizes = [_size(next(gradients)) for _ in states]
    collected = [
        {name: torch.linalg.matrix_norm(next(gradients)).reshape(1) for name in layer}
        for layer in matrices
    ]
    return _by_layer(sizes, collected)


def _with_own_weights(block: Block) -> Block:
    """A copy whose matrices are leaves of the graph: those of a model may be parts of others."""
    own = copy.deepcopy(block)
    for where in _WEIGHTS.values():
        part, name = where.split(".")
        old = getattr(getattr(own, part), name, None)
        if old is not None:
            setattr(getattr(own, part), name, _as_linear(old))
    return own


def _as_linear(old: Projection) -> nn.Linear:
    linear: nn.Linear = skip_init(
        nn.Linear, *reversed(old.weight.shape), bias=old.bias is not None, dtype=torch.float64
    )
    with torch.no_grad():
        linear.weight.copy_(old.weight)
        if old.bias is not None:
            linear.bias.copy_(old.bias)
    return linear


def _matrices(block: Block) -> dict[str, Tensor]:
    """The weights of a block whose gradients are told."""
    modules = dict(block.named_modules())
    return {
        metric: cast(Tensor, modules[where].weight)
        for metric, where in _WEIGHTS.items()
        if where in modules
    }


def _linear(towards: Tensor, token_mask: Tensor | None) -> Tensor:
    """The gradient of the loss: a random direction for every token that is not padding."""
    return towards if token_mask is None else torch.where(token_mask.unsqueeze(-1), towards, 0.0)


def _size(gradient: Coordinates) -> PerSample:
    size: Tensor = torch.linalg.vector_norm(gradient, dim=(-2, -1))
    return size


def _by_layer(states: list[PerSample], layers: list[dict[str, PerSample]]) -> Course:
    """Stacked by layer; the input has no weights before it."""
    missing = torch.full_like(states[0], math.nan)
    found = {name: torch.stack([missing, *(each[name] for each in layers)]) for name in layers[0]}
    found["state_gradient"] = torch.stack(states)
    return {metric: found[metric] for metric in GRADIENTS if metric in found}
