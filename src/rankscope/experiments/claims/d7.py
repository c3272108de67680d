"""Claim D7, Dong et al. 2021, figure 4: what paths of each length can do on trained tasks."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final

import polars as pl
import torch
from torch import Tensor

from rankscope import tables
from rankscope.core.paths import count_paths, path_lengths, path_outputs, sample_paths
from rankscope.errors import InputError
from rankscope.experiments import kit
from rankscope.experiments.learning import (
    HULL,
    MEMORISATION,
    SORTING,
    TASKS,
    Lesson,
    Plan,
    learn,
    lesson,
)
from rankscope.models.text import passages
from rankscope.models.training import Recipe, SequenceModel, split_sentences
from rankscope.streams import stream

ENTRY = kit.claim(
    "D7",
    "On trained tasks, paths do less of the work the longer they are.",
    source="Dong et al. 2021, figure 4",
    question="How well do the paths of one length alone do what a network has learnt?",
    domain="memorisation, sorting and convex hull, six layers, after training",
    beyond="the same paths, scaled up to the size of the whole output",
    options=("seed", "sentences"),
    seconds=294,
    small=False,
    metrics=(
        kit.Metric(
            "token_accuracy",
            "Token accuracy",
            "right tokens / all tokens",
            "linear",
            "What paths of one length know alone",
            "The share of tokens labelled rightly when only paths of one length, and the biases, "
            "reach the readout.",
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
CHARTS = (
    kit.Drawing(
        "by_setting",
        "A panel for each task; paths of one length alone, biases added.",
        ACCURACY,
        roles={CHANCE: "floor", WHOLE: "bound"},
    ),
)
_COLUMNS = ("model", "variant", "parameter", "setting", "sample", "metric", "value")
_SEEN: Final = 0.01  # the smallest difference between accuracies that a sentence gives as a figure
_MEMORISATION: Final = Plan(2, 64, Recipe(1500, 24, goal=0.99), 120, 120, 0.95, tokens=24)
_SORTING: Final = Plan(2, 48, Recipe(4000, 30, 2e-3, goal=0.995), 1000, 200, 0.9, tokens=8)
_HULL: Final = Plan(3, 84, Recipe(2000, 32, goal=0.96), 4000, 200, 0.9, tokens=10)


@dataclass(frozen=True)
class Config(kit.Config):
    """The tasks, the networks, and how their paths are drawn."""

    tasks: tuple[str, ...] = TASKS
    memorisation: Plan = _MEMORISATION
    sorting: Plan = _SORTING
    hull: Plan = _HULL
    seeds: int = 5  # networks of each task, all trained at once, each on examples of its own
    layers: int = 6
    mlp_ratio: float = 0.0  # the paper's networks for these tasks have no MLPs unless asked for
    drawn: tuple[int, ...] = (5, 20)  # random paths of a length taken together, as in the paper
    repeats: int = 2  # how often such paths are drawn
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
            found = "cuda" if torch.cuda.is_available() else "cpu"
            object.__setattr__(self, "device", found)

    def plan(self, task: str) -> Plan:
        """How a task is learnt."""
        plans = {MEMORISATION: self.memorisation, SORTING: self.sorting, HULL: self.hull}
        if task not in plans:
            raise InputError(f"there is no task {task!r}; choose {', '.join(plans)}.")
        return plans[task]


PAPER: Final[Mapping[str, Any]] = {
    "memorisation": Plan(
        2, 250, Recipe(20_000, 32, 5e-4, warmup=500, goal=0.99), 1000, 200, 0.95, tokens=48
    ),
    "hull": Plan(3, 84, Recipe(20_000, 32, goal=0.98), 10_000, 400, 0.9, tokens=10),
    "repeats": 5,
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

    The paper's code measures something else. There a path runs through the network as its only
    state: attention and LayerNorm are computed anew from that state, and the states in which some
    random paths end are added up before a last LayerNorm. Here both stay what they are in the whole
    network, so that 5 or 20 random paths are an estimate of the exact stream. Figures are therefore
    not to be compared with the paper's digit by digit.
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
            accuracies = accuracies_by_length(config, network.model, learnt, network.seed)
            whole = (task, WHOLE, None, None, sample)
            rows += [
                (*whole, TRAINING_ACCURACY, network.score),
                (*whole, WHOLE_ACCURACY, accuracies[WHOLE][0]),
            ]
            rows += [
                (task, variant, "path_length", float(length), sample, ACCURACY, value)
                for variant, values in accuracies.items()
                for length, value in enumerate(values)
            ]
    return tables.from_rows(_COLUMNS, rows)


def accuracies_by_length(
    config: Config, model: SequenceModel, learnt: Lesson, seed: int
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
        **sampled(config, model, x, learnt, seed),
        UNTRAINED: exactly(fresh, fresh.embed(inputs), learnt)[ALL],
        WHOLE: [learnt.accuracy(model.readout(model.network(x, token_mask)))] * lengths,
        CHANCE: [learnt.chance()] * lengths,
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


def sampled(
    config: Config, model: SequenceModel, x: Tensor, learnt: Lesson, seed: int
) -> dict[str, list[float]]:
    """By length, with some of its paths; the mean over several draws.

    An estimate of ``exactly``: the mean of the paths drawn, times how many there are of the length.
    """
    network, token_mask = model.network, learnt.evaluate.token_mask
    layers, heads = network.spec.layers, network.spec.heads
    bias = path_lengths(network, x, max_length=0, token_mask=token_mask).bias
    count = max(config.drawn) * config.repeats
    accuracies: dict[str, list[float]] = {f"{few} random paths": [] for few in config.drawn}
    for length, number in enumerate(count_paths(layers, heads).counts):
        generator = stream(seed, "paths", length)
        paths = sample_paths(layers, heads, length=length, count=count, generator=generator)
        outputs = path_outputs(network, x, paths, token_mask=token_mask) * number
        for few in config.drawn:
            means = (some.mean(0) for some in outputs.split(few)[: count // few])
            accuracies[f"{few} random paths"].append(
                fmean(learnt.accuracy(model.readout(mean + bias)) for mean in means)
            )
    return accuracies


Medians = Mapping[str, Sequence[float]]
"""Of one task over the seeds: by variant accuracies in the order of the lengths, and by metric."""


def judge(config: Config, table: pl.DataFrame) -> kit.Answer:
    """Whether accuracies fall with the length, exact streams as stated, rescaled ones beyond.

    A task is tried if its networks have learnt it, by the median over the seeds of the whole
    network's accuracy. It bears the statement out if the medians by length fall from a short length
    down to a guess (``falls``).
    """
    tasks: dict[str, dict[str, list[float]]] = {task: {} for task in config.tasks}
    places = ("model", "variant", "metric", "setting")
    rows = table.group_by(*places, maintain_order=True).agg(pl.median("value")).sort("setting")
    for task, variant, metric, _, value in rows.iter_rows():
        tasks[task].setdefault(variant if metric == ACCURACY else metric, []).append(value)
    learnt = [task for task in tasks if tasks[task][WHOLE_ACCURACY][0] >= config.plan(task).learnt]
    exact, rescaled = (
        {task: falls(tasks[task][variant], tasks[task][CHANCE][0], config) for task in learnt}
        for variant in (ALL, RESCALED)
    )
    missed = ", ".join(task for task in tasks if task not in learnt)
    on = f"{', '.join(learnt) or 'no task'} learnt, {missed} not" if missed else ""
    by_size = ", ".join(task for task in learnt if exact[task] and not rescaled[task])
    small = (
        f"In {by_size} long paths fail because they are small: brought to the size of the whole "
        "output they do not fall with length as stated."
    )
    return kit.Answer(
        (
            *(_in_words(config, task, exact.get(task), found) for task, found in tasks.items()),
            *([small] if by_size else []),
            *_controls(config, tasks),
        ),
        stated=exact,
        on=on,
        beyond=rescaled,
        on_beyond=on,
        key_figures={
            f"{task}, {which}": value
            for task, found in tasks.items()
            for which, value in (
                ("best length alone", max(found[ALL])),
                ("longest alone", found[ALL][-1]),
                ("whole network", found[WHOLE_ACCURACY][0]),
            )
        },
        shown=(ACCURACY, WHOLE_ACCURACY, TRAINING_ACCURACY),
        about={"trained on": config.device},
    )


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


def _in_words(config: Config, task: str, falling: bool | None, medians: Medians) -> str:
    """How well a task was learnt, and if it was, what paths of each length can do."""
    guess, accuracies = medians[CHANCE][0], medians[ALL]
    trained = (
        f"whole network {medians[WHOLE_ACCURACY][0]:.2f} "
        f"({medians[TRAINING_ACCURACY][0]:.2f} on what it was trained on), "
        f"best constant guess {guess:.2f}"
    )
    if falling is None:
        return f"{task.capitalize()}: not learnt, so not tried: {trained}."
    comes_to = "which is no fall from a short length to a guess"
    if max(accuracies) <= guess + config.margin:
        comes_to = "so that no length knows more than a guess by itself"
    elif falling:
        best = accuracies.index(max(accuracies))
        comes_to = f"best at length {best} and falling to a guess from there"
    listed, rescaled = (
        " ".join(f"{value:.2f}" for value in medians[variant]) for variant in (ALL, RESCALED)
    )
    return (
        f"{task.capitalize()}: {trained}; paths of length 0, 1, … alone {listed} (medians), "
        f"{comes_to}; brought to the size of the whole output {rescaled}."
    )


def _controls(config: Config, tasks: Mapping[str, Medians]) -> Iterator[str]:
    """How far random paths are from all paths of their length, and untrained ones from a guess."""
    gaps = []
    for few in config.drawn:
        pairs = (
            zip(task[f"{few} random paths"], task[ALL], strict=True) for task in tasks.values()
        )
        gap = fmean(abs(some - whole) for pair in pairs for some, whole in pair)
        gaps.append(f"{gap:.2f} with {few}")
    yield (
        "Random paths miss the accuracy of all paths of their length by "
        f"{', '.join(gaps)} on average."
    )
    best = max(max(task[UNTRAINED]) - task[CHANCE][0] for task in tasks.values())
    better = f"up to {best:.2f} better" if best >= _SEEN else f"never {_SEEN:.2f} better"
    yield f"Control: before training, paths of one length are {better} than a constant guess."
