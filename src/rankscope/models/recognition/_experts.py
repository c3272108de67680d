"""Mixtures of experts as one MLP of all their hidden units, weighted by the original's routing."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rankscope.core.network import MLP, Joined, Projection, View
from rankscope.models.recognition._precision import full_precision


@dataclass(frozen=True)
class ExpertRows:
    """A part of each expert's matrix in a tensor ``(expert, output, input)``, experts stacked.

    Part ``part`` of ``parts`` equal ones, one after another; ``transposed`` tensors are stored as
    ``(expert, input, output)``. ``down`` matrices are put side by side instead: their inputs are
    the hidden units.
    """

    part: int = 0
    parts: int = 1
    transposed: bool = False
    down: bool = False

    def weight(self, stored: Tensor) -> Tensor:
        matrices = stored.mT if self.transposed else stored
        if self.down:
            return matrices.transpose(0, 1).flatten(1)
        return matrices.chunk(self.parts, dim=1)[self.part].flatten(0, 1)

    def bias(self, stored: Tensor) -> Tensor:
        return stored.chunk(self.parts, dim=1)[self.part].flatten()


class _RoutedError(Exception):
    """Raised by a hook to end a forward pass once the routing is known."""


class Routing(nn.Module):
    """The weight of every hidden unit for every token: that of its expert, by the original router.

    ``mixture`` is the original module that routes tokens to ``experts``; it runs until the experts
    are called with the chosen indices and their weights. Units of ``shared`` experts follow, of
    weight one, or ``σ(W x)`` where the original has such a gate.
    """

    def __init__(
        self,
        mixture: nn.Module,
        experts: nn.Module,
        units: int,
        shared: int = 0,
        shared_gate: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.mixture, self.experts, self.shared_gate = mixture, experts, shared_gate
        self.units, self.shared = units, shared
        count = next(iter(experts.parameters())).shape[0]
        self.sizes = (units,) * count + ((shared,) if shared else ())

    def forward(self, x: Tensor) -> Tensor:
        seen: list[Any] = []

        def stop(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            seen.extend([*args, *kwargs.values()])
            raise _RoutedError

        hook = self.experts.register_forward_pre_hook(stop, with_kwargs=True)
        try:
            with suppress(_RoutedError), full_precision():
                self.mixture(x)
        finally:
            hook.remove()
        _, indices, weights = seen[:3]
        if indices.is_floating_point():
            indices, weights = weights, indices
        count = len(self.sizes) - bool(self.shared)
        dense = x.new_zeros(len(indices), count + 1)  # some originals route to no expert
        dense = dense.scatter_add(-1, indices, weights.to(x.dtype))[:, :count]
        routed: Tensor = dense.repeat_interleave(self.units, -1).unflatten(0, x.shape[:-1])
        if not self.shared:
            return routed
        gate = (
            x.new_ones(*x.shape[:-1], 1)
            if self.shared_gate is None
            else self.shared_gate(x).sigmoid()
        )
        return torch.cat((routed, gate.expand(*x.shape[:-1], self.shared)), -1)


def find_experts(mixture: nn.Module) -> nn.Module | None:
    """The module in a mixture whose parameters have an axis of experts; None if there is none."""
    for module in mixture.modules():
        stored = dict(module.named_parameters(recurse=False))
        if "down_proj" in stored and stored["down_proj"].ndim == 3:
            return module
    return None


def expert_mlps(
    mixture: nn.Module, experts: nn.Module, activations: list[str]
) -> Iterator[tuple[str, MLP]]:
    """The ways to read a mixture as one MLP, with its shared experts if it has any."""
    stored = dict(experts.named_parameters(recurse=False))
    gated = "gate_up_proj" in stored
    up_name = "gate_up_proj" if gated else "up_proj"
    if set(stored) - {up_name, "down_proj"} or up_name not in stored:
        return
    shared, shared_gate = _shared(mixture, experts)
    if shared and set(shared) != ({"gate", "up", "down"} if gated else {"up", "down"}):
        return
    for transposed in (False, True):
        units = stored["down_proj"].shape[1 if transposed else 2]
        rows = [
            ExpertRows(part, 2 if gated else 1, transposed) for part in range(2 if gated else 1)
        ]
        views: list[Projection] = [View(experts, row, weight=up_name, bias="") for row in rows]
        down: Projection = View(
            experts, ExpertRows(transposed=transposed, down=True), weight="down_proj", bias=""
        )
        gate, up = (views[0], views[1]) if gated else (None, views[0])
        extra = 0
        if shared:
            extra = shared["up"].weight.shape[0]
            up, down = Joined(up, shared["up"]), Joined(down, shared["down"], summed=True)
            gate = None if gate is None else Joined(gate, shared["gate"])
        router = Routing(mixture, experts, units, extra, shared_gate)
        for phi in activations:
            yield (
                f"experts{' transposed' * transposed}, {phi}",
                MLP(up=up, down=down, gate=gate, activation=phi, router=router),
            )


def _shared(
    mixture: nn.Module, experts: nn.Module
) -> tuple[dict[str, nn.Linear], nn.Module | None]:
    """The projections of shared experts by their role, and the gate in front of them."""
    inside = set(experts.modules())
    linear = {
        path: module
        for path, module in mixture.named_modules()
        if isinstance(module, nn.Linear) and module not in inside and "shared" in path
    }
    gates = [module for module in linear.values() if module.out_features == 1]
    roles = {
        role: module
        for role in ("gate", "up", "down")
        for path, module in linear.items()
        if path.endswith(f"{role}_proj")
    }
    return roles, gates[0] if gates else None
