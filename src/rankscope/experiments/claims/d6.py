"""Claim D6, Dong et al. 2021, figure 3: a trained layer applied again and again to two points.

What to expect (derived): points at ±x have the step ``(2P − 1) x V``, where P, what a point attends
to itself, falls to one half as the points come together. A layer without a skip therefore makes
small distances smaller still, like their cube, and large ones larger: the arcs are a balance that
is not stable, and on which side a layer ends is left to how its training errs. With a skip a small
error stays small.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import polars as pl
from torch import Tensor

from rankscope import tables
from rankscope.core.network import Spec
from rankscope.errors import InputError
from rankscope.experiments import kit
from rankscope.experiments.circle import (
    RADIUS,
    arcs,
    deep_distances,
    log10_distances,
    next_places,
    trajectory,
)
from rankscope.experiments.claims._circle_verdict import (
    DISTANCE,
    ERROR,
    KINDS,
    MLP,
    SKIP,
    TOGETHER,
    ending_listing,
    endings,
    parts_in_words,
    try_parts,
)
from rankscope.experiments.depths import Measured, doubts
from rankscope.models.training import Approach, Recipe, SequenceModel, Trained, train

ENTRY = kit.claim(
    "D6",
    "One trained attention layer, applied again and again, moves two points together; a larger "
    "width, an MLP or a skip slows that down or stops it.",
    source="Dong et al. 2021, figure 3",
    domain="two heads trained on two arcs of a circle, widths 32, 64 and 128",
    seconds=244,
    metrics=(
        kit.Metric(
            "distance",
            "Distance of the two points",
            "‖x − y‖",
            "log",
            "Falling = the points move together",
            "The Euclidean distance of two points in the plane.",
            "down",
        ),
        kit.Metric(
            "step_error",
            "Error of a step",
            "error / length of a step",
            "log",
            "Below 1 = less than the way itself",
            "By how much a trained step misses the next place on its arc, root mean square, over "
            "the length of a step.",
        ),
        kit.Metric(
            "x_coordinate",
            "Position across",
            "x",
            "linear",
            "Where a point is",
            "The first coordinate of a point in the plane.",
        ),
        kit.Metric(
            "y_coordinate",
            "Position upwards",
            "y",
            "linear",
            "Where a point is",
            "The second coordinate of a point in the plane.",
        ),
    ),
)
X, Y = "x_coordinate", "y_coordinate"
TARGET: Final = "arc"
_LOWEST, _HIGHEST = -40.0, 5.0  # exponents: what lies beyond is cut off
_EARLY_DOMAIN = "training stopped as early as in the paper's script"
_POINTS = ("first point", "second point")
_COLUMNS = ("run", "model", "variant", "layer", "parameter", "sample", "metric", "value")
TRAINED, EARLY = "trained", "stopped early"
_RECIPE: Final = Recipe(400, 60, 3e-3, weight_decay=0.0, warmup=20)
_EARLY: Final = Recipe(150, 60, 1e-4, weight_decay=0.0, warmup=1)


@dataclass(frozen=True)
class Config(kit.Config):
    """One layer of two heads, its widths, how it is trained, and how often it is applied."""

    widths: tuple[int, ...] = (32, 64, 128)
    heads: int = 2
    seeds: int = 5
    """Networks of each kind and width, all trained at once."""
    arc: int = 60
    """Steps on each half circle, which are what the layer learns."""
    recipe: Recipe = _RECIPE
    early: Recipe = _EARLY
    """A training that stops early: about as far as the script of the paper goes, whose README asks
    for 70 epochs of 17 batches at a rate of 0.00001."""
    applied: int = 60
    """How often the layer is applied."""
    together: float = 0.01
    """The part of their first distance under which the points have come together."""
    learnt: float = 0.05
    """The root mean square error of a step, in lengths of a step, up to which arcs are learnt."""


PAPER: Final[Mapping[str, Any]] = {
    "arc": 500,
    "seeds": 10,
    "applied": 150,
    "recipe": Recipe(3000, 100, 1e-3, weight_decay=0.0),
    "early": Recipe(70 * 17, 30, 1e-5, weight_decay=0.0, warmup=1),
}

_DRAWINGS: Final = (
    kit.Drawing(
        "trajectories",
        "One seed; light: the arcs the layer was trained on.",
        only={"run": (TRAINED,)},
    ),
    kit.Drawing(
        "trajectories",
        "The same seed, its training stopped as early as in the paper's script.",
        only={"run": (EARLY,)},
    ),
    kit.Drawing(
        "by_depth",
        "A panel for each width; how often the layer was applied, in scaled arithmetic.",
        DISTANCE,
        {"lowest": _LOWEST, "highest": _HIGHEST},
        only={"run": (TRAINED,)},
    ),
)


def run(config: Config, on_step: kit.OnStep) -> kit.Result:
    """Train each kind of layer to move two points along two arcs, then let it run by itself.

    A step is: the plane is mapped linearly to the hidden width, the layer is applied, and its
    output is mapped back to the plane. With an MLP that comes after attention; with a skip the step
    adds to the point instead of replacing it. The maps to the plane and back are folded into the
    layer's own weights, so that steps in a row are a ``Network`` of repeated layers, which scaled
    arithmetic can follow below the smallest difference of floats.

    Our skip is not that of the paper's script. There a layer with a skip is trained to give the
    next place itself, and reads the sum of a batch of places and the batch before it; when it runs
    by itself its outputs are added up, but each output is what is plotted. Here it is trained to
    give the way to the next place, reads places, and the places it comes to are plotted.
    """
    if not config.widths or config.seeds < 1 or config.applied < 1 or config.arc < 1:
        raise InputError("widths, seeds, arc and applied must name at least one each.")
    trainings = ((TRAINED, config.recipe), (EARLY, config.early))
    measured = [
        _measure(config, run, recipe, on_run)
        for (run, recipe), on_run in kit.tracked(trainings, on_step)
    ]
    table = tables.stack(each.table for each in measured)
    runs = {name: table.filter(run=name) for name, _ in trainings}
    judgement, sentences = judge(config, runs[TRAINED], ENTRY.domain)
    beyond, early = judge(config, runs[EARLY], _EARLY_DOMAIN, learnt=math.inf)
    return ENTRY.result(
        config,
        question="Do two points come together under a layer trained to keep them on two arcs?",
        sentences=(*sentences, *(f"Stopped early: {each}" for each in early)),
        table=table,
        listings=tuple(
            ending_listing(
                name.capitalize(), endings(rows, config.widths, together=config.together)
            )
            for name, rows in runs.items()
        ),
        judgement=judgement,
        beyond=beyond,
        key_figures=_key_figures(config, table),
        drawings=_DRAWINGS,
        notes={case: note for each in measured for case, note in each.notes.items()},
        shown=(DISTANCE, ERROR),
    )


def judge(
    config: Config, table: pl.DataFrame, domain: str, *, learnt: float | None = None
) -> tuple[kit.Judgement, tuple[str, ...]]:
    """The verdict on what the statement says of pure attention, of widths, of MLPs and of skips.

    It rests on how many steps it takes until the points are within ``together`` of their first
    distance, as the median over the seeds: for ever if most never are. Pure attention moves them
    together if it does at the smallest width. A width is slower if that takes more steps than at
    the next smaller one; an MLP or a skip, if it takes more than pure attention of the same width
    wherever that moves them together. A layer whose steps miss by more than ``learnt`` is left out,
    and a part of the statement for which nothing is left to compare is named as not tried.
    """
    bar = config.learnt if learnt is None else learnt
    ends = endings(table, config.widths, together=config.together)
    steps = {layer: end.steps for layer, end in ends.items() if end.error <= bar}
    borne_out, untried = try_parts(steps, config.widths)
    sentences = [*parts_in_words(borne_out, untried)]
    missed = [f"{kind} of width {width}" for width, kind in ends if (width, kind) not in steps]
    if missed:
        sentences.append(f"Not learnt, so not counted: {', '.join(missed)}.")
    if not borne_out:
        return kit.judged(domain, {}, untried[TOGETHER]), tuple(sentences)
    judgement = kit.judged(domain, borne_out)
    if untried:
        left_out = f"not tried: {', '.join(untried)}"
        judgement = replace(judgement, on="; ".join(filter(None, (judgement.on, left_out))))
    return judgement, tuple(sentences)


def _key_figures(config: Config, table: pl.DataFrame) -> dict[str, float]:
    """The exponents of the last distances, no further down than can be read."""
    ends = endings(table.filter(run=TRAINED), config.widths, together=config.together)
    return {
        f"{kind}, width {width}: log10 distance": max(end.log10_last, -1e300)
        for (width, kind), end in ends.items()
    }


def _measure(config: Config, run: str, recipe: Recipe, on_step: kit.OnStep) -> Measured:
    """All rows of one training, and what scaled arithmetic leaves in doubt."""
    notes: dict[str, str] = {}
    target = (run, None, TARGET)
    rows: list[tuple[Any, ...]] = [
        (*target, step, point, 0, metric, value)
        for step, point, metric, value in _places(arcs(config.arc))
    ]
    kinds = [(width, kind) for width in config.widths for kind in KINDS]
    for (width, kind), on_kind in kit.tracked(kinds, on_step):
        label = (run, f"width {width}", kind)
        on_train, on_trace = kit.parts(on_kind, 3.0, 1.0)
        trained = _trained(config, recipe, width, kind, on_train)
        for (sample, found), _ in kit.tracked(enumerate(trained), on_trace):
            rows += [(*label, None, None, sample, ERROR, _step_error(config, found))]
            traced = deep_distances(found.model, config.applied, skip=kind == SKIP)
            far = log10_distances(traced)
            rows += [(*label, at, None, sample, DISTANCE, value) for at, value in enumerate(far)]
            notes |= doubts({f"{kind}, width {width}, seed {found.seed}": traced})
            if sample == 0:
                places = trajectory(found.model, config.applied, skip=kind == SKIP)
                rows += [
                    (*label, step, point, 0, metric, value)
                    for step, point, metric, value in _places(places)
                ]
    return Measured(tables.from_rows(_COLUMNS, rows), _as_one(run, notes))


def _as_one(run: str, notes: Mapping[str, str]) -> dict[str, str]:
    """The doubts about all layers of one training in one note, which quotes the first."""
    if not notes:
        return {}
    case, note = next(iter(notes.items()))
    return {f"{len(notes)} layers, {run}": f"such as {case}: {note}"}


def _trained(
    config: Config, recipe: Recipe, width: int, kind: str, on_step: kit.OnStep
) -> list[Trained]:
    """A layer for every seed, trained on the steps along the arcs."""
    spec = Spec(
        1,
        config.heads,
        width,
        mlp_ratio=1.0 if kind == MLP else 0.0,
        norm="none",
        skip=False,
        init="xavier",
    )
    seeds = [config.seed * config.seeds + number for number in range(config.seeds)]
    models = [SequenceModel.random(spec, outputs=2, coordinates=2, seed=seed) for seed in seeds]
    examples = next_places(config.arc, skip=kind == SKIP)
    return train(models, Approach(), [examples] * len(seeds), recipe, seeds=seeds, on_step=on_step)


def _step_error(config: Config, found: Trained) -> float:
    """How far a step misses, root mean square, in lengths of a step along the arc."""
    length = math.pi * RADIUS / config.arc
    return math.sqrt(-found.score) / length


def _places(places: Tensor) -> Iterator[tuple[int, str, str, float]]:
    """Coordinates as rows: step, point, metric, value."""
    for step, points in enumerate(places):
        for point, (x, y) in zip(_POINTS, points.tolist(), strict=True):
            for metric, value in {X: x, Y: y}.items():
                yield step, point, metric, value
