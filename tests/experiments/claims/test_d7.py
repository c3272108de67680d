"""D7: what paths of each length can do, checked path by path; every verdict on hand-made tables."""

import math
from dataclasses import replace

import pytest
import torch

from rankscope import Spec, figures, tables
from rankscope.errors import InputError
from rankscope.experiments.claims import d7
from rankscope.experiments.learning import HULL, MEMORISATION, SORTING, Plan, lesson, resolve_device
from rankscope.experiments.progress import silent
from rankscope.paths import enumerate_paths, path_outputs
from rankscope.streams import stream
from rankscope.training import IGNORED, Recipe

SHORT = Recipe(8, 4, warmup=2)
TINY = d7.Config(
    seeds=2,
    layers=2,
    drawn=(2, 4),
    repeats=1,
    memorisation=Plan(2, 8, SHORT, 6, 4, 0.0, tokens=6),
    sorting=Plan(2, 8, SHORT, 8, 5, 0.0, tokens=4),
    hull=Plan(2, 8, SHORT, 8, 5, 0.0, tokens=5),
    sentences=("a rose is a flower",) * 3 + ("one two three",) * 5,
)
FALLING = (0.3, 0.9, 0.6, 0.5)
LEVEL = (0.6, 0.9, 0.85, 0.8)


def table(accuracies, *, whole=0.99, guess=0.5, rescaled=None, drawn=(5, 20)):
    """Three seeds with the same figures for every task; ``accuracies`` are by length."""
    rows = []
    for task, exact in accuracies.items():
        by_length = {
            d7.ALL: exact,
            d7.RESCALED: rescaled or exact,
            d7.UNTRAINED: [0.4] * len(exact),
            d7.CHANCE: [guess] * len(exact),
            **{f"{few} random paths": [each - 1 / few for each in exact] for few in drawn},
        }
        for seed in range(3):
            rows.append((task, d7.WHOLE, None, None, seed, d7.TRAINING_ACCURACY, 1.0))
            own = whole[task] if isinstance(whole, dict) else whole
            rows.append((task, d7.WHOLE, None, None, seed, d7.WHOLE_ACCURACY, own))
            rows += [
                (task, variant, "path_length", length, seed, d7.ACCURACY, value)
                for variant, values in by_length.items()
                for length, value in enumerate(values)
            ]
    return tables.from_rows(d7._COLUMNS, rows)


CONFIG = d7.Config(tasks=(SORTING, HULL))


@pytest.mark.parametrize(
    ("sorting", "hull", "verdict"),
    [
        (FALLING, FALLING, "holds"),
        (LEVEL, LEVEL, "fails"),
        (FALLING, LEVEL, "depends on the case: sorting bears it out, convex hull does not"),
    ],
)
def test_each_verdict(sorting, hull, verdict):
    judgement, beyond, sentences = d7.judge(CONFIG, table({SORTING: sorting, HULL: hull}))
    assert str(judgement) == str(beyond) == verdict
    assert sentences[0].startswith("Sorting: whole network 0.99 (1.00 on what it was trained on)")
    assert all(each.endswith(".") for each in sentences)


def test_a_task_that_was_not_learnt_is_not_tried():
    given = table({SORTING: FALLING, HULL: LEVEL}, whole={SORTING: 0.99, HULL: 0.7})
    judgement, _, sentences = d7.judge(CONFIG, given)
    assert str(judgement) == "holds, sorting learnt, convex hull not"
    assert sentences[1].startswith("Convex hull: not learnt, so not tried: whole network 0.70")
    neither, _, _ = d7.judge(CONFIG, table({SORTING: FALLING, HULL: FALLING}, whole=0.7))
    assert str(neither) == "not tried: no task learnt, sorting, convex hull not"


def test_long_paths_that_fail_for_being_small_are_named():
    given = table({SORTING: FALLING, HULL: FALLING}, rescaled=LEVEL)
    judgement, beyond, sentences = d7.judge(CONFIG, given)
    assert (judgement.verdict, beyond.verdict) == ("holds", "fails")
    assert any(
        "In sorting, convex hull long paths fail because they are small" in s for s in sentences
    )


def test_random_paths_and_the_untrained_network_are_compared():
    _, _, sentences = d7.judge(CONFIG, table({SORTING: FALLING, HULL: FALLING}))
    assert sentences[-2].endswith("by 0.20 with 5, 0.05 with 20 on average.")
    assert sentences[-1].endswith("paths of one length are never better than a constant guess.")


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
    ],
)
def test_what_counts_as_a_fall(accuracies, held):
    guess = 0.1 if len(accuracies) == 7 else 0.5
    assert d7.falls(accuracies, guess, CONFIG) is held


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
    found = d7._exactly(model, x, token_mask, own)
    everything = path_outputs(model.network, x, list(enumerate_paths(2, 2)), token_mask=token_mask)
    bias = model.network(x, token_mask) - everything.sum(0)
    counted = own.evaluate.targets != IGNORED
    for length in range(3):
        paths = list(enumerate_paths(2, 2, length=length))
        one = path_outputs(model.network, x, paths, token_mask=token_mask).sum(0)
        labels = model.readout(one + bias).argmax(-1)
        right = (labels == own.evaluate.targets)[counted].double().mean()
        assert found[d7.ALL][length] == pytest.approx(float(right))
    many = replace(TINY, drawn=(400,))
    sampled = d7._sampled(many, model, x, token_mask, own, 0)["400 random paths"]
    assert sampled[0] == found[d7.ALL][0]  # there is only one path of length 0
    assert sampled == pytest.approx(found[d7.ALL], abs=0.2)


def test_a_guess_is_the_best_that_does_not_look():
    own = lesson(SORTING, TINY.sorting, 0, spec=TINY.sorting.spec(1, 0.0))
    targets = torch.tensor([[0, 1, 2], [0, 2, 2], [1, 3, 2]])
    by_position = replace(own, evaluate=replace(own.evaluate, targets=targets))
    assert by_position.chance() == pytest.approx((2 + 1 + 3) / 9)
    assert replace(by_position, ordered=False).chance() == pytest.approx(4 / 9)
    padded = torch.tensor([[0, 1, IGNORED], [0, IGNORED, IGNORED]])
    few = replace(own, evaluate=replace(own.evaluate, targets=padded))
    assert few.chance() == 1.0
    outputs = torch.nn.functional.one_hot(torch.tensor([[0, 0, 1], [0, 0, 0]]), 3).double()
    assert few.accuracy(outputs) == pytest.approx(2 / 3)


def test_a_small_run_is_whole_repeatable_and_drawn():
    seen: list[float] = []
    found = d7.run(TINY, seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(1.0)
    assert found.table.equals(d7.run(TINY, silent).table)
    lengths = found.table.filter(variant=d7.ALL, model=HULL)["setting"].unique().sort().to_list()
    assert lengths == [0.0, 1.0, 2.0]
    assert found.table["value"].is_between(0.0, 1.0).all()
    for drawing in found.drawings:
        figures.draw(drawing, found)
    assert all(map(math.isfinite, found.key_figures.values()))
    one_task = replace(TINY, tasks=(MEMORISATION,))
    other = d7.run(replace(one_task, sentences=("another text to learn",) * 8), silent)
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
        d7.run(replace(TINY, **change), silent)


def test_the_papers_scale_is_a_configuration():
    paper = d7.Config(**d7.PAPER)
    assert (paper.hull.examples, paper.hull.width, paper.memorisation.width) == (10_000, 84, 250)
    assert resolve_device(paper.device) in ("cpu", "cuda")
    assert resolve_device("cpu") == "cpu"
    assert paper.sorting.spec(6, 0.0) == Spec(
        6, 2, 48, mlp_ratio=0.0, norm_place="post", init="xavier"
    )
