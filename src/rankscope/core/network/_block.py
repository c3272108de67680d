"""One block as in the equations: steps ``x ↦ after(α x + Σ inside(part(before(x))))``.

A sequential block is two steps, attention then MLP; a parallel block is one step with two branches.
Pre-norm, sandwich and post-norm blocks differ only in where the norm is (before, inside, after), so
the code below does not distinguish them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from operator import is_not
from typing import NamedTuple

import torch
from torch import nn

from rankscope.arguments import checked
from rankscope.core.names import NormPlace
from rankscope.core.network._parts import MLP, Attention, BareMLP
from rankscope.core.network._spec import Spec
from rankscope.core.network._visibility import Visibility
from rankscope.core.shapes import Hidden

Part = Attention | MLP | BareMLP


@checked
@dataclass(frozen=True)
class Branch:
    """A part of a block between two norms, either of which may be the identity.

    >>> from rankscope import Network, Spec
    >>> attend, feed = Network.random(Spec(1, 2, 8), seed=0).blocks[0].steps
    >>> type(attend.branches[0].part).__name__, type(feed.branches[0].part).__name__
    ('Attention', 'MLP')
    """

    before: nn.Module
    part: Part
    inside: nn.Module

    def __call__(self, x: Hidden, visibility: Visibility) -> Hidden:
        out: Hidden = self.inside(self.part(self.before(x), visibility))
        return out


@checked
@dataclass(frozen=True)
class Step:
    """Parallel branches, a skip of scale α around them, and a norm after the sum.

    >>> from rankscope import Network, Spec
    >>> [step.skip for step in Network.random(Spec(1, 2, 8, mlp_skip=0.5), seed=0).blocks[0].steps]
    [1.0, 0.5]
    """

    branches: tuple[Branch, ...]
    skip: float
    after: nn.Module

    def __call__(self, x: Hidden, visibility: Visibility) -> Hidden:
        total = self.branches[0](x, visibility)
        for branch in self.branches[1:]:
            total = total + branch(x, visibility)
        if self.skip == 1.0:
            total = x + total
        elif self.skip != 0.0:
            total = self.skip * x + total
        out: Hidden = self.after(total)
        return out


class _Plan(NamedTuple):
    """The fields of a spec that determine how the parts of a block are combined."""

    norm_place: NormPlace
    skips: tuple[float, float]
    parallel: bool


class Block(nn.Module):
    """One layer: its parts, which hold the weights, and the steps that the spec defines.

    >>> from rankscope import Network, Spec
    >>> net = Network.random(Spec(1, 2, 8), seed=0)
    >>> len(net.blocks[0].steps)
    2
    >>> net.without("mlp").blocks[0].attention is net.blocks[0].attention
    True

    Several blocks may share parts; this is how variants share weights.
    """

    @checked
    def __init__(
        self,
        spec: Spec,
        *,
        attention: Attention,
        mlp: MLP | BareMLP | None,
        norms: Mapping[str, nn.Module],
    ) -> None:
        super().__init__()
        self.attention = attention
        self.mlp = mlp
        self.norms = nn.ModuleDict(dict(norms))
        self._plan = _Plan(spec.norm_place, spec.skips, spec.parallel)
        self._made_of: tuple[nn.Module | None, ...] = ()
        self._steps: tuple[Step, ...] = ()

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps of the block, built from its current parts."""
        norms = self.norms._modules
        parts = (self.attention, self.mlp, *norms.values())
        if len(parts) != len(self._made_of) or any(map(is_not, parts, self._made_of)):
            present = {name: norm for name, norm in norms.items() if norm is not None}
            self._steps = _steps(self._plan, self.attention, self.mlp, present)
            self._made_of = parts
        return self._steps

    @property
    def device(self) -> torch.device:
        """The device of this block; a model may be spread over several devices."""
        return self.attention.query.weight.device

    def forward(self, x: Hidden, visibility: Visibility) -> Hidden:
        for step in self.steps:
            x = step(x, visibility)
        return x


def _steps(
    plan: _Plan, attention: Attention, mlp: MLP | BareMLP | None, norms: Mapping[str, nn.Module]
) -> tuple[Step, ...]:
    """Place each norm as the spec says; the norm named like a part is its main one."""
    nothing = nn.Identity()
    parts: list[tuple[str, Part, float]] = [("attention", attention, plan.skips[0])]
    if mlp is not None:
        parts.append(("mlp", mlp, plan.skips[1]))
    branches = {
        name: Branch(
            before=norms.get(name, nothing) if plan.norm_place in ("pre", "both") else nothing,
            part=part,
            inside=norms.get(f"{name}_inside", nothing),
        )
        for name, part, _ in parts
    }

    def after(name: str) -> nn.Module:
        return norms.get(name, nothing) if plan.norm_place == "post" else nothing

    if plan.parallel:
        return (Step(tuple(branches.values()), plan.skips[0], after("attention")),)
    return tuple(Step((branches[name],), skip, after(name)) for name, _, skip in parts)
