"""Early warnings: faults do what they say, and steps are read off losses by the stated rule."""

from dataclasses import replace

import pytest
import torch

from rankscope.errors import InputError
from rankscope.experiments import kit
from rankscope.experiments.studies import _training_faults as runs
from rankscope.experiments.studies import early_warning
from rankscope.monitor import RULES, Alarm

SMALL = early_warning.Config(
    faults=("Gemma 4's initialisation", "bf16 logits, common offset of keys"),
    kinds=("classifier",),
    seed=1000,
    seeds=1,
    steps=40,
    begin=10,
)


def made(losses=(), fault="logits drift up", alarms=(), accuracies=(), begin=20):
    alarms = tuple(Alarm(rule, step, 1, 0.0, "words") for rule, step in alarms)
    return early_warning.WatchedRun(
        "language model", fault, 0, tuple(losses), tuple(accuracies), alarms, begin, 10
    )


def test_a_small_study():
    measured = early_warning.measure(SMALL, kit.silent)
    answer = early_warning.judge(SMALL, measured)
    faults, rules, healthy, every = answer.listings
    by_fault = {row[0]: row for row in faults.rows}
    gemma = by_fault["Gemma 4's initialisation"]
    assert gemma[2:4] == ("sharp-init 1", "0")
    assert by_fault["bf16 logits, common offset of keys"][2] == "logit-growth 1"
    assert [row[0] for row in rules.rows] == list(RULES)
    names = [row[0] for row in healthy.rows]
    assert names == ["language model", "language model, norms on queries and keys", "classifier"]
    assert len(every.rows) == 2
    assert {*measured.table["metric"]} <= {metric.name for metric in early_warning.ENTRY.metrics}
    assert answer.key_figures["faulty runs with an alarm"] == 1.0
    again = early_warning.measure(SMALL, kit.silent)
    assert again.table.equals(measured.table)


def test_the_loss_shows_a_fault_beside_its_twin():
    twin = made([2.0, 1.0, 1.0, 1.0, 1.0], fault="")
    assert made([2.0, 1.09, 1.09, 1.09, 1.09]).shown_beside(twin) is None
    assert made([2.0, 1.2, 1.0, 1.2, 1.2]).shown_beside(twin) == 50
    assert made([2.0, 1.0, float("nan"), float("nan"), 1.0]).shown_beside(twin) == 40
    better = made([9.0] * 5, fault="", accuracies=[0.5, 0.6, 0.7])
    assert made([0.0] * 5, accuracies=[0.5, 0.5, 0.59]).shown_beside(better) is None
    assert made([0.0] * 5, accuracies=[0.5, 0.45, 0.59]).shown_beside(better) == 30


def test_the_loss_shows_a_fault_alone():
    assert made([2.0, 1.0, 1.19, 1.19, 1.19]).shown_alone is None
    assert made([2.0, 1.0, 1.21, 1.0, 1.21, 1.21]).shown_alone == 60
    assert made([1.0, 1.0, float("nan"), float("inf")]).shown_alone == 40


def test_lead_times_and_false_alarms():
    twin = made([1.0] * 6, fault="")
    early = made([1, 1, 1, 1, 2, 2], alarms=[("rank-collapse", 10), ("logit-growth", 30)])
    pair = early_warning.Comparison(early, twin)
    assert [alarm.rule for alarm in early.false_alarms] == ["rank-collapse"]
    assert early.first is not None
    assert early.first.rule == "logit-growth"
    assert (pair.shown, pair.lead) == (60, 30)
    late = early_warning.Comparison(replace(early, losses=(1.0, 2, 2, 2, 2, 2)), twin)
    assert (late.shown, late.lead) == (30, 0)
    assert early_warning.Comparison(replace(early, alarms=()), twin).lead is None
    healthy = made([1.0], fault="", alarms=[("rank-collapse", 50)], begin=0)
    assert healthy.first is None
    assert len(healthy.false_alarms) == 1


def test_a_run_with_no_fault_yet_is_its_twin_step_by_step():
    kind, fault = "language model", runs.FAULTS["logits drift up"]
    healthy, faulty = (runs.Training(kind, 1000, begin=3) for _ in range(2))
    losses = [(healthy.step(), faulty.step(fault.after_step)) for _ in range(5)]
    assert [first == second for first, second in losses] == [True, True, True, False, False]
    other = runs.Training(kind, 1001, begin=3)
    assert other.step() != losses[0][0]


@pytest.mark.parametrize("fault", runs.FAULTS)
def test_faults_change_what_they_name(fault):
    broken = runs.FAULTS[fault]
    training = runs.Training(broken.kind, 1000, begin=1)
    before = {name: value.clone() for name, value in training.model.state_dict().items()}
    with torch.no_grad():
        for change in (broken.at_start, broken.after_step):
            if change is not None:
                change(training)
    now = training.model.state_dict()
    changed = {name.split(".")[-2] for name in now if not torch.equal(now[name], before[name])}
    weights = {
        "logits drift up": {"query"},
        "bf16 logits, common offset of keys": {"key"},
        "router bias": {"router"},
    }
    assert changed == weights.get(fault, set())
    assert set(broken.expected) <= set(RULES)
    block = training.model.blocks[0]
    usual = runs.Training(broken.kind, 1000, begin=1)
    state = (block.skip, block.attention.scale, block.attention.rounds, training.rate)
    attention = usual.model.blocks[0].attention
    assert (state != (1.0, attention.scale, False, usual.rate)) is (
        fault not in ("logits drift up", "router bias", "two views, nothing keeps them apart")
    )


def test_rounded_logits_ignore_an_offset_only_while_it_is_small():
    attention = runs.Training("language model", 1000, begin=1).model.blocks[0].attention
    x = torch.randn(2, runs.TOKENS, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        exact = attention(x)
        attention.key.bias += 1000.0
        torch.testing.assert_close(attention(x), exact, atol=1e-3, rtol=0)
        attention.rounds = True
        assert (attention(x) - exact).abs().max() > 0.05


def test_unknown_faults_and_runs_are_refused():
    with pytest.raises(InputError, match="there is no run 'rust'; choose logits drift up"):
        list(early_warning.cases(early_warning.Config(faults=("rust",))))
    with pytest.raises(InputError, match="there is no run 'poem'; choose language model"):
        list(early_warning.cases(early_warning.Config(kinds=("poem",))))
