"""Gradients of random networks: the way back through weights drawn only where they are looked at.

A gradient may point anywhere in the stream, so here a state has all ``width`` coordinates: first
those the tokens are known in, then as many zeros, which have gradients all the same. Where the
chain rule asks for a matrix in directions the tokens never had, it is as fresh as any other, and
is drawn then: ``∂Q Wᵀ`` has the known part ``∂Q Zᵀ`` and, beside it, normal rows with the inner
products of ``∂Q``. So gradients are exact in law, too, as far as weights are normal.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from rankscope.core.network import Attention, Spec, Stack, Visibility, activation
from rankscope.core.prediction._coordinates import Coordinates, triangular
from rankscope.core.prediction._plain import apply_rule, random_attention, rule_of
from rankscope.core.prediction._weights import Weights
from rankscope.core.shapes import PerSample

Note = Callable[[PerSample], None]


class Ghosted(NamedTuple):
    """Tokens in all coordinates, of which only the first ``known`` are not zero."""

    x: Coordinates
    known: int


class _FromStream(Function):
    """``XW`` for W drawn in the known coordinates; ``beside`` draws ``∂W`` in the others."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, matrix: Tensor, beside: Callable[[Tensor], Tensor], note: Note
    ) -> Tensor:
        known = x[..., : matrix.shape[-2]]
        ctx.save_for_backward(known, matrix)
        ctx.beside, ctx.note = beside, note
        return known @ matrix

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        known, matrix = ctx.saved_tensors
        ctx.note(torch.linalg.matrix_norm(known.mT @ grad))
        return torch.cat((grad @ matrix.mT, ctx.beside(triangular(grad))), -1), None, None, None


class _IntoStream(Function):
    """``AW`` for W drawn on the directions A has; ``aside`` draws ``∂Wᵀ`` in the others."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        draw: Callable[[int], Tensor],
        aside: Callable[[Tensor], Tensor],
        width: int,
        note: Note,
    ) -> Tensor:
        basis, factor = torch.linalg.qr(rows.mT)
        matrix = draw(basis.shape[-1])
        ctx.save_for_backward(basis, factor, matrix)
        ctx.aside, ctx.note = aside, note
        out = factor.mT @ matrix
        return torch.nn.functional.pad(out, (0, width - out.shape[-1]))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        basis, factor, matrix = ctx.saved_tensors
        ctx.note(torch.linalg.matrix_norm(factor @ grad))
        inside = grad[..., : matrix.shape[-1]] @ matrix.mT @ basis.mT
        aside = ctx.aside(triangular(grad))
        return inside + aside - aside @ basis @ basis.mT, None, None, None, None


@dataclass(frozen=True)
class Differentiable:
    """The parts of a block on tokens with gradients; ``norms`` collects those of the weights."""

    weights: Weights
    visibility: Visibility
    removed: frozenset[int]
    norms: dict[str, PerSample] = field(default_factory=dict)

    @property
    def spec(self) -> Spec:
        """What the networks are made of."""
        return self.weights.spec

    def columns(self, state: Ghosted) -> int:
        return state.known

    def norm(self, state: Ghosted) -> Ghosted:
        rule = rule_of(self.spec)
        return (
            state
            if rule is None
            else Ghosted(apply_rule(rule, state.x, self.spec.width), state.known)
        )

    def attention(self, state: Ghosted) -> tuple[Ghosted, PerSample]:
        heads = self._watched(random_attention(self.weights, state.known, self.removed))
        values = heads.split(heads.value(state.x), heads.kv_heads)
        rows = heads.join(heads.mixing(state.x, self.visibility) @ values)
        return Ghosted(rows, rows.shape[-1]), torch.full(rows.shape[:1], torch.nan)

    def hidden(self, state: Ghosted) -> Ghosted:
        phi = activation(self.spec.activation).function
        up = self._units(state, "up")
        rows = phi(self._units(state, "gate")) * up if self.spec.gated else phi(up)
        return Ghosted(rows, rows.shape[-1])

    def into_stream(self, rows: Ghosted, known: int, *, value: bool) -> Ghosted:
        inputs, width = rows.x.shape[-1], self.spec.width
        deviation = self.weights.deviation(inputs, width, value=value)

        def draw(directions: int) -> Tensor:
            return self.weights.into_stream(directions, inputs, known, value=value)

        def aside(factor: Tensor) -> Tensor:
            return deviation * factor @ self.weights.normal(factor.shape[-1], inputs)

        out: Tensor = _IntoStream.apply(  # type: ignore[no-untyped-call]
            rows.x, draw, aside, width, self._note("output" if value else "down")
        )
        # As many new coordinates as A has directions, as far as there are any left.
        return Ghosted(out, min(width, known + min(rows.x.shape[1], inputs)))

    def add(self, skip: float, state: Ghosted, branches: list[Ghosted]) -> Ghosted:
        total = torch.stack([branch.x for branch in branches]).sum(0)
        known = max(branch.known for branch in [*branches, state])
        return Ghosted(total + skip * state.x if skip else total, known)

    def compress(self, state: Ghosted) -> Ghosted:
        """Turned so that the tokens need no more coordinates than there are tokens, and one."""
        x, known = state
        tokens = x.shape[1]
        if known - 1 <= tokens:
            return state
        rest = x[..., 1:known]
        turn = torch.linalg.qr(rest.detach().mT, mode="complete").Q
        return Ghosted(torch.cat((x[..., :1], rest @ turn, x[..., known:]), -1), tokens + 1)

    def _units(self, state: Ghosted, name: str) -> Tensor:
        matrix = self.weights.from_stream(state.known, self.spec.mlp_width)
        return self._from_stream(name, state.x, matrix)

    def _watched(self, heads: Attention) -> Attention:
        """The same attention, whose queries, keys and values tell their gradients."""
        for name in ("query", "key", "value"):
            setattr(heads, name, _Watched(getattr(heads, name).weight, self, name))
        return heads

    def _from_stream(self, name: str, x: Tensor, matrix: Tensor) -> Tensor:
        known, outputs = matrix.shape[-2:]
        deviation = self.weights.deviation(self.spec.width, outputs, value=name == "value")

        def beside(factor: Tensor) -> Tensor:
            return (
                deviation * factor @ self.weights.normal(factor.shape[-1], self.spec.width - known)
            )

        out: Tensor = _FromStream.apply(  # type: ignore[no-untyped-call]
            x, matrix, beside, self._note(name)
        )
        return out

    def _note(self, name: str) -> Note:
        return lambda norm: self.norms.update({f"{name}_gradient": norm})


class _Watched(Stack):
    """A matrix from the stream whose gradient is told."""

    def __init__(self, weight: Tensor, parts: Differentiable, name: str) -> None:
        super().__init__(weight)
        self._parts, self._name = parts, name

    def forward(self, x: Tensor) -> Tensor:
        return self._parts._from_stream(self._name, x, self.weight.mT)
