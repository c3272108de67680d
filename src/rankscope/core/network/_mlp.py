"""The row-wise MLP ``W₂ φ(W₁ h + b₁) + b₂``, plain or gated."""

from torch import nn

from rankscope.arguments import checked
from rankscope.core.network._activations import activation as activation_record
from rankscope.core.network._linear import Projection
from rankscope.core.network._visibility import Visibility
from rankscope.core.shapes import Hidden


class MLP(nn.Module):
    """Each token on its own; ``gate`` makes it ``W₂ (φ(W_g h) ∘ W₁h)``."""

    @checked
    def __init__(
        self, *, up: Projection, down: Projection, gate: Projection | None, activation: str
    ) -> None:
        super().__init__()
        activation_record(activation)  # an unknown one is refused here, not in the forward pass
        self.up, self.down, self.gate = up, down, gate
        self.activation = activation

    def forward(self, x: Hidden, _visibility: Visibility | None = None) -> Hidden:
        """Same signature as attention, so that a block treats its parts alike."""
        phi = activation_record(self.activation).function
        hidden = phi(self.up(x)) if self.gate is None else phi(self.gate(x)) * self.up(x)
        out: Hidden = self.down(hidden)
        return out


class IdentityMLP(nn.Module):
    """The identity where an MLP was: how the code of Dong et al. 2021 takes MLPs away."""

    def forward(self, x: Hidden, _visibility: Visibility | None = None) -> Hidden:
        return x
