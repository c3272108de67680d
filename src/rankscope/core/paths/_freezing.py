"""Freezing a network at one input, step by step (what is left: ``_frozen.py``)."""

from collections.abc import Callable, Iterator

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rankscope.core.checks import finite
from rankscope.core.network import (
    MLP,
    Attention,
    Branch,
    IdentityMLP,
    Network,
    Step,
    Visibility,
    activation,
    norm_rule,
)
from rankscope.core.paths._frozen import (
    FrozenAttention,
    FrozenBranch,
    FrozenIdentity,
    FrozenMLP,
    FrozenNorm,
    FrozenPart,
    FrozenStep,
    Kind,
)
from rankscope.core.shapes import Hidden
from rankscope.core.weights import named_tensors, not_finite
from rankscope.errors import InputError, KindError, UnsupportedModelError


def check_layer(
    network: Network, layer: int, values: Tensor, token_mask: Tensor | None = None
) -> None:
    """Raise if a layer's values are not finite, naming a weight of it that is the cause.

    Padding may hold anything; ``values`` are ``(..., batch, token, feature)`` where it is masked.
    """
    try:
        finite(_without_padding(values, token_mask), name=f"layer {layer}")
    except InputError as error:
        broken = not_finite(named_tensors(network.blocks[layer - 1]))
        if broken:
            raise InputError(
                f"layer {layer}: the weight {broken[0]} holds NaN or infinity, so its paths mean "
                "nothing; load the weights again, or look where training broke down."
            ) from None
        raise InputError(
            f"{error} Weights and input are finite, so numbers overflow here: scale the input down."
        ) from None


class Watch:
    """Notes what ``check_layer`` would check, and looks at all of it once: looking waits for the
    device.
    """

    def __init__(self) -> None:
        self._sums: list[Tensor] = []

    def note(
        self, network: Network, layer: int, values: Tensor, token_mask: Tensor | None = None
    ) -> None:
        """In the place of ``check_layer``."""
        del network, layer
        self._sums.append(_without_padding(values, token_mask).sum())

    def saw_only_numbers(self) -> bool:
        """Whether everything was finite, or at least every sum of it, which is less likely."""
        first = self._sums[0].device
        return bool(torch.stack([each.to(first) for each in self._sums]).isfinite().all())


Check = Callable[[Network, int, Tensor, Tensor | None], None]


def _without_padding(values: Tensor, token_mask: Tensor | None) -> Tensor:
    if token_mask is None:
        return values
    return torch.where(token_mask.unsqueeze(-1).to(values.device), values, 0.0)


def frozen_steps(
    network: Network, x: Tensor, token_mask: Tensor | None = None, *, check: Check = check_layer
) -> Iterator[FrozenStep]:
    """Run a network and freeze it, step by step; nothing is kept but what the caller keeps.

    ``check`` is called with the state after each step.
    """
    state, token_mask = network.prepare(x, token_mask)
    finite(state, name="x")
    if state.dtype not in (torch.float32, torch.float64):
        raise KindError(
            f"the network is {state.dtype}, in which sums over paths mean nothing; "
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
    """The attention matrices of the first layers on a single sample; silent heads are left out.

    One layer's at a time: all of them may be more than memory holds.
    """
    given = 0
    for step in frozen_steps(network, x):
        for branch in step.branches:
            if isinstance(branch.part, FrozenAttention):
                pattern = branch.part.pattern[0]
                yield pattern[pattern.sum((1, 2)) > 0]
                given += 1
        if given == layers:
            return


def _freeze_step(
    step: Step, x: Hidden, seen: Visibility, layer: int, *, closes: bool
) -> FrozenStep:
    """Freeze a step at its input; its output is computed on the way, in one pass."""
    total = step.skip * x
    branches = []
    for branch in step.branches:
        frozen, out = _freeze_branch(branch, x, seen)
        branches.append(frozen)
        total = total + out
    after = _freeze_norm(step.after, total)
    return FrozenStep(layer, closes, tuple(branches), step.skip, after, after.affine(total))


def _freeze_branch(branch: Branch, x: Hidden, seen: Visibility) -> tuple[FrozenBranch, Hidden]:
    before = _freeze_norm(branch.before, x)
    y = before.affine(x)
    part: FrozenPart
    if isinstance(branch.part, Attention):
        part = _freeze_attention(branch.part, y, seen)
        out = part.affine(y.unsqueeze(0)).squeeze(0)
    else:
        part, out = _freeze_mlp(branch.part, y)
    inside = _freeze_norm(branch.inside, out)
    kind: Kind = "attention" if isinstance(part, FrozenAttention) else "mlp"
    return FrozenBranch(kind, before, part, inside), inside.affine(out)


def _freeze_attention(attention: Attention, y: Hidden, seen: Visibility) -> FrozenAttention:
    pattern = attention.mixing(y, seen)
    if attention.removed:
        silent = torch.tensor(sorted(attention.removed), device=y.device)
        pattern = pattern.index_fill(1, silent, 0.0)
    return FrozenAttention(attention, pattern)


def _freeze_mlp(mlp: MLP | IdentityMLP, y: Hidden) -> tuple[FrozenMLP | FrozenIdentity, Hidden]:
    """The frozen MLP, and its output at this input, for which ``W₁`` need not be applied twice."""
    if isinstance(mlp, IdentityMLP):
        return FrozenIdentity(), y
    phi = activation(mlp.activation)
    if mlp.gate is not None:
        gate = phi(mlp.gate(y))
        return FrozenMLP(mlp, gate), mlp.down(gate * mlp.up(y))
    if phi.limit_at_zero is None:
        raise UnsupportedModelError(
            f"the activation {mlp.activation!r} is {float(phi(y.new_zeros(()))):g} at zero, so no "
            "gate φ(z)/z can be frozen; paths need an activation with φ(0) = 0."
        )
    z = mlp.up(y)
    active = phi(z)
    gate = torch.where(z == 0, phi.limit_at_zero, active / z)
    return FrozenMLP(mlp, gate), mlp.down(active)


def _freeze_norm(norm: nn.Module, x: Hidden) -> FrozenNorm:
    """Freeze a norm at its input."""
    rule = norm_rule(norm, x.dtype)
    if rule is None:
        return FrozenNorm(None)
    return FrozenNorm(rule.factor(x), rule.centers, rule.bias)
