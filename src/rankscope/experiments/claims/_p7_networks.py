"""The networks of claim P7: what is predicted of them, what they reach, what forecasts it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rankscope.core.network import Block, Init, Network, Spec
from rankscope.core.prediction import Prediction, predict
from rankscope.core.shapes import Hidden
from rankscope.errors import InputError
from rankscope.experiments.kit import OnStep, tracked
from rankscope.experiments.learning import SORTING, Lesson, TaskPlan, learn, lesson
from rankscope.models.training import Classify, SequenceModel

ALIKE, OWN = STARTS = "nearly alike", "own tokens"
"""Where exponents are taken: at tokens that hardly differ, where the paper takes them, or at the
task's own."""
ANGLE, GRADIENT, DISTANCE = _EXPONENTS = (
    "angle exponent",
    "gradient exponent",
    "exponents from zero",
)
EXPLAINED, CORRELATION, NEIGHBOURS = "explained_share", "rank_correlation", "neighbour_share"
_NEARLY: Final = 1e-4  # how much of their differences tokens that are nearly alike keep
_LENGTH: Final = 0.3  # how far, in ranks from 0 to 1, a design tells something of another
_RIDGE: Final = 0.1  # the part of the differences that counts as noise
Numbers = NDArray[np.float64]


def reached_losses(
    specs: Mapping[int, Spec],
    plan: TaskPlan,
    rates: Sequence[float],
    on_step: OnStep,
    *,
    most: float,
) -> list[list[float]]:
    """By rate, the loss on new examples of a network for each seed, ``most`` at the most.

    The specs differ only in the scale of their weights, so that all networks are trained as
    one stack; each seed has weights, examples and batches of its own.
    """
    seeds = list(specs)
    lessons = [lesson(SORTING, plan, seed, spec=spec) for seed, spec in specs.items()]
    shape = replace(specs[seeds[0]], init=Init("lecun"))
    alike = [replace(lesson, model=_under(shape, lesson.model)) for lesson in lessons]
    by_rate = []
    for rate, on_rate in tracked(rates, on_step):
        paced = replace(plan, recipe=replace(plan.recipe, learning_rate=rate))
        networks = zip(learn(alike, paced, seeds, "cpu", on_rate), lessons, strict=True)
        losses = [_loss(trained.model, taught) for trained, taught in networks]
        # One that has diverged counts as a guess.
        by_rate.append([min(loss, most) if math.isfinite(loss) else most for loss in losses])
    return by_rate


def guess_loss(symbols: int, tokens: int) -> float:
    """The cross-entropy of the best guess that does not look at the sequence to be sorted.

    That is the mean entropy of order statistics: the k-th least of n even draws is at most s if at
    least k of them are.
    """
    total = 0.0
    for least in range(1, tokens + 1):
        up_to = [
            sum(
                math.comb(tokens, n) * (s / symbols) ** n * (1 - s / symbols) ** (tokens - n)
                for n in range(least, tokens + 1)
            )
            for s in range(symbols + 1)
        ]
        shares = [high - low for low, high in pairwise(up_to)]
        total -= sum(share * math.log(share) for share in shares if share > 0)
    return total / tokens


def _under(spec: Spec, model: SequenceModel) -> SequenceModel:
    """A model under a spec that does not say how its weights were drawn."""
    network = Network(spec, [cast(Block, block) for block in model.network.blocks])
    return SequenceModel(model.encoder, model.positions, network, model.readout)


@torch.no_grad()
def _loss(model: SequenceModel, taught: Lesson) -> float:
    outputs = model(taught.evaluate.inputs)
    return float(Classify().loss(outputs.unsqueeze(0), taught.evaluate.targets.unsqueeze(0)))


def predicted_figures(spec: Spec, x: Hidden, *, draws: int, seed: int) -> dict[str, float]:
    """Every figure of a design; ``x`` are the task's own tokens, embedded."""
    by_start = {
        name: read_figures(predict(spec, start, draws=draws, seed=seed, gradients=True))
        for name, start in {ALIKE: nearly_alike(x), OWN: x}.items()
    }
    exponents = {
        f"{name}, {start}": figures[name]
        for start, figures in by_start.items()
        for name in _EXPONENTS
    }
    others = {name: value for name, value in by_start[OWN].items() if name not in _EXPONENTS}
    return exponents | others


def read_figures(prediction: Prediction) -> dict[str, float]:
    """What a prediction says of a design, by name.

    The angle exponent is the rate per layer of the logarithm of the angles between tokens: below 0
    they close. Small angles go as the relative dispersion, whose logarithm is exact however small
    it is. The gradient exponent is the rate per layer, backwards, of the logarithm of the gradient:
    above 0 it explodes. The others are the decimal logarithm of the last layer's relative
    dispersion, the mean entropy of all layers, the rate per layer of the logarithm of the tokens'
    length, and the logarithm of the queries' gradients over the values', mean of all layers.
    """
    values = prediction.values
    dispersions = values["log10_relative_dispersion"]
    angle = math.log(10) * _per_layer(dispersions)
    gradient = -_per_layer(_log(values["state_gradient"]))
    of_queries, of_values = (_log(values[f"{name}_gradient"][1:]) for name in ("query", "value"))
    return {
        ANGLE: angle,
        GRADIENT: gradient,
        DISTANCE: math.hypot(angle, gradient),
        "last dispersion": float(dispersions[-1].mean()),
        "attention entropy": float(values["attention_entropy"][1:].mean()),
        "norm growth": _per_layer(_log(values["token_norm"])),
        "query over value gradients": float((of_queries - of_values).mean()),
    }


def nearly_alike(x: Hidden) -> Hidden:
    """Tokens with hardly any difference left, of the same root mean square length."""
    x = x.detach().double()
    mean = x.mean(-2, keepdim=True)
    close = mean + _NEARLY * (x - mean)
    before, after = (states.square().sum((-2, -1), keepdim=True) for states in (x, close))
    return close * (before / after).sqrt()


def _log(values: Tensor) -> Tensor:
    """Logarithms; of zero that of the least float, so that designs keep an order."""
    return values.clamp(min=torch.finfo(values.dtype).tiny).log()


def _per_layer(logarithms: Tensor) -> float:
    """How much the mean over networks grows from the input to the last layer, per layer."""
    return float((logarithms[-1] - logarithms[0]).mean()) / (len(logarithms) - 1)


def score(
    figures: Sequence[Sequence[float]], losses: Sequence[float], neighbours: int
) -> dict[str, float]:
    """What forecasts from ``figures``, each with a value for every design, are worth.

    That is, by metric: ``1 − Σ(y − ŷ)² / Σ(y − ȳ)²``, where ŷ and ȳ, the mean loss, do not know the
    design's own; the correlation of the ranks of ŷ and y, 0 where all forecasts are equal; and the
    former with the mean of the nearest designs instead of a smooth function.
    """
    places, y = np.stack([rank(values) for values in figures], 1), np.asarray(losses, np.float64)
    if not 0 < neighbours < len(y):
        raise InputError(f"neighbours={neighbours} of {len(y)} designs; use 1 to {len(y) - 1}.")
    smooth, near = by_smoothing(places, y), by_neighbours(places, y, neighbours)
    return {
        EXPLAINED: explained(smooth, y),
        CORRELATION: correlate(smooth, y),
        NEIGHBOURS: explained(near, y),
    }


def rank(values: Sequence[float] | Numbers) -> Numbers:
    """Ranks from 0 to 1, ties at their mean: figures of any unit and spread are then alike.

    >>> rank([10.0, -3.0, 10.0]).tolist()
    [0.75, 0.0, 0.75]
    """
    numbers = np.asarray(values, dtype=np.float64)
    if np.isnan(numbers).any():
        raise InputError("a figure of a design is not a number, so designs have no order by it.")
    below = (numbers[:, None] > numbers).sum(1)
    equal = (numbers[:, None] == numbers).sum(1)
    ranks: Numbers = (below + (equal - 1) / 2) / max(1, len(numbers) - 1)
    return ranks


def by_smoothing(places: Numbers, losses: Numbers) -> Numbers:
    """For each design what kernel ridge regression over all others says (Gaussian kernel)."""
    kernel = np.exp(-np.square(places[:, None] - places).sum(-1) / (2 * _LENGTH**2))
    forecast = np.empty(len(losses))
    for design in range(len(losses)):
        others = np.arange(len(losses)) != design
        mean = losses[others].mean()
        inner = kernel[np.ix_(others, others)] + _RIDGE * np.eye(len(losses) - 1)
        weights = np.linalg.solve(inner, losses[others] - mean)
        forecast[design] = mean + kernel[design, others] @ weights
    return forecast


def by_neighbours(places: Numbers, losses: Numbers, neighbours: int) -> Numbers:
    """For each design the mean loss of those nearest to it, itself left out.

    All that are as near as the last of the ``neighbours`` count, so that ties favour none.
    """
    # Rounded: distances that are equal on paper must be equal here.
    apart = np.square(places[:, None] - places).sum(-1).round(12)
    np.fill_diagonal(apart, np.inf)
    farthest = np.sort(apart, 1)[:, neighbours - 1 : neighbours]
    near = apart <= farthest
    forecast: Numbers = (near * losses).sum(1) / near.sum(1)
    return forecast


def explained(forecast: Numbers, losses: Numbers) -> float:
    """The share of the differences in loss that a forecast explains; 0 is what no forecast does."""
    left_out = (losses.sum() - losses) / (len(losses) - 1)
    total = float(np.square(losses - left_out).sum())
    return 1 - float(np.square(losses - forecast).sum()) / total if total else 0.0


def explainable(losses: Sequence[Sequence[float]]) -> float:
    """The share of the differences that is the designs', not the seeds'; ``losses`` by design.

    Means over n seeds differ by their noise too, of variance s²/n, which nothing can forecast.
    """
    table = np.asarray(losses, dtype=np.float64)
    between = float(table.mean(1).var(ddof=1))
    noise = float(table.var(1, ddof=1).mean()) / table.shape[1]
    return max(0.0, 1 - noise / between) if between else 0.0


def correlate(first: Sequence[float] | Numbers, second: Sequence[float] | Numbers) -> float:
    """Spearman's rank correlation; 0 where one of the two is level, or there is nothing."""
    if not len(first):
        return 0.0
    a, b = (ranks - ranks.mean() for ranks in (rank(first), rank(second)))
    size = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / size if size else 0.0
