"""Estimates before there are weights: the same as with them; and how fast a large grid is read."""

import time
from pathlib import Path

import pytest

from rankscope.ask import Cost, Sources, ask
from rankscope.core.network import Network
from rankscope.experiments.catalogue import CATALOGUE, entries
from rankscope.run import estimate, plan, read_grid

SHAPE = {"layers": 2, "heads": 2, "width": 8, "samples": 3, "length": 11}
QUESTIONS = [id_ for id_ in entries("question") if id_ != "compare"]


def asked(content):
    (run,) = plan(read_grid(content)).runs
    return ask(CATALOGUE[run.experiment], run.fields, Sources(run.folder))


@pytest.mark.parametrize("id_", QUESTIONS)
def test_without_weights_the_estimate_is_that_with_them(id_):
    found = asked({"experiment": id_, **SHAPE, "gated": True, "without": ""})
    expected = CATALOGUE[id_].module().cost(found.configure())
    assert found.cost() == expected
    assert expected != Cost()


def test_the_estimate_of_a_model_at_initialisation_needs_none_of_its_weights(monkeypatch):
    monkeypatch.setattr(Network, "__init__", None)
    found = asked({"model": "bert-base", "at_init": True, "samples": 1, "length": 16}).cost()
    assert 1.2e9 < found.products < 1.6e9  # 85 million weights, 16 tokens
    assert asked({"model": "someone/something", "samples": 1}).cost() is None


def test_the_whole_is_the_sum_of_its_runs_and_the_largest_is_the_largest():
    runs = plan(read_grid({"heads": 2, "width": 8, "axes": {"layers": [1, 2, 4]}})).runs
    parts = [estimate([run]) for run in runs]
    whole = estimate(runs)
    assert whole.runs == 3
    assert whole.seconds == pytest.approx(sum(part.seconds for part in parts))
    assert whole.longest == pytest.approx(max(part.longest for part in parts))
    assert whole.bytes == max(part.bytes for part in parts) > 0
    assert parts[2].seconds > parts[1].seconds > parts[0].seconds > 0.01


def test_of_many_runs_some_stand_for_the_others():
    runs = plan(read_grid({**SHAPE, "axes": {"seed": {"from": 1, "to": 1500}}})).runs
    assert estimate(runs).seconds == pytest.approx(1500 * estimate(runs[:1]).seconds)
    mixed = [
        *runs[:1000],
        *plan(read_grid({"experiment": "D2", "layers": 3, "axes": {"seed": range(500)}})).runs,
    ]
    assert estimate(mixed).unknown == pytest.approx(500, abs=3)


def test_claims_and_studies_take_what_they_took_at_their_usual_sizes():
    known = {id_ for id_, each in CATALOGUE.items() if each.kind != "question"}
    for id_ in known:
        for seed in (0, 7):
            found = asked({"experiment": id_, "seed": seed}).cost()
            assert found.seconds == pytest.approx(CATALOGUE[id_].seconds) != 0
    assert asked({"experiment": "D2", "layers": 3}).cost() is None
    assert asked({"experiment": "W2", "scale": "paper"}).cost() is None


def test_claims_took_about_what_the_documentation_says_they_took():
    written = Path(__file__).parents[2] / "docs" / "reproduced.md"
    rows = [line.split("|") for line in written.read_text().splitlines() if line.startswith("| ")]
    told = {row[1].strip(): row[-2].strip() for row in rows}
    claims = [id_ for id_, each in CATALOGUE.items() if each.kind == "claim"]
    for id_ in claims:  # an estimate is good to a factor of three
        assert 1 / 3 <= CATALOGUE[id_].seconds / max(1, int(told[id_])) <= 3


def test_runs_of_which_nothing_is_known_are_counted():
    axes = {"experiment": ["D2", "trace"], "layers": [3], "seed": [0, 1]}
    found = estimate(plan(read_grid({"axes": axes})).runs)
    assert (found.runs, found.unknown) == (4, 2)
    assert estimate([]).runs == 0


def test_ten_thousand_runs_are_read_checked_named_and_estimated_in_seconds():
    content = {
        "heads": 4,
        "width": 64,
        "mask": "window:{radius}",
        "axes": {
            "layers": [2, 4, 8, 16],
            "seed": {"from": 0, "to": 99},
            "radius": [1, 2, 4, 8, 16],
            "skip": {"from": 0.2, "to": 1, "count": 5},
        },
    }
    start = time.process_time()
    found = plan(read_grid(content))
    one = estimate(found.runs[:1])
    whole = estimate(found.runs)
    seconds = time.process_time() - start
    assert len({run.key for run in found.runs}) == len(found.runs) == 10_000
    assert whole.seconds > 10_000 * one.seconds  # the first is the smallest
    assert seconds < 5
