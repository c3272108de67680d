"""What a diagnosis measures in one pass: figures of every sample, and their rows of the table."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

import polars as pl
import torch
from torch import Tensor
from torch.nn.functional import pad

from rankscope import tables
from rankscope.core.batches import Batch
from rankscope.core.checks import valid_mask
from rankscope.core.metrics import deviations, mean_center, mean_cosine, spectra, token_norm
from rankscope.core.network import Network
from rankscope.core.theory import thresholds
from rankscope.experiments import kit
from rankscope.experiments.diagnosis._stages import HEAD_FIGURES, PARTS, Stage, head_figures, walk

_TINY: Final = 1e-300


def token_distances(x: Tensor, counted: Tensor, *, most: int) -> Tensor:
    """How far tokens are from the center, in root mean squares of all tokens' lengths.

    (token, sample): the first ``most`` that count, in order, NaN where a sample has fewer; on the
    CPU. The mean square over all tokens is the square of the relative dispersion.
    """
    x = x.double()
    center = mean_center(x, counted).unsqueeze(-2)
    squares = torch.where(counted, x.square().sum(-1), 0.0)
    size = (squares.sum(-1) / counted.sum(-1)).sqrt().clamp_min(_TINY).unsqueeze(-1)
    apart = torch.where(counted, (x - center).norm(dim=-1) / size, torch.nan)
    order = torch.argsort(~counted, dim=-1, stable=True)
    return apart.gather(-1, order)[:, :most].mT.cpu()


def unit(x: Tensor) -> Tensor:
    """Tokens at length one, in float64; a token of zeros stays as it is."""
    found: Tensor = x.double() / x.double().norm(dim=-1, keepdim=True).clamp_min(_TINY)
    return found


def cosines(x: Tensor) -> Tensor:
    """Between all pairs of the tokens of one sample (token, feature)."""
    found: Tensor = (unit(x) @ unit(x).mT).clamp(-1.0, 1.0)
    return found.cpu()


def without_giants(x: Tensor, counted: Tensor) -> Tensor:
    """The tokens that count, less those many times as long as the median one.

    A few such tokens ("massive activations") make up nearly all of a state's norm, and whatever
    becomes of the others does not show in it.
    """
    lengths = torch.where(counted, x.double().norm(dim=-1), torch.nan)
    typical = lengths.nanquantile(0.5, dim=-1, keepdim=True)
    return counted & ~(lengths > thresholds.GIANT_NORM * typical)


def nearest(x: Tensor, counted: Tensor) -> tuple[Tensor, Tensor]:
    """For each token the relative distance to its nearest fellow, and which that is.

    (sample, token), infinite where a token does not count, on the CPU. Distances are in lengths of
    the longer of the two.
    """
    x = x.double()
    # Directly: through products the digits of small distances are lost.
    apart = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist")
    pairs = counted.unsqueeze(-1) & counted.unsqueeze(-2)
    pairs &= ~torch.eye(x.shape[1], dtype=torch.bool, device=x.device)
    return _least(apart, x.norm(dim=-1).unsqueeze(-1), x, pairs)


def nearest_to_last(x: Tensor, counted: Tensor) -> tuple[Tensor, Tensor]:
    """The same for the last token of each sample alone: (sample,)."""
    x = x.double()
    place = last_token(counted)
    rows = torch.arange(len(x), device=x.device)
    last = x[rows, place]
    pairs = counted.clone()
    pairs[rows, place] = False
    apart = (x - last.unsqueeze(1)).norm(dim=-1)
    return _least(apart, last.norm(dim=-1, keepdim=True), x, pairs)


def last_token(counted: Tensor) -> Tensor:
    """Where the last token of each sample stands that counts."""
    places = torch.arange(counted.shape[1], device=counted.device).expand_as(counted)
    return torch.where(counted, places, -1).amax(-1)


def _least(apart: Tensor, own: Tensor, x: Tensor, pairs: Tensor) -> tuple[Tensor, Tensor]:
    lengths = x.norm(dim=-1)
    others = lengths.unsqueeze(-2) if apart.ndim == 3 else lengths
    relative = apart / torch.maximum(own, others).clamp_min(_TINY)
    distance, fellow = torch.where(pairs, relative, torch.inf).min(-1)
    return distance.cpu(), fellow.cpu()


STATE_FIGURES: Final = (
    "relative_dispersion",
    "relative_residual",
    "common_residual",
    "mean_cosine",
    "effective_rank",
    "numerical_rank",
    "rank_share",
    "token_norm",
)


def state_figures(x: Tensor, counted: Tensor, *, most: int) -> tuple[dict[str, Tensor], Tensor]:
    """Every figure of ``STATE_FIGURES`` for each sample, and its ``most`` largest singular values.

    Singular values are (value, sample), over their sum. Everything is on the CPU in float64.
    """
    apart, spectrum = deviations(x, token_mask=counted), spectra(x, token_mask=counted)
    most_rank = counted.sum(-1).clamp(max=x.shape[-1])
    common = deviations(x, token_mask=without_giants(x, counted))
    found = {
        "relative_dispersion": apart.relative_dispersion(),
        "relative_residual": apart.relative_residual(),
        "common_residual": common.relative_residual(),
        "mean_cosine": mean_cosine(x, token_mask=counted),
        "effective_rank": spectrum.effective_rank(),
        "numerical_rank": spectrum.numerical_rank(),
        "rank_share": spectrum.numerical_rank() / most_rank,
        "token_norm": token_norm(x, token_mask=counted),
    }
    values = spectrum.sigma.double().cpu()
    shares = (values / values.sum(-1, keepdim=True))[:, :most].mT
    return {name: figure.double().cpu() for name, figure in found.items()}, shares


MOST_VALUES = 64
"""Singular values and tokens of a layer that are kept, the first ones."""


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
        states={name: torch.stack([each[name] for each, _ in figures]) for name in STATE_FIGURES},
        heads={name: torch.stack([each[name].mT for each in heads]) for name in HEAD_FIGURES},
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


THIS = "this model"
STATES, STEPS, HEADS, SPECTRUM, TOKENS = "states", "steps", "heads", "spectrum", "tokens"
"""Values of the column ``part``: each is drawn on its own."""


def rows(measured: Measured) -> pl.DataFrame:
    """Everything measured, one number a row."""
    return tables.stack(_frames(measured))


def _frames(measured: Measured) -> Iterator[pl.DataFrame]:
    whole = {"part": STATES, "variant": THIS}
    for metric, values in measured.states.items():
        if values is not measured.common:
            yield _frame(values, {"layer": 0}, metric=metric, **whole)
    yield _frame(measured.common, {"layer": 0}, metric="common_residual", **whole)
    yield _frame(measured.turned, {"layer": 1}, metric="layer_turn", **whole)
    yield _frame(measured.last_apart, {"layer": 0}, metric="last_token_distance", **whole)
    for part in measured.changes:
        step = {"part": STEPS, "variant": part}
        yield _frame(measured.changes[part], {"layer": 1}, metric="residual_step", **step)
        yield _frame(measured.alone[part], {"layer": 1}, metric="residual_step_alone", **step)
    for metric, values in measured.heads.items():
        yield _frame(values, {"layer": 1, "head": 0}, metric=metric, part=HEADS)
    yield _frame(
        measured.values, {"layer": 0, "index": 1}, metric="singular_value_share", part=SPECTRUM
    )
    yield _frame(measured.distances, {"layer": 0, "token": 0}, metric="token_distance", part=TOKENS)


def _frame(values: Tensor, axes: dict[str, int], **labels: str) -> pl.DataFrame:
    """One row for each number that is not NaN; ``axes`` are named, each with its first number,
    and the last axis is that of the samples."""
    known = ~values.isnan()
    places = known.nonzero()
    columns: dict[str, list[Any]] = {
        name: (places[:, axis] + first).tolist()
        for axis, (name, first) in enumerate({**axes, "sample": 0}.items())
    }
    columns |= {name: [label] * len(places) for name, label in labels.items()}
    return tables.frame({**columns, "value": values[known].tolist()})
