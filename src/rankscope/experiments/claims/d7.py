"""Claim D7, Dong et al. 2021, figure 4: what paths of each length can do on trained tasks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, Final

import polars as pl
import torch
from torch import Tensor

from rankscope import tables
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
    resolve_device,
)
from rankscope.paths import count_paths, path_lengths, path_outputs, sample_paths
from rankscope.streams import stream
from rankscope.text import passages
from rankscope.training import Recipe, SequenceModel, split_sentences

ENTRY = kit.entry("D7")
ACCURACY, WHOLE_ACCURACY, TRAINING_ACCURACY = "token_accuracy", "whole_accuracy", "train_accuracy"
ALL, RESCALED, UNTRAINED = "all paths", "all paths, rescaled", "untrained network"
WHOLE, CHANCE = "whole network", "best constant guess"
_COLUMNS = ("model", "variant", "parameter", "setting", "sample", "metric", "value")
_RESCALED_DOMAIN = "the same paths, scaled up to the size of the whole output"


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
    seeds: int = 5
    """Networks of each task, all trained at once; each has weights and examples of its own."""
    layers: int = 6
    mlp_ratio: float = 0.0
    """The paper's networks for these tasks have no MLPs unless asked for."""
    drawn: tuple[int, ...] = (5, 20)
    """Random paths of one length that are taken together, as in the paper."""
    repeats: int = 2
    """How often such paths are drawn."""
    margin: float = 0.05
    """Accuracy by which more than a guess is known."""
    rise: float = 0.03
    """Accuracy by which a longer length may be better and still count as no better."""
    sentences: tuple[str, ...] | None = None
    """What is memorised; the sentences of the bundled passages unless given."""
    device: str = "cpu"
    """Where networks are trained; ``auto`` is a GPU where there is one."""

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


def run(config: Config, on_step: kit.OnStep) -> kit.Result:
    """Train a network for each task and seed; let the paths of one length do its work alone.

    The stream of all paths of a length is exact (``path_lengths``), with attention, norms and MLPs
    held at what they are in the whole network. To it comes in every case what flows from the
    biases, and then the readout with its bias, so that streams of all lengths together give the
    whole network's output. Random paths are averaged, as in the paper, and multiplied by how many
    paths of that length there are: an estimate of the exact stream. A long path may fail because it
    is wrong or because it is small beside the biases; ``RESCALED`` tells the two apart: the stream
    is brought to the size of the sum of all streams, token by token.
    """
    _check(config)
    table = tables.stack(
        _measure(config, task, on_task) for task, on_task in kit.tracked(config.tasks, on_step)
    )
    judgement, beyond, sentences = judge(config, table)
    return ENTRY.result(
        config,
        question="How well do the paths of one length alone do what a network has learnt?",
        sentences=sentences,
        table=table,
        about={"trained on": resolve_device(config.device)},
        judgement=judgement,
        beyond=beyond,
        key_figures=_key_figures(table),
        drawings=(
            kit.Drawing(
                "by_setting",
                "A panel for each task; paths of one length alone, biases added.",
                ACCURACY,
                roles={CHANCE: "floor", WHOLE: "bound"},
            ),
        ),
        shown=(ACCURACY, WHOLE_ACCURACY, TRAINING_ACCURACY),
    )


def judge(
    config: Config, table: pl.DataFrame
) -> tuple[kit.Judgement, kit.Judgement, tuple[str, ...]]:
    """The verdict, that on rescaled streams, and a sentence or two for every task.

    A task is tried if its networks have learnt it, by the median over the seeds of the whole
    network's accuracy. Of the medians by length, exact streams, it bears the statement out if some
    length is better than a constant guess by ``margin``, the best one is in the shorter half, none
    after it is better by ``rise`` than a shorter one, and the longest is within ``margin`` of the
    guess.
    """
    exact: dict[str, bool] = {}
    rescaled: dict[str, bool] = {}
    sentences, missed = [], []
    for task in config.tasks:
        rows = table.filter(pl.col("model") == task)
        whole, guess = _median(rows, WHOLE_ACCURACY), _by_length(rows, CHANCE)[0]
        trained = (
            f"whole network {whole:.2f} ({_median(rows, TRAINING_ACCURACY):.2f} on what it was "
            f"trained on), best constant guess {guess:.2f}"
        )
        if whole < config.plan(task).learnt:
            missed.append(task)
            sentences.append(f"{task.capitalize()}: not learnt, so not tried: {trained}.")
            continue
        exact[task] = falls(_by_length(rows, ALL), guess, config)
        rescaled[task] = falls(_by_length(rows, RESCALED), guess, config)
        sentences.append(f"{task.capitalize()}: {trained}; {_told(rows, guess, config)}.")
    on = f"{', '.join(exact) or 'no task'} learnt, {', '.join(missed)} not" if missed else ""
    by_size = [task for task in exact if exact[task] and not rescaled[task]]
    if by_size:
        sentences.append(
            f"In {', '.join(by_size)} long paths fail because they are small: brought to the size "
            "of the whole output they do not fall with length as stated."
        )
    sentences.append(_compared(config, table))
    sentences.append(_untrained(table))
    return (
        kit.judged(ENTRY.domain, exact, on),
        kit.judged(_RESCALED_DOMAIN, rescaled, on),
        tuple(sentences),
    )


def falls(accuracies: Sequence[float], guess: float, config: Config) -> bool:
    """Whether accuracies by length fall from their best, a short one, down to a guess."""
    best = max(range(len(accuracies)), key=lambda length: accuracies[length])
    after = accuracies[best:]
    rises = max(
        (later - min(after[: at + 1]) for at, later in enumerate(after[1:])),
        default=0.0,
    )
    return (
        accuracies[best] > guess + config.margin
        and best <= (len(accuracies) - 1) / 2
        and rises <= config.rise
        and accuracies[-1] <= guess + config.margin
    )


def _check(config: Config) -> None:
    if not config.tasks:
        raise InputError("tasks is empty; name at least one.")
    if config.seeds < 1 or config.repeats < 1 or not config.drawn or min(config.drawn) < 1:
        raise InputError(
            f"seeds={config.seeds}, repeats={config.repeats} and drawn={config.drawn} must all be "
            "1 or more."
        )


def _measure(config: Config, task: str, on_step: kit.OnStep) -> pl.DataFrame:
    """All rows of one task."""
    plan = config.plan(task)
    sentences = config.sentences if config.sentences is not None else split_sentences(passages())
    seeds = [config.seed * config.seeds + number for number in range(config.seeds)]
    lessons = [
        lesson(
            task, plan, seed, spec=plan.spec(config.layers, config.mlp_ratio), sentences=sentences
        )
        for seed in seeds
    ]
    on_train, on_measure = kit.parts(on_step, 3.0, 1.0)
    trained = learn(lessons, plan, seeds, config.device, on_train)
    rows: list[tuple[str | float | None, ...]] = []
    for (sample, (found, own)), _ in kit.tracked(
        enumerate(zip(trained, lessons, strict=True)), on_measure
    ):
        by_length = _accuracies(config, found.model, own, found.seed)
        rows += [
            (task, WHOLE, None, None, sample, TRAINING_ACCURACY, found.score),
            (task, WHOLE, None, None, sample, WHOLE_ACCURACY, by_length[WHOLE][0]),
        ]
        rows += [
            (task, variant, "path_length", float(length), sample, ACCURACY, value)
            for variant, values in by_length.items()
            for length, value in enumerate(values)
        ]
    return tables.from_rows(_COLUMNS, rows)


def _accuracies(
    config: Config, model: SequenceModel, own: Lesson, seed: int
) -> dict[str, list[float]]:
    """By variant and length; the whole network and the guess are the same at every length."""
    own = own.to(resolve_device(config.device))
    model, token_mask = model.double().to(own.evaluate.inputs.device), own.evaluate.token_mask
    x = _embed(model, own)
    whole = own.accuracy(model.readout(model.network(x, token_mask)))
    by_length = _exactly(model, x, token_mask, own)
    by_length |= _sampled(config, model, x, token_mask, own, seed)
    fresh = own.model
    by_length[UNTRAINED] = _exactly(fresh, _embed(fresh, own), token_mask, own)[ALL]
    by_length[WHOLE] = [whole] * (config.layers + 1)
    by_length[CHANCE] = [own.chance()] * (config.layers + 1)
    return by_length


def _embed(model: SequenceModel, own: Lesson) -> Tensor:
    """What the network of a model in float64 reads."""
    inputs = own.evaluate.inputs
    return model.embed(inputs.double() if inputs.is_floating_point() else inputs)


def _exactly(
    model: SequenceModel, x: Tensor, token_mask: Tensor | None, own: Lesson
) -> dict[str, list[float]]:
    """By length, with all its paths, and these rescaled."""
    found = path_lengths(model.network, x, token_mask=token_mask)
    size = torch.linalg.vector_norm(found.contributions.sum(0), dim=-1, keepdim=True)
    accuracies: dict[str, list[float]] = {ALL: [], RESCALED: []}
    for one in found.contributions:
        own_size = torch.linalg.vector_norm(one, dim=-1, keepdim=True)
        scaled = one * torch.where(own_size > 0, size / own_size, 0.0)
        for variant, paths in ((ALL, one), (RESCALED, scaled)):
            accuracies[variant].append(own.accuracy(model.readout(paths + found.bias)))
    return accuracies


def _sampled(
    config: Config,
    model: SequenceModel,
    x: Tensor,
    token_mask: Tensor | None,
    own: Lesson,
    seed: int,
) -> dict[str, list[float]]:
    """By length, with some of its paths; the mean over several draws."""
    network = model.network
    spec = network.spec
    bias = path_lengths(network, x, max_length=0, token_mask=token_mask).bias
    counts = count_paths(spec.layers, spec.heads).counts
    most = max(config.drawn)
    accuracies: dict[str, list[float]] = {_few(few): [] for few in config.drawn}
    for length in range(spec.layers + 1):
        paths = sample_paths(
            spec.layers,
            spec.heads,
            length=length,
            count=most * config.repeats,
            generator=stream(seed, "paths", length),
        )
        outputs = path_outputs(network, x, paths, token_mask=token_mask) * counts[length]
        for few in config.drawn:
            means = outputs.split(few)[: most * config.repeats // few]
            accuracies[_few(few)].append(
                fmean(own.accuracy(model.readout(some.mean(0) + bias)) for some in means)
            )
    return accuracies


def _few(count: int) -> str:
    return f"{count} random paths"


def _median(rows: pl.DataFrame, metric: str) -> float:
    return float(median(rows.filter(pl.col("metric") == metric)["value"].to_list()))


def _by_length(rows: pl.DataFrame, variant: str) -> list[float]:
    """Medians over the seeds, in the order of the lengths."""
    own = rows.filter((pl.col("variant") == variant) & (pl.col("metric") == ACCURACY))
    return own.group_by("setting").agg(pl.median("value")).sort("setting")["value"].to_list()


def _told(rows: pl.DataFrame, guess: float, config: Config) -> str:
    """What paths of each length can do, in words."""
    accuracies = _by_length(rows, ALL)
    if max(accuracies) <= guess + config.margin:
        comes_to = "so that no length knows more than a guess by itself"
    elif falls(accuracies, guess, config):
        best = accuracies.index(max(accuracies))
        comes_to = f"best at length {best} and falling to a guess from there"
    else:
        comes_to = "which is no fall from a short length to a guess"
    listed, rescaled = (
        " ".join(f"{value:.2f}" for value in _by_length(rows, variant))
        for variant in (ALL, RESCALED)
    )
    return (
        f"paths of length 0, 1, … alone {listed} (medians), {comes_to}; "
        f"brought to the size of the whole output {rescaled}"
    )


def _compared(config: Config, table: pl.DataFrame) -> str:
    """How far random paths are from all paths of their length."""
    tasks = table["model"].unique(maintain_order=True).to_list()
    apart = {}
    for few in config.drawn:
        gaps = []
        for task in tasks:
            rows = table.filter(pl.col("model") == task)
            pairs = zip(_by_length(rows, _few(few)), _by_length(rows, ALL), strict=True)
            gaps += [abs(one - other) for one, other in pairs]
        apart[few] = fmean(gaps)
    told = ", ".join(f"{gap:.2f} with {few}" for few, gap in apart.items())
    return f"Random paths miss the accuracy of all paths of their length by {told} on average."


def _untrained(table: pl.DataFrame) -> str:
    """The control: how far from a guess any length of a network is before training."""
    best = max(
        max(_by_length(rows, UNTRAINED)) - _by_length(rows, CHANCE)[0]
        for rows in table.partition_by("model", maintain_order=True)
    )
    known = f"better by {best:.2f}" if best > 0 else "never better"
    return f"Control: before training, paths of one length are {known} than a constant guess."


def _key_figures(table: pl.DataFrame) -> dict[str, float]:
    figures = {}
    for rows in table.partition_by("model", maintain_order=True):
        task, accuracies = rows["model"][0], _by_length(rows, ALL)
        figures[f"{task}, best length alone"] = max(accuracies)
        figures[f"{task}, longest alone"] = accuracies[-1]
        figures[f"{task}, whole network"] = _median(rows, WHOLE_ACCURACY)
    return figures
