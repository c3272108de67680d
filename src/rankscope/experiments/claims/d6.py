"""Claim D6, Dong et al. 2021, figure 3: a trained layer applied again and again to two points."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any, Final

import polars as pl
from torch import Tensor

from rankscope import tables
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
from rankscope.experiments.depths import Measured, doubts
from rankscope.network import Spec
from rankscope.numerals import power_of_ten
from rankscope.training import Approach, Recipe, SequenceModel, Trained, train

ENTRY = kit.entry("D6")
DISTANCE, ERROR = "log10_distance", "step_error"
X, Y = "x_coordinate", "y_coordinate"
PURE, MLP, SKIP = "pure attention", "with MLP", "with skip"
KINDS: Final = (PURE, MLP, SKIP)
TARGET: Final = "arc"
_LOWEST, _HIGHEST = -40.0, 5.0  # exponents: beyond, all that is told is that it goes on
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
    """A training that stops where the paper's script does: 1,500 steps at a rate of 0.00001 go
    about as far."""
    applied: int = 60
    """How often the layer is applied."""
    together: float = 0.01
    """The part of their first distance under which the points have come together."""
    learnt: float = 0.05
    """The mean error of a step, in lengths of a step, up to which the arcs count as learnt."""


PAPER: Final[Mapping[str, Any]] = {
    "arc": 500,
    "seeds": 10,
    "applied": 150,
    "recipe": Recipe(3000, 100, 1e-3, weight_decay=0.0),
    "early": Recipe(1500, 30, 1e-5, weight_decay=0.0, warmup=1),
}


def run(config: Config, on_step: kit.OnStep) -> kit.Result:
    """Train each kind of layer to move two points along two arcs, then let it run by itself.

    A step is: the plane is mapped linearly to the hidden width, the layer is applied, and its
    output is mapped back to the plane. With an MLP that comes after attention; with a skip the step
    adds to the point instead of replacing it, as in the paper's script. The maps to the plane and
    back are folded into the layer's last weights, so that steps in a row are a ``Network`` of
    repeated layers, which scaled arithmetic can follow below the smallest difference of floats.

    What to expect (derived): points at ±x have the step ``(2P − 1) x V``, where P, what a point
    attends to itself, falls to one half as the points come together. A layer without a skip
    therefore makes small distances smaller still, like their cube, and large ones larger: the arcs
    are a balance that is not stable, and on which side a layer ends is left to how its training
    errs. With a skip a small error stays small.
    """
    if not config.widths or config.seeds < 1 or config.applied < 1 or config.arc < 1:
        raise InputError("widths, seeds, arc and applied must name at least one each.")
    trainings = ((TRAINED, config.recipe), (EARLY, config.early))
    measured = [
        _measure(config, run, recipe, on_run)
        for (run, recipe), on_run in kit.tracked(trainings, on_step)
    ]
    table = tables.stack(each.table for each in measured)
    judgement, sentences = judge(config, table.filter(run=TRAINED), ENTRY.domain)
    beyond, early = judge(config, table.filter(run=EARLY), _EARLY_DOMAIN, learnt=math.inf)
    return ENTRY.result(
        config,
        question="Do two points come together under a layer that was trained to move them apart?",
        sentences=(*sentences, *(f"Stopped early: {each}" for each in early)),
        table=table,
        judgement=judgement,
        beyond=beyond,
        key_figures=_key_figures(config, table),
        drawings=(
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
                {"lowest": _LOWEST, "highest": _HIGHEST, "log_depth": True},
                only={"run": (TRAINED,)},
            ),
        ),
        notes={case: note for each in measured for case, note in each.notes.items()},
        shown=(DISTANCE, ERROR),
    )


def judge(
    config: Config, table: pl.DataFrame, domain: str, *, learnt: float | None = None
) -> tuple[kit.Judgement, tuple[str, ...]]:
    """The verdict on what the statement says of pure attention, of widths, of MLPs and of skips.

    Told by how many steps it takes until the points are within ``together`` of their first
    distance, as the median over the seeds: for ever if most never are. Pure attention moves them
    together if it does at the smallest width. A width is slower if that takes more steps than at
    the next smaller one; an MLP or a skip, if it takes more than pure attention of the same width
    wherever that moves them together. A kind whose steps miss by more than ``learnt`` is left out.
    """
    bar = config.learnt if learnt is None else learnt
    steps = {
        (width, kind): median(_arrivals(config, table, width, kind))
        for width in config.widths
        for kind in KINDS
    }
    missed = [key for key in steps if _missed(table, *key) > bar]
    known = {key: taken for key, taken in steps.items() if key not in missed}
    cases = _cases(config, known)
    sentences = [_sides(cases)] if cases else []
    sentences += [_told(config, table, kind) for kind in KINDS]
    if missed:
        names = ", ".join(f"{kind} of width {width}" for width, kind in missed)
        sentences.append(f"Not learnt, so not counted: {names}.")
    on = "" if cases else "no layer has learnt its arcs"
    return kit.judged(domain, cases, on), tuple(sentences)


_TOGETHER, _WIDER = "pure attention of the smallest width", "a larger width"
_CASES: Final = {
    _TOGETHER: "pure attention of the smallest width moves the points together",
    _WIDER: "a larger width slows or stops that",
    MLP: "an MLP slows or stops it wherever pure attention does it",
    SKIP: "a skip slows or stops it wherever pure attention does it",
}


def _sides(cases: Mapping[str, bool]) -> str:
    """Which parts of the statement are borne out, and which are not."""
    true, false = (
        "; ".join(_CASES[case] for case, held in cases.items() if held is side)
        for side in (True, False)
    )
    return f"Borne out: {true or 'nothing'}. Not borne out: {false or 'nothing'}."


def _cases(config: Config, steps: Mapping[tuple[int, str], float]) -> dict[str, bool]:
    """What can be said of each part of the statement."""
    pure = [steps[width, PURE] for width in config.widths if (width, PURE) in steps]
    cases = {}
    if pure:
        cases[_TOGETHER] = pure[0] < math.inf
    if len(pure) > 1 and min(pure) < math.inf:
        cases[_WIDER] = all(_slower(*pair) for pair in pairwise(pure))
    for kind in (MLP, SKIP):
        pairs = [
            (steps[width, PURE], steps[width, kind])
            for width in config.widths
            if {(width, PURE), (width, kind)} <= steps.keys() and steps[width, PURE] < math.inf
        ]
        if pairs:
            cases[kind] = all(_slower(*pair) for pair in pairs)
    return cases


def _slower(before: float, after: float) -> bool:
    """Whether more steps are taken; what never arrives cannot be slower still."""
    return after > before or before == after == math.inf


def _arrivals(config: Config, table: pl.DataFrame, width: int, kind: str) -> list[float]:
    """For each seed, after how many steps the points are together; infinite if they never are."""
    limit = math.log10(config.together)
    arrivals = []
    for sample in _of(table, width, kind, DISTANCE).partition_by("sample", maintain_order=True):
        logs = sample.sort("layer")["value"].to_list()
        arrived = [at for at, log in enumerate(logs) if log <= logs[0] + limit]
        arrivals.append(float(arrived[0]) if arrived else math.inf)
    return arrivals


def _of(table: pl.DataFrame, width: int, kind: str, metric: str) -> pl.DataFrame:
    return table.filter(model=f"width {width}", variant=kind, metric=metric)


def _missed(table: pl.DataFrame, width: int, kind: str) -> float:
    return float(median(_of(table, width, kind, ERROR)["value"].to_list()))


def _last(table: pl.DataFrame, width: int, kind: str) -> float:
    """The median over the seeds of the last distance's logarithm."""
    rows = _of(table, width, kind, DISTANCE)
    last = rows.filter(pl.col("layer") == rows["layer"].max())
    return float(median(last["value"].to_list()))


def _told(config: Config, table: pl.DataFrame, kind: str) -> str:
    """Of one kind, how often the points come together, how soon, and how near in the end."""
    parts = []
    for width in config.widths:
        arrivals = _arrivals(config, table, width, kind)
        arrived = [each for each in arrivals if each < math.inf]
        soon = f" after {median(arrived):.0f} steps" if arrived else ""
        ends = power_of_ten(_last(table, width, kind))
        parts.append(
            f"width {width} in {len(arrived)} of {len(arrivals)} seeds{soon}, last distance {ends}"
        )
    named = f"{kind[0].upper()}{kind[1:]}"
    return f"{named}: the points come together at {'; '.join(parts)} (medians)."


def _key_figures(config: Config, table: pl.DataFrame) -> dict[str, float]:
    """The exponents of the last distances, no further down than can be read."""
    trained = table.filter(run=TRAINED)
    return {
        f"{kind}, width {width}: log10 distance": max(_last(trained, width, kind), -1e300)
        for width in config.widths
        for kind in KINDS
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
    for (width, kind), _ in kit.tracked(kinds, on_step):
        label = (run, f"width {width}", kind)
        for sample, found in enumerate(_trained(config, recipe, width, kind)):
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


def _trained(config: Config, recipe: Recipe, width: int, kind: str) -> list[Trained]:
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
    return train(models, Approach(), [examples] * len(seeds), recipe, seeds=seeds)


def _step_error(config: Config, found: Trained) -> float:
    """How far a step misses, root mean square, in lengths of a step along the arc."""
    length = math.pi * RADIUS / config.arc
    return math.sqrt(max(0.0, -found.score)) / length


def _places(places: Tensor) -> Iterator[tuple[int, str, str, float]]:
    """Coordinates as rows: step, point, metric, value."""
    for step, points in enumerate(places):
        for point, (x, y) in zip(_POINTS, points.tolist(), strict=True):
            for metric, value in {X: x, Y: y}.items():
                yield step, point, metric, value
