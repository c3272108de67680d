"""How the weights of a random network are drawn."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from rankscope.arguments import Count, checked, short
from rankscope.core.checks import number
from rankscope.errors import SpecError

InitKind = Literal["normal", "xavier", "lecun", "orthogonal"]


@dataclass(frozen=True)
class Init:
    """A rule and a scale.

    ``normal``: standard deviation ``scale`` (BERT: 0.02). ``xavier``: Glorot's uniform.
    ``lecun``: normal of variance 1/fan_in. ``orthogonal``: orthogonal value and output matrices,
    as in Wu et al. 2024, everything else as ``lecun``. For the last three ``scale`` multiplies the
    weights. Biases start at zero, gains at one, as everywhere in practice.
    """

    kind: InitKind
    scale: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str) or self.kind not in get_args(InitKind):
            raise SpecError(f"init{short(self.kind)} is unknown; expected {_choices()}.")
        scale = number("init scale", self.scale, least=0, error=SpecError)
        object.__setattr__(self, "scale", scale)  # 1 and 1.0 are one spec

    @checked
    def fill(self, weight: Tensor, *, value: bool, generator: torch.Generator) -> None:
        """Draw one weight matrix in place; ``value`` marks value and output projections."""
        outputs, inputs = weight.shape
        if self.kind == "xavier":
            nn.init.xavier_uniform_(weight, gain=self.scale, generator=generator)
        elif self.is_orthogonal(value=value):
            nn.init.orthogonal_(weight, gain=self.scale, generator=generator)
        else:
            deviation = self.deviation(inputs, outputs)
            nn.init.normal_(weight, 0.0, deviation, generator=generator)

    @checked
    def deviation(self, inputs: Count, outputs: Count) -> float:
        """The standard deviation of a matrix's entries, unless it is orthogonal.

        >>> from rankscope.core.network import Init
        >>> Init("lecun").deviation(100, 50)
        0.1
        """
        if self.kind == "normal":
            return self.scale
        if self.kind == "xavier":
            return self.scale * math.sqrt(2 / (inputs + outputs))
        return self.scale / math.sqrt(inputs)

    @checked
    def is_orthogonal(self, *, value: bool) -> bool:
        """Whether value and output projections (``value``), or all others, are orthogonal."""
        return self.kind == "orthogonal" and value


def as_init(init: str | float | Init) -> Init:
    """An ``Init`` from its name, from a standard deviation, or itself."""
    if isinstance(init, Init):
        return init
    if isinstance(init, str):
        if init == "bert":
            return Init("normal", 0.02)
        if init not in get_args(InitKind) or init == "normal":
            raise SpecError(f"init={init!r} is unknown; expected {_choices()}.")
        return Init(init)  # type: ignore[arg-type]  # checked on the line above
    return Init("normal", init)


def _choices() -> str:
    return "'bert', 'xavier', 'lecun', 'orthogonal', a standard deviation, or Init(kind, scale)"
