"""Everything a diagnosis measures in one pass: states, stages, heads and tokens of every sample."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from rankscope.core.batches import Batch
from rankscope.core.checks import valid_mask
from rankscope.core.metrics import deviations
from rankscope.core.network import Network
from rankscope.experiments import kit
from rankscope.experiments.diagnosis._heads import HEADS, head_figures
from rankscope.experiments.diagnosis._states import STATES, state_figures
from rankscope.experiments.diagnosis._tokens import nearest, nearest_to_last, token_distances, unit
from rankscope.experiments.diagnosis._walk import PARTS, Stage, walk

MOST_VALUES = 64
"""Singular values and tokens of a layer that are kept, the first ones."""
_TINY = 1e-300


@dataclass(frozen=True)
class Measured:
    """Figures of every sample, the samples along the last axis.

    ``states`` by layer from 0, the input; ``heads`` by layer from 1 and head; ``changes`` and
    ``alone`` by part and layer from 1: decades by which the relative residual changes, as it is
    and without the skip; ``turned`` by layer from 1, in radians; ``values`` and ``distances``
    by layer from 0 and singular value or token. ``last_apart`` is by layer from 0 how far the last
    token is from its nearest fellow, ``last_fellow`` which that is in the end, ``twins`` how far
    each token is from its nearest fellow before the first layer and after the last, and
    ``tokens`` how many count in each sample.
    """

    states: dict[str, Tensor]
    heads: dict[str, Tensor]
    changes: dict[str, Tensor]
    alone: dict[str, Tensor]
    turned: Tensor
    values: Tensor
    distances: Tensor
    last_apart: Tensor
    last_fellow: Tensor
    twins: Tensor
    tokens: Tensor

    @property
    def residual(self) -> Tensor:
        """The relative residual by layer and sample."""
        return self.states["relative_residual"]

    @property
    def common(self) -> Tensor:
        """The same without a few tokens that are very long: what depth collapse is judged by."""
        return self.states["common_residual"]

    def of_samples(self, some: Tensor) -> "Measured":
        """The figures of some of the samples alone."""

        def part(value: Any) -> Any:
            if isinstance(value, Tensor):
                return value[..., some]
            return {key: each[..., some] for key, each in value.items()}

        return Measured(**{each.name: part(getattr(self, each.name)) for each in fields(self)})

    @property
    def layers(self) -> int:
        """How many blocks there are."""
        return len(self.residual) - 1

    @property
    def samples(self) -> int:
        """How many samples were read."""
        return int(self.residual.shape[-1])


@torch.no_grad()
def measure(subject: kit.Subject, on_step: kit.OnStep) -> Measured:
    """Run every batch once, stage by stage, and keep its figures."""
    return _join(
        [
            _measure_batch(subject.network, batch, on_part)
            for batch, on_part in kit.tracked(subject.batches(), on_step)
        ]
    )


def _measure_batch(network: Network, batch: Batch, on_step: kit.OnStep) -> Measured:
    counted = counted_tokens(batch)
    token_mask = real_tokens(batch)
    states = [batch.x, batch.x]
    figures = [state_figures(batch.x, counted, most=MOST_VALUES)]
    distances = [token_distances(batch.x, counted, most=MOST_VALUES)]
    last = [nearest_to_last(batch.x, counted)]
    place = token_mask.cumsum(-1).cpu() - 1  # of each token in its text, padding apart
    heads, changes, turned = [], [], []
    for run in walk(network, batch.x, token_mask):
        here = counted.to(run.state.device)
        states = [states[1], run.state]
        figures.append(state_figures(run.state, here, most=MOST_VALUES))
        distances.append(token_distances(run.state, here, most=MOST_VALUES))
        last.append(nearest_to_last(run.state, here))
        heads.append(head_figures(run.pattern, run.visibility, token_mask))
        changes.append(_changes(run.stages, here))
        turned.append(turn(states[0], states[1], here))
        on_step(run.layer / network.spec.layers)
    ends = [nearest(x, counted.to(x.device))[0].mT for x in (batch.x, states[1])]
    return Measured(
        states={name: torch.stack([each[name] for each, _ in figures]) for name in STATES},
        heads={name: torch.stack([each[name].mT for each in heads]) for name in HEADS},
        changes={part: torch.stack([each[part] for each, _ in changes]) for part in PARTS},
        alone={part: torch.stack([each[part] for _, each in changes]) for part in PARTS},
        turned=torch.stack(turned),
        values=_padded([values for _, values in figures]),
        distances=_padded(distances),
        last_apart=torch.stack([apart for apart, _ in last]),
        last_fellow=place.gather(-1, last[-1][1].unsqueeze(-1)).squeeze(-1),
        twins=torch.stack(ends),
        tokens=counted.sum(-1).cpu(),
    )


def counted_tokens(batch: Batch) -> Tensor:
    """Which tokens count in the figures, as a mask of every sample."""
    return _full(batch.token_mask if batch.measured is None else batch.measured, batch.x)


def real_tokens(batch: Batch) -> Tensor:
    """Which tokens the network sees, as a mask of every sample."""
    return _full(batch.token_mask, batch.x)


def _full(mask: Tensor | None, x: Tensor) -> Tensor:
    shape = tuple(x.shape[:2])
    if mask is None:
        return torch.ones(shape, dtype=torch.bool, device=x.device)
    return valid_mask(mask, shape).expand(shape).to(x.device)


def _changes(
    stages: Sequence[Stage], counted: Tensor
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """By part, the change of log10 of the relative residual, and what it would be alone.

    A part that a block does not have changes nothing; several norms of a block are added up.
    """
    logs = [_log10(stages[0].before, counted)] + [_log10(each.after, counted) for each in stages]
    change: dict[str, Tensor] = {part: torch.zeros_like(logs[0]) for part in PARTS}
    alone: dict[str, Tensor] = {part: torch.full_like(logs[0], torch.nan) for part in PARTS}
    for number, stage in enumerate(stages):
        change[stage.part] = change[stage.part] + logs[number + 1] - logs[number]
        if stage.alone is not None:
            alone[stage.part] = _log10(stage.alone, counted) - logs[number]
    return change, alone


def _log10(x: Tensor, counted: Tensor) -> Tensor:
    found = deviations(x, token_mask=counted).relative_residual()
    return found.double().clamp_min(_TINY).log10().cpu()


def turn(before: Tensor, after: Tensor, counted: Tensor) -> Tensor:
    """By which angle tokens are turned, in radians: the median over the tokens of each sample.

    Token by token, because one that is much longer than the others would speak for all.
    """
    a, b = (unit(x.to(after.device)) for x in (before, after))
    # Not from the cosine: near one it has lost the digits of a small angle.
    angle = 2 * ((a - b).norm(dim=-1) / 2).clamp(max=1.0).asin()
    return torch.where(counted, angle, torch.nan).nanquantile(0.5, dim=-1).cpu()


def _padded(parts: Sequence[Tensor]) -> Tensor:
    """Layers stacked, and NaN where there are fewer values than are kept."""
    stacked = torch.stack(list(parts))
    return pad(stacked, (0, 0, 0, MOST_VALUES - stacked.shape[1]), value=torch.nan)


def _join(parts: Sequence[Measured]) -> Measured:
    """The samples of several batches one after another."""

    def side_by_side(name: str) -> Any:
        values = [getattr(part, name) for part in parts]
        if isinstance(values[0], Tensor):
            return torch.cat(values, -1)
        return {key: torch.cat([each[key] for each in values], -1) for key in values[0]}

    return Measured(**{each.name: side_by_side(each.name) for each in fields(Measured)})
