"""Gradients of random networks: backpropagation through weights drawn only where needed.

A gradient may point anywhere in the stream, so here a state has all ``width`` coordinates: first
those of the tokens, then zeros, which have gradients as well. Where the chain rule needs a matrix
in directions that no token used, it is drawn then: ``∂Q Wᵀ`` consists of the known part ``∂Q Zᵀ``
and normal rows with the inner products of ``∂Q``. So gradients are exact in distribution for normal
weights.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import pad

from rankscope.arguments import Seed, checked
from rankscope.core.checks import finite, real
from rankscope.core.network import (
    Block,
    MatrixName,
    Network,
    Spec,
    Stack,
    Visibility,
    activation,
    make_linear,
)
from rankscope.core.prediction._arithmetic import Arithmetic
from rankscope.core.prediction._draws import Coordinates, Course, DrawnWeights, Streams, triangular
from rankscope.core.shapes import PerSample
from rankscope.errors import InputError, UnsupportedModelError
from rankscope.streams import stream


class Ghosted(NamedTuple):
    """Tokens in all coordinates; only the first ``known`` are nonzero."""

    x: Coordinates
    known: int


class _FromStream(Function):
    """``XW`` for W drawn in the known coordinates; the backward pass draws the others."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Tensor, parts: "Differentiable", name: str) -> Tensor:
        known = x[..., : matrix.shape[-2]]
        ctx.save_for_backward(known, matrix)
        ctx.parts, ctx.name = parts, name
        return known @ matrix

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        known, matrix = ctx.saved_tensors
        parts, factor = ctx.parts, triangular(grad)
        parts.norms[f"{ctx.name}_gradient"] = torch.linalg.matrix_norm(known.mT @ grad)
        width, (seen, outputs) = parts.spec.width, matrix.shape[-2:]
        deviation = parts.spec.init.deviation(ctx.name, width, outputs)
        beside = deviation * factor @ parts.weights.normal(factor.shape[-1], width - seen)
        return torch.cat((grad @ matrix.mT, beside), -1), None, None, None


class _IntoStream(Function):
    """``AW`` for W drawn in the directions of A; the backward pass draws the others."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, known: int, parts: "Differentiable", name: MatrixName
    ) -> Tensor:
        basis, factor = torch.linalg.qr(rows.mT)
        inputs, directions = basis.shape[-2:]
        matrix = parts.weights.into_stream(name, directions, inputs, known)
        ctx.save_for_backward(basis, factor, matrix)
        ctx.parts, ctx.name = parts, name
        out = factor.mT @ matrix
        return pad(out, (0, parts.spec.width - out.shape[-1]))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        basis, factor, matrix = ctx.saved_tensors
        parts, inputs, short = ctx.parts, basis.shape[-2], triangular(grad)
        parts.norms[f"{ctx.name}_gradient"] = torch.linalg.matrix_norm(factor @ grad)
        inside = grad[..., : matrix.shape[-1]] @ matrix.mT @ basis.mT
        deviation = parts.spec.init.deviation(ctx.name, inputs, parts.spec.width)
        aside = deviation * short @ parts.weights.normal(short.shape[-1], inputs)
        return inside + aside - aside @ basis @ basis.mT, None, None, None


@dataclass(frozen=True)
class Differentiable(Arithmetic[Ghosted]):
    """The parts of a block on tokens with gradients; ``norms`` collects those of the weights."""

    norms: dict[str, PerSample] = field(default_factory=dict)

    def columns(self, state: Ghosted) -> int:
        return state.known

    def norm(self, state: Ghosted) -> Ghosted:
        return Ghosted(self.normalise(state.x), state.known)

    def attention(self, state: Ghosted) -> tuple[Ghosted, PerSample]:
        heads = self.heads(state.known)
        for name in ("query", "key", "value"):  # the same, but their gradients are recorded
            setattr(heads, name, _Watched(getattr(heads, name).weight, self, name))
        values = heads.split(heads.value(state.x), heads.kv_heads)
        rows = heads.join(heads.mixing(state.x, self.visibility) @ values)
        return Ghosted(rows, rows.shape[-1]), torch.full(rows.shape[:1], torch.nan)

    def hidden(self, state: Ghosted) -> Ghosted:
        def units(name: MatrixName) -> Tensor:
            matrix = self.weights.from_stream(name, state.known, self.spec.mlp_width)
            out: Tensor = _FromStream.apply(state.x, matrix, self, name)  # type: ignore[no-untyped-call]
            return out

        phi = activation(self.spec.activation).function
        up = units("up")
        rows = phi(units("gate")) * up if self.spec.gated else phi(up)
        return Ghosted(rows, rows.shape[-1])

    def into_stream(self, matrix: MatrixName, rows: Ghosted, known: int) -> Ghosted:
        out: Tensor = _IntoStream.apply(rows.x, known, self, matrix)  # type: ignore[no-untyped-call]
        # As many new coordinates as A has directions, if that many are left.
        return Ghosted(out, min(self.spec.width, known + min(rows.x.shape[-2:])))

    def add(self, skip: float, state: Ghosted, branches: list[Ghosted]) -> Ghosted:
        total = torch.stack([branch.x for branch in branches]).sum(0)
        known = max(branch.known for branch in [*branches, state])
        return Ghosted(total + skip * state.x if skip else total, known)

    def compress(self, state: Ghosted) -> Ghosted:
        """Rotate so that the tokens need at most as many coordinates as tokens, plus one."""
        x, known = state
        tokens = x.shape[1]
        if known - 1 <= tokens:
            return state
        rest = x[..., 1:known]
        turn = torch.linalg.qr(rest.detach().mT, mode="complete").Q
        return Ghosted(torch.cat((x[..., :1], rest @ turn, x[..., known:]), -1), tokens + 1)


class _Watched(Stack):
    """A matrix from the stream whose gradient is recorded."""

    def __init__(self, weight: Tensor, parts: Differentiable, name: str) -> None:
        super().__init__(weight)
        self._parts, self._name = parts, name

    def forward(self, x: Tensor) -> Tensor:
        arguments = (x, self.weight.mT, self._parts, self._name)
        out: Tensor = _FromStream.apply(*arguments)  # type: ignore[no-untyped-call]
        return out


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
    weights = DrawnWeights(spec, streams, torch.float64)
    state = Ghosted(pad(x, (0, spec.width - x.shape[-1])).requires_grad_(), x.shape[-1])
    states, collected = [state.x], []
    for at, mask in enumerate(spec.masks):
        removed = frozenset(head for where, head in spec.removed_heads if where == at)
        seen = Visibility.of(mask, x.shape[1], token_mask, x.device)
        parts = Differentiable(weights, seen, removed)
        state, _ = parts.layer(state)
        states.append(state.x)
        collected.append(parts.norms)
    towards = _linear(weights.normal(*state.x.shape[1:]), token_mask)
    gradients = torch.autograd.grad(states[-1], states, towards)
    return _by_layer(gradients, collected)


@checked
@torch.inference_mode(False)
def measured_gradients(
    network: Network, x: Tensor, *, token_mask: Tensor | None = None, seed: Seed = 0
) -> Course:
    """Norms of the gradients of one network by autograd, ``(layer, sample)``, for the same loss.

    >>> import torch
    >>> from rankscope import Network, Spec
    >>> from rankscope.core.prediction import measured_gradients
    >>> gradients = measured_gradients(Network.random(Spec(2, 2, 8)), torch.randn(1, 5, 8))
    >>> gradients["query_gradient"].shape
    torch.Size([3, 1])

    Layers that share weights are separated: each layer has its own part of the gradient.
    """
    blocks = cast(list[Block], list(network.double().blocks))
    apart = Network(network.spec, [_with_own_weights(block) for block in blocks])
    x = real(x, name="x", axes="(batch, token, feature)", least=3).double().clone()
    x, token_mask = apart.prepare(x, token_mask)
    finite(x, name="x")
    generator = stream(seed, "gradient", "measured")
    by_sample = []
    for sample in range(len(x)):
        padding = None if token_mask is None else token_mask[sample : sample + 1]
        towards = torch.randn(1, *x.shape[1:], generator=generator, dtype=torch.float64)
        by_sample.append(_measured(apart, x[sample : sample + 1], padding, towards))
    return {
        name: torch.cat([gradients[name] for gradients in by_sample], 1) for name in by_sample[0]
    }


@torch.enable_grad()
def _measured(network: Network, x: Tensor, token_mask: Tensor | None, towards: Tensor) -> Course:
    start = x.detach().requires_grad_()
    states = [start, *network.states(start, token_mask)]
    beyond = [layer for layer, state in enumerate(states) if not bool(state.isfinite().all())]
    if beyond:
        raise InputError(f"layer {beyond[0]}: the hidden state has overflowed: no gradient.")
    matrices = [
        {
            name: cast(Tensor, parts[where].weight)
            for name, where in _WEIGHTS.items()
            if where in parts
        }
        for parts in (dict(block.named_modules()) for block in network.blocks)
    ]
    wanted = [*states, *(matrix for layer in matrices for matrix in layer.values())]
    gradients = torch.autograd.grad(states[-1], wanted, _linear(towards, token_mask))
    of_weights = iter(gradients[len(states) :])
    collected = [
        {name: torch.linalg.matrix_norm(next(of_weights)).reshape(1) for name in layer}
        for layer in matrices
    ]
    return _by_layer(gradients[: len(states)], collected)


def _with_own_weights(block: Block) -> Block:
    """A copy whose matrices are leaves of the autograd graph; those of a model may be views."""
    if block.attention.latent:
        raise UnsupportedModelError(
            "gradients are not measured for attention with latent projections: their matrices "
            "have a norm between them."
        )
    twin = copy.deepcopy(block)
    for where in _WEIGHTS.values():
        part, name = where.split(".")
        old = getattr(getattr(twin, part), name, None)
        if old is not None:
            bias = None if old.bias is None else old.bias.double()
            setattr(getattr(twin, part), name, make_linear(old.weight.double(), bias))
    return twin


def _linear(towards: Tensor, token_mask: Tensor | None) -> Tensor:
    """The gradient of the loss: a random direction for every token that is not padding."""
    return towards if token_mask is None else torch.where(token_mask.unsqueeze(-1), towards, 0.0)


def _by_layer(states: Sequence[Coordinates], layers: list[dict[str, PerSample]]) -> Course:
    """Norms of the gradients of states and weights by layer; the input has no weights."""
    sizes = [torch.linalg.vector_norm(gradient, dim=(-2, -1)) for gradient in states]
    missing = torch.full_like(sizes[0], math.nan)
    norms = {name: torch.stack([missing, *(layer[name] for layer in layers)]) for name in layers[0]}
    norms["state_gradient"] = torch.stack(sizes)
    return {metric: norms[metric] for metric in GRADIENTS if metric in norms}
