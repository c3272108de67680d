"""What a family is: where an architecture keeps its parts, and what is particular about them."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, ClassVar

from torch import Tensor, nn

from rankscope.arguments import checked
from rankscope.core.network import MLP, Attention, Block, Network, Projection, Scores, Spec
from rankscope.errors import UnsupportedModelError

_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}

Original = Any
"""A module of somebody else's, whose attributes only its family knows."""


@dataclass(frozen=True)
class Parts:
    """One original layer taken apart: where its parameters are, seen through views if need be."""

    attention: tuple[Projection, Projection, Projection, Projection]
    """Queries, keys, values and output."""
    mlp: tuple[Projection, ...]
    """Into the hidden units, out of them, and the gate if there is one."""
    norms: Mapping[str, nn.Module]
    scores: Scores = field(default_factory=Scores)


@checked
class Family(ABC):
    """One architecture; stateless. Subclasses say where things are."""

    name: ClassVar[str]
    model_types: ClassVar[tuple[str, ...]]
    body_at: ClassVar[str] = "base_model"
    """The module that turns token ids (or pixels) into hidden states, by its place in a model."""
    layers_at: ClassVar[str] = "layers"
    """The original blocks, by their place in the body."""
    takes_positions: ClassVar[bool] = True
    """Whether the original accepts ``position_ids``, which keep padding from shifting positions."""
    has_position_table: ClassVar[bool] = False

    def body(self, model: Original) -> Original:
        """The module that turns token ids (or pixels) into hidden states."""
        return attrgetter(self.body_at)(model)

    def layers(self, body: Original) -> list[Original]:
        """The original blocks in the order they run; a shared block stands there several times."""
        return list(attrgetter(self.layers_at)(body))

    @abstractmethod
    def spec(self, config: Any) -> Spec:
        """The structure of the blocks."""

    @abstractmethod
    def parts(self, layer: Original, body: Original, spec: Spec) -> Parts:
        """Take one original block apart."""

    def batch_first(self, hidden: Tensor) -> Tensor:
        """Hidden states of the original as ``(batch, token, feature)``."""
        return hidden

    def positions(self, token_mask: Tensor, config: Any) -> Tensor:
        """Position ids that count real tokens only."""
        del config
        return (token_mask.cumsum(-1) - 1).clamp(min=0)

    def most_tokens(self, config: Any) -> int | None:
        """How many tokens the position table holds; None where positions have no table."""
        return int(config.max_position_embeddings) if self.has_position_table else None

    def network(self, body: Original) -> Network:
        """Our network on the original's parameters; blocks shared there are shared here."""
        spec = self.spec(body.config)
        made: dict[int, Block] = {}
        for layer in self.layers(body):
            if id(layer) in made:
                continue
            parts = self.parts(layer, body, spec)
            query, key, value, output = parts.attention
            up, down, *gate = parts.mlp
            attention = Attention(
                query=query,
                key=key,
                value=value,
                output=output,
                scores=parts.scores,
                heads=spec.heads,
                kv_heads=spec.kv_heads,
                scale=spec.score_scale,
            )
            mlp = MLP(up=up, down=down, gate=gate[0] if gate else None, activation=spec.activation)
            made[id(layer)] = Block(spec, attention=attention, mlp=mlp, norms=parts.norms)
        return Network(spec, [made[id(layer)] for layer in self.layers(body)])


def spec_of(
    config: Any, *, mlp_width: int | None = None, activation: str = "hidden_act", **fields: Any
) -> Spec:
    """The spec of a configuration of transformers, whose names for a shape are the same everywhere.

    ``activation`` is the name under which it keeps its activation; ``fields`` are what else is
    particular about it.
    """
    theirs = getattr(config, activation)
    if theirs not in _ACTIVATIONS:
        raise UnsupportedModelError(
            f"{type(config).__name__}.{activation}={theirs!r} is an activation rankscope does not "
            f"have ({', '.join(_ACTIVATIONS)}); rankscope.trace works on the model without "
            "conversion."
        )
    width = config.hidden_size
    mlp_width = config.intermediate_size if mlp_width is None else mlp_width
    known: dict[str, Any] = {"layers": config.num_hidden_layers, "width": width}
    known |= {"heads": config.num_attention_heads, "mlp_ratio": mlp_width / width}
    known |= {"init": float(config.initializer_range)} if "init" not in fields else {}
    return Spec(**{**known, "activation": _ACTIVATIONS[theirs], **fields})


def refuse(config: Any, **unsupported: Any) -> None:
    """Raise if a configuration asks for something this family does not convert."""
    for name, supported in unsupported.items():
        got = getattr(config, name, supported)
        if got != supported:
            raise UnsupportedModelError(
                f"{type(config).__name__}.{name}={got!r} is not converted (only {supported!r} is); "
                "rankscope.trace works on the model without conversion."
            )


@dataclass(frozen=True)
class ColumnSlice:
    """Columns ``start:stop`` of a matrix stored as ``(input, output)``, as GPT-2 does."""

    start: int = 0
    stop: int | None = None

    def weight(self, stored: Tensor) -> Tensor:
        return stored[:, self.start : self.stop].T

    def bias(self, stored: Tensor) -> Tensor:
        return stored[self.start : self.stop]


@dataclass(frozen=True)
class Interleaved:
    """Part ``index`` of ``parts`` that alternate head by head, as in GPT-NeoX's fused matrix."""

    heads: int
    index: int
    parts: int = 3

    def weight(self, stored: Tensor) -> Tensor:
        return self.bias(stored)

    def bias(self, stored: Tensor) -> Tensor:
        apart = stored.view(self.heads, self.parts, -1, *stored.shape[1:])
        return apart[:, self.index].flatten(0, 1)


@dataclass(frozen=True)
class HeadAxis:
    """A tensor ``(feature, head, head_width)`` as a map into heads or out of them, as in XLNet."""

    out_of_heads: bool = False

    def weight(self, stored: Tensor) -> Tensor:
        return stored.flatten(1) if self.out_of_heads else stored.flatten(1).T

    def bias(self, stored: Tensor) -> Tensor:
        return stored
