"""A network run stage by stage: what attention, MLP and norm of every block do, one after another.

The state before a stage is the state after the one before it, so that changes of any figure add up
to the change over the whole network.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor, nn

from rankscope.ask import MOST_TOKENS_CUBED
from rankscope.core.metrics import attention_entropy, dobrushin
from rankscope.core.network import Attention, Network, Step, Visibility
from rankscope.errors import InputError

PartName = Literal["attention", "MLP", "norm"]
PARTS: tuple[PartName, ...] = ("attention", "MLP", "norm")


@dataclass(frozen=True)
class Stage:
    """One part at work: the state before it and after it.

    ``alone`` is the part's own output, which would be the state after it without the skip; None
    where there is no skip, as around a norm after the sum. A norm before or inside a branch
    belongs to the branch.
    """

    part: PartName
    before: Tensor
    after: Tensor
    alone: Tensor | None = None


@dataclass(frozen=True)
class LayerRun:
    """A block at work: its stages, its attention matrices, and which pairs of tokens see another.

    ``layer`` counts from 1, as states do: 0 is the input.
    """

    layer: int
    stages: tuple[Stage, ...]
    pattern: Tensor
    visibility: Visibility

    @property
    def state(self) -> Tensor:
        """The block's output."""
        return self.stages[-1].after


def walk(network: Network, x: Tensor, token_mask: Tensor | None) -> Iterator[LayerRun]:
    """Every block in turn; the states are those of ``network.states``."""
    x, token_mask = network.prepare(x, token_mask)
    sighted = network.sighted_blocks(x.shape[1], token_mask)
    for layer, (block, visibility) in enumerate(sighted, start=1):
        x = x.to(block.device)
        pattern, stages = None, []
        for step in block.steps:
            for branch in step.branches:
                if isinstance(branch.part, Attention):
                    pattern = branch.part.pattern(branch.before(x), visibility)
            stages += _stages(step, x, visibility)
            x = stages[-1].after
        assert pattern is not None  # every block has attention
        _refuse_overflow(x, token_mask, layer)
        yield LayerRun(layer, tuple(stages), pattern, visibility)


def _stages(step: Step, x: Tensor, visibility: Visibility) -> list[Stage]:
    """Branches side by side are taken one after the other, attention first."""
    stages: list[Stage] = []
    state, total = x, step.skip * x  # what the sum is so far
    for branch in step.branches:
        out = branch(x, visibility)
        after = total + out
        part: PartName = "attention" if isinstance(branch.part, Attention) else "MLP"
        stages.append(Stage(part, state, after, out if step.skip else None))
        state = total = after
    if not isinstance(step.after, nn.Identity):
        stages.append(Stage("norm", state, step.after(state)))
    return stages


def _refuse_overflow(x: Tensor, token_mask: Tensor | None, layer: int) -> None:
    finite = x.isfinite().all(-1)
    finite = finite if token_mask is None else finite | ~token_mask.to(finite.device)
    if not bool(finite.all()):
        sample = int((~finite.all(-1)).nonzero()[0])
        wider = (
            "" if x.dtype == torch.float64 else f"; {x.dtype} may be too narrow (--dtype float64)"
        )
        raise InputError(
            f"the output of layer {layer} of sample {sample} is not finite, so nothing can be said "
            f"about it{wider}."
        )


HEAD_FIGURES: Final = ("entropy_share", "dobrushin", "sink_share")


def head_figures(
    pattern: Tensor, visibility: Visibility, token_mask: Tensor | None
) -> dict[str, Tensor]:
    """Every figure of ``HEAD_FIGURES`` as (sample, head), on the CPU in float64.

    NaN where there is nothing to tell: queries that see one key only, too many tokens for τ.
    """
    mask = None if token_mask is None else token_mask.to(pattern.device)
    rows = pattern / pattern.sum(-1, keepdim=True)  # a sink's share of a row is no key's
    few = pattern.shape[-1] <= MOST_TOKENS_CUBED
    found = {
        "entropy_share": _entropy_share(rows, visibility, mask),
        "dobrushin": dobrushin(rows, token_mask=mask)
        if few
        else torch.full(pattern.shape[:2], torch.nan),
        "sink_share": _sink_share(pattern, mask),
    }
    return {name: values.double().cpu() for name, values in found.items()}


def _entropy_share(rows: Tensor, visibility: Visibility, mask: Tensor | None) -> Tensor:
    """The mean entropy of the rows over that of attention even over all keys a query sees."""
    even = visibility.uniform(torch.float64).expand(len(rows), 1, rows.shape[-2], -1)
    most = attention_entropy(even, token_mask=mask)
    share = attention_entropy(rows, token_mask=mask).double() / most
    return torch.where(most > 0, share.clamp(max=1.0), torch.nan)


def _sink_share(pattern: Tensor, mask: Tensor | None) -> Tensor:
    """The mean weight of the first real token as a key, over the queries that come after it."""
    batch, heads, tokens, _ = pattern.shape
    if mask is None:
        mask = torch.ones(batch, tokens, dtype=torch.bool, device=pattern.device)
    first = mask.int().argmax(-1)
    index = first.view(batch, 1, 1, 1).expand(batch, heads, tokens, 1)
    weight = pattern.gather(-1, index).squeeze(-1)
    others = mask.clone()
    others[torch.arange(batch, device=mask.device), first] = False
    counted = others.unsqueeze(1).to(weight.dtype)
    return (weight * counted).sum(-1) / counted.sum(-1)
