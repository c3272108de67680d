"""A model at work, stage by stage.

A network of ours runs sublayer by sublayer (``walk``), any other model as it is, while its states
are recorded (``walk_recording``). The state before a stage is the state after the one before it, so
that changes of any figure add up to the change over the whole network.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from rankscope.core.batches import Batch
from rankscope.core.checks import valid_mask
from rankscope.core.network import Attention, Network, Visibility
from rankscope.core.tracing import Recording, Sublayers
from rankscope.errors import InputError
from rankscope.experiments import kit
from rankscope.experiments.diagnosis._weights import BLOCK


def masks(batch: Batch) -> tuple[Tensor, Tensor]:
    """Which tokens the network sees, and which count in the figures, as masks of every sample."""
    x, shape = batch.x, tuple(batch.x.shape[:2])

    def full(mask: Tensor | None) -> Tensor:
        if mask is None:
            return torch.ones(shape, dtype=torch.bool, device=x.device)
        return valid_mask(mask, shape).expand(shape).to(x.device)

    counted = batch.token_mask if batch.measured is None else batch.measured
    return full(batch.token_mask), full(counted)


class Stage(NamedTuple):
    """One part at work: the state before it and after it.

    ``alone`` is the part's own output, which is the state after it where there is no skip, as
    around a norm after the sum. A norm before or inside a branch belongs to the branch. Of a block
    whose sublayers are not known it is what the block adds to the state.
    """

    part: str
    before: Tensor
    after: Tensor
    alone: Tensor
    skipped: bool


class Sight(NamedTuple):
    """What tokens see, by the attention even over it."""

    even: Tensor

    def uniform(self, dtype: torch.dtype) -> Tensor:
        """As ``Visibility.uniform``."""
        return self.even.to(dtype)


class LayerRun(NamedTuple):
    """A block at work: its stages, its attention and the logits of it, and what tokens see.

    ``layer`` counts from 1, as states do: 0 is the input. ``state`` is the block's output.
    Attention that cannot be observed is None, and ``unread`` says why.
    """

    layer: int
    stages: list[Stage]
    logits: Tensor | None
    pattern: Tensor | None
    visibility: Visibility | Sight | None
    state: Tensor
    unread: str = ""


def walk(network: Network, x: Tensor, token_mask: Tensor | None) -> Iterator[LayerRun]:
    """Every block in turn; the states are those of ``network.states``."""
    x, token_mask = network.prepare(x, token_mask)
    sighted = network.sighted_blocks(x.shape[1], token_mask)
    for layer, (block, visibility) in enumerate(sighted, start=1):
        x = x.to(block.device)
        logits, pattern, stages = None, None, []
        for step in block.steps:
            state, total = x, step.skip * x  # what the sum is so far
            for branch in step.branches:  # those side by side one after the other, attention first
                part = "attention" if isinstance(branch.part, Attention) else "MLP"
                if isinstance(branch.part, Attention):
                    logits = branch.part.logits(branch.before(state), visibility)
                    pattern = branch.part.scores.weights(logits, visibility)
                out = branch(state, visibility)
                total = total + out
                stages.append(Stage(part, x, total, out, bool(step.skip)))
                x = total
            if not isinstance(step.after, nn.Identity):
                out = step.after(x)
                stages.append(Stage("norm", x, out, out, False))
                x = out
        assert pattern is not None  # every block has attention
        assert logits is not None
        _refuse_overflow(x, token_mask, layer)
        yield LayerRun(layer, stages, logits, pattern, visibility, x)


def walk_recording(
    recording: Recording, sublayers: Sublayers, token_mask: Tensor
) -> Iterator[LayerRun]:
    """Every block of a model that ran as it is, by the sublayers that the numbers confirm."""
    for layer, (before, state) in enumerate(pairwise(recording.states), start=1):
        real = token_mask if token_mask.shape == state.shape[:2] else None
        _refuse_overflow(state, real, layer)
        stages = []
        if (steps := recording.steps(layer, sublayers)) is not None:
            stages = [Stage(*step, skipped=step[0] != "norm") for step in steps]
        elif before.shape == state.shape:
            stages = [Stage(BLOCK, before, state, state - before, skipped=False)]
        scores, unread = recording.attention(layer)
        if scores is None or real is None:
            yield LayerRun(layer, stages, None, None, None, state, unread or "its tokens change")
            continue
        scores = replace(scores, token_mask=real)
        if bool(scores.summary.entropy.isnan().any()):
            unread = "its attention is not a distribution over the real tokens"
            yield LayerRun(layer, stages, None, None, None, state, unread)
            continue
        chunk = scores.weights(slice(0, scores.shape[2]))
        logits = torch.full(scores.shape, -torch.inf, dtype=chunk.shifted.dtype).to(state.device)
        logits[..., chunk.keys] = chunk.shifted
        logits = torch.where(real[:, None, None, :], logits, -torch.inf)
        seen = logits > -torch.inf
        blind = ~seen.any(-1, keepdim=True)  # padding, which may see nothing
        seen = seen | blind
        even = seen.double() / seen.sum(-1, keepdim=True)
        pattern = torch.zeros_like(logits)
        pattern[..., chunk.keys] = chunk.p  # a learned sink takes some of it
        pattern = torch.where(blind, even.to(logits.dtype), torch.where(seen, pattern, 0.0))
        yield LayerRun(layer, stages, logits, pattern, Sight(even), state)


def _refuse_overflow(x: Tensor, token_mask: Tensor | None, layer: int) -> None:
    finite = x.isfinite().all(-1)
    finite = finite if token_mask is None else finite | ~token_mask.to(finite.device)
    if not bool(finite.all()):
        sample = int((~finite.all(-1)).nonzero()[0])
        wide = x.dtype == torch.float64
        wider = "" if wide else f"; {x.dtype} may be too narrow (--dtype float64)"
        raise InputError(
            f"the output of layer {layer} of sample {sample} is not finite, so it cannot be "
            f"diagnosed{wider}."
        )


def layer_runs(
    subject: kit.Subject, batch: Batch, real: Tensor
) -> tuple[Tensor, Iterator[LayerRun]]:
    """The state before the first block, and every block at work."""
    if subject.traced is None:
        return batch.x, walk(subject.network, batch.x, real)
    recording = subject.traced.record(batch)
    first = recording.states[0]
    sublayers = subject.traced.sublayers
    return first, walk_recording(recording, sublayers, real.to(first.device))
