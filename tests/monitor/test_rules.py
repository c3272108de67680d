"""Every rule begins and ends its alarm where docs/alarms.md says, and a resumed run agrees."""

import copy
import math
import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.core.theory import thresholds
from rankscope.errors import InputError
from rankscope.monitor._board import AlarmBoard
from rankscope.monitor._evidence import layers_text
from rankscope.monitor._history import History, RunFile, StepRecord, read_run
from rankscope.monitor._names import LOSS, MONITORED
from rankscope.monitor._rules import RULES

PAGE = (Path(__file__).parents[2] / "docs" / "alarms.md").read_text(encoding="utf-8")
NAN, INF = math.nan, math.inf
UNIFORM = math.log(128)


def by_layer(metric, *values):
    """Values of layers 1, 2, …; None for one that was not measured."""
    return {(metric, k): float(v) for k, v in enumerate(values, start=1) if v is not None}


def whole(**values):
    return {(name.replace("__", "/"), None): float(value) for name, value in values.items()}


def sharp(entropies, deviations):
    return by_layer("attention/entropy", *entropies) | by_layer(
        "attention/logit_deviation", *deviations
    )


def residuals(*values):
    return by_layer("rank/residual", *values)


def embeddings(rank, loss):
    return whole(pooled__effective_rank=rank) | ({} if loss is None else whole(loss=loss))


@dataclass(frozen=True)
class Case:
    """Records that raise a rule with the last of them, and records that keep, end and miss it."""

    raised: list
    kept: dict
    calm: dict
    layer: int | None
    near: list = field(default_factory=list)
    facts: dict = field(default_factory=dict)


CASES = {
    "non-finite": Case(
        raised=[residuals(0.9, 0.9, 0.9) | whole(loss=2), residuals(0.9, NAN, INF) | whole(loss=2)],
        kept=residuals(0.9, 0.9, 0.9) | whole(loss=NAN),
        calm=residuals(0.9, 0.9, 0.9) | whole(loss=2),
        layer=2,
        near=[
            [residuals(0.9, 0.9, 0.9), residuals(0.9, 1e300, None)],
            [whole(loss=1), whole(loss=1) | by_layer("grad/qk_over_v", NAN)],  # 0 / 0: no gradient
        ],
    ),
    "sharp-init": Case(  # the limit is √(2 ln 128) = 3.115; of the entropy, ln 128 / 4 = 1.213
        raised=[by_layer("attention/logit_deviation", 1, 3.2, 9)],
        kept=by_layer("attention/logit_deviation", 1, 2.9, 2.9),
        calm=by_layer("attention/logit_deviation", 1, 2.7, 2.7),
        layer=2,
        near=[
            [by_layer("attention/logit_deviation", 1, 3.1, 3.1)],
            [by_layer("attention/entropy", 4, 1.22, 4)],
            [by_layer("attention/entropy", 4, 4, 4), by_layer("attention/entropy", 4, 0, 0)],
        ],
        facts={"tokens": 128, "untrained": 1},
    ),
    "collapsed-init": Case(
        raised=[residuals(0.9, 0.0009, 1e-9)],
        kept=residuals(0.9, 0.0019, 0.1),
        calm=residuals(0.9, 0.0021, 0.1),
        layer=2,
        near=[
            [residuals(0.9, 0.0011, 0.0011)],
            [residuals(0.9, 0.9, 0.9), residuals(0.9, 0.0, 0.0)],
        ],
        facts={"tokens": 128, "untrained": 1},
    ),
    "logit-growth": Case(
        raised=[by_layer("attention/max_logit", 9, 60, 60)]
        + [by_layer("attention/max_logit", 9, v, v + 1) for v in (98, 101, 105)],
        kept=by_layer("attention/max_logit", 9, 81, 9),
        calm=by_layer("attention/max_logit", 9, 79, 60),
        layer=2,
        near=[
            [by_layer("attention/max_logit", v) for v in (60, 80, 97, 98, 99)],
            [by_layer("attention/max_logit", v) for v in (90, 120, 130, 134)],  # below 1.5 times
            [by_layer("attention/max_logit", v) for v in (60, 120, 120, 121, 120, 119)],
        ],
    ),
    # 4.85 for uniform attention: below 1.213 and half of the baseline, and deviations above 7.79
    "entropy-collapse": Case(
        raised=[sharp((4, 4, 3), (9, 9, 9))]
        + [sharp((4, e, 3), (9, 7.8, 9)) for e in (1.3, 1.2, 1.19)],
        kept=sharp((4, 1.4, 3), (9, 6.3, 9)),
        calm=sharp((4, 1.4, 3), (9, 6.2, 9)),
        layer=2,
        near=[
            [sharp((e,), (9,)) for e in (4, 1.22, 1.22, 1.22)],
            [sharp((e,), (9,)) for e in (2, 1.01, 1.01, 1.01)],
            [sharp((e,), (7.7,)) for e in (4, 1, 0.5, 0.1)],  # a head that looks for one key
            [by_layer("attention/entropy", e) for e in (4, 1, 0.5, 0.1)],
        ],
        facts={"tokens": 128},
    ),
    "hidden-collapse": Case(
        raised=[residuals(0.9, 0.8, 0.6), residuals(0.9, 0.07, 0.3), residuals(0.9, 0.07, 0.3)],
        kept=residuals(0.9, 0.11, 0.25),
        calm=residuals(0.9, 0.13, 0.5),
        layer=2,
        near=[
            [residuals(0.9, 0.8, 0.6), *[residuals(0.9, 0.081, 0.6)] * 4],
            [residuals(0.9, 0.8, 0.6), *[residuals(0.9, 0.07, 0.29)] * 4],
            [residuals(0.9, 0.8, None), *[residuals(0.9, 0.07, None)] * 4],
            [residuals(0.9, 0.0009, 0.6), *[residuals(0.9, 0.00001, 0.6)] * 4],
        ],
    ),
    "rank-collapse": Case(
        raised=[residuals(0.9, 0.8, 0.6), residuals(0.9, 0.07, 0.29), residuals(0.9, 0.07, 0.05)],
        kept=residuals(0.9, 0.11, 0.37),
        calm=residuals(0.9, 0.13, 0.1),
        layer=2,
        near=[
            [residuals(0.9, 0.8, 0.6), *[residuals(0.9, 0.081, 0.061)] * 4],
            [residuals(0.9, 0.8, 0.6), *[residuals(0.9, 0.07, 0.3)] * 4],
            [residuals(0.9, 0.8, 0.6), *[residuals(0.9, 0.07, 0.1), residuals(0.9, 0.2, 0.05)] * 4],
        ],
    ),
    "few-directions": Case(  # (rank − 1) / 10 below 0.1: rank below 2
        raised=[by_layer("rank/effective_rank", 11, 11, 11)]
        + [by_layer("rank/effective_rank", 9, r, r) for r in (1.9, 1.2, 1.1)],
        kept=by_layer("rank/effective_rank", 9, 2.4, 9),
        calm=by_layer("rank/effective_rank", 9, 2.6, 9),
        layer=2,
        near=[
            [by_layer("rank/effective_rank", r) for r in (11, 2.01, 2.01, 2.01, 2.01)],
            [by_layer("rank/effective_rank", r) for r in (2.9, 1, 1, 1, 1)],
            [by_layer("rank/effective_rank", r) for r in (11, 1, 1, 3, 1, 1)],
        ],
    ),
    "rank-falls-with-loss": Case(  # (rank − 1) / 8 below 0.25: rank below 3
        raised=[embeddings(9, None)]
        + [embeddings(9, 1.0)] * 5
        + [embeddings(4, 0.8)] * 3
        + [embeddings(2.9, 0.8)] * 6,
        kept=embeddings(3.7, 0.8),
        calm=embeddings(3.9, 0.8),
        layer=None,
        near=[
            [embeddings(9, None), *[embeddings(9, 1)] * 5, *[embeddings(3.01, 0.8)] * 20],
            [embeddings(9, None), *[embeddings(9, 1)] * 5, *[embeddings(2, 0.91)] * 20],
            [embeddings(9, None), *[embeddings(9, 1)] * 5, *[embeddings(2, NAN)] * 20],
            [embeddings(9, None), *[embeddings(9, 1), embeddings(9, 0.7)] * 5]
            + [embeddings(2, 0.8)] * 20,  # below the median of the first five, not below each
            [embeddings(9, None), *[embeddings(1.1, 1)] * 5, *[embeddings(1.3, 0.8)] * 20],
            [embeddings(1.9, None), *[embeddings(1.9, 1)] * 5, *[embeddings(1, 0.8)] * 20],
        ],
        facts={"samples": 16},
    ),
    "loss-plateau": Case(
        raised=[{}, whole(loss=5)] + [whole(loss=math.log(4096) * 1.009)] * 20,
        kept=whole(loss=math.log(4096) * 0.986),
        calm=whole(loss=math.log(4096) * 0.984),
        layer=None,
        near=[
            [{}] + [whole(loss=math.log(4096) * 1.011)] * 40,
            [{}] + ([whole(loss=math.log(4096))] * 19 + [whole(loss=6)]) * 3,
        ],
        facts={"classes": 4096},
    ),
    "embedding-cone": Case(
        raised=[whole(pooled__mean_cosine=c) for c in (0.5, 0.89, 0.91, 0.92)],
        kept=whole(pooled__mean_cosine=0.88),
        calm=whole(pooled__mean_cosine=0.87),
        layer=None,
        near=[
            [whole(pooled__mean_cosine=c) for c in (0.5, 0.9, 0.9, 0.9)],
            [whole(pooled__mean_cosine=c) for c in (0.9, 0.949, 0.949, 0.949)],
        ],
        facts={"samples": 16, "untrained": 1},
    ),
    "router-collapse": Case(
        raised=[by_layer("router/entropy", *map(math.log, n)) for n in ((8, 6), (7, 3.9), (7, 3))],
        kept=by_layer("router/entropy", math.log(7), math.log(4.7)),
        calm=by_layer("router/entropy", math.log(7), math.log(4.9)),
        layer=2,
        near=[[by_layer("router/entropy", math.log(4.01))] * 5],
        facts={"experts": 8, "tokens": 4, "samples": 2},
    ),
    "stream-spike": Case(
        raised=[{}] + [by_layer("live/rms", 1, 1, 1)] * 15 + [by_layer("live/rms", 1, 10.1, 1)],
        kept=by_layer("live/rms", 1, 5.1, 1),
        calm=by_layer("live/rms", 1, 4.9, 1),
        layer=2,
        near=[
            [{}] + [by_layer("live/max", 1)] * 4 + [by_layer("live/max", 10)] * 3,
            [{}] + [by_layer("live/rms", 1)] * 3 + [by_layer("live/rms", 50)],
            [by_layer("live/rms", 1.5**k) for k in range(20)],  # fast growth, and no jump
            [by_layer("live/rms", 0)] * 9 + [by_layer("live/rms", 1)],
        ],
    ),
}


def follow(records, facts=None, *, board=None, history=None, every=50, start=0):
    """The history of records, the board updated after each."""
    board = board or AlarmBoard()
    history = history or History({"layers": 3} | (facts or {}))
    for number, values in enumerate(records, start=start):
        history.add(StepRecord(number * every, values))
        board.update(history)
    return history


def alarms_of(history, rule):
    return [alarm for alarm in history.alarms if alarm.rule == rule]


@pytest.fixture(params=CASES, ids=str)
def rule(request):
    return request.param


def test_every_rule_has_a_case():
    assert set(CASES) == set(RULES)


def test_a_rule_is_raised_by_its_last_record(rule):
    case = CASES[rule]
    assert alarms_of(follow(case.raised[:-1], case.facts), rule) == []
    history = follow(case.raised, case.facts)
    assert [alarm.rule for alarm in history.alarms] == [rule]
    (alarm,) = history.alarms
    assert (alarm.layer, alarm.step, alarm.ended) == (case.layer, 50 * len(case.raised) - 50, None)
    assert alarm.url == f"docs/alarms.md#{rule}"
    figures = [v for (_, at), v in case.raised[-1].items() if at == case.layer]
    assert any(alarm.value == v or math.isnan(alarm.value) for v in figures)
    assert alarm.sentence[-1] not in ".;, "
    assert "docs/" not in alarm.sentence
    if case.layer is not None:
        assert alarm.sentence.startswith(f"layer {case.layer}: ")


def test_a_new_alarm_is_returned_once(rule):
    case, board = CASES[rule], AlarmBoard()
    history = follow(case.raised[:-1], case.facts, board=board)
    history.add(StepRecord(50 * len(case.raised), case.raised[-1]))
    begun = board.update(history)
    assert begun == history.alarms
    assert len(begun) == 1
    assert board.update(history) == []


def test_near_misses_raise_nothing(rule):
    case = CASES[rule]
    for records in case.near:
        assert alarms_of(follow(records, case.facts), rule) == [], records


def test_a_figure_about_its_limit_raises_one_alarm(rule):
    case = CASES[rule]
    hovering = [case.kept, case.raised[-1], case.kept, case.kept, case.raised[-1], case.kept]
    (alarm,) = alarms_of(follow(case.raised + hovering, case.facts), rule)
    assert alarm.ended is None


def test_an_alarm_ends_after_two_calm_records_and_can_return(rule):
    case = CASES[rule]
    interrupted = follow([*case.raised, case.calm, case.kept, case.calm], case.facts)
    assert [alarm.ended for alarm in alarms_of(interrupted, rule)] == [None]
    records = [*case.raised, case.calm, case.calm]
    ended = follow(records, case.facts)
    assert [alarm.ended for alarm in alarms_of(ended, rule)] == [50 * len(records) - 50]
    if rule not in ("sharp-init", "collapsed-init", "rank-falls-with-loss", "stream-spike"):
        again = follow(records + [case.raised[-1]] * 25, case.facts)
        if rule == "logit-growth":  # only while it rises
            again = follow(records + case.raised[-3:], case.facts)
        assert [alarm.ended is None for alarm in alarms_of(again, rule)] == [False, True]


def test_missing_figures_neither_raise_nor_end(rule):
    case = CASES[rule]
    history = follow([*case.raised, {}, {}, {}], case.facts)
    assert [alarm.ended for alarm in alarms_of(history, rule)] == [None]
    bare = [{("update/ratio", 1): 0.1}] * 30
    assert follow(bare, case.facts).alarms == []


@pytest.mark.parametrize(
    "name", [name for name in CASES if name not in ("non-finite", "sharp-init", "loss-plateau")]
)
def test_unmeasured_records_are_passed_over(name):
    """Two records in a row are those that a rule can judge; ``{}`` between them does not count."""
    case = CASES[name]
    start, *rest = case.raised
    sparse = [start] + [values for record in rest for values in ({}, record)]
    assert len(alarms_of(follow(sparse, case.facts), name)) == 1


def test_facts_decide_what_can_be_judged():
    def silent(name, **facts):
        case = CASES[name]
        return not alarms_of(follow(case.raised, case.facts | facts), name)

    assert silent("sharp-init", untrained=0)
    assert silent("sharp-init", tokens=None)
    assert silent("entropy-collapse", tokens=None)
    assert not silent("entropy-collapse", tokens=None, even_entropy=4.85)
    assert silent("entropy-collapse", even_entropy=3.9)  # causal: uniform attention has less
    assert silent("rank-falls-with-loss", classes=50257)
    assert silent("rank-falls-with-loss", samples=3)
    assert silent("embedding-cone", samples=3)
    assert silent("embedding-cone", classes=50257)  # labels, from random initialisation
    assert not silent("embedding-cone", classes=50257, untrained=0)
    assert silent("loss-plateau", classes=None)
    assert silent("router-collapse", experts=None)
    assert silent("router-collapse", tokens=3, samples=2)  # 6 tokens, 8 experts


def test_collapse_must_last_for_steps_as_well_as_records():
    """The transient of a language model's first steps is not an alarm, however often recorded."""
    start, *_, low = CASES["rank-collapse"].raised
    assert follow([start] + [low] * 20, every=1).alarms == []
    (alarm,) = follow([start] + [low] * 21, every=1).alarms
    assert alarm.step == 21
    assert (
        follow([{}] + [whole(loss=math.log(4096))] * 200, {"classes": 4096}, every=1).alarms == []
    )


def test_sharp_entropy_at_initialisation():
    facts = {"tokens": 128, "untrained": 1}
    (alarm,) = follow([by_layer("attention/entropy", 4, 1.2)], facts).alarms
    assert (alarm.rule, alarm.layer, alarm.value) == ("sharp-init", 2, 1.2)
    expected = "layer 2: attention entropy 1.2 at initialisation; 4.85 for uniform attention"
    assert alarm.sentence == expected
    records = [by_layer("attention/entropy", 4, 1.2) | by_layer("attention/logit_deviation", 1, 23)]
    assert follow(records, facts).alarms[0].sentence == (
        "layer 2: deviation of logits 23 at initialisation; attention condenses on few keys above "
        "3.12 (√(2 ln 128)); attention entropy 1.2 at initialisation; 4.85 for uniform attention"
    )


def test_the_sentence_of_the_issue():
    """The example of docs/alarms.md, by its figures: the fall of gradients is 0.8 / 0.02 = 40."""
    start = {("rank/residual", k): 0.61 for k in range(1, 13)}
    gradients = {("grad/qk_over_v", k): 0.8 for k in range(1, 13)}
    low = start | {("rank/residual", k): 0.04 for k in (9, 10, 11)} | {("rank/residual", 12): 0.2}
    fallen = gradients | {("grad/qk_over_v", k): 0.02 for k in (9, 10, 11)}
    history = History(
        {"layers": 12, "untrained": 1}, predicted={("rank/residual", 9): (0.55, 0.63)}
    )
    history = follow([start, start | gradients], history=history, every=600)
    history.add(StepRecord(1100, low | fallen))
    assert AlarmBoard().update(history) == []
    history.add(StepRecord(1200, low | fallen))
    (alarm,) = AlarmBoard().update(history)
    assert (alarm.rule, alarm.layer, alarm.step) == ("rank-collapse", 9, 1200)
    assert alarm.sentence == (
        "layer 9: relative residual 0.04 at step 1,200; 0.61 at initialisation, 0.55 to 0.63 "
        "predicted; gradients of queries and keys of layers 9 to 11 fell 40-fold; layers 10 and 11 "
        "as well"
    )
    example = PAGE.split("```text\n")[1].split("```")[0]
    assert " ".join(example.split()) == alarm.sentence


def test_sentences_say_at_the_start_of_trained_models():
    case = CASES["rank-collapse"]
    (alarm,) = follow(case.raised, {"untrained": 0}).alarms
    assert alarm.sentence == (
        "layer 2: relative residual 0.07 at step 100; 0.8 at the start; layer 3 as well"
    )


def test_small_falls_of_gradients_are_not_mentioned():
    case = CASES["rank-collapse"]
    gradients = [by_layer("grad/qk_over_v", 1, 1, 1), by_layer("grad/qk_over_v", 1, 0.34, 0.1)]
    start, *low = case.raised
    records = [start | gradients[0], *[values | gradients[1] for values in low]]
    (alarm,) = follow(records).alarms
    assert "keys of layer 3 fell 10-fold" in alarm.sentence


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("non-finite", "layer 2: relative residual NaN at step 50; 0.9 at step 0; layer 3 as well"),
        (
            "logit-growth",
            "layer 2: largest logit 105 at step 150; 60 at the start; layer 3 as well",
        ),
        ("hidden-collapse", "the output looks healthy (layer 3: 0.5 of its start)"),
        (
            "rank-falls-with-loss",
            "2.9 at step 700; 9 at the start; the loss fell from 1 to 0.8 mean",
        ),
        ("loss-plateau", "within 1.0% of ln 4,096 = 8.32 since step 100"),
        ("router-collapse", "as if 3 of 8 experts were in use"),
        ("stream-spike", "stream, training batch 10.1 at step 800; 1 before (median)"),
    ],
)
def test_sentences_have_their_figures(name, part):
    case = CASES[name]
    assert part in follow(case.raised, case.facts).alarms[0].sentence


def test_non_finite_names_the_lowest_layer_and_prefers_layers_to_the_loss():
    values = whole(loss=NAN) | residuals(0.9, 0.9, NAN) | by_layer("attention/entropy", 3, INF, NAN)
    (alarm,) = follow([values]).alarms
    assert (alarm.layer, alarm.value) == (2, INF)
    assert alarm.sentence == "layer 2: attention entropy ∞ at step 0; layer 3 as well"
    (alarm,) = follow([{}, whole(loss=INF)]).alarms
    assert (alarm.layer, alarm.sentence) == (None, "loss ∞ at step 50")


def test_a_spike_needs_four_earlier_records_and_may_be_of_the_largest_entry():
    quiet = by_layer("live/rms", 1) | by_layer("live/max", 4)
    spike = by_layer("live/rms", 1) | by_layer("live/max", 41)
    assert follow([quiet] * 3 + [spike]).alarms == []
    (alarm,) = follow([quiet] * 4 + [spike]).alarms
    assert (alarm.rule, alarm.layer, alarm.value) == ("stream-spike", 1, 41)


def test_a_negative_loss_can_fall():
    """SimSiam's loss goes from 0 to −1 as it collapses."""
    records = [embeddings(9, None), *[embeddings(9, -0.1)] * 5, *[embeddings(1.1, -0.9)] * 12]
    (alarm,) = follow(records, {"samples": 16}).alarms
    assert alarm.rule == "rank-falls-with-loss"
    rising = [embeddings(9, None), *[embeddings(9, -0.9)] * 5, *[embeddings(1.1, -0.1)] * 12]
    assert follow(rising, {"samples": 16}).alarms == []


def test_hidden_and_whole_collapse_take_turns():
    start, hidden, whole_model = (
        residuals(0.9, 0.8, 0.6), residuals(0.9, 0.05, 0.5), residuals(0.9, 0.05, 0.05),
    )  # fmt: skip
    between = residuals(0.9, 0.05, 0.27)  # 0.45 of its start: below one limit, above the other
    history = follow([start, hidden, hidden, *[between] * 5, *[whole_model] * 3, *[hidden] * 3])
    stories = [(alarm.rule, alarm.step, alarm.ended) for alarm in history.alarms]
    assert stories == [
        ("hidden-collapse", 100, 450),
        ("rank-collapse", 450, 600),
        ("hidden-collapse", 600, None),
    ]


def test_a_layer_must_meet_the_condition_itself():
    """Two layers that take turns are not two records in a row."""
    start = residuals(0.9, 0.8, 0.6)
    turns = [residuals(0.05, 0.8, 0.2), residuals(0.9, 0.05, 0.2)]
    assert follow([start, *turns * 4]).alarms == []


def test_only_chosen_rules_are_applied():
    case = CASES["embedding-cone"]
    assert follow(case.raised, case.facts, board=AlarmBoard(["rank-collapse"])).alarms == []
    assert len(follow(case.raised, case.facts, board=AlarmBoard(["embedding-cone"])).alarms) == 1
    with pytest.raises(InputError, match="There is no rule 'rank'; rules are non-finite, sharp-in"):
        AlarmBoard(["rank"])


def test_a_rewound_run_forgets_that_an_alarm_ended():
    case = CASES["rank-collapse"]
    history = follow([*case.raised, case.calm, case.calm])
    assert [alarm.ended for alarm in history.alarms] == [200]
    history.add(StepRecord(150, case.kept))
    assert [alarm.ended for alarm in history.alarms] == [None]
    history.rewind(100)
    assert history.alarms == []


def test_a_run_read_from_its_file_goes_on(rule, tmp_path):
    case = CASES[rule]
    facts = {"layers": 3} | case.facts
    records = [*case.raised, case.calm, case.calm]
    whole_run = follow(records, case.facts)
    for cut in {1, len(case.raised) - 1, len(case.raised), len(records) - 1} - {0}:
        history = follow(records[:cut], facts)
        RunFile(tmp_path).begin(history)
        resumed = read_run(tmp_path)
        assert len(resumed.records) == cut or {} in records[:cut]  # nothing measured is no row
        resumed.records = history.records
        follow(records[cut:], history=resumed, start=cut)
        assert repr(resumed.alarms) == repr(whole_run.alarms)  # NaN is not equal to itself


LEVELS = {
    "rank/residual": (0.9, 0.1, 0.05, 0.01, NAN),
    "attention/entropy": (4.0, 1.3, 1.0, 0.2),
    "attention/max_logit": (50.0, 90.0, 110.0, 200.0, INF),
    "attention/logit_deviation": (1.0, 3.0, 9.0),
    "router/entropy": (2.0, 1.5, 1.0),
    "live/rms": (1.0, 6.0, 30.0),
}
WHOLE_LEVELS = {
    LOSS: (1.0, 0.8, math.log(4), NAN),
    "pooled/effective_rank": (9.0, 3.5, 2.0, 1.1),
    "pooled/mean_cosine": (0.1, 0.88, 0.95),
}
FACTS = {"layers": 2, "tokens": 128, "samples": 16, "experts": 8}


@st.composite
def records(draw):
    metrics = draw(st.sets(st.sampled_from([*LEVELS, *WHOLE_LEVELS]), min_size=1, max_size=4))
    return draw(
        st.lists(
            st.fixed_dictionaries(
                {},
                optional={
                    (metric, layer): st.sampled_from(levels[metric])
                    for levels, layers in ((LEVELS, (1, 2)), (WHOLE_LEVELS, (None,)))
                    for metric in metrics
                    if metric in levels
                    for layer in layers
                },
            ),
            min_size=2,
            max_size=24,
        )
    )


@settings(max_examples=100, deadline=None)
@given(records(), st.integers(0, 23), st.sampled_from([{}, {"untrained": 1}, {"classes": 4}]))
def test_a_resumed_run_has_the_alarms_of_an_uninterrupted_one(values, cut, facts):
    cut = 1 + cut % len(values)
    history = follow(values, FACTS | facts)
    first = follow(values[:cut], FACTS | facts)
    resumed = History(first.facts, records=list(first.records), alarms=copy.deepcopy(first.alarms))
    follow(values[cut:], history=resumed, board=AlarmBoard(), start=cut)
    assert repr(resumed.alarms) == repr(history.alarms)


@settings(max_examples=100, deadline=None)
@given(records(), st.sampled_from([{}, {"untrained": 1}, {"classes": 4}]))
def test_what_raises_an_alarm_also_keeps_it(values, facts):
    history = History(FACTS | facts)
    board = AlarmBoard()
    for number, record in enumerate(values):
        history.add(StepRecord(50 * number, record))
        board.update(history)
        for entry in RULES.values():
            raised, kept = (
                entry.check(history, limits) for limits in (entry.raising, entry.keeping)
            )
            assert (raised is None) <= (kept is None)
            if raised is not None:
                assert set(raised.values) <= set(kept.values), entry.name
                assert all(isinstance(raised.words(layer), str) for layer in raised.values)
        opened = [alarm.rule for alarm in history.alarms if alarm.ended is None]
        assert len(set(opened)) == len(opened)
        assert not {"rank-collapse", "hidden-collapse"} <= set(opened)


def sections():
    """The text of every section about a rule, its line breaks removed."""
    parts = re.split(r"^### (.*)$", PAGE.split("## To add a rule")[0], flags=re.MULTILINE)
    return {
        name: " ".join(text.split()) for name, text in zip(parts[1::2], parts[2::2], strict=True)
    }


def test_every_rule_has_a_section_and_every_section_a_rule():
    assert list(sections()) == list(RULES)
    assert re.findall(r"^\| \[.*?\]\(#(.*?)\) \| (.*?) \|$", PAGE, re.MULTILINE) == [
        (entry.name, entry.title) for entry in RULES.values()
    ]


def test_sections_state_the_limits_of_the_code(rule):
    entry, text = RULES[rule], sections()[rule]
    assert text.startswith(entry.meaning)
    assert f"- **Begins** when {entry.raised_when}. - " in text
    assert f"- **Ends** when {entry.ended_when}. - " in text
    for part in ("Figure", "Needs", "Misleads", "What to do", "Comes from"):
        assert f"- **{part}:** " in text
    figures = re.search(r"\*\*Figure:\*\* (.*?) - ", text)[1]
    for metric in re.findall(r"`(\w+(?:/\w+)?)`", figures):
        assert metric in MONITORED


def test_limits_are_those_of_the_theory():
    shrunk = {RULES[name].raising["residual"] for name in ("rank-collapse", "hidden-collapse")}
    assert shrunk == {thresholds.SHRUNK_RESIDUAL}
    assert RULES["entropy-collapse"].raising["uniform"] == thresholds.SHARP_ENTROPY
    assert RULES["sharp-init"].raising["entropy"] == thresholds.SHARP_ENTROPY


def test_layers_in_words():
    assert layers_text([5, 1, 3]) == "layers 1, 3 and 5"
