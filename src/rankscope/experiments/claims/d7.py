"""Claim D7, Dong et al. 2021, figure 4: what paths of each length can do on trained tasks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from rankscope import tables
from rankscope.errors import InputError
from rankscope.experiments import kit
from rankscope.experiments.claims._path_accuracy import (
    ALL,
    CHANCE,
    RESCALED,
    WHOLE,
    accuracies_by_length,
)
from rankscope.experiments.claims._path_medians import (
    ACCURACY,
    by_length,
    compare_random_paths,
    compare_untrained,
    constant_guess,
    median_of,
)
from rankscope.experiments.learning import (
    HULL,
    MEMORISATION,
    SORTING,
    TASKS,
    Plan,
    learn,
    lesson,
    resolve_device,
)
from rankscope.models.text import passages
from rankscope.models.training import Recipe, split_sentences

ENTRY = kit.claim(
    "D7",
    "On trained tasks, paths do less of the work the longer they are.",
    source="Dong et al. 2021, figure 4",
    domain="memorisation, sorting and convex hull, six layers, after training",
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
WHOLE_ACCURACY, TRAINING_ACCURACY = "whole_accuracy", "train_accuracy"
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
    kept: float = 0.5
    """The part of what the best length has above a guess that the longest may keep."""
    sentences: tuple[str, ...] | None = None
    """What is memorised; the sentences of the bundled passages unless given."""
    device: str = "cpu"
    """Where networks are trained and measured; ``auto`` becomes a GPU where there is one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        # What is kept is the device itself: results of CPU and GPU differ, so must their digests.
        object.__setattr__(self, "device", resolve_device(self.device))

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
    whole network's output. A long path may fail because it is wrong or because it is small beside
    the biases; ``RESCALED`` tells the two apart: the stream is brought to the size of the sum of
    all streams, token by token.

    The paper's code measures something else. There a path runs through the network as its only
    state: attention and LayerNorm are computed anew from that state, and the states in which some
    random paths end are added up before a last LayerNorm. Here both stay what they are in the whole
    network, so that 5 or 20 random paths are an estimate of the exact stream. Figures are therefore
    not to be compared with the paper's digit by digit.
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
        about={"trained on": config.device},
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
    network's accuracy. It bears the statement out if the medians by length, exact streams, fall
    from a short length down to a guess (``falls``).
    """
    exact: dict[str, bool] = {}
    rescaled: dict[str, bool] = {}
    sentences = []
    for task in config.tasks:
        rows = table.filter(pl.col("model") == task)
        if median_of(rows, WHOLE_ACCURACY) >= config.plan(task).learnt:
            guess = constant_guess(rows)
            exact[task] = falls(by_length(rows, ALL), guess, config)
            rescaled[task] = falls(by_length(rows, RESCALED), guess, config)
        sentences.append(_task_in_words(rows, task, config, learnt=task in exact))
    by_size = [task for task in exact if exact[task] and not rescaled[task]]
    if by_size:
        sentences.append(
            f"In {', '.join(by_size)} long paths fail because they are small: brought to the size "
            "of the whole output they do not fall with length as stated."
        )
    missed = [task for task in config.tasks if task not in exact]
    on = f"{', '.join(exact) or 'no task'} learnt, {', '.join(missed)} not" if missed else ""
    return (
        kit.judged(ENTRY.domain, exact, on),
        kit.judged(_RESCALED_DOMAIN, rescaled, on),
        (*sentences, compare_random_paths(table, config.drawn), compare_untrained(table)),
    )


def falls(accuracies: Sequence[float], guess: float, config: Config) -> bool:
    """Whether accuracies by length fall from their best, a short one, down to a guess.

    The best must be above the guess by ``margin`` and in the shorter half; none after it may be
    better by ``rise`` than a shorter one; and the longest must be within ``margin`` of the guess
    and have lost what the best has above it, but for the part ``kept``.
    """
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
        and accuracies[-1] - guess <= min(config.margin, config.kept * (accuracies[best] - guess))
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
        accuracies = accuracies_by_length(
            found.model,
            own,
            seed=found.seed,
            device=config.device,
            drawn=config.drawn,
            repeats=config.repeats,
        )
        rows += [
            (task, WHOLE, None, None, sample, TRAINING_ACCURACY, found.score),
            (task, WHOLE, None, None, sample, WHOLE_ACCURACY, accuracies[WHOLE][0]),
        ]
        rows += [
            (task, variant, "path_length", float(length), sample, ACCURACY, value)
            for variant, values in accuracies.items()
            for length, value in enumerate(values)
        ]
    return tables.from_rows(_COLUMNS, rows)


def _task_in_words(rows: pl.DataFrame, task: str, config: Config, *, learnt: bool) -> str:
    """How well a task was learnt, and if it was, what paths of each length can do."""
    guess, named = constant_guess(rows), task.capitalize()
    trained = (
        f"whole network {median_of(rows, WHOLE_ACCURACY):.2f} "
        f"({median_of(rows, TRAINING_ACCURACY):.2f} on what it was trained on), "
        f"best constant guess {guess:.2f}"
    )
    if not learnt:
        return f"{named}: not learnt, so not tried: {trained}."
    return f"{named}: {trained}; {_lengths_in_words(rows, guess, config)}."


def _lengths_in_words(rows: pl.DataFrame, guess: float, config: Config) -> str:
    """What paths of each length can do."""
    accuracies = by_length(rows, ALL)
    if max(accuracies) <= guess + config.margin:
        comes_to = "so that no length knows more than a guess by itself"
    elif falls(accuracies, guess, config):
        best = accuracies.index(max(accuracies))
        comes_to = f"best at length {best} and falling to a guess from there"
    else:
        comes_to = "which is no fall from a short length to a guess"
    listed, rescaled = (
        " ".join(f"{value:.2f}" for value in by_length(rows, variant))
        for variant in (ALL, RESCALED)
    )
    return (
        f"paths of length 0, 1, … alone {listed} (medians), {comes_to}; "
        f"brought to the size of the whole output {rescaled}"
    )


def _key_figures(table: pl.DataFrame) -> dict[str, float]:
    figures = {}
    for rows in table.partition_by("model", maintain_order=True):
        task, accuracies = rows["model"][0], by_length(rows, ALL)
        figures[f"{task}, best length alone"] = max(accuracies)
        figures[f"{task}, longest alone"] = accuracies[-1]
        figures[f"{task}, whole network"] = median_of(rows, WHOLE_ACCURACY)
    return figures
