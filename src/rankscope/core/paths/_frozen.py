"""A network frozen at one input: with everything that depends on the input fixed, it is linear.

Derived (docs/theory.md, section 3): norms keep their scale, attention keeps ``P``, an MLP keeps the
gate ``φ(z)/z``, a gated MLP keeps ``φ(W_g h)``. What is left maps streams to streams linearly;
the biases on the way are sources, added where ``biased``.

Streams are stacked: ``(stream, batch, token, feature)``, all moved by one matrix product.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear

from rankscope.core.checks import finite
from rankscope.core.network import (
    MLP,
    Attention,
    Branch,
    Latent,
    Network,
    Projection,
    Step,
    Visibility,
    activation,
    make_linear,
    norm_rule,
)
from rankscope.core.shapes import Hidden
from rankscope.core.weights import named_tensors, not_finite
from rankscope.errors import InputError, KindError, UnsupportedModelError

Streams = Float[Tensor, "stream batch token feature"]
Longer = Float[Tensor, "longer batch token feature"]
Flow = Float[Tensor, "*stream batch token feature"]
Begun = Float[Tensor, "stream batch token inner"]
"""The output of a branch for each stream, before its last matrix."""
Kind = Literal["attention", "mlp"]


@dataclass(frozen=True)
class FrozenNorm:
    """``factor ∘ (x − mean) + bias``: gain times scale, frozen; without a factor the identity."""

    factor: Float[Tensor, "batch token #feature"] | None
    centered: bool = False
    bias: Tensor | None = None

    def __call__(self, streams: Flow, *, biased: bool = False) -> Flow:
        if self.factor is None:
            return streams
        if self.centered:
            out = (streams - streams.mean(-1, keepdim=True)).mul_(self.factor)
        else:
            out = streams * self.factor
        return out + self.bias if biased and self.bias is not None else out

    def apply_(self, streams: Flow) -> None:
        """Apply in place, without the bias."""
        if self.factor is not None:
            if self.centered:
                streams.sub_(streams.mean(-1, keepdim=True))
            streams.mul_(self.factor)


class _EndsInMatrix(ABC):
    """A part whose ``last`` matrix can be multiplied and accumulated in one call."""

    last: Projection

    @abstractmethod
    def until_last(self, streams: Streams, *, biased: bool = False) -> Begun: ...

    def __call__(self, streams: Streams, *, biased: bool = False) -> Streams:
        bias = self.last.bias if biased else None
        return linear(self.until_last(streams, biased=biased), self.last.weight, bias)


class FrozenAttention(_EndsInMatrix):
    """``Σ_h P_h X W_h`` with the attention matrices frozen; removed heads have none.

    ``gates`` are the frozen factors of the heads' outputs, where attention has a gate;
    ``latent_norm`` is the frozen norm inside values, where there is one.
    """

    def __init__(
        self,
        attention: Attention,
        pattern: Float[Tensor, "batch head query key"],
        gates: Float[Tensor, "batch token inner"] | None = None,
        latent_norm: FrozenNorm | None = None,
    ) -> None:
        self.attention, self.pattern, self.last = attention, pattern, attention.output
        self.gates, self.latent_norm = gates, latent_norm

    def values(self, streams: Streams, *, biased: bool = False) -> Begun:
        """The values of all heads side by side."""
        value = self.attention.value
        if not isinstance(value, Latent):
            return linear(streams, value.weight, value.bias if biased else None)
        assert self.latent_norm is not None
        down, up = value.down, value.up
        latent = linear(streams, down.weight, down.bias if biased else None)
        latent = self.latent_norm(latent, biased=biased)
        return linear(latent, up.weight, up.bias if biased else None)

    def until_last(self, streams: Streams, *, biased: bool = False) -> Begun:
        """Apply ``P_h`` to the values of all streams at once; heads are concatenated.

        Streams are moved into the feature axis, so one product per head serves all of them, and
        grouped heads into the query axis, so values are never repeated. Value biases pass through
        attention like values.
        """
        groups, values = self.attention.kv_heads, self.values(streams, biased=biased)
        split = values.unflatten(-1, (groups, -1)).permute(1, 3, 2, 0, 4)  # b g t stream w
        laid = split.flatten(3)
        pattern = self.pattern.unflatten(1, (groups, -1)).flatten(2, 3)  # b g (head query) key
        mixed = (pattern @ laid).unflatten(2, (-1, values.shape[2]))  # b g head query (stream w)
        mixed = mixed.unflatten(-1, (len(values), -1))  # b g head query stream w
        side_by_side: Tensor = mixed.permute(4, 0, 3, 1, 2, 5).flatten(3)
        return side_by_side if self.gates is None else side_by_side * self.gates

    def heads(self, stream: Hidden, *, biased: bool = False) -> Float[Tensor, "head b t f"]:
        """Each head's output ``P_h X W_h`` for one stream."""
        mixed = self.until_last(stream.unsqueeze(0), biased=biased).squeeze(0)
        parts = mixed.unflatten(-1, (self.attention.heads, -1))  # batch token head width
        weight = self.last.weight.unflatten(-1, (self.attention.heads, -1))  # feature head width
        outputs: Tensor = torch.einsum("bthw,fhw->hbtf", parts, weight)
        return outputs


class FrozenMLP(_EndsInMatrix):
    """``W₂ (gate ∘ W₁X)`` with the gate of each token and unit frozen, routing included."""

    def __init__(self, mlp: MLP, gate: Float[Tensor, "batch token unit"]) -> None:
        self.mlp, self.gate, self.last = mlp, gate, mlp.down

    def until_last(self, streams: Streams, *, biased: bool = False) -> Begun:
        up = self.mlp.up
        return linear(streams, up.weight, up.bias if biased else None).mul_(self.gate)


@dataclass(frozen=True)
class FrozenBranch:
    """A part between its norms, frozen; None replaces an MLP by the identity."""

    before: FrozenNorm
    part: FrozenAttention | FrozenMLP | None
    inside: FrozenNorm

    @property
    def kind(self) -> Kind:
        return "attention" if isinstance(self.part, FrozenAttention) else "mlp"

    def __call__(self, streams: Streams, *, biased: bool = False) -> Streams:
        streams = self.before(streams, biased=biased)
        if self.part is not None:
            streams = self.part(streams, biased=biased)
        return self.inside(streams, biased=biased)

    def begin(self, streams: Streams) -> Begun:
        """What ``finish`` needs: the output of the branch, or all but the last matrix."""
        if self.part is not None and self.inside.factor is None:
            return self.part.until_last(self.before(streams))
        out = self(streams)
        return out.clone() if out.data_ptr() == streams.data_ptr() else out

    def finish(self, begun: Begun, total: Streams) -> None:
        """``total += self(streams)``, accumulated without a temporary result."""
        if self.part is not None and self.inside.factor is None:
            total.flatten(0, -2).addmm_(begun.flatten(0, -2), self.part.last.weight.T)
        else:
            total.add_(begun)


@dataclass(frozen=True)
class FrozenStep:
    """One frozen step of a block: parallel branches, the skip around them, the norm after.

    ``layer`` counts from 1; ``closes`` marks the last step of a layer; ``state`` is the hidden
    state of the network after it.
    """

    layer: int
    closes: bool
    branches: tuple[FrozenBranch, ...]
    skip: float
    after: FrozenNorm
    state: Hidden

    @property
    def attention(self) -> tuple[FrozenBranch, FrozenAttention] | None:
        """The attention branch and its attention part; None for an MLP step."""
        for branch in self.branches:
            if isinstance(branch.part, FrozenAttention):
                return branch, branch.part
        return None

    def __call__(self, streams: Streams, *, biased: bool = False) -> Streams:
        total = self.skip * streams
        for branch in self.branches:
            total = total + branch(streams, biased=biased)
        return self.after(total, biased=biased)


def check_layer(
    network: Network, layer: int, values: Tensor, token_mask: Tensor | None = None
) -> None:
    """Raise if values of a layer are not finite; the error names a weight that is the cause.

    Padding may hold any values; ``values`` are ``(..., batch, token, feature)`` where it is masked.
    """
    try:
        finite(_without_padding(values, token_mask), name=f"layer {layer}")
    except InputError as error:
        broken = not_finite(named_tensors(network.blocks[layer - 1]))
        if broken:
            raise InputError(
                f"layer {layer}: the weight {broken[0]} holds NaN or infinity; reload the "
                "weights, or find where training diverged."
            ) from None
        raise InputError(
            f"{error} Weights and input are finite, so values overflow here: scale the input down."
        ) from None


class FinitenessCheck:
    """Records what ``check_layer`` would check, and checks all of it in one GPU synchronisation."""

    def __init__(self) -> None:
        self._sums: list[Tensor] = []

    def note(
        self, network: Network, layer: int, values: Tensor, token_mask: Tensor | None = None
    ) -> None:
        """Record values; used instead of ``check_layer``."""
        del network, layer
        self._sums.append(_without_padding(values, token_mask).sum())

    def saw_only_numbers(self) -> bool:
        """Whether all recorded sums are finite."""
        first = self._sums[0].device
        return bool(torch.stack([total.to(first) for total in self._sums]).isfinite().all())


Check = Callable[[Network, int, Tensor, Tensor | None], None]


def _without_padding(values: Tensor, token_mask: Tensor | None) -> Tensor:
    if token_mask is None:
        return values
    return torch.where(token_mask.unsqueeze(-1).to(values.device), values, 0.0)


def frozen_steps(
    network: Network, x: Tensor, token_mask: Tensor | None = None, *, check: Check = check_layer
) -> Iterator[FrozenStep]:
    """Run a network and freeze it, step by step; previous steps are not kept.

    ``check`` is called with the state after each step.
    """
    state, token_mask = network.prepare(x, token_mask)
    finite(state, name="x")
    if state.dtype not in (torch.float32, torch.float64):
        raise KindError(
            f"the network is {state.dtype}, which is too imprecise for sums over paths; "
            "convert it and its input: network.float(), x.float()."
        )
    for layer, (block, seen) in enumerate(network.sighted_blocks(x.shape[1], token_mask), start=1):
        state = state.to(block.device)
        for number, step in enumerate(block.steps, start=1):
            closes = number == len(block.steps)
            frozen = _freeze_step(step, state, seen, layer, closes=closes)
            state = frozen.state
            check(network, layer, state, token_mask)
            yield frozen


def attention_patterns(
    network: Network, x: Hidden, *, layers: int
) -> Iterator[Float[Tensor, "head query key"]]:
    """The attention matrices of the first layers on a single sample, without removed heads.

    One layer at a time, because all layers may exceed memory.
    """
    yielded = 0
    for step in frozen_steps(network, x):
        if step.attention is not None:
            pattern = step.attention[1].pattern[0]
            yield pattern[pattern.sum((1, 2)) > 0]
            yielded += 1
        if yielded == layers:
            return


def _freeze_step(
    step: Step, x: Hidden, seen: Visibility, layer: int, *, closes: bool
) -> FrozenStep:
    """Freeze a step at its input and compute its output, in one pass."""
    total = step.skip * x
    branches = []
    for branch in step.branches:
        frozen, out = _freeze_branch(branch, x, seen)
        branches.append(frozen)
        total = total + out
    after = _freeze_norm(step.after, total)
    return FrozenStep(layer, closes, tuple(branches), step.skip, after, after(total, biased=True))


def _freeze_branch(branch: Branch, x: Hidden, seen: Visibility) -> tuple[FrozenBranch, Hidden]:
    before = _freeze_norm(branch.before, x)
    y = before(x, biased=True)
    part: FrozenAttention | FrozenMLP | None = None
    out = y
    if isinstance(branch.part, Attention):
        pattern = branch.part.mixing(y, seen)
        if branch.part.removed:
            silent = torch.tensor(sorted(branch.part.removed), device=y.device)
            pattern = pattern.index_fill(1, silent, 0.0)
        value = branch.part.value
        latent = _freeze_norm(value.norm, value.down(y)) if isinstance(value, Latent) else None
        part = FrozenAttention(branch.part, pattern, branch.part.gates(y), latent)
        out = part(y.unsqueeze(0), biased=True).squeeze(0)
    elif isinstance(branch.part, MLP):
        part, out = _freeze_mlp(branch.part, y)
    elif branch.part.activation is not None:
        part, out = _freeze_mlp(_with_matrices(branch.part.activation, y), y)
    inside = _freeze_norm(branch.inside, out)
    return FrozenBranch(before, part, inside), inside(out, biased=True)


def _freeze_mlp(mlp: MLP, y: Hidden) -> tuple[FrozenMLP, Hidden]:
    """The frozen MLP and its output at this input; ``W₁`` is applied only once."""
    phi, routing = activation(mlp.activation), mlp.routing(y)
    z = mlp.up(y)
    if mlp.gate is not None:
        gate = phi(mlp.gate(y))
    elif phi.limit_at_zero is None:
        raise UnsupportedModelError(
            f"the activation {mlp.activation!r} is {float(phi(y.new_zeros(()))):g} at zero, so no "
            "gate φ(z)/z can be frozen; paths need an activation with φ(0) = 0."
        )
    else:
        active = phi(z)
        gate = torch.where(z == 0, phi.limit_at_zero, active / z)
    if routing is not None:
        gate = gate * routing
    if mlp.gate is not None or routing is not None:
        return FrozenMLP(mlp, gate), mlp.down(gate * z)
    return FrozenMLP(mlp, gate), mlp.down(active)


def _with_matrices(phi: str, y: Hidden) -> MLP:
    """An activation without matrices as an MLP whose matrices are the identity."""
    unit = make_linear(torch.eye(y.shape[-1], dtype=y.dtype, device=y.device))
    return MLP(up=unit, down=unit, gate=None, activation=phi)


def _freeze_norm(norm: nn.Module, x: Hidden) -> FrozenNorm:
    rule = norm_rule(norm, x.dtype)
    if rule is None:
        return FrozenNorm(None)
    return FrozenNorm(rule.factor(x), rule.centers, rule.bias)
