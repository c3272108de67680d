"""The designs of claim P7: a map over depth, norm place, skips and scale of the weights.

MLPs are gated: a product of two maps about doubles the square of a small angle, which a single GELU
or ReLU leaves as it is. With skips of their own for attention and MLPs the map then has both sides:
attention under a weak skip brings tokens together, MLPs under a weak skip drive them apart.
"""

from dataclasses import dataclass
from typing import Literal, cast

from rankscope.core.network import Init, Spec
from rankscope.numerals import plural

_Place = Literal["pre", "post", "both"]


@dataclass(frozen=True)
class Design:
    """One point of the map."""

    layers: int
    place: str
    """Of the norms, as a ``Spec`` has it, which also checks it."""
    attention_skip: float
    mlp_skip: float
    scale: float
    """Of all weights, in those of LeCun's initialisation."""

    @property
    def depth(self) -> str:
        """Under which designs of one depth stand in a table."""
        return plural(self.layers, "layer")

    @property
    def branch(self) -> str:
        """Where its norms are, and how strong the skips of attention and MLP."""
        return f"{self.place}-norm, skips {self.attention_skip:g} and {self.mlp_skip:g}"

    @property
    def start(self) -> str:
        """Its weights."""
        return f"scale {self.scale:g}"

    def spec(self, heads: int, width: int, mlp_ratio: float) -> Spec:
        """Its network."""
        return Spec(
            self.layers,
            heads,
            width,
            mlp_ratio=mlp_ratio,
            norm_place=cast(_Place, self.place),
            activation="silu",
            gated=True,
            attention_skip=self.attention_skip,
            mlp_skip=self.mlp_skip,
            init=Init("lecun", self.scale),
        )
