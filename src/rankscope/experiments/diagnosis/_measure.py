"""What a diagnosis measures in one pass, and its rows of the table.

What is measured of a network of ours and of any other model is the same (``_stages``).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import polars as pl
import torch
from torch import Tensor
from torch.nn.functional import pad

from rankscope import tables
from rankscope.ask import MOST_TOKENS_CUBED
from rankscope.core import metrics
from rankscope.core.batches import Batch
from rankscope.core.network import Visibility
from rankscope.experiments import kit
from rankscope.experiments.diagnosis._stages import Sight, Stage, layer_runs, masks
from rankscope.experiments.diagnosis._tokens import (
    common_tokens,
    last_token,
    nearest,
    nearest_to_last,
    token_distances,
    turn,
)
from rankscope.experiments.diagnosis._weights import BLOCK, Reading, read_weights

PARTS = ("attention", "MLP", "norm")
MOST_VALUES = 64
"""Singular values and tokens of a layer that are kept, the first ones."""
THIS = "this model"
STATES, STEPS, HEADS, SPECTRUM, TOKENS = "states", "steps", "heads", "spectrum", "tokens"
SUBLAYERS: Final = "sublayers"
"""Values of the column ``part``: each is drawn on its own."""
VIEWS: Final = ("mean", "first token", "last token")
"""The vectors that represent a text: the mean of its tokens, or one of them."""
_TINY: Final = 1e-300
_SHOWN: Final = 0.005
"""Part of a residual by which another one has to differ to show in two digits."""


HEAD_FIGURES: Final = ("entropy_share", "dobrushin", "sink_share")


def head_figures(
    pattern: Tensor, visibility: Visibility | Sight, token_mask: Tensor | None
) -> dict[str, Tensor]:
    """Three figures as (sample, head), on the CPU in float64.

    The mean entropy of the rows over that of attention even over all keys a query sees, τ, and the
    mean weight of the first real token as a key, over the queries that come after it. NaN where
    it is undefined or too costly: queries that see one key only, too many tokens for τ.
    """
    batch, heads, tokens, _ = pattern.shape
    if token_mask is None:
        token_mask = torch.ones(batch, tokens, dtype=torch.bool)
    mask = token_mask.to(pattern.device)
    rows = pattern / pattern.sum(-1, keepdim=True)  # a sink's share of a row is no key's
    even = visibility.uniform(torch.float64)
    even = even.expand(batch, even.shape[1] if even.ndim == 4 else 1, tokens, -1)
    most = metrics.attention_entropy(even, token_mask=mask)
    share = metrics.attention_entropy(rows, token_mask=mask).double() / most
    tau = torch.full((batch, heads), torch.nan)
    if tokens <= MOST_TOKENS_CUBED:
        tau = metrics.dobrushin(rows, token_mask=mask)
    first = mask.int().argmax(-1)
    index = first.view(batch, 1, 1, 1).expand(batch, heads, tokens, 1)
    weight = pattern.gather(-1, index).squeeze(-1)
    others = mask.clone()
    others[torch.arange(batch, device=mask.device), first] = False
    counted = others.unsqueeze(1).to(weight.dtype)
    figures = {
        "entropy_share": torch.where(most > 0, share.clamp(max=1.0), torch.nan),
        "dobrushin": tau,
        "sink_share": (weight * counted).sum(-1) / counted.sum(-1),
    }
    return {name: values.double().cpu() for name, values in figures.items()}


def _state_figures(x: Tensor, counted: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """Figures of each sample, and its singular values over their sum (value, sample).

    Everything is on the CPU in float64. A few tokens that are many times as long as the median one
    ("massive activations") make up nearly all of a state's norm, and whatever becomes of the others
    does not show in it: the common residual is without them.
    """
    common = common_tokens(x, counted)
    apart = metrics.deviations(x, token_mask=counted)
    spectrum = metrics.spectra(x, token_mask=counted)
    figures = {
        "relative_dispersion": apart.relative_dispersion(),
        "relative_residual": apart.relative_residual(),
        "mean_cosine": metrics.mean_cosine(x, token_mask=counted),
        "effective_rank": spectrum.effective_rank(),
        "numerical_rank": spectrum.numerical_rank(),
        "rank_share": spectrum.numerical_rank() / counted.sum(-1).clamp(max=x.shape[-1]),
        "token_norm": metrics.token_norm(x, token_mask=counted),
        "common_residual": metrics.deviations(x, token_mask=common).relative_residual(),
    }
    values = spectrum.sigma.double().cpu()
    shares = (values / values.sum(-1, keepdim=True))[:, :MOST_VALUES].mT
    return {name: figure.double().cpu() for name, figure in figures.items()}, shares


def _step_figures(
    stages: Sequence[Stage], counted: Tensor, parts: Sequence[str]
) -> tuple[dict[str, Tensor], ...]:
    """By part, the change of log10 of the relative residual, and what it would be alone.

    A part that a block does not have changes nothing; several norms of a block are added up.
    """
    if not stages:
        nothing = torch.full((len(counted),), torch.nan, dtype=torch.float64)
        return dict.fromkeys(parts, torch.zeros_like(nothing)), dict.fromkeys(parts, nothing)

    def log10(x: Tensor) -> Tensor:
        residual = metrics.deviations(x, token_mask=counted).relative_residual()
        return residual.double().clamp_min(_TINY).log10().cpu()

    before = log10(stages[0].before)
    change = {part: torch.zeros_like(before) for part in parts}
    alone = {part: torch.full_like(before, torch.nan) for part in parts}
    for stage in stages:
        after = log10(stage.after)
        change[stage.part] = change[stage.part] + after - before
        if stage.skipped:
            alone[stage.part] = log10(stage.alone) - before
        before = after
    return change, alone


SUBLAYER_FIGURES: Final = ("sizes", "lengths", "spreads")


def _sublayer_figures(
    stages: Sequence[Stage], counted: Tensor, parts: Sequence[str]
) -> dict[str, dict[str, Tensor]]:
    """Three figures of what each part puts out, by part and sample; NaN for one that is not there.

    ``sizes``: its length over that of the state it is added to, token by token, because some tokens
    are much longer than others: the median. ``lengths``: the length itself, per root of the width.
    ``spreads``: what of it differs from token to token, in the size of the state. A norm after the
    sum replaces the state, so its output stands alone; of several norms of a block, the one with
    the smallest output counts.
    """
    nothing = torch.full((len(counted),), torch.nan, dtype=torch.float64)
    figures = {name: dict.fromkeys(parts, nothing) for name in SUBLAYER_FIGURES}
    for stage in stages:
        root = math.sqrt(stage.before.shape[-1])
        norm, mask = stage.part == "norm", counted.unsqueeze(-1)
        out = torch.where(mask, stage.alone.double(), 0.0)
        states = stage.before.double().norm(dim=-1)
        before = torch.full_like(states, root) if norm else states.clamp_min(_TINY)
        lengths = torch.where(counted, out.norm(dim=-1), torch.nan)
        center = out.sum(1, keepdim=True) / counted.sum(-1).view(-1, 1, 1)
        apart = torch.where(mask, out - center, 0.0)
        squares = torch.where(counted, before.square(), 0.0).sum(-1).clamp_min(_TINY)
        values = (
            (lengths / before).nanquantile(0.5, dim=-1),
            lengths.nanquantile(0.5, dim=-1) / root,
            (apart.square().sum((1, 2)) / squares).sqrt(),
        )
        for name, value in zip(SUBLAYER_FIGURES, values, strict=True):
            by_part = figures[name]
            by_part[stage.part] = torch.fmin(by_part[stage.part], value.cpu())
    return figures


def _logit_scale(logits: Tensor, visibility: Visibility | Sight, token_mask: Tensor) -> Tensor:
    """By sample and head, the standard deviation of the logits of a query.

    The mean over the queries, which are real tokens; what a query does not see has no part in it.
    """
    seen = (visibility.uniform(logits.dtype) > 0).expand_as(logits)
    count = seen.sum(-1).clamp_min(1)
    logits = torch.where(seen, logits.double(), 0.0)
    mean = logits.sum(-1) / count
    square = torch.where(seen, (logits - mean.unsqueeze(-1)).square(), 0.0).sum(-1) / count
    real = token_mask.to(logits.device).unsqueeze(1)
    return ((square.sqrt() * real).sum(-1) / real.sum(-1)).cpu()


def _text_views(x: Tensor, counted: Tensor) -> Tensor:
    """The vectors that represent each text, as (view, feature, sample), in the order of ``VIEWS``.

    The mean is without giants, which are about the same in every text.
    """
    rows = torch.arange(len(x), device=x.device)
    mean = metrics.mean_center(x.double(), common_tokens(x, counted))
    first, last = x[rows, counted.int().argmax(-1)], x[rows, last_token(counted)]
    return torch.stack([mean, first.double(), last.double()]).mT.float().cpu()


@dataclass(frozen=True)
class ModelFigures:
    """Figures of every sample, the samples along the last axis.

    ``states`` by layer from 0, the input; ``heads`` by layer from 1 and head; ``changes`` and
    ``alone`` by part and layer from 1: decades by which the relative residual changes, as it is
    and without the skip; ``turned`` by layer from 1, in radians; ``values`` and ``distances``
    by layer from 0 and singular value or token. ``last_apart`` is by layer from 0 how far the last
    token is from its nearest neighbour, ``last_neighbour`` which that is in the end, ``twins`` how
    far each token is from its nearest neighbour before the first layer and after the last, and
    ``tokens`` how many count in each sample. ``sizes``, ``lengths`` and ``spreads`` are by part and
    layer from 1 what the part puts out (``_sublayer_figures``), ``logits`` by layer from 1 and head
    how far logits lie apart, ``views`` by layer from 0 what stands for the text, ``embeddings``
    (feature, sample) what the model's own pooling makes of the last layer (None: it states none),
    and ``weights`` what the weights looked like. Layers whose attention could not be observed have
    NaN in ``heads`` and ``logits``, and ``unread`` says of the first of them why.
    """

    states: dict[str, Tensor]
    heads: dict[str, Tensor]
    changes: dict[str, Tensor]
    alone: dict[str, Tensor]
    turned: Tensor
    values: Tensor
    distances: Tensor
    last_apart: Tensor
    last_neighbour: Tensor
    twins: Tensor
    tokens: Tensor
    sizes: dict[str, Tensor]
    lengths: dict[str, Tensor]
    spreads: dict[str, Tensor]
    logits: Tensor
    views: Tensor
    embeddings: Tensor | None = None
    weights: tuple[Reading, ...] = ()
    unread: str = ""
    causal: bool | None = None
    """Whether the first token sees only itself, where that was observed while a model ran."""

    @property
    def attends(self) -> Tensor:
        """By layer from 1, whether its attention was observed."""
        return (~self.heads["sink_share"].isnan()).flatten(1).any(-1)

    @property
    def residual(self) -> Tensor:
        """The relative residual by layer and sample."""
        return self.states["relative_residual"]

    @property
    def logit_scales(self) -> dict[str, Tensor]:
        """Standard deviation of the logits by layer and sample, the mean of the heads."""
        return {"attention": self.logits.nanmean(1)}

    @property
    def common(self) -> Tensor:
        """The same without a few tokens that are very long: what depth collapse is judged by."""
        return self.states["common_residual"]

    @property
    def typical_residual(self) -> Tensor:
        """By layer, the median over the samples of what depth collapse is judged by."""
        return self.common.quantile(0.5, dim=-1)

    @property
    def lowest(self) -> tuple[float, int]:
        """The lowest of these medians, and its layer: what "lowest" means in every answer."""
        curve = self.typical_residual
        return float(curve.min()), int(curve.argmin())

    @property
    def has_giants(self) -> bool:
        """Whether very long tokens change this curve."""
        with_giants = self.residual.quantile(0.5, dim=-1)
        return bool(((self.typical_residual - with_giants).abs() > _SHOWN * with_giants).any())

    def of_samples(self, some: Tensor) -> "ModelFigures":
        """The figures of some of the samples alone."""
        return _combined([self], lambda values: values[0][..., some])


def _combined(
    parts: Sequence[ModelFigures], combine: Callable[[list[Tensor]], Tensor]
) -> ModelFigures:
    """Every tensor made of those of the parts."""

    def combine_field(values: list[Any]) -> Any:
        if isinstance(values[0], Tensor):
            return combine(values)
        if not isinstance(values[0], dict | Tensor):  # weights are those of all samples
            return values[0]
        return {key: combine([by_key[key] for by_key in values]) for key in values[0]}

    by_part = {
        field.name: [getattr(part, field.name) for part in parts] for field in fields(parts[0])
    }
    return ModelFigures(**{name: combine_field(values) for name, values in by_part.items()})


@torch.no_grad()
def measure(
    subject: kit.Subject, on_step: kit.OnStep, known: Sequence[Reading] = ()
) -> ModelFigures:
    """Run every batch once, stage by stage, and keep its figures.

    Weights that are as they were when they were ``known`` are not read again.
    """
    runs = kit.tracked(subject.batches(), on_step)
    parts = [_measure_batch(subject, batch, on_part) for batch, on_part in runs]
    figures = _combined(parts, _joined)
    if figures.causal is not None:
        figures = replace(figures, causal=all(part.causal for part in parts))
    return replace(figures, weights=read_weights(subject, known))


def _joined(values: Sequence[Tensor]) -> Tensor:
    """Figures of several batches, the samples side by side; fewer tokens than others are NaN."""
    if len({value.shape[:-1] for value in values}) > 1:
        sizes = [max(size) for size in zip(*(value.shape[:-1] for value in values), strict=True)]
        values = [_filled(value, sizes) for value in values]
    return torch.cat(list(values), dim=-1)


def _filled(value: Tensor, sizes: Sequence[int]) -> Tensor:
    """A tensor made as large as others but for its last axis; what is added is infinitely far."""
    added = [(0, size - have) for size, have in zip(sizes, value.shape[:-1], strict=True)]
    flat = [n for pair in reversed([*added, (0, 0)]) for n in pair]
    return pad(value, flat, value=torch.inf)


def _measure_batch(subject: kit.Subject, batch: Batch, on_step: kit.OnStep) -> ModelFigures:
    real, counted = masks(batch)
    first, runs = layer_runs(subject, batch, real)
    layers = subject.network.spec.layers if subject.traced is None else len(subject.traced.stack)
    parts = PARTS if subject.traced is None else subject.traced.parts
    before, heads, steps, turned, unread = first, [], [], [], ""
    sublayers, logits, views = [], [], [_text_views(first, counted)]
    figures = [_state_figures(first, counted)]
    distances = [token_distances(first, counted, most=MOST_VALUES)]
    last = [nearest_to_last(first, counted)]
    causal: list[bool] = []
    for run in runs:
        here = _counted_here(counted, run.state)
        figures.append(_state_figures(run.state, here))
        distances.append(token_distances(run.state, here, most=MOST_VALUES))
        last.append(nearest_to_last(run.state, here))
        steps.append(_step_figures(run.stages, here, parts))
        turned.append(_turn(before, run.state, here))
        sublayers.append(_sublayer_figures(run.stages, here, parts))
        views.append(_text_views(run.state, here))
        if run.pattern is None or run.logits is None or run.visibility is None:
            nothing = torch.full((len(real), 1), torch.nan, dtype=torch.float64)
            heads.append(dict.fromkeys(HEAD_FIGURES, nothing))
            logits.append(nothing)
            unread = unread or f"layer {run.layer}: {run.unread}"
        else:
            heads.append(head_figures(run.pattern, run.visibility, real))
            logits.append(_logit_scale(run.logits, run.visibility, real))
            causal.append(_is_first_alone(run.visibility, real))
        before = run.state
        on_step(run.layer / layers)
    ends = [nearest(x, _counted_here(counted, x))[0].mT for x in (first, before)]
    position = real.cumsum(-1).cpu() - 1  # of each token in its text, padding apart
    if position.shape[1] != before.shape[1]:
        position = torch.arange(before.shape[1]).expand(before.shape[:2])

    def stacked(layers: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
        return {name: torch.stack([layer[name] for layer in layers]) for name in layers[0]}

    def padded(layers: Sequence[Tensor]) -> Tensor:
        kept = [
            pad(layer, (0, 0, 0, MOST_VALUES - len(layer)), value=torch.nan) for layer in layers
        ]
        return torch.stack(kept)  # NaN where there are fewer values than are kept

    def widened(layers: Sequence[Tensor], axis: int, value: float) -> list[Tensor]:
        """Layers of different sizes along an axis, made as large as the largest."""
        most = max(layer.shape[axis] for layer in layers)
        after = layers[0].ndim - 1 - axis % layers[0].ndim
        return [
            pad(layer, (*(0, 0) * after, 0, most - layer.shape[axis]), value=value)
            for layer in layers
        ]

    heads = [
        dict(zip(HEAD_FIGURES, rows, strict=True))
        for rows in zip(
            *(widened([layer[name] for layer in heads], 1, torch.nan) for name in HEAD_FIGURES),
            strict=True,
        )
    ]
    return ModelFigures(
        states=stacked([state for state, _ in figures]),
        heads={name: values.mT for name, values in stacked(heads).items()},
        changes=stacked([change for change, _ in steps]),
        alone=stacked([alone for _, alone in steps]),
        turned=torch.stack(turned),
        values=padded([values for _, values in figures]),
        distances=padded(distances),
        last_apart=torch.stack([apart for apart, _ in last]),
        last_neighbour=position.gather(-1, last[-1][1].unsqueeze(-1)).squeeze(-1),
        twins=torch.stack(widened(ends, 0, torch.inf)),
        tokens=counted.sum(-1).cpu(),
        sizes=stacked([layer["sizes"] for layer in sublayers]),
        lengths=stacked([layer["lengths"] for layer in sublayers]),
        spreads=stacked([layer["spreads"] for layer in sublayers]),
        logits=torch.stack(widened(logits, 1, torch.nan)).mT,
        # Features that others lack are zero, which changes neither distances nor angles.
        views=torch.stack(widened(views, 1, 0.0)),
        embeddings=_own_embeddings(subject, before, real),
        unread=unread,
        causal=None if subject.traced is None else bool(causal) and all(causal),
    )


def _own_embeddings(subject: kit.Subject, last: Tensor, real: Tensor) -> Tensor | None:
    """What the model's own pooling makes of the last layer; None if it is not known to have one."""
    if subject.traced is not None or not subject.pooling.own:
        return None
    return subject.pooling(last, real).mT.cpu()


def _counted_here(counted: Tensor, state: Tensor) -> Tensor:
    """Which tokens count in a layer; all, in one that has others than the first."""
    if counted.shape == state.shape[:2]:
        return counted.to(state.device)
    return torch.ones(state.shape[:2], dtype=torch.bool, device=state.device)


def _turn(before: Tensor, after: Tensor, counted: Tensor) -> Tensor:
    """As ``turn``; NaN for a layer that changes the number of tokens or features."""
    if before.shape == after.shape:
        return turn(before, after, counted)
    return torch.full((len(after),), torch.nan, dtype=torch.float64)


def _is_first_alone(sight: Visibility | Sight, real: Tensor) -> bool:
    """Whether the first token of every sample attends only to itself."""
    even = sight.uniform(torch.float64).expand(len(real), -1, real.shape[1], -1)
    rows, first = torch.arange(len(real), device=even.device), real.int().argmax(-1)
    return bool((even[rows, :, first, first] == 1).all())


def rows(measured: ModelFigures) -> pl.DataFrame:
    """Everything measured, one number a row; NaN is left out.

    Axes are named, each with its first number; the last is that of the samples.
    """
    frames: list[pl.DataFrame] = []

    def add(values: Tensor, metric: str, part: str, variant: str = "", **axes: int) -> None:
        known = ~values.isnan()
        places = known.nonzero()
        columns: dict[str, Any] = {
            name: (places[:, axis] + first).tolist()
            for axis, (name, first) in enumerate({**axes, "sample": 0}.items())
        }
        labels = {"part": part, "metric": metric, **({"variant": variant} if variant else {})}
        columns |= {name: [label] * len(places) for name, label in labels.items()}
        frames.append(tables.frame({**columns, "value": values[known].tolist()}))

    for metric, values in measured.states.items():
        add(values, metric, STATES, THIS, layer=0)
    add(measured.turned, "layer_turn", STATES, THIS, layer=1)
    add(measured.last_apart, "last_token_distance", STATES, THIS, layer=0)
    parts = [part for part in measured.changes if part != BLOCK]
    if BLOCK in measured.sizes and not bool(measured.sizes[BLOCK].isnan().all()):
        parts.append(BLOCK)
    for part in parts:
        add(measured.changes[part], "residual_step", STEPS, part, layer=1)
        add(measured.alone[part], "residual_step_alone", STEPS, part, layer=1)
        add(measured.sizes[part], "sublayer_size", SUBLAYERS, part, layer=1)
        add(measured.spreads[part], "sublayer_spread", SUBLAYERS, part, layer=1)
    add(measured.logits, "logit_scale", HEADS, layer=1, head=0)
    for metric, values in measured.heads.items():
        add(values, metric, HEADS, layer=1, head=0)
    add(measured.values, "singular_value_share", SPECTRUM, layer=0, index=1)
    add(measured.distances, "token_distance", TOKENS, layer=0, token=0)
    return tables.stack(frames)
