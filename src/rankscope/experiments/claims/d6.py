"""Claim D6, Dong et al. 2021, figure 3: a trained layer applied again and again to two points.

What is judged is the released network after the released training (``experiments.circle``), which
is not attention alone: it has LayerNorm, an inner skip and dropout in every kind. Beyond it is
attention alone, trained until it has learnt its arcs. There one expects (derived): points at ±x
have the step ``(2P − 1) x V``, where P, what a point attends to itself, falls to one half as the
points come together. A layer without a skip therefore makes small distances smaller still, like
their cube, and large ones larger: the arcs are a balance that is not stable, and on which side a
layer ends is left to how its training errs. With a skip a small error stays small.

That widths and kinds are compared seed by seed, by a sign test, was settled after a first look at
the released networks: medians over the seeds say nothing where points come together in a minority
of them, and which width has more of them changes with the ten seeds that are drawn.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, Final, NamedTuple

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

from rankscope import tables
from rankscope.core.network import Spec
from rankscope.errors import InputError
from rankscope.experiments import circle, kit
from rankscope.models.training import Approach, Examples, Recipe, SequenceModel, Trained, train
from rankscope.numerals import power_of_ten, sentence_case

ENTRY = kit.claim(
    "D6",
    "One trained attention layer, applied repeatedly, moves two points together; a larger "
    "width, an MLP or a skip slows that down or stops it.",
    source="Dong et al. 2021, figure 3",
    question="Do two points come together under a layer trained to keep them on two arcs?",
    domain="the released network and training, widths 32, 64 and 128",
    beyond="attention alone, without norms, inner skip and dropout, its arcs learnt",
    seconds=115,
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
            "Below 1 = less than one step",
            "By how much a trained step misses the next place on its arc, root mean square, over "
            "the length of a step.",
        ),
    ),
)
DISTANCE, ERROR = "log10_distance", "step_error"
RELEASED, ALONE = "released", "attention alone"
CHARTS = (
    kit.Drawing(
        "trajectories",
        "The released network, one seed; light: the arcs it was trained on.",
        only={"run": (RELEASED,)},
    ),
    kit.Drawing(
        "trajectories", "Attention alone, one seed; its arcs are learnt.", only={"run": (ALONE,)}
    ),
    kit.Drawing(
        "by_depth",
        "A panel for each width; how often the released network was applied.",
        DISTANCE,
        only={"run": (RELEASED,)},
    ),
)
PLAIN, MLP, SKIP = "no skip, no MLP", "with MLP", "with skip"  # as in the figure's titles
_KINDS: Final = (PLAIN, MLP, SKIP)
_SMALLEST, _WIDER = "coming together at the smallest width", "a larger width"
_PARTS: Final = {
    _SMALLEST: "without skip and MLP the points come together at the smallest width",
    _WIDER: "a larger width slows or stops that",
    "an MLP": "an MLP slows or stops it",
    "a skip": "a skip slows or stops it",
}
_FLOOR: Final = 1e-16  # below this float64 cannot tell two places apart
_CHANCE: Final = 0.05  # the level of the sign test
_TRAINING: Final = circle.Training()
_RECIPE: Final = Recipe(400, 60, 3e-3, weight_decay=0.0, warmup=20)

Layer = tuple[int, str]
"""Width and kind."""


@dataclass(frozen=True)
class Config(kit.Config):
    """One layer of two heads, its widths, how it is trained, and how often it is applied."""

    widths: tuple[int, ...] = (32, 64, 128)
    heads: int = 2
    seeds: int = 10  # released networks of each kind and width, all trained at once
    training: circle.Training = _TRAINING
    applied: int = 299  # as in the released script, which plots 300 places
    together: float = 0.01  # the part of their first distance within which points are together
    alone_seeds: int = 5  # the same for attention alone
    arc: int = 60  # steps on each half circle, which are what attention alone learns
    recipe: Recipe = _RECIPE
    alone_applied: int = 60
    learnt: float = 0.05  # a step's root mean square error, in steps, up to which arcs are learnt


PAPER: Final[Mapping[str, Any]] = {
    "seeds": 20,
    "alone_seeds": 10,
    "arc": 500,
    "alone_applied": 150,
    "recipe": Recipe(3000, 100, 1e-3, weight_decay=0.0),
}


def measure(config: Config, on_step: kit.OnStep) -> pl.DataFrame:
    """Train each kind of layer to move two points along two arcs, then let it run by itself.

    A step of attention alone is: the plane is mapped linearly to the hidden width, the layer is
    applied, and its output is mapped back to the plane. With an MLP that comes after attention;
    with a skip the step adds to the point instead of replacing it, and learns the way to the next
    place. (The released skip is another: see ``circle``.)
    """
    if not config.widths:
        raise InputError("widths is empty; name at least one.")
    first = config.training.pairs()
    rows = [*_places((RELEASED, None, "arc"), first), *_places((ALONE, None, "arc"), arcs(config))]
    runs = [
        (run, width, kind)
        for run in (RELEASED, ALONE)
        for width in config.widths
        for kind in _KINDS
    ]
    for label, on_run in kit.tracked(runs, on_step):
        run, width, kind = label
        of_run = released if run == RELEASED else alone
        errors, places = of_run(config, width, kind, on_run)
        names = (run, f"width {width}", kind)
        apart = torch.linalg.vector_norm(places[:, :, 0] - places[:, :, 1], dim=-1)
        logs = apart.nan_to_num(nan=math.inf).clamp(_FLOOR, 1e300).log10()
        for sample, (error, curve) in enumerate(zip(errors, logs.tolist(), strict=True)):
            rows.append((*names, None, None, sample, ERROR, error))
            rows += [(*names, at, None, sample, DISTANCE, log) for at, log in enumerate(curve)]
        rows += _places(names, places[0])
    columns = ("run", "model", "variant", "layer", "parameter", "sample", "metric", "value")
    return tables.from_rows(columns, rows)


def released(
    config: Config, width: int, kind: str, on_step: kit.OnStep
) -> tuple[list[float], Float[Tensor, "seed time point 2"]]:
    """Of every seed, by how much a step misses, and where the points go."""
    seeds = [config.seed * config.seeds + number for number in range(config.seeds)]
    stack = circle.CircleNetworks(width, config.heads, mlp=kind == MLP, seeds=seeds)
    skip = kind == SKIP
    circle.train(stack, config.training, skip=skip, seeds=seeds, on_step=on_step)
    errors = circle.step_errors(stack, config.training, skip=skip).tolist()
    return errors, circle.trajectories(stack, config.training, config.applied, skip=skip)


def alone(
    config: Config, width: int, kind: str, on_step: kit.OnStep
) -> tuple[list[float], Float[Tensor, "seed time point 2"]]:
    """The same for attention without norms, inner skip and dropout."""
    trained = train_alone(config, width, kind, on_step)
    places = [
        trajectory(config, net.model, config.alone_applied, skip=kind == SKIP) for net in trained
    ]
    return [step_error(config, net) for net in trained], torch.stack(places)


def judge(config: Config, table: pl.DataFrame) -> kit.Answer:
    """What the statement says of convergence, widths, MLPs and skips, for both networks."""
    script, plain = (endings(config, table.filter(run=run)) for run in (RELEASED, ALONE))
    stated, words, sentences = check(config, script, math.inf)
    beyond, words_beyond, others = check(config, plain, config.learnt)
    shows = shown_by_script(config, script, stated.get(_SMALLEST, False))
    return kit.Answer(
        (
            sentence_case(shows) + ".",
            *sentences,
            *(f"Attention alone: {sentence}" for sentence in others),
        ),
        stated=stated,
        on="; ".join(filter(None, (words, shows))),
        beyond=beyond,
        on_beyond=words_beyond,
        key_figures={
            f"{kind}: share of pairs that come together": fmean(
                end.share for (_, other), end in script.items() if other == kind
            )
            for kind in _KINDS
        },
        listings=(
            listing("Released network and training", script),
            listing("Attention alone, arcs learnt", plain),
        ),
        shown=(),  # the listings tell both runs apart
    )


class Ending(NamedTuple):
    """How two points end under layers of one width and kind."""

    arrivals: tuple[float, ...]  # of each seed: steps until they are together, infinite if never
    log10_last: tuple[float, ...]  # of each seed: how far apart in the end
    error: float  # of a step, median over the seeds

    @property
    def share(self) -> float:
        """Of the seeds, in which the points come together."""
        return sum(steps < math.inf for steps in self.arrivals) / len(self.arrivals)


def endings(config: Config, table: pl.DataFrame) -> dict[Layer, Ending]:
    """Read off a table; points are together within some part of their first distance."""
    limit = math.log10(config.together)
    ends = {}
    for width, kind in ((width, kind) for width in sorted(config.widths) for kind in _KINDS):
        rows = table.filter(model=f"width {width}", variant=kind)
        arrivals, last = [], []
        for sample in rows.filter(metric=DISTANCE).partition_by("sample", maintain_order=True):
            logs = sample.sort("layer")["value"].to_list()
            arrived = (float(at) for at, log in enumerate(logs) if log <= logs[0] + limit)
            arrivals.append(next(arrived, math.inf))
            last.append(logs[-1])
        errors = rows.filter(metric=ERROR)["value"].to_list()
        ends[width, kind] = Ending(tuple(arrivals), tuple(last), median(errors))
    return ends


def shown_by_script(config: Config, ends: Mapping[Layer, Ending], shown: bool) -> str:
    """Whether the released script shows the figure's convergence, and what it shows."""
    counts = {
        kind: ", ".join(
            str(sum(steps < math.inf for steps in ends[width, kind].arrivals))
            for width in sorted(config.widths)
        )
        for kind in _KINDS
    }
    apart = [
        10**log
        for width in config.widths
        for steps, log in zip(*ends[width, PLAIN][:2], strict=True)
        if steps == math.inf
    ]
    widths = ", ".join(map(str, sorted(config.widths)))
    rest = f", the others end {min(apart):.2f} to {max(apart):.2f} apart" if apart else ""
    return (
        f"the released script {'shows' if shown else 'does not, as a rule, show'} the figure's "
        f"convergence: without skip and MLP the points come together in {counts[PLAIN]} of "
        f"{config.seeds} seeds at widths {widths}{rest} ({2 * circle.RADIUS:g} at the start); with "
        f"an MLP in {counts[MLP]}, with a skip in {counts[SKIP]}"
    )


def listing(title: str, ends: Mapping[Layer, Ending]) -> kit.Listing:
    """By kind and width, how often the points come together, how soon, and how near in the end."""
    rows = []
    for (width, kind), end in ends.items():
        arrived = [steps for steps in end.arrivals if steps < math.inf]
        share = f"{len(arrived)} of {len(end.arrivals)}"
        after, last = median(arrived) if arrived else None, power_of_ten(median(end.log10_last))
        rows.append((sentence_case(kind), width, share, after, last, end.error))
    return kit.Listing(
        title,
        ("layer", "width", "come together", "after steps", "last distance", "error of a step"),
        tuple(rows),
        "In how many seeds the points come together; the others are medians over the seeds, the "
        "error in lengths of a step along the arc.",
    )


def later(before: Sequence[float], after: Sequence[float]) -> bool | None:
    """Whether points come together later, in more of the seeds than chance would have it.

    Of the seeds in which they come together on either side, by a sign test at 5%.

    >>> later((3.0,) * 5, (math.inf, 4.0, 4.0, 5.0, 6.0)), later((3.0,) * 4, (4.0,) * 4)
    (True, False)
    >>> later((math.inf,), (math.inf,)) is None
    True
    """
    pairs = [pair for pair in zip(before, after, strict=True) if min(pair) < math.inf]
    if not pairs:
        return None
    count = sum(second > first for first, second in pairs)
    by_chance = sum(math.comb(len(pairs), more) for more in range(count, len(pairs) + 1))
    return bool(by_chance / 2 ** len(pairs) < _CHANCE)


def check(
    config: Config, ends: Mapping[Layer, Ending], learnt: float
) -> tuple[dict[str, bool], str, list[str]]:
    """Each part of the statement, what completes the verdict, and both in words.

    The points come together if they are within ``together`` of their first distance, in most seeds
    of the smallest width. Widths slow that if they do so ``later`` than at the next smaller one; an
    MLP or a skip, if later than without; each over the seeds of all widths. A layer whose steps
    miss by more than ``learnt`` is left out, and a part of the statement for which nothing is left
    to compare is reported as not tested.
    """
    steps = {layer: end.arrivals for layer, end in ends.items() if end.error <= learnt}
    widths = sorted(config.widths)
    plain = [steps[width, PLAIN] for width in widths if (width, PLAIN) in steps]
    wider = later(*([step for steps in side for step in steps] for side in (plain[:-1], plain[1:])))
    # Whether a part is supported, or why it cannot be tested.
    outcomes: dict[str, bool | str] = {
        _SMALLEST: f"width {widths[0]} has not learnt its arcs",
        _WIDER: "there are no two widths at which points come together and arcs are learnt",
    }
    if (widths[0], PLAIN) in steps:
        outcomes[_SMALLEST] = median(plain[0]) < math.inf
    if wider is not None:
        outcomes[_WIDER] = wider
    for part, kind in (("an MLP", MLP), ("a skip", SKIP)):
        both = [width for width in widths if (width, PLAIN) in steps and (width, kind) in steps]
        before, after = (
            [step for width in both for step in steps[width, side]] for side in (PLAIN, kind)
        )
        slower = later(before, after)
        outcomes[part] = "at no width do points come together" if slower is None else slower
    checks = {part: holds for part, holds in outcomes.items() if isinstance(holds, bool)}
    untested = {part: why for part, why in outcomes.items() if isinstance(why, str)}
    sentences, words = [], []
    holds, against = ([part for part in checks if checks[part] is side] for side in (True, False))
    if checks:
        true, false = (
            "; ".join(_PARTS[part] for part in side) or "nothing" for side in (holds, against)
        )
        sentences.append(f"Supported: {true}. Not supported: {false}.")
    if holds and against:
        words = [f"supported for {', '.join(holds)}; not for {', '.join(against)}"]
    if untested:
        parts = "; ".join(f"that {_PARTS[part]} ({why})" for part, why in untested.items())
        sentences.append(f"Not tested: {parts}.")
        words = words or ["where tested"]
        words = [*words, f"not tested: {', '.join(untested)}"] if checks else [untested[_SMALLEST]]
    missed = [f"{kind} of width {width}" for width, kind in ends if (width, kind) not in steps]
    if missed:
        sentences.append(f"Not learnt, so not counted: {', '.join(missed)}.")
    return checks, "; ".join(words), sentences


def train_alone(config: Config, width: int, kind: str, on_step: kit.OnStep) -> list[Trained]:
    """A layer for every seed, trained on the steps along the arcs."""
    ratio = 1.0 if kind == MLP else 0.0
    spec = Spec(1, config.heads, width, mlp_ratio=ratio, norm="none", skip=False, init="xavier")
    seeds = [config.seed * config.alone_seeds + number for number in range(config.alone_seeds)]
    models = [SequenceModel.random(spec, outputs=2, coordinates=2, seed=seed) for seed in seeds]
    shown = [next_places(config, skip=kind == SKIP)] * len(seeds)
    return train(models, Approach(), shown, config.recipe, seeds=seeds, on_step=on_step)


def step_error(config: Config, trained: Trained) -> float:
    """How far a step misses, root mean square, in lengths of a step along the arc."""
    return math.sqrt(-trained.score) / (math.pi * circle.RADIUS / config.arc)


def _places(label: tuple[str | None, ...], places: Tensor) -> Iterator[tuple[Any, ...]]:
    """The coordinates of both points as rows."""
    for step, points in enumerate(places):
        for point, (x, y) in zip(("first point", "second point"), points.tolist(), strict=True):
            yield *label, step, point, 0, "x_coordinate", x
            yield *label, step, point, 0, "y_coordinate", y


def arcs(config: Config) -> Float[Tensor, "place point 2"]:
    """Both points on their half circles: from (−0.3, 0) and (0.3, 0) counter-clockwise."""
    angle = torch.linspace(0, math.pi, config.arc + 1, dtype=torch.float64)
    second = circle.RADIUS * torch.stack([angle.cos(), angle.sin()], -1)
    return torch.stack([-second, second], 1)


def next_places(config: Config, *, skip: bool) -> Examples:
    """From each place on the arcs to the next; with a skip only the way is to be learnt."""
    places = arcs(config).float()
    now, then = places[:-1], places[1:]
    return Examples(now, then - now if skip else then)


@torch.no_grad()
def trajectory(
    config: Config, model: SequenceModel, times: int, *, skip: bool
) -> Float[Tensor, "time point 2"]:
    """Where the two points go when the model is applied repeatedly, in float64."""
    model = model.double()
    places = [arcs(config)[:1]]
    for _ in range(times):
        moved = model(places[-1])
        places.append(places[-1] + moved if skip else moved)
    return torch.cat(places)
