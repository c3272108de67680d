"""D7: what paths of each length can do, checked path by path; every verdict on hand-made tables."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import binom

from rankscope import Spec, tables
from rankscope.core.paths import enumerate_paths, path_outputs, sample_paths
from rankscope.errors import InputError
from rankscope.experiments import kit
from rankscope.experiments.claims import d7
from rankscope.experiments.claims.d7 import (
    ALL,
    CHANCE,
    EVERY_LONE,
    RANDOM,
    RESCALED,
    UNTRAINED,
    WHOLE,
    lone,
)
from rankscope.experiments.learning import HULL, MEMORISATION, SORTING, TaskPlan, learn, lesson
from rankscope.experiments.lone_paths import lone_paths, plain_norm
from rankscope.models.training import IGNORED, Recipe
from rankscope.process.progress import silent
from rankscope.show import figures
from rankscope.streams import stream

SHORT = Recipe(8, 4, warmup=2)
TINY = d7.Config(
    seeds=2,
    layers=2,
    drawn=(2, 4),
    repeats=1,
    memorisation=TaskPlan(2, 8, SHORT, 6, 4, 0.0, tokens=6),
    sorting=TaskPlan(2, 8, SHORT, 8, 5, 0.0, tokens=4),
    hull=TaskPlan(2, 8, SHORT, 8, 5, 0.0, tokens=5),
    sentences=("a rose is a flower",) * 3 + ("one two three",) * 5,
)
FALLING = (0.3, 0.9, 0.6, 0.5)
LEVEL = (0.6, 0.9, 0.85, 0.8)


def table(accuracies, *, whole=0.99, guess=0.5, random=0.5, **others):
    """Three seeds with the same figures for every task; ``accuracies`` are by length.

    They are those of paths run by themselves; ``exact``, ``rescaled``, ``twenty`` and ``every`` are
    the same unless given.
    """
    rows = []
    for task, few in accuracies.items():
        by_length = {
            lone(5): few,
            lone(20): others.get("twenty", few),
            EVERY_LONE: others.get("every", few),
            ALL: others.get("exact", few),
            RESCALED: others.get("rescaled", few),
            UNTRAINED: [0.4] * len(few),
            CHANCE: [guess] * len(few),
            RANDOM: [random] * len(few),
        }
        for seed in range(3):
            rows.append((task, WHOLE, None, None, seed, d7.TRAINING_ACCURACY, 1.0))
            whole_one = whole[task] if isinstance(whole, dict) else whole
            rows.append((task, WHOLE, None, None, seed, d7.WHOLE_ACCURACY, whole_one))
            rows += [
                (task, variant, "path_length", length, seed, d7.ACCURACY, value)
                for variant, values in by_length.items()
                for length, value in enumerate(values)
            ]
    return tables.from_rows(d7._COLUMNS, rows)


CONFIG = d7.Config(tasks=(SORTING, HULL))


def judged(measured) -> kit.Result:
    return kit.conclude(d7.ENTRY, CONFIG, measured)


@pytest.mark.parametrize(
    ("sorting", "hull", "verdict"),
    [
        (FALLING, FALLING, "Supported"),
        (LEVEL, LEVEL, "Not supported"),
        (
            FALLING,
            LEVEL,
            "Supported in part: accuracy falls with length in sorting, not in convex hull; paths "
            "shorter than three do most in sorting, not in convex hull",
        ),
    ],
)
def test_each_verdict(sorting, hull, verdict):
    result = judged(table({SORTING: sorting, HULL: hull}))
    assert str(result.judgement) == verdict
    opening = "Sorting: whole network 0.99 (1.00 on what it was trained on), random predictor 0.50"
    assert result.sentences[0].startswith(opening)
    assert all(each.endswith(".") for each in result.sentences)


def test_both_numbers_of_paths_must_fall():
    result = judged(table({SORTING: FALLING, HULL: FALLING}, twenty=LEVEL))
    assert result.verdict == "fails"


def test_exact_streams_are_judged_beyond_and_not_as_stated():
    result = judged(table({SORTING: FALLING, HULL: FALLING}, exact=LEVEL))
    assert result.verdict == "holds"
    assert str(result.beyond) == (
        "Supported in part: all paths, exact, fall with length in no task; rescaled ones fall "
        "with length in sorting, convex hull; shorter than three do most, exact, in no task; their "
        "number matters more than their length in no task"
    )


def test_the_figure_has_its_own_random_predictor():
    """Of sorting it is a tenth, where the best constant guess is a third."""
    script = (0.15, 0.29, 0.17, 0.13, 0.11, 0.09, 0.10)
    result = judged(table({SORTING: script, HULL: script}, random=0.1, guess=0.33))
    assert result.verdict == "holds"
    assert result.sentences[-2] == (
        "Random paths by themselves never beat the best constant guess in sorting, convex hull."
    )
    assert judged(table({SORTING: script, HULL: script}, random=0.33)).verdict == "fails"


def test_a_task_that_was_not_learnt_is_not_tried():
    given = table({SORTING: FALLING, HULL: LEVEL}, whole={SORTING: 0.99, HULL: 0.7})
    result = judged(given)
    assert (
        str(result.judgement) == "Supported where tested; not learnt, hence not tested: convex hull"
    )
    untried = "Convex hull: not learnt, hence not tested: whole network 0.70"
    assert result.sentences[1].startswith(untried)
    neither = judged(table({SORTING: FALLING, HULL: FALLING}, whole=0.7))
    assert str(neither.judgement) == "Not tested: no task was learnt"


@pytest.mark.parametrize(
    ("accuracies", "held"),
    [
        ((0.5, 0.9, 0.5, 0.6), True),
        ((0.5, 0.5, 0.9, 0.6), True),  # length two is shorter than three
        ((0.5, 0.5, 0.6, 0.9), False),
        ((0.5, 0.9, 0.5, 0.71), False),  # the longer one has more than half of it
        ((0.5, 0.54, 0.5, 0.5), False),  # within the margin of a guess
        ((0.5, 0.9), True),
    ],
)
def test_short_paths_do_most_of_the_work_or_not(accuracies, held):
    assert d7.short_do_most(accuracies, 0.5, CONFIG) is held


@pytest.mark.parametrize(
    ("five", "twenty", "every", "effects"),
    [
        ((0.1, 0.5, 0.5), (0.9, 0.6, 0.6), (0.1, 0.9, 0.8), (0.4, 0.0)),
        ((0.1, 0.5, 0.4), (0.9, 0.8, 0.5), (0.1, 0.8, 0.5), (0.3, 0.3)),
        ((0.1, 0.50, 0.50), (0.9, 0.52, 0.52), (0.1, 0.54, 0.5), (0.04, 0.0)),
    ],
)
def test_the_number_of_paths_is_held_against_their_length(five, twenty, every, effects):
    """Length 0, which has a single path, is left out."""
    medians = {lone(5): five, lone(20): twenty, EVERY_LONE: every}
    assert d7.effects(medians, CONFIG) == pytest.approx(effects)
    number, length = effects
    assert d7.number_matters(medians, CONFIG) is (number > length and number > 0.05)


def test_the_untrained_network_is_a_control():
    sentences = judged(table({SORTING: FALLING, HULL: FALLING})).sentences
    assert sentences[-1].endswith("of one length are never 0.01 better than a constant guess.")
    sentences = judged(table({SORTING: FALLING, HULL: FALLING}, guess=0.3)).sentences
    assert sentences[-1].endswith("of one length are up to 0.10 better than a constant guess.")


@pytest.mark.parametrize(
    ("accuracies", "held"),
    [
        (FALLING, True),
        ((0.35, 0.46, 0.21, 0.14, 0.12, 0.10, 0.09), True),  # the script's own sorting run
        ((0.9, 0.7, 0.6, 0.5), True),
        (LEVEL, False),  # the longest still knows something
        ((0.5, 0.52, 0.5, 0.5), False),  # nothing is known at any length
        ((0.3, 0.4, 0.9, 0.5), False),  # a long one is best
        ((0.9, 0.5, 0.7, 0.5), False),  # it rises again
        ((0.9, 0.5, 0.52, 0.5), True),  # a rise within the tolerance
        ((0.56, 0.55, 0.55, 0.55), False),  # level, a hair on either side of the margin
        ((0.56, 0.55, 0.54, 0.53), True),  # half of the little that is known is lost
        ((0.9, 0.7, 0.6, 0.56), False),  # more than half is lost, and yet more than a guess is left
    ],
)
def test_what_counts_as_a_fall(accuracies, held):
    guess = 0.1 if len(accuracies) == 7 else 0.5
    assert d7.falls(accuracies, guess, CONFIG) is held


def test_a_level_curve_just_above_a_guess_is_no_fall():
    level = (0.61, 0.60, 0.605, 0.60, 0.60, 0.60, 0.605)
    assert d7.falls(level, 0.557, CONFIG) is False


@pytest.mark.parametrize("task", [SORTING, HULL, MEMORISATION])
def test_streams_are_all_single_paths_of_their_length(task):
    """Against every path by itself, added up."""
    plan = TINY.plan(task)
    own = lesson(task, plan, 0, spec=plan.spec(2, 1.0), sentences=TINY.sentences)
    model = own.model.double()
    for number, each in enumerate(model.parameters()):
        if each.ndim == 1:  # biases start at zero: make them count
            drawn = torch.randn(each.shape, generator=stream(0, "bias", number), dtype=each.dtype)
            each.data += drawn
    inputs, token_mask = own.evaluate.inputs, own.evaluate.token_mask
    x = model.embed(inputs.double() if inputs.is_floating_point() else inputs)
    found = d7.exactly(model, x, own)
    everything = path_outputs(model.network, x, list(enumerate_paths(2, 2)), token_mask=token_mask)
    bias = model.network(x, token_mask) - everything.sum(0)
    counted = own.evaluate.targets != IGNORED
    for length in range(3):
        paths = list(enumerate_paths(2, 2, length=length))
        one = path_outputs(model.network, x, paths, token_mask=token_mask).sum(0)
        labels = model.readout(one + bias).argmax(-1)
        right = (labels == own.evaluate.targets)[counted].double().mean()
        assert found[ALL][length] == pytest.approx(float(right))


@pytest.mark.parametrize("task", [SORTING, HULL, MEMORISATION])
def test_paths_by_themselves_are_averaged_over_draws(task):
    """The only path of length 0 is what is embedded, whatever is drawn; the rest is drawn anew."""
    plan = TINY.plan(task)
    learnt = lesson(task, plan, 0, spec=plan.spec(2, 0.0), sentences=TINY.sentences)
    config = replace(TINY, run_on=3, repeats=4)
    right = d7.by_themselves(config, learnt.model.double(), learnt, 0)
    assert set(right) == {lone(2), lone(4), EVERY_LONE}
    inputs = learnt.evaluate.inputs[:3]
    embedded = learnt.model.float().embed(inputs)
    labels = learnt.model.readout(plain_norm(embedded)).argmax(-1)
    targets = learnt.evaluate.targets[:3]
    alone = (labels == targets)[targets != IGNORED].double().mean()
    assert [values[0] for values in right.values()] == pytest.approx([float(alone)] * 3)
    assert all(len(values) == 3 for values in right.values())
    longest = [
        path.choices
        for path in sample_paths(2, 2, length=2, count=2, generator=stream(0, "paths", 2))
    ]
    ends = dict(lone_paths(learnt.model.network, embedded, _cut(learnt.evaluate.token_mask)))
    first = learnt.model.readout(plain_norm(sum(ends[choices] for choices in longest))).argmax(-1)
    once = d7.by_themselves(replace(config, repeats=1), learnt.model.double(), learnt, 0)
    share = (first == targets)[targets != IGNORED].double().mean()
    assert once[lone(2)][2] == pytest.approx(float(share))


def _cut(mask):
    return None if mask is None else mask[:3]


def test_a_guess_is_learnt_in_training_and_does_not_look():
    own = lesson(SORTING, TINY.sorting, 0, spec=TINY.sorting.spec(1, 0.0))
    shown = torch.tensor([[0, 1, 2], [0, 1, 2], [1, 3, 2], [0, 3, 2], [1, 1, 1]])
    asked = torch.tensor([[1, 1, 2], [1, 3, 2], [1, 3, 0]])
    by_position = replace(
        own,
        train=replace(own.train, targets=shown),
        evaluate=replace(own.evaluate, targets=asked),
    )
    # By position the guess is 0 1 2, right in none, one and two of three; 1 3 2 would get 7 of 9.
    assert by_position.chance() == pytest.approx(3 / 9)
    # Of all fifteen labels shown 1 is the commonest (six), and four of nine asked are 1.
    assert replace(by_position, ordered=False).chance() == pytest.approx(4 / 9)


def test_padding_counts_neither_for_a_guess_nor_for_an_accuracy():
    own = lesson(SORTING, TINY.sorting, 0, spec=TINY.sorting.spec(1, 0.0))
    shown = torch.tensor([[0, 1, IGNORED], [0, IGNORED, IGNORED], [IGNORED, IGNORED, IGNORED]])
    asked = torch.tensor([[0, 1, IGNORED], [1, IGNORED, IGNORED]])
    few = replace(
        own,
        train=replace(own.train, targets=shown),
        evaluate=replace(own.evaluate, targets=asked),
    )
    assert few.chance() == pytest.approx(2 / 3)
    assert replace(few, ordered=False).chance() == pytest.approx(1 / 3)
    outputs = torch.nn.functional.one_hot(torch.tensor([[0, 0, 1], [1, 0, 0]]), 3).double()
    assert few.accuracy(outputs) == pytest.approx(2 / 3)


def test_a_guess_at_sorted_symbols_is_no_better_than_the_best_there_is():
    """Against the best there is: the k-th of 8 even draws of 10 symbols has a known law."""
    below = [[binom.sf(place, 8, (symbol + 1) / 10) for symbol in range(10)] for place in range(8)]
    best = sum(max(np.diff(each, prepend=0.0)) for each in below) / 8
    plan = d7.Config().sorting
    found = [lesson(SORTING, plan, seed, spec=plan.spec(1, 0.0)).chance() for seed in range(5)]
    assert sum(found) / 5 == pytest.approx(best, abs=0.012)


def test_a_guess_at_random_labels_is_half_right():
    plan = TaskPlan(2, 8, SHORT, 40, 40, 0.0, tokens=24)
    words = [f"{chr(97 + at % 26)} " * 22 for at in range(40)]
    own = lesson(MEMORISATION, plan, 0, spec=plan.spec(1, 0.0), sentences=words)
    ones = float(own.train.targets[own.train.targets != IGNORED].double().mean())
    assert own.chance() == pytest.approx(max(ones, 1 - ones))
    assert own.chance() == pytest.approx(0.5, abs=0.05)


def test_a_small_run_is_whole_repeatable_and_drawn():
    seen: list[float] = []
    found = d7.ENTRY.run(TINY, seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(1.0)
    assert found.table.equals(d7.ENTRY.run(TINY, silent).table)
    lengths = found.table.filter(variant=ALL, model=HULL)["setting"].unique().sort().to_list()
    assert lengths == [0.0, 1.0, 2.0]
    assert found.table["value"].is_between(0.0, 1.0).all()
    for drawing in found.drawings:
        figures.draw(drawing, found)
    assert all(map(math.isfinite, found.key_figures.values()))
    one_task = replace(TINY, tasks=(MEMORISATION,))
    other = d7.ENTRY.run(replace(one_task, sentences=("another text to learn",) * 8), silent)
    assert not other.table.equals(found.table.filter(model=MEMORISATION))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tasks": ()}, "tasks is empty"),
        ({"tasks": ("chess",)}, "no task 'chess'; choose memorisation"),
        ({"seeds": 0}, "seeds=0"),
        ({"drawn": ()}, "drawn="),
        ({"sentences": (), "tasks": (MEMORISATION,)}, "no sentence to memorise"),
    ],
)
def test_nothing_to_try_is_refused(change, message):
    with pytest.raises(InputError, match=message):
        d7.ENTRY.run(replace(TINY, **change), silent)


def test_the_device_found_is_part_of_what_names_a_run(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    on_gpu = d7.Config(device="auto")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    on_cpu = d7.Config(device="auto")
    assert (on_gpu.device, on_cpu.device) == ("cuda", "cpu")
    assert on_gpu.digest("D7") != on_cpu.digest("D7")
    assert on_cpu.digest("D7") == d7.Config(device="cpu").digest("D7")


def test_the_papers_scale_is_a_configuration():
    paper = d7.Config(**d7.PAPER)
    assert (paper.hull.examples, paper.hull.width, paper.memorisation.width) == (10_000, 84, 250)
    assert paper.device in ("cpu", "cuda")
    assert paper.sorting.spec(6, 0.0) == Spec(
        6, 2, 48, mlp_ratio=0.0, norm_place="post", init="xavier"
    )


def test_fewer_sentences_than_a_batch_are_all_taken_at_once():
    plan = TaskPlan(2, 8, Recipe(2, 24), 2, 2, 0.0, tokens=6)
    own = lesson(MEMORISATION, plan, 0, spec=plan.spec(1, 0.0), sentences=["a rose", "a flower"])
    (found,) = learn([own], plan, [0], "cpu", silent)
    assert found.steps == 2
