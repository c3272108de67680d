"""Claim D6, Dong et al. 2021, figure 3: a trained layer applied again and again to two points.

What to expect (derived): points at ±x have the step ``(2P − 1) x V``, where P, what a point attends
to itself, falls to one half as the points come together. A layer without a skip therefore makes
small distances smaller still, like their cube, and large ones larger: the arcs are a balance that
is not stable, and on which side a layer ends is left to how its training errs. With a skip a small
error stays small.
"""

import copy
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Any, Final, NamedTuple, cast

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor, nn

from rankscope import tables
from rankscope.core.deep import deep_trace
from rankscope.core.network import Block, Network, Spec
from rankscope.core.tracing import Trace
from rankscope.errors import InputError
from rankscope.experiments import depths, kit
from rankscope.models.training import Approach, Examples, Recipe, SequenceModel, Trained, train
from rankscope.numerals import power_of_ten, sentence_case

ENTRY = kit.claim(
    "D6",
    "One trained attention layer, applied again and again, moves two points together; a larger "
    "width, an MLP or a skip slows that down or stops it.",
    source="Dong et al. 2021, figure 3",
    question="Do two points come together under a layer trained to keep them on two arcs?",
    domain="two heads trained on two arcs of a circle, widths 32, 64 and 128",
    beyond="training stopped as early as in the paper's script",
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
    ),
)
DISTANCE, ERROR = "log10_distance", "step_error"
TRAINED, EARLY = "trained", "stopped early"
CHARTS = (
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
        {"lowest": -40.0, "highest": 5.0},  # exponents: what lies beyond is cut off
        only={"run": (TRAINED,)},
    ),
)
RADIUS = 0.3
PURE, MLP, SKIP = "pure attention", "with MLP", "with skip"
_KINDS: Final = (PURE, MLP, SKIP)
_SMALLEST, _WIDER = "pure attention of the smallest width", "a larger width"
_PARTS: Final = {
    _SMALLEST: "pure attention of the smallest width moves the points together",
    _WIDER: "a larger width slows or stops that",
    MLP: "an MLP slows or stops it wherever pure attention does it",
    SKIP: "a skip slows or stops it wherever pure attention does it",
}
_RECIPE: Final = Recipe(400, 60, 3e-3, weight_decay=0.0, warmup=20)
_EARLY: Final = Recipe(150, 60, 1e-4, weight_decay=0.0, warmup=1)

Layer = tuple[int, str]
"""Width and kind."""


@dataclass(frozen=True)
class Config(kit.Config):
    """One layer of two heads, its widths, how it is trained, and how often it is applied."""

    widths: tuple[int, ...] = (32, 64, 128)
    heads: int = 2
    seeds: int = 5  # networks of each kind and width, all trained at once
    arc: int = 60  # steps on each half circle, which are what the layer learns
    recipe: Recipe = _RECIPE
    early: Recipe = _EARLY
    """A training that stops early: about as far as the script of the paper goes, whose README asks
    for 70 epochs of 17 batches at a rate of 0.00001."""
    applied: int = 60  # how often the layer is applied
    together: float = 0.01  # the part of their first distance within which points are together
    learnt: float = 0.05  # a step's root mean square error, in steps, up to which arcs are learnt


PAPER: Final[Mapping[str, Any]] = {
    "arc": 500,
    "seeds": 10,
    "applied": 150,
    "recipe": Recipe(3000, 100, 1e-3, weight_decay=0.0),
    "early": Recipe(70 * 17, 30, 1e-5, weight_decay=0.0, warmup=1),
}


def measure(config: Config, on_step: kit.OnStep) -> depths.Measured:
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
    if not config.widths:
        raise InputError("widths is empty; name at least one.")
    rows: list[tuple[Any, ...]] = []
    notes: dict[str, str] = {}
    trainings = ((TRAINED, config.recipe), (EARLY, config.early))
    layers = [(width, kind) for width in config.widths for kind in _KINDS]
    for (run, recipe), on_run in kit.tracked(trainings, on_step):
        doubts: dict[str, str] = {}
        rows += _places((run, None, "arc"), arcs(config.arc))
        for (width, kind), on_kind in kit.tracked(layers, on_run):
            label, skip = (run, f"width {width}", kind), kind == SKIP
            on_train, on_trace = kit.parts(on_kind, 3.0, 1.0)
            seeds = enumerate(train_layers(config, recipe, width, kind, on_train))
            for (sample, trained), _ in kit.tracked(seeds, on_trace):
                rows.append((*label, None, None, sample, ERROR, step_error(config, trained)))
                traced = deep_distances(trained.model, config.applied, skip=skip)
                doubts |= depths.doubts({f"{kind}, width {width}, seed {trained.seed}": traced})
                rows += [
                    (*label, at, None, sample, DISTANCE, value)
                    for at, value in enumerate(log10_distances(traced))
                ]
                if sample == 0:
                    rows += _places(label, trajectory(trained.model, config.applied, skip=skip))
        for case, note in list(doubts.items())[:1]:  # one note for all, which quotes the first
            notes[f"{len(doubts)} layers, {run}"] = f"such as {case}: {note}"
    names = ("run", "model", "variant", "layer", "parameter", "sample", "metric", "value")
    return depths.Measured(tables.from_rows(names, rows), notes)


def judge(config: Config, measured: depths.Measured) -> kit.Answer:
    """What the statement says of pure attention, widths, MLPs and skips; beyond: stopped early."""
    trained, early = (endings(config, measured.table.filter(run=run)) for run in (TRAINED, EARLY))
    stated, on, sentences = check(config, trained, config.learnt)
    beyond, on_beyond, others = check(config, early, math.inf)
    return kit.Answer(
        (*sentences, *(f"Stopped early: {sentence}" for sentence in others)),
        stated=stated,
        on=on,
        beyond=beyond,
        on_beyond=on_beyond,
        key_figures={  # no further down than can be read
            f"{kind}, width {width}: log10 distance": max(end.log10_last, -1e300)
            for (width, kind), end in trained.items()
        },
        listings=(listing(TRAINED.capitalize(), trained), listing(EARLY.capitalize(), early)),
        shown=(DISTANCE, ERROR),
    )


class Ending(NamedTuple):
    """How two points end under layers of one width and kind; figures are medians over the seeds."""

    arrivals: tuple[float, ...]  # of each seed: steps until they are together, infinite if never
    log10_last: float
    error: float


def endings(config: Config, table: pl.DataFrame) -> dict[Layer, Ending]:
    """Read off a table; points are together within some part of their first distance."""
    limit = math.log10(config.together)
    ends = {}
    for width, kind in ((width, kind) for width in config.widths for kind in _KINDS):
        rows = table.filter(model=f"width {width}", variant=kind)
        arrivals, last = [], []
        for sample in rows.filter(metric=DISTANCE).partition_by("sample", maintain_order=True):
            logs = sample.sort("layer")["value"].to_list()
            arrived = (float(at) for at, log in enumerate(logs) if log <= logs[0] + limit)
            arrivals.append(next(arrived, math.inf))
            last.append(logs[-1])
        errors = rows.filter(metric=ERROR)["value"].to_list()
        ends[width, kind] = Ending(tuple(arrivals), median(last), median(errors))
    return ends


def listing(title: str, ends: Mapping[Layer, Ending]) -> kit.Listing:
    """By kind and width, how often the points come together, how soon, and how near in the end."""
    rows = []
    for (width, kind), end in ends.items():
        arrived = [steps for steps in end.arrivals if steps < math.inf]
        share = f"{len(arrived)} of {len(end.arrivals)}"
        after, last = median(arrived) if arrived else None, power_of_ten(end.log10_last)
        rows.append((sentence_case(kind), width, share, after, last, end.error))
    return kit.Listing(
        title,
        ("layer", "width", "come together", "after steps", "last distance", "error of a step"),
        tuple(rows),
        "In how many seeds the points come together; the others are medians over the seeds, the "
        "error in lengths of a step along the arc.",
    )


def check(
    config: Config, ends: Mapping[Layer, Ending], learnt: float
) -> tuple[dict[str, bool], str, list[str]]:
    """Each part of the statement, what completes the verdict, and both in words.

    A part rests on how many steps it takes until the points are within ``together`` of their first
    distance, as the median over the seeds: for ever if most never are. Pure attention moves them
    together if it does at the smallest width. A width is slower if that takes more steps than at
    the next smaller one; an MLP or a skip, if it takes more than pure attention of the same width
    wherever that moves them together. A layer whose steps miss by more than ``learnt`` is left out,
    and a part of the statement for which nothing is left to compare is named as not tried.
    """
    steps = {layer: median(end.arrivals) for layer, end in ends.items() if end.error <= learnt}
    widths = sorted(config.widths)
    pure = [steps[width, PURE] for width in widths if (width, PURE) in steps]

    def slower(pairs: Iterable[tuple[float, float]]) -> bool:
        # What never arrives cannot be slower still.
        return all(after > before or before == after == math.inf for before, after in pairs)

    outcomes: dict[str, bool | str] = {  # whether a part is borne out, or why it cannot be tried
        _SMALLEST: f"pure attention of width {widths[0]} has not learnt its arcs",
        _WIDER: slower(pairwise(pure)),
    }
    if (widths[0], PURE) in steps:
        outcomes[_SMALLEST] = pure[0] < math.inf
    if len(pure) < 2:
        outcomes[_WIDER] = "pure attention has not learnt its arcs at two widths"
    elif min(pure) == math.inf:
        outcomes[_WIDER] = "pure attention moves the points together at no width"
    for kind in (MLP, SKIP):
        pairs = [
            (steps[width, PURE], steps[width, kind])
            for width in widths
            if steps.get((width, PURE), math.inf) < math.inf and (width, kind) in steps
        ]
        untried_because = "at no width have both learnt, and pure attention moves them together"
        outcomes[kind] = slower(pairs) if pairs else untried_because
    checks = {part: held for part, held in outcomes.items() if isinstance(held, bool)}
    untried = {part: why for part, why in outcomes.items() if isinstance(why, str)}
    sentences = []
    if checks:
        true, false = (
            "; ".join(_PARTS[part] for part, held in checks.items() if held is side) or "nothing"
            for side in (True, False)
        )
        sentences.append(f"Borne out: {true}. Not borne out: {false}.")
    if untried:
        parts = "; ".join(f"that {_PARTS[part]} ({why})" for part, why in untried.items())
        sentences.append(f"Not tried: {parts}.")
    missed = [f"{kind} of width {width}" for width, kind in ends if (width, kind) not in steps]
    if missed:
        sentences.append(f"Not learnt, so not counted: {', '.join(missed)}.")
    left_out = f"not tried: {', '.join(untried)}" if untried else ""
    on = "; ".join(filter(None, (kit.judged("", checks).on, left_out)))
    return checks, on if checks else untried[_SMALLEST], sentences


def train_layers(
    config: Config, recipe: Recipe, width: int, kind: str, on_step: kit.OnStep
) -> list[Trained]:
    """A layer for every seed, trained on the steps along the arcs."""
    ratio = 1.0 if kind == MLP else 0.0
    spec = Spec(1, config.heads, width, mlp_ratio=ratio, norm="none", skip=False, init="xavier")
    seeds = [config.seed * config.seeds + number for number in range(config.seeds)]
    models = [SequenceModel.random(spec, outputs=2, coordinates=2, seed=seed) for seed in seeds]
    examples = next_places(config.arc, skip=kind == SKIP)
    return train(models, Approach(), [examples] * len(seeds), recipe, seeds=seeds, on_step=on_step)


def step_error(config: Config, trained: Trained) -> float:
    """How far a step misses, root mean square, in lengths of a step along the arc."""
    return math.sqrt(-trained.score) / (math.pi * RADIUS / config.arc)


def _places(label: tuple[str | None, ...], places: Tensor) -> Iterator[tuple[Any, ...]]:
    """The coordinates of both points as rows."""
    for step, points in enumerate(places):
        for point, (x, y) in zip(("first point", "second point"), points.tolist(), strict=True):
            yield *label, step, point, 0, "x_coordinate", x
            yield *label, step, point, 0, "y_coordinate", y


def arcs(steps: int) -> Float[Tensor, "place point 2"]:
    """Both points on their half circles: from (−0.3, 0) and (0.3, 0) counter-clockwise."""
    angle = torch.linspace(0, math.pi, steps + 1, dtype=torch.float64)
    second = RADIUS * torch.stack([angle.cos(), angle.sin()], -1)
    return torch.stack([-second, second], 1)


def next_places(steps: int, *, skip: bool) -> Examples:
    """From each place on the arcs to the next; with a skip only the way is to be learnt."""
    places = arcs(steps).float()
    now, then = places[:-1], places[1:]
    return Examples(now, then - now if skip else then)


@torch.no_grad()
def folded(model: SequenceModel, *, skip: bool) -> Network:
    """A model's step in the plane as one layer, whose tokens are places followed by zeros.

    With the encoder ``x ↦ E x + e``, ``E`` goes into the matrices of queries, keys and values and
    ``e`` into their biases; the readout goes into the last matrix and its bias.
    """
    model = model.double()
    network = copy.deepcopy(model.network)
    block = cast(Block, network.blocks[0])
    encoder, readout = cast(nn.Linear, model.encoder), cast(nn.Linear, model.readout)
    attention = block.attention
    last = cast(nn.Linear, attention.output if block.mlp is None else block.mlp.down)

    def put(small: Tensor, into: Tensor) -> None:
        into.zero_()[tuple(slice(size) for size in small.shape)] = small

    for part in (attention.query, attention.key, attention.value):
        first = cast(nn.Linear, part)
        first.bias.add_(first.weight @ encoder.bias)
        put(first.weight @ encoder.weight, first.weight)
    put(readout.weight @ last.bias + readout.bias, last.bias)
    put(readout.weight @ last.weight, last.weight)
    spec = replace(network.spec, skip=skip)
    return Network(spec, [Block(spec, attention=attention, mlp=block.mlp, norms={})])


def as_tokens(places: Tensor, width: int) -> Tensor:
    """Places in the plane as tokens of a folded layer."""
    return torch.nn.functional.pad(places, (0, width - places.shape[-1]))


@torch.no_grad()
def trajectory(model: SequenceModel, times: int, *, skip: bool) -> Float[Tensor, "time point 2"]:
    """Where the two points go when the model is applied again and again, in plain float64."""
    model = model.double()
    places = [arcs(1)[:1]]
    for _ in range(times):
        moved = model(places[-1])
        places.append(places[-1] + moved if skip else moved)
    return torch.cat(places)


def deep_distances(model: SequenceModel, times: int, *, skip: bool) -> Trace:
    """A deep trace of the step repeated, off which ``log10_distances`` reads how far points are."""
    network = folded(model, skip=skip).repeat(times)
    return deep_trace(network, as_tokens(arcs(1)[:1], network.spec.width), norm="fro")


def log10_distances(traced: Trace) -> list[float]:
    """The residual of two points about their mean is their distance over √2."""
    logs = traced.table.filter(metric="log10_residual")["value"].to_list()
    return [log + math.log10(2) / 2 for log in logs]
