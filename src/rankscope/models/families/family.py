"""What a family is: where an architecture keeps its parts, and what is particular about them."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
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
    """One original layer taken apart: modules of ours around parameters of theirs."""

    attention: Attention
    mlp: MLP
    norms: Mapping[str, nn.Module] = field(default_factory=dict)


@checked
class Family(ABC):
    """One architecture; stateless. Subclasses say where things are."""

    name: ClassVar[str]
    model_types: ClassVar[tuple[str, ...]]
    takes_positions: ClassVar[bool] = True
    """Whether the original accepts ``position_ids``, which keep padding from shifting positions."""

    @abstractmethod
    def body(self, model: Original) -> Original:
        """The module that turns token ids (or pixels) into hidden states."""

    @abstractmethod
    def layers(self, body: Original) -> list[Original]:
        """The original blocks in the order they run; a shared block stands there several times."""

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
        del config
        return None

    def network(self, body: Original) -> Network:
        """Our network on the original's parameters; blocks shared there are shared here."""
        spec = self.spec(body.config)
        made: dict[int, Block] = {}
        blocks = []
        for layer in self.layers(body):
            if id(layer) not in made:
                parts = self.parts(layer, body, spec)
                made[id(layer)] = Block(
                    spec, attention=parts.attention, mlp=parts.mlp, norms=parts.norms
                )
            blocks.append(made[id(layer)])
        return Network(spec, blocks)


def attention(
    spec: Spec,
    query: Projection,
    key: Projection,
    value: Projection,
    output: Projection,
    scores: Scores | None = None,
) -> Attention:
    """Attention of this spec's shape around an original's projections."""
    return Attention(
        query=query,
        key=key,
        value=value,
        output=output,
        scores=Scores() if scores is None else scores,
        heads=spec.heads,
        kv_heads=spec.kv_heads,
        scale=spec.score_scale,
    )


def mlp(spec: Spec, up: Projection, down: Projection, gate: Projection | None = None) -> MLP:
    """An MLP with this spec's activation around an original's projections."""
    return MLP(up=up, down=down, gate=gate, activation=spec.activation)


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


def activation(config: Any, name: str) -> str:
    """Our name for the activation a configuration asks for."""
    theirs = getattr(config, name)
    if theirs not in _ACTIVATIONS:
        raise UnsupportedModelError(
            f"{type(config).__name__}.{name}={theirs!r} is an activation rankscope does not have "
            f"({', '.join(_ACTIVATIONS)}); rankscope.trace works on the model without conversion."
        )
    return _ACTIVATIONS[theirs]


def refuse(config: Any, **unsupported: Any) -> None:
    """Raise if a configuration asks for something this family does not convert."""
    for name, supported in unsupported.items():
        got = getattr(config, name, supported)
        if got != supported:
            raise UnsupportedModelError(
                f"{type(config).__name__}.{name}={got!r} is not converted (only {supported!r} is); "
                "rankscope.trace works on the model without conversion."
            )
