"""A network frozen at one input: with everything that depends on the input fixed, it is linear.

Derived (docs/theory.md, section 3): norms keep their scale, attention keeps ``P``, an MLP keeps the
gate ``φ(z)/z``, a gated MLP keeps ``φ(W_g h)``. What is left maps streams to streams linearly,
``linear``; the biases on the way are sources, and ``affine`` adds them.

Streams are stacked: ``(stream, batch, token, feature)``, all moved by one matrix product.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import linear

from rankscope.core.network import MLP, Attention
from rankscope.core.shapes import Hidden

Streams = Float[Tensor, "stream batch token feature"]
Longer = Float[Tensor, "longer batch token feature"]
Flow = Float[Tensor, "*stream batch token feature"]
Begun = Float[Tensor, "stream batch token inner"]
"""Something a branch has made of streams, up to the matrix that comes last."""
Kind = Literal["attention", "mlp"]


@dataclass(frozen=True)
class FrozenNorm:
    """``factor ∘ (x − mean) + bias``: gain times scale, frozen; no factor is the identity."""

    factor: Float[Tensor, "batch token #feature"] | None
    centered: bool = False
    bias: Tensor | None = None

    def linear(self, streams: Flow) -> Flow:
        if self.factor is None:
            return streams
        if self.centered:
            return (streams - streams.mean(-1, keepdim=True)).mul_(self.factor)
        return streams * self.factor

    def linear_(self, streams: Flow) -> None:
        """The same in place."""
        if self.factor is not None:
            if self.centered:
                streams.sub_(streams.mean(-1, keepdim=True))
            streams.mul_(self.factor)

    def affine(self, streams: Flow) -> Flow:
        out = self.linear(streams)
        return out if self.bias is None else out + self.bias


@dataclass(frozen=True)
class FrozenAttention:
    """``Σ_h P_h X W_h`` with the attention matrices frozen; silent heads have none."""

    attention: Attention
    pattern: Float[Tensor, "batch head query key"]

    @property
    def last(self) -> Tensor:
        """The matrix that comes last."""
        return self.attention.output.weight

    def until_last(self, streams: Streams) -> Begun:
        """All of it but the last matrix."""
        return self._mix(linear(streams, self.attention.value.weight))

    def linear(self, streams: Streams) -> Streams:
        return linear(self.until_last(streams), self.last)

    def affine(self, streams: Streams) -> Streams:
        """Value biases pass through attention as the values do."""
        module = self.attention
        values = linear(streams, module.value.weight, module.value.bias)
        return linear(self._mix(values), module.output.weight, module.output.bias)

    def heads(self, stream: Hidden, *, biased: bool = False) -> Float[Tensor, "head b t f"]:
        """Each head's own output ``P_h X W_h`` for one stream."""
        module = self.attention
        values = linear(stream, module.value.weight, module.value.bias if biased else None)
        mixed = self._mix(values.unsqueeze(0)).squeeze(0)
        parts = mixed.unflatten(-1, (module.heads, -1))  # batch token head width
        weight = module.output.weight.unflatten(-1, (module.heads, -1))  # feature head width
        each: Tensor = torch.einsum("bthw,fhw->hbtf", parts, weight)
        return each

    def _mix(
        self, values: Float[Tensor, "stream batch token value"]
    ) -> Float[Tensor, "stream batch token mixed"]:
        """``P_h`` applied to every stream's values at once, heads side by side.

        Streams are laid into the feature axis, so that one product per head serves them all, and
        grouped heads into the query axis, so that values are never repeated.
        """
        groups, count = self.attention.kv_heads, len(values)
        split = values.unflatten(-1, (groups, -1)).permute(1, 3, 2, 0, 4)  # b g t stream w
        laid = split.flatten(3)
        pattern = self.pattern.unflatten(1, (groups, -1)).flatten(2, 3)  # b g (head query) key
        mixed = (pattern @ laid).unflatten(2, (-1, values.shape[2]))  # b g head query (stream w)
        mixed = mixed.unflatten(-1, (count, -1))  # b g head query stream w
        side_by_side: Tensor = mixed.permute(4, 0, 3, 1, 2, 5).flatten(3)
        return side_by_side


@dataclass(frozen=True)
class FrozenMLP:
    """``W₂ (gate ∘ W₁X)`` with the gate of each token and unit frozen."""

    mlp: MLP
    gate: Float[Tensor, "batch token unit"]

    @property
    def last(self) -> Tensor:
        """The matrix that comes last."""
        return self.mlp.down.weight

    def until_last(self, streams: Streams) -> Begun:
        """All of it but the last matrix."""
        return linear(streams, self.mlp.up.weight).mul_(self.gate)

    def linear(self, streams: Streams) -> Streams:
        return linear(self.until_last(streams), self.last)

    def affine(self, streams: Streams) -> Streams:
        up, down = self.mlp.up, self.mlp.down
        hidden = linear(streams, up.weight, up.bias).mul_(self.gate)
        return linear(hidden, down.weight, down.bias)


@dataclass(frozen=True)
class FrozenIdentity:
    """The identity in an MLP's place is linear as it is."""

    last: None = None

    def until_last(self, streams: Streams) -> Begun:
        return streams

    def linear(self, streams: Streams) -> Streams:
        return streams

    def affine(self, streams: Streams) -> Streams:
        return streams


FrozenPart = FrozenAttention | FrozenMLP | FrozenIdentity


@dataclass(frozen=True)
class FrozenBranch:
    """A part between its norms, frozen."""

    kind: Kind
    before: FrozenNorm
    part: FrozenPart
    inside: FrozenNorm

    def linear(self, streams: Streams) -> Streams:
        return self.inside.linear(self.part.linear(self.before.linear(streams)))

    def affine(self, streams: Streams) -> Streams:
        return self.inside.affine(self.part.affine(self.before.affine(streams)))

    def begin(self, streams: Streams) -> Begun:
        """``linear`` up to what ``finish`` can do while adding: all of it, or all but a matrix."""
        if self._ends_in_matrix:
            return self.part.until_last(self.before.linear(streams))
        out = self.linear(streams)
        return out.clone() if out.data_ptr() == streams.data_ptr() else out

    def finish(self, begun: Begun, total: Streams) -> None:
        """``total += linear(streams)``: a product that adds writes no result of its own."""
        if self._ends_in_matrix:
            assert self.part.last is not None
            total.flatten(0, -2).addmm_(begun.flatten(0, -2), self.part.last.T)
        else:
            total.add_(begun)

    @property
    def _ends_in_matrix(self) -> bool:
        return self.inside.factor is None and self.part.last is not None


@dataclass(frozen=True)
class FrozenStep:
    """One step of a block, frozen: branches side by side, the skip around them, the norm after.

    ``layer`` counts from 1; ``closes`` says whether this is the layer's last step; ``state`` is the
    network's own hidden state after it.
    """

    layer: int
    closes: bool
    branches: tuple[FrozenBranch, ...]
    skip: float
    after: FrozenNorm
    state: Hidden

    def affine(self, streams: Streams) -> Streams:
        """The whole step with its biases."""
        total = self.skip * streams
        for branch in self.branches:
            total = total + branch.affine(streams)
        return self.after.affine(total)

    def linear(self, streams: Streams) -> Streams:
        """The whole step without its biases."""
        total = self.skip * streams
        for branch in self.branches:
            total = total + branch.linear(streams)
        return self.after.linear(total)
