"""The parts of blocks: projections, attention and MLPs.

Attention is ``SA(X) = Σ_h P_h X W_h + 1bᵀ`` with ``W_h = W_V,h W_O,h``; an MLP, token by token,
``W₂ φ(W₁ h + b₁) + b₂``, plain or gated.
"""

from collections.abc import Sequence
from typing import Any, Protocol, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention

from rankscope.arguments import checked
from rankscope.core.network._activations import activation as activation_record
from rankscope.core.network._scores import Heads, Pairs, Scores
from rankscope.core.network._visibility import Visibility
from rankscope.core.shapes import Hidden
from rankscope.errors import SpecError


class Pick(Protocol):
    """How to read an ``(output, input)`` matrix and its bias out of stored parameters."""

    def weight(self, stored: Tensor) -> Tensor: ...
    def bias(self, stored: Tensor) -> Tensor: ...


class View(nn.Module):
    """``x ↦ x Wᵀ + b`` with W and b read from the parameters of another module by a ``Pick``.

    Checkpoints store projections in many ways: queries, keys and values in one matrix, transposed,
    or with a head axis. A view reads its matrix from the original parameter each time it runs, so
    weights are shared with the original and nothing is copied or folded. ``scale`` multiplies the
    output: a number (a residual multiplier), or one per feature (LayerScale), shared like a weight.
    """

    def __init__(
        self,
        source: nn.Module,
        pick: Pick,
        *,
        weight: str = "weight",
        bias: str = "bias",
        scale: float | nn.Parameter = 1.0,
    ) -> None:
        super().__init__()
        self.source = source
        self.pick = pick
        self.name, self.bias_name = weight, bias
        self.scale = scale

    @property
    def weight(self) -> Tensor:
        """The matrix, as ``nn.Linear`` would store it."""
        matrix = self.pick.weight(getattr(self.source, self.name))
        if isinstance(self.scale, Tensor):
            return matrix * self.scale.unsqueeze(-1)
        return matrix if self.scale == 1.0 else matrix * self.scale

    @property
    def bias(self) -> Tensor | None:
        """The bias; None if the original has none."""
        stored = getattr(self.source, self.bias_name, None)
        if stored is None:
            return None
        bias = self.pick.bias(stored)
        return bias if isinstance(self.scale, float) and self.scale == 1.0 else bias * self.scale

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


class Stack(nn.Module):
    """One matrix per sample of a batch: many networks run as one."""

    bias: None = None

    def __init__(self, weight: Float[Tensor, "batch output input"]) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: Float[Tensor, "batch token input"]) -> Float[Tensor, "batch token output"]:
        return x @ self.weight.mT


class Joined(nn.Module):
    """Several projections as one: their outputs side by side, or (``summed``) their inputs."""

    def __init__(self, *parts: "Projection", summed: bool = False) -> None:
        super().__init__()
        _require_matrices("joined projections", *parts)
        self.parts = nn.ModuleList(parts)
        self.summed = summed

    @property
    def weight(self) -> Tensor:
        """The matrix, as ``nn.Linear`` would store it."""
        matrices = [cast("nn.Linear | View", part).weight for part in self.parts]
        return torch.cat(matrices, dim=1 if self.summed else 0)

    @property
    def bias(self) -> Tensor | None:
        """The bias; None if no part has one."""
        parts = [cast("nn.Linear | View", part) for part in self.parts]
        if all(part.bias is None for part in parts):
            return None
        rows: list[Tensor] = [
            part.weight.new_zeros(part.weight.shape[0]) if part.bias is None else part.bias
            for part in parts
        ]
        return torch.stack(rows).sum(0) if self.summed else torch.cat(rows)

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


class Latent(nn.Module):
    """A projection to a few features, a norm there, and a projection from them (DeepSeek).

    ``weight`` is the matrix without the norm; with its scale frozen at an input it is linear.
    """

    bias: None = None

    def __init__(self, down: "nn.Linear | View", norm: nn.Module, up: "nn.Linear | View") -> None:
        super().__init__()
        self.down, self.norm, self.up = down, norm, up

    @property
    def weight(self) -> Tensor:
        """The product of both matrices and the norm's gain."""
        gain = getattr(self.norm, "weight", None)
        down = self.down.weight if gain is None else gain.unsqueeze(-1) * self.down.weight
        return self.up.weight @ down

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.up(self.norm(self.down(x)))
        return out


class PartlyShared(nn.Module):
    """The features of each head, followed by some that all heads share (DeepSeek's keys)."""

    bias: None = None

    def __init__(self, heads: int, own: Latent, shared: "nn.Linear | View") -> None:
        super().__init__()
        self.heads, self.own, self.shared = heads, own, shared

    @property
    def weight(self) -> Tensor:
        """The matrix without the norm inside."""
        own = self.own.weight.unflatten(0, (self.heads, -1))
        shared = self.shared.weight.expand(self.heads, -1, -1)
        return torch.cat((own, shared), 1).flatten(0, 1)

    def forward(self, x: Tensor) -> Tensor:
        own: Tensor = self.own(x).unflatten(-1, (self.heads, -1))
        shared: Tensor = self.shared(x).unsqueeze(-2).expand(*own.shape[:-1], -1)
        return torch.cat((own, shared), -1).flatten(-2)


Projection = nn.Linear | View | Stack | Joined | Latent | PartlyShared


def _require_matrices(name: str, *parts: Projection | None) -> None:
    """Refuse a norm inside a projection where ``weight`` is used as the whole of it."""
    inside = [part for part in parts if isinstance(part, Latent | PartlyShared)]
    if inside:
        raise SpecError(
            f"{name}: got {type(inside[0]).__name__}, which has a norm inside; only queries, keys "
            "and (Latent alone) values may have one."
        )


def make_linear(weight: Float[Tensor, "output input"], bias: Tensor | None = None) -> nn.Linear:
    """A linear layer with copies of these weights.

    It avoids the initialisation of PyTorch, which would consume global random state, and
    ``skip_init``, which is slow for small networks.
    """
    linear = nn.Linear.__new__(nn.Linear)
    nn.Module.__init__(linear)
    linear.out_features, linear.in_features = weight.shape
    copied = weight.detach().clone(memory_format=torch.contiguous_format)
    linear.weight = nn.Parameter(copied)
    linear.register_parameter("bias", None if bias is None else nn.Parameter(bias.detach().clone()))
    return linear


class Attention(nn.Module):
    """One attention sublayer; the number of key and value heads divides that of query heads.

    >>> from rankscope import Network, Spec
    >>> attention = Network.random(Spec(1, 2, 8), seed=0).blocks[0].attention
    >>> attention.heads, attention.scale
    (2, 0.5)

    ``gate`` multiplies the outputs of the heads by ``σ(W_g x)``, entry by entry or head by head
    (Qwen3-Next). ``centered`` (Ali et al. 2023) uses ``P_h − U`` instead of ``P_h``, with U uniform
    over the keys that a query sees.
    """

    @checked
    def __init__(
        self,
        *,
        query: Projection,
        key: Projection,
        value: Projection,
        output: Projection,
        scores: Scores,
        heads: int,
        kv_heads: int,
        scale: float,
        gate: Projection | None = None,
        removed: frozenset[int] = frozenset(),
        centered: bool = False,
    ) -> None:
        super().__init__()
        _require_matrices("the output of attention", output)
        if isinstance(value, PartlyShared):
            _require_matrices("values", value)
        self.query, self.key, self.value, self.output = query, key, value, output
        self.gate = gate
        self.scores = scores
        self.heads, self.kv_heads, self.scale = heads, kv_heads, scale
        self.removed, self.centered = removed, centered

    def replaced(self, **parts: Any) -> "Attention":
        """The same attention with some attributes replaced; weights are shared."""
        modules = ("query", "key", "value", "output", "scores", "gate")
        numbers = ("heads", "kv_heads", "scale", "removed", "centered")
        return Attention(**{name: getattr(self, name) for name in modules + numbers} | parts)

    def forward(self, x: Hidden, visibility: Visibility) -> Hidden:
        """Attend, without materialising the attention matrices unless the score needs them."""
        values = self.split(self.value(x), self.kv_heads)
        if self.scores.fused:
            mixed = self._fused(x, values, visibility)
            if self.centered:
                mixed = mixed - visibility.uniform(values.dtype) @ values
        else:
            mixed = self.mixing(x, visibility) @ values
        joined = self.join(mixed)
        gates = self.gates(x)
        out: Hidden = self.output(joined if gates is None else joined * gates)
        return out

    @property
    def latent(self) -> bool:
        """Whether a norm stands inside queries, keys or values."""
        return any(
            isinstance(part, Latent | PartlyShared) for part in (self.query, self.key, self.value)
        )

    def gates(self, x: Hidden) -> Float[Tensor, "batch token inner"] | None:
        """The factor of each entry of the heads' outputs; None without a gate."""
        if self.gate is None:
            return None
        gates: Tensor = self.gate(x).sigmoid()
        inner = self.output.weight.shape[-1]
        return gates.repeat_interleave(inner // gates.shape[-1], -1)

    def pattern(self, x: Hidden, visibility: Visibility) -> Pairs:
        """The attention matrices ``P_h``; each row sums to one."""
        return self.scores.weights(self.logits(x, visibility), visibility)

    def mixing(self, x: Hidden, visibility: Visibility) -> Pairs:
        """The matrices that multiply the values: attention matrices, centred if ``centered``."""
        return self.center(self.pattern(x, visibility), visibility)

    def center(self, pattern: Pairs, visibility: Visibility) -> Pairs:
        """Subtract uniform attention if ``centered``."""
        return pattern - visibility.uniform(pattern.dtype) if self.centered else pattern

    def logits(self, x: Hidden, visibility: Visibility) -> Pairs:
        """The logits before masking."""
        query, key = self.query_key(x, visibility)
        logits = (query @ key.mT) * self.scale
        bias = self.scores.bias(query, key, visibility.positions)
        return logits if bias is None else logits + bias

    def _fused(self, x: Hidden, values: Heads, visibility: Visibility) -> Heads:
        """``P_h V_h`` by the fused kernel, which does not materialise ``P_h``."""
        query, key = self.query_key(x, visibility)
        bias = self.scores.bias(query, key, visibility.positions)
        return scaled_dot_product_attention(
            query,
            key,
            values,
            attn_mask=visibility.allowed if bias is None else visibility.hide(bias),
            scale=self.scale,
        )

    def query_key(self, x: Hidden, visibility: Visibility) -> tuple[Heads, Heads]:
        """Queries and keys as they enter the product; keys are repeated for every head."""
        query = self.split(self.query(x), self.heads)
        key = self.split(self.key(x), self.kv_heads)
        return self.scores.prepare(query, key, visibility.positions)

    def split(self, x: Hidden, heads: int) -> Heads:
        """Features → heads; grouped heads are repeated for every query head."""
        split: Heads = x.unflatten(-1, (heads, -1)).transpose(1, 2)
        return split if heads == self.heads else split.repeat_interleave(self.heads // heads, 1)

    def join(self, mixed: Heads) -> Float[Tensor, "batch token inner"]:
        """Heads → features, concatenated; removed heads are zero."""
        if self.removed:
            silent = torch.tensor(sorted(self.removed), device=mixed.device)
            mixed = mixed.index_fill(1, silent, 0.0)
        return mixed.transpose(1, 2).flatten(2)


class MLP(nn.Module):
    """A token-wise MLP; ``gate`` makes it ``W₂ (φ(W_g h) ∘ W₁h)``.

    >>> from rankscope import Network, Spec
    >>> mlp = Network.random(Spec(1, 2, 8, activation="relu"), seed=0).blocks[0].mlp
    >>> mlp.activation, mlp.up.weight.shape
    ('relu', torch.Size([32, 8]))

    A mixture of experts is one MLP of all their hidden units: ``router`` maps tokens to the weight
    of each unit's expert, zero for experts that are not chosen, and multiplies the units by it. Its
    ``sizes``, if it has them, are the units of each expert, which then runs on its tokens alone.
    """

    @checked
    def __init__(
        self,
        *,
        up: Projection,
        down: Projection,
        gate: Projection | None,
        activation: str,
        router: nn.Module | None = None,
    ) -> None:
        super().__init__()
        _require_matrices("an MLP", up, down, gate)
        activation_record(activation)  # unknown names raise here, not in the forward pass
        self.up, self.down, self.gate = up, down, gate
        self.activation, self.router = activation, router

    def replaced(self, **parts: Any) -> "MLP":
        """The same MLP with some parts replaced; weights are shared."""
        names = ("up", "down", "gate", "activation", "router")
        return MLP(**{name: getattr(self, name) for name in names} | parts)

    def forward(self, x: Hidden, _visibility: Visibility | None = None) -> Hidden:
        """Same signature as attention, so that a block treats its parts alike."""
        phi = activation_record(self.activation).function
        routing = self.routing(x)
        sizes = getattr(self.router, "sizes", None)
        biased = any(p is not None and p.bias is not None for p in (self.up, self.down, self.gate))
        if routing is not None and sizes is not None and not biased:
            return self._by_expert(x, routing, sizes)
        hidden = phi(self.up(x)) if self.gate is None else phi(self.gate(x)) * self.up(x)
        out: Hidden = self.down(hidden if routing is None else hidden * routing)
        return out

    def _by_expert(self, x: Hidden, routing: Tensor, sizes: Sequence[int]) -> Hidden:
        """Each expert for the tokens that are routed to it; all of them have their own units."""
        phi = activation_record(self.activation).function
        tokens, weights = x.flatten(0, -2), routing.flatten(0, -2).split(list(sizes), -1)
        ups, downs = self.up.weight.split(list(sizes)), self.down.weight.split(list(sizes), 1)
        gates = None if self.gate is None else self.gate.weight.split(list(sizes))
        out = x.new_zeros(len(tokens), downs[0].shape[0])
        for number, (weight, up, down) in enumerate(zip(weights, ups, downs, strict=True)):
            chosen = weight[:, 0].nonzero().squeeze(-1)
            given = tokens[chosen]
            hidden = linear(given, up)
            hidden = phi(hidden) if gates is None else phi(linear(given, gates[number])) * hidden
            out = out.index_add(0, chosen, linear(hidden * weight[chosen], down))
        mixed: Hidden = out.unflatten(0, x.shape[:-1])
        return mixed

    def routing(self, x: Hidden) -> Float[Tensor, "batch token unit"] | None:
        """The weight of each hidden unit's expert; None without a router."""
        return None if self.router is None else self.router(x)


class BareMLP(nn.Module):
    """An MLP without matrices: its activation, or (None) the identity."""

    @checked
    def __init__(self, activation: str | None = None) -> None:
        super().__init__()
        if activation is not None:
            activation_record(activation)
        self.activation = activation

    def forward(self, x: Hidden, _visibility: Visibility | None = None) -> Hidden:
        return x if self.activation is None else activation_record(self.activation).function(x)
