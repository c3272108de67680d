"""Claim D7, Dong et al. 2021, figure 4: what paths of each length can do on trained tasks.

What is judged as stated is the authors' estimator (``experiments.lone_paths``): some random paths
of a length, each run through the network by itself, held against the random predictor of their
figure. Beyond it are all paths of a length, exact, with attention and norms frozen at what they are
in the whole network, held against the best constant guess; and a reading of the paper, that not the
length of paths but their number sets expressivity.

Rules were settled before the first look at these networks, but with an independent check of the
authors' estimator at hand, by which sorting falls and convex hull does not.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import fmean
from typing import Any, Final

import polars as pl
import torch
from torch import Tensor

from rankscope import tables
from rankscope.core.paths import Path, path_lengths, sample_paths
from rankscope.errors import InputError
from rankscope.experiments import kit
from rankscope.experiments.learning import (
    HULL,
    MEMORISATION,
    SORTING,
    TASKS,
    Lesson,
    TaskPlan,
    learn,
    lesson,
)
from rankscope.experiments.lone_paths import summed
from rankscope.models.text import passages
from rankscope.models.training import Examples, Recipe, SequenceModel, split_sentences
from rankscope.streams import stream

ENTRY = kit.claim(
    "D7",
    "On trained tasks, paths do less of the work the longer they are; those shorter than three do "
    "most of it.",
    source="Dong et al. 2021, figure 4",
    question="How well do the paths of one length alone do what a network has learnt?",
    domain="three trained tasks, six layers; 5 and 20 random paths, each run by itself",
    beyond="all paths of a length, exact, also rescaled; the number of paths against their length",
    options=("seed", "sentences"),
    seconds=193,
    small=False,
    metrics=(
        kit.Metric(
            "token_accuracy",
            "Token accuracy",
            "right tokens / all tokens",
            "linear",
            "Accuracy with paths of one length alone",
            "The share of tokens labelled rightly when only paths of one length reach the "
            "readout: some, each run by itself, or all, exact and with the biases.",
            includes=(0.0, 1.0),
        ),
        kit.Metric(
            "whole_accuracy",
            "Accuracy of the whole network",
            "right tokens / all tokens",
            "linear",
            "1 = every token labelled rightly",
            "The share of tokens a trained network labels rightly, on new examples or, where "
            "random labels are memorised, on those.",
            includes=(0.0, 1.0),
        ),
        kit.Metric(
            "train_accuracy",
            "Accuracy in training",
            "right tokens / all tokens",
            "linear",
            "1 = every token labelled rightly",
            "The share of tokens a network labels rightly of what it was trained on, when it "
            "stopped.",
            includes=(0.0, 1.0),
        ),
    ),
)
ACCURACY = "token_accuracy"
WHOLE_ACCURACY, TRAINING_ACCURACY = "whole_accuracy", "train_accuracy"
ALL, RESCALED, UNTRAINED = "all paths", "all paths, rescaled", "untrained network"
WHOLE, CHANCE = "whole network", "best constant guess"
EVERY_LONE, RANDOM = "all paths, each by itself", "random predictor"
RANDOM_PREDICTOR: Final = {MEMORISATION: 0.5, SORTING: 0.1, HULL: 0.54}
"""As the released scripts draw it."""
_SHORT: Final = 3  # paths shorter than this are said to do most of the work


def lone(number: int) -> str:
    """The name of the authors' estimator with a number of random paths of a length."""
    return f"{number} paths, each by itself"


CHARTS = (
    kit.Drawing(
        "by_setting",
        "A panel for each task; all paths of one length, exact, biases added.",
        ACCURACY,
        roles={CHANCE: "floor", WHOLE: "bound"},
        only={"variant": (ALL, RESCALED, UNTRAINED, CHANCE, WHOLE)},
    ),
    kit.Drawing(
        "by_setting",
        "A panel for each task; random paths of one length, each run by itself, as in the "
        "released code.",
        ACCURACY,
        roles={RANDOM: "floor", WHOLE: "bound"},
        only={"variant": (lone(5), lone(20), EVERY_LONE, RANDOM, WHOLE)},
    ),
)
_COLUMNS = ("model", "variant", "parameter", "setting", "sample", "metric", "value")
_SEEN: Final = 0.01  # the smallest difference between accuracies that a sentence gives as a figure
_MEMORISATION: Final = TaskPlan(2, 64, Recipe(1500, 24, goal=0.99), 120, 120, 0.95, tokens=24)
_SORTING: Final = TaskPlan(2, 48, Recipe(4000, 30, 2e-3, goal=0.995), 1000, 200, 0.9, tokens=8)
_HULL: Final = TaskPlan(3, 84, Recipe(2000, 32, goal=0.96), 4000, 200, 0.9, tokens=10)


@dataclass(frozen=True)
class Config(kit.Config):
    """The tasks, the networks, and how their paths are drawn."""

    tasks: tuple[str, ...] = TASKS
    memorisation: TaskPlan = _MEMORISATION
    sorting: TaskPlan = _SORTING
    hull: TaskPlan = _HULL
    seeds: int = 5  # networks of each task, all trained at once, each on examples of its own
    layers: int = 6
    mlp_ratio: float = 0.0  # the paper's networks for these tasks have no MLPs unless asked for
    drawn: tuple[int, ...] = (5, 20)  # random paths of a length taken together, as in the paper
    repeats: int = 5  # how often such paths are drawn, as in the released commands
    run_on: int = 100  # examples, at the most, on which paths are run by themselves
    margin: float = 0.05  # accuracy by which more than a guess is known
    rise: float = 0.03  # accuracy by which a longer length may be better and count as no better
    kept: float = 0.5  # the part of what the best has above a guess that the longest may keep
    sentences: tuple[str, ...] | None = None
    """What is memorised; the sentences of the bundled passages unless given."""
    device: str = "cpu"  # where all is computed; ``auto`` becomes a GPU where there is one

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.device == "auto":
            # The device itself is kept: results of CPU and GPU differ, so must their digests.
            device = "cuda" if torch.cuda.is_available() else "cpu"
            object.__setattr__(self, "device", device)

    def plan(self, task: str) -> TaskPlan:
        """How a task is learnt."""
        plans = {MEMORISATION: self.memorisation, SORTING: self.sorting, HULL: self.hull}
        if task not in plans:
            raise InputError(f"there is no task {task!r}; choose {', '.join(plans)}.")
        return plans[task]


PAPER: Final[Mapping[str, Any]] = {
    "memorisation": TaskPlan(
        2, 250, Recipe(20_000, 32, 5e-4, warmup=500, goal=0.99), 1000, 200, 0.95, tokens=48
    ),
    "hull": TaskPlan(3, 84, Recipe(20_000, 32, goal=0.98), 10_000, 400, 0.9, tokens=10),
    "run_on": 400,
    "device": "auto",
}


def measure(config: Config, on_step: kit.OnStep) -> pl.DataFrame:
    """Train a network for each task and seed; let the paths of one length do its work alone.

    The stream of all paths of a length is exact (``path_lengths``), with attention, norms and MLPs
    held at what they are in the whole network. To it comes in every case what flows from the
    biases, and then the readout with its bias, so that streams of all lengths together give the
    whole network's output. A long path may fail because it is wrong or because it is small beside
    the biases; ``RESCALED`` tells the two apart: the stream is brought to the size of the sum of
    all streams, token by token.

    The authors' estimator (``lone_paths``) freezes nothing: each path is a state of its own, whose
    attention and norms are computed anew. The networks are trained as here, to the end, and not for
    the released number of epochs at a rate of 0.00001.
    """
    if not config.tasks:
        raise InputError("tasks is empty; name at least one.")
    if not config.drawn or min(config.drawn) < 1:
        raise InputError(f"drawn={config.drawn} must all be 1 or more.")
    rows: list[tuple[Any, ...]] = []
    seeds = [config.seed * config.seeds + number for number in range(config.seeds)]
    sentences = config.sentences if config.sentences is not None else split_sentences(passages())
    for task, on_task in kit.tracked(config.tasks, on_step):
        plan = config.plan(task)
        spec = plan.spec(config.layers, config.mlp_ratio)
        lessons = [lesson(task, plan, seed, spec=spec, sentences=sentences) for seed in seeds]
        on_train, on_measure = kit.parts(on_task, 3.0, 1.0)
        trained = zip(learn(lessons, plan, seeds, config.device, on_train), lessons, strict=True)
        for (sample, (network, learnt)), _ in kit.tracked(enumerate(trained), on_measure):
            accuracies = accuracies_by_length(config, task, network.model, learnt, network.seed)
            labels = (task, WHOLE, None, None, sample)
            rows += [
                (*labels, TRAINING_ACCURACY, network.score),
                (*labels, WHOLE_ACCURACY, accuracies[WHOLE][0]),
            ]
            rows += [
                (task, variant, "path_length", float(length), sample, ACCURACY, value)
                for variant, values in accuracies.items()
                for length, value in enumerate(values)
            ]
    return tables.from_rows(_COLUMNS, rows)


def accuracies_by_length(
    config: Config, task: str, model: SequenceModel, learnt: Lesson, seed: int
) -> dict[str, list[float]]:
    """By variant and length; the whole network and the guess are the same at every length."""
    learnt = learnt.to(config.device)
    model, token_mask = model.double().to(config.device), learnt.evaluate.token_mask
    inputs = learnt.evaluate.inputs
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    x, fresh = model.embed(inputs), learnt.model
    lengths = model.network.spec.layers + 1
    return {
        **exactly(model, x, learnt),
        **by_themselves(config, model, learnt, seed),
        UNTRAINED: exactly(fresh, fresh.embed(inputs), learnt)[ALL],
        WHOLE: [learnt.accuracy(model.readout(model.network(x, token_mask)))] * lengths,
        CHANCE: [learnt.chance()] * lengths,
        RANDOM: [RANDOM_PREDICTOR[task]] * lengths,
    }


def exactly(model: SequenceModel, x: Tensor, learnt: Lesson) -> dict[str, list[float]]:
    """By length, with all its paths, and these rescaled."""
    lengths = path_lengths(model.network, x, token_mask=learnt.evaluate.token_mask)
    size = torch.linalg.vector_norm(lengths.contributions.sum(0), dim=-1, keepdim=True)
    accuracies: dict[str, list[float]] = {ALL: [], RESCALED: []}
    for paths in lengths.contributions:
        own_size = torch.linalg.vector_norm(paths, dim=-1, keepdim=True)
        scaled = paths * torch.where(own_size > 0, size / own_size, 0.0)
        for variant, outputs in ((ALL, paths), (RESCALED, scaled)):
            accuracies[variant].append(learnt.accuracy(model.readout(outputs + lengths.bias)))
    return accuracies


@torch.no_grad()
def by_themselves(
    config: Config, model: SequenceModel, learnt: Lesson, seed: int
) -> dict[str, list[float]]:
    """By length, with random paths run by themselves, the mean over several draws; and with all.

    In float32, as the released code has it, and on no more than ``run_on`` examples.
    """
    examples, spec = learnt.evaluate, model.network.spec
    mask = None if examples.token_mask is None else examples.token_mask[: config.run_on]
    few = Examples(examples.inputs[: config.run_on], examples.targets[: config.run_on], mask)
    learnt, model = replace(learnt, evaluate=few), copy.deepcopy(model).float()
    inputs = few.inputs.float() if few.inputs.is_floating_point() else few.inputs
    draws: dict[str, list[list[Path]]] = {lone(number): [] for number in config.drawn}
    for length in range(spec.layers + 1):
        generator = stream(seed, "paths", length)
        for number, _ in product(config.drawn, range(config.repeats)):
            draws[lone(number)].append(
                sample_paths(
                    spec.layers, spec.heads, length=length, count=number, generator=generator
                )
            )
    states = summed(
        model.network, model.embed(inputs), draws, everything=EVERY_LONE, token_mask=mask
    )
    right = {
        name: [learnt.accuracy(model.readout(state)) for state in several]
        for name, several in states.items()
    }
    return {
        name: values
        if name == EVERY_LONE
        else [
            fmean(values[at : at + config.repeats]) for at in range(0, len(values), config.repeats)
        ]
        for name, values in right.items()
    }


Medians = Mapping[str, Sequence[float]]
"""Of one task over the seeds: by variant accuracies in the order of the lengths, and by metric."""


def judge(config: Config, table: pl.DataFrame) -> kit.Answer:
    """What the authors' estimator shows as stated; exact streams and the number of paths beyond.

    A task is tried if its networks have learnt it, by the median over the seeds of the whole
    network's accuracy. Medians by length must fall from a short length down to a guess (``falls``),
    and short paths must do most of the work (``short_do_most``): with every number of random paths
    above the random predictor of the figure, and beyond, above the best constant guess.
    """
    tasks: dict[str, dict[str, list[float]]] = {task: {} for task in config.tasks}
    places = ("model", "variant", "metric", "setting")
    rows = table.group_by(*places, maintain_order=True).agg(pl.median("value")).sort("setting")
    for task, variant, metric, _, value in rows.iter_rows():
        tasks[task].setdefault(variant if metric == ACCURACY else metric, []).append(value)
    learnt = {
        task: medians
        for task, medians in tasks.items()
        if medians[WHOLE_ACCURACY][0] >= config.plan(task).learnt
    }
    few = [lone(number) for number in config.drawn]
    stated = {
        "accuracy falls with length": {
            task: all(falls(medians[name], medians[RANDOM][0], config) for name in few)
            for task, medians in learnt.items()
        },
        "paths shorter than three do most": {
            task: all(short_do_most(medians[name], medians[RANDOM][0], config) for name in few)
            for task, medians in learnt.items()
        },
    }
    beyond = {
        **{
            f"{name} fall with length": {
                task: falls(medians[variant], medians[CHANCE][0], config)
                for task, medians in learnt.items()
            }
            for name, variant in (("all paths, exact,", ALL), ("rescaled ones", RESCALED))
        },
        "shorter than three do most, exact,": {
            task: short_do_most(medians[ALL], medians[CHANCE][0], config)
            for task, medians in learnt.items()
        },
        "their number matters more than their length": {
            task: number_matters(medians, config) for task, medians in learnt.items()
        },
    }
    missed = ", ".join(task for task in tasks if task not in learnt)
    untested = f"not learnt, hence not tested: {missed}" if missed else ""
    return kit.Answer(
        (
            *(_in_words(config, task, medians, task in learnt) for task, medians in tasks.items()),
            *_controls(config, tasks),
        ),
        stated=_checks(stated),
        on=_verdict_words(stated, untested),
        beyond=_checks(beyond),
        on_beyond=_verdict_words(beyond, untested),
        key_figures={
            f"{task}, {which}": value
            for task, medians in tasks.items()
            for which, value in (
                (f"best length, {few[0]}", max(medians[few[0]])),
                (f"longest, {few[0]}", medians[few[0]][-1]),
                ("best length, all paths", max(medians[ALL])),
                ("whole network", medians[WHOLE_ACCURACY][0]),
            )
        },
        shown=(ACCURACY, WHOLE_ACCURACY, TRAINING_ACCURACY),
        about={"trained on": config.device},
    )


def _checks(parts: Mapping[str, Mapping[str, bool]]) -> dict[str, bool]:
    return {
        f"{part}: {task}": holds for part, tasks in parts.items() for task, holds in tasks.items()
    }


def _verdict_words(parts: Mapping[str, Mapping[str, bool]], untested: str) -> kit.Phrase:
    """For each part, the tasks for which it is supported and those for which it is not."""
    words = []
    for part, tasks in parts.items():
        holds, against = (
            ", ".join(task for task, outcome in tasks.items() if outcome is side)
            for side in (True, False)
        )
        words.append(
            f"{part} in {holds or 'no task'}" + (f", not in {against}" if holds and against else "")
        )
    on = "; ".join(filter(None, ("; ".join(words), untested)))
    rest = f"where tested; {untested}" if untested else ""
    return {"depends": on, "holds": rest, "fails": rest, "not tried": "no task was learnt"}


def short_do_most(accuracies: Sequence[float], guess: float, config: Config) -> bool:
    """Whether the best short length has more than twice of what the best longer one knows.

    Both above the guess, and the short one by more than ``margin``.
    """
    short, longer = (
        max(part, default=guess) - guess for part in (accuracies[:_SHORT], accuracies[_SHORT:])
    )
    return short > max(config.margin, 2 * longer)


def effects(medians: Medians, config: Config) -> tuple[float, float]:
    """By how much accuracy changes with the number of paths, and with their length.

    Of paths run by themselves: the largest difference between numbers (those drawn, and all) at one
    length, and the difference between the best and the worst length at the largest number drawn.
    Length 0 is left out: it has a single path.
    """
    names = (*map(lone, config.drawn), EVERY_LONE)
    by_length = list(zip(*(medians[name][1:] for name in names), strict=True))
    same_number = medians[lone(max(config.drawn))][1:]
    return max(max(row) - min(row) for row in by_length), max(same_number) - min(same_number)


def number_matters(medians: Medians, config: Config) -> bool:
    """Whether accuracy changes more with the number of paths than with their length."""
    number, length = effects(medians, config)
    return number > max(config.margin, length)


def falls(accuracies: Sequence[float], guess: float, config: Config) -> bool:
    """Whether accuracies by length fall from their best, a short one, down to a guess.

    The best must be above the guess by ``margin`` and in the shorter half; none after it may be
    better by ``rise`` than a shorter one; and the longest must be within ``margin`` of the guess
    and have lost what the best has above it, but for the part ``kept``.
    """
    best = accuracies.index(max(accuracies))
    after = accuracies[best:]
    rises = (later - min(after[: at + 1]) for at, later in enumerate(after[1:]))
    return (
        accuracies[best] > guess + config.margin
        and best <= (len(accuracies) - 1) / 2
        and max(rises, default=0.0) <= config.rise
        and accuracies[-1] - guess <= min(config.margin, config.kept * (accuracies[best] - guess))
    )


def _in_words(config: Config, task: str, medians: Medians, learnt: bool) -> str:
    """How well a task was learnt, and if it was, what paths of each length can do."""
    trained = (
        f"whole network {medians[WHOLE_ACCURACY][0]:.2f} "
        f"({medians[TRAINING_ACCURACY][0]:.2f} on what it was trained on), "
        f"random predictor {medians[RANDOM][0]:.2f}, best constant guess {medians[CHANCE][0]:.2f}"
    )
    if not learnt:
        return f"{task.capitalize()}: not learnt, hence not tested: {trained}."
    names = (*map(lone, config.drawn), EVERY_LONE, ALL, RESCALED)
    listed = "; ".join(
        f"{name} " + " ".join(f"{value:.2f}" for value in medians[name]) for name in names
    )
    number, length = effects(medians, config)
    return (
        f"{task.capitalize()}: {trained}; paths of length 0, 1, … alone (medians): {listed}; of "
        f"paths by themselves their number changes accuracy by up to {number:.2f}, their length by "
        f"{length:.2f}."
    )


def _controls(config: Config, tasks: Mapping[str, Medians]) -> Iterator[str]:
    """Where the authors' estimator stays below a constant guess, and untrained networks."""
    below = ", ".join(
        task
        for task, medians in tasks.items()
        if max(max(medians[lone(number)]) for number in config.drawn) <= medians[CHANCE][0]
    )
    if below:
        yield f"Random paths by themselves never beat the best constant guess in {below}."
    best = max(max(task[UNTRAINED]) - task[CHANCE][0] for task in tasks.values())
    better = f"up to {best:.2f} better" if best >= _SEEN else f"never {_SEEN:.2f} better"
    yield f"Control: before training, paths of one length are {better} than a constant guess."
