"""D6: two points under a trained layer, and every verdict from hand-made tables."""

import math
from dataclasses import replace

import pytest
import torch

from rankscope import Spec, tables
from rankscope.errors import InputError
from rankscope.experiments import kit
from rankscope.experiments.catalogue import CATALOGUE
from rankscope.experiments.circle import Training
from rankscope.experiments.claims import d6
from rankscope.experiments.claims.d6 import ALONE, DISTANCE, ERROR, MLP, PLAIN, RELEASED, SKIP
from rankscope.models.training import Recipe, SequenceModel, Trained
from rankscope.process.progress import silent
from rankscope.show import figures

CONFIG = d6.Config(widths=(1, 2), seeds=5, alone_seeds=5, applied=20)
SHORT = Recipe(6, 10, 3e-3, weight_decay=0.0, warmup=2)
TINY = d6.Config(
    widths=(4,),
    seeds=2,
    training=Training(points=20, epochs=2, batch=4),
    applied=3,
    alone_seeds=2,
    arc=10,
    alone_applied=2,
    recipe=SHORT,
)
NEVER = math.inf
COLUMNS = ("run", "model", "variant", "layer", "sample", "metric", "value")


def table(arrivals, errors=None, runs=(RELEASED,)):
    """Distances that fall below a hundredth at the given step; a number is meant for all seeds."""
    rows = []
    for run in runs:
        for (width, kind), arrived in arrivals.items():
            label = (run, f"width {width}", kind)
            for seed in range(5):
                arrival = arrived[seed] if isinstance(arrived, tuple) else arrived
                rows.append((*label, None, seed, ERROR, (errors or {}).get((width, kind), 0.0)))
                for step in range(21):
                    rows.append((*label, step, seed, DISTANCE, -2.5 if step >= arrival else -0.2))
    return tables.from_rows(COLUMNS, rows)


def arrivals(plain, mlp, skip):
    kinds = {PLAIN: plain, MLP: mlp, SKIP: skip}
    return {
        (width, kind): each[at] for kind, each in kinds.items() for at, width in enumerate((1, 2))
    }


def judged(config, rows, learnt=CONFIG.learnt):
    """The verdict on one training, and its sentences."""
    checks, on, sentences = d6.check(config, d6.endings(config, rows), learnt)
    return kit.judged("a domain", checks, on), sentences


@pytest.mark.parametrize(
    ("given", "verdict", "words"),
    [
        (arrivals((3, 5), (4, 6), (NEVER, 9)), "holds", "Not supported: nothing."),
        (arrivals((3, NEVER), (4, NEVER), (NEVER, NEVER)), "holds", "Not supported: nothing."),
        (arrivals((NEVER, NEVER), (4, 6), (3, 3)), "fails", "Supported: nothing."),
        (arrivals((5, 3), (6, 4), (6, 4)), "depends", "Not supported: a larger width"),
        (arrivals((3, 5), (3, 5), (4, 9)), "depends", "Not supported: an MLP"),
        (arrivals((3, 5), (4, 6), (3, 5)), "depends", "Not supported: a skip"),
    ],
)
def test_each_verdict(given, verdict, words):
    judgement, sentences = judged(CONFIG, table(given))
    assert judgement.verdict == verdict
    assert words in sentences[0]


def test_the_released_script_is_said_not_to_converge_if_most_seeds_do_not():
    """Two of five seeds of either width come together: later with an MLP, never with a skip."""
    two, slower = (4, 4, NEVER, NEVER, NEVER), (9, 9, NEVER, NEVER, NEVER)
    both = table(arrivals((two, two), (slower, slower), (NEVER, NEVER)), runs=(RELEASED, ALONE))
    result = kit.conclude(d6.ENTRY, CONFIG, both)
    shows = (
        "the released script does not, as a rule, show the figure's convergence: without skip and "
        "MLP the points come together in 2, 2 of 5 seeds at widths 1, 2, the others end 0.63 to "
        "0.63 apart (0.6 at the start); with an MLP in 2, 2, with a skip in 0, 0"
    )
    # Four of four later is a sixteenth by chance: not enough.
    assert str(result.judgement) == f"Not supported: {shows}"
    assert result.sentences[0] == f"T{shows[1:]}."
    share = "no skip, no MLP: share of pairs that come together"
    assert result.key_figures[share] == pytest.approx(4 / 10)
    most = arrivals((4, two), (9, slower), (NEVER, NEVER))
    held = kit.conclude(d6.ENTRY, CONFIG, table(most, runs=(RELEASED, ALONE)))
    assert str(held.judgement).startswith(
        "Supported for coming together at the smallest width, "
        "an MLP, a skip; "
        "not for a larger width; the released script shows the figure's convergence: without"
    )


@pytest.mark.parametrize(
    ("before", "after", "outcome"),
    [
        ((3,) * 5, (4,) * 5, True),  # by chance 1/32
        ((3,) * 4, (4,) * 4, False),  # 1/16
        ((3,) * 5 + (NEVER,), (NEVER,) * 6, True),
        ((3,) * 8, (4,) * 7 + (3,), True),  # 9/256
        ((3,) * 8, (4,) * 6 + (3,) * 2, False),  # 37/256
        ((3,) * 5 + (NEVER,) * 2, (4,) * 5 + (2,) * 2, False),
        ((NEVER,), (NEVER,), None),
    ],
)
def test_later_is_a_sign_test_over_seeds_in_which_points_come_together(before, after, outcome):
    assert d6.later(before, after) is outcome


def test_layers_that_have_not_learnt_are_left_out():
    given = arrivals((3, 5), (1, 1), (4, 9))
    bad = dict.fromkeys([(1, MLP), (2, MLP)], 0.5)
    judgement, sentences = judged(CONFIG, table(given, bad))
    assert str(judgement) == "Supported where tested; not tested: an MLP"
    assert sentences[-1] == (
        "Not learnt, so not counted: with MLP of width 1, with MLP of width 2."
    )
    none, _ = judged(CONFIG, table(given, dict.fromkeys(given, 0.5)))
    assert str(none) == "Not tested: width 1 has not learnt its arcs"
    all_of_them, _ = judged(CONFIG, table(given, bad), 1.0)
    assert all_of_them.verdict == "depends"


def test_no_other_width_takes_the_place_of_the_smallest():
    """Width 2 moves the points together, but the statement is about width 1, which never learnt."""
    config = replace(CONFIG, widths=(2, 1))
    given = arrivals((NEVER, 3), (4, 6), (4, 9))
    judgement, sentences = judged(config, table(given, {(1, PLAIN): 0.5}))
    assert str(judgement) == (
        "Supported where tested; not tested: coming together at the smallest width, a larger width"
    )
    assert "(width 1 has not learnt its arcs)" in sentences[1]


def test_widths_are_compared_from_the_smallest_in_whatever_order_they_are_given():
    config = replace(CONFIG, widths=(2, 1))
    judgement, _ = judged(config, table(arrivals((3, 5), (4, 6), (4, 9))))
    assert str(judgement) == "Supported"


def test_what_cannot_be_compared_is_said_and_not_taken_for_a_failure():
    judgement, sentences = judged(CONFIG, table(arrivals((NEVER,) * 2, (NEVER,) * 2, (NEVER,) * 2)))
    assert (
        str(judgement) == "Not supported where tested; not tested: a larger width, an MLP, a skip"
    )
    assert sentences[1].startswith("Not tested: that a larger width slows or stops that (there are")


def test_a_training_that_broke_down_has_learnt_nothing():
    given = arrivals((3, 5), (4, 6), (4, 9))
    broken = table(given, {(1, PLAIN): math.nan})
    judgement, _ = judged(CONFIG, broken, math.inf)
    assert "not tested: coming together at the smallest width" in str(judgement)
    score = Trained(SequenceModel.random(Spec(1, 1, 2), outputs=1, symbols=1), 0, 1, math.nan)
    assert math.isnan(d6.step_error(CONFIG, score))


def test_the_tables_count_seeds_and_steps():
    given = table(arrivals((3, NEVER), (4, 6), (4, 9)))
    ends = d6.endings(CONFIG, given)
    rows = {row[:2]: row[2:] for row in d6.listing("trained", ends).rows}
    assert rows["No skip, no MLP", 1][:2] == ("5 of 5", 3.0)
    never = rows["No skip, no MLP", 2]
    assert never[:2] == ("0 of 5", None)
    assert never[2].startswith("0.6")


def test_a_small_run_is_whole_repeatable_and_drawn():
    seen: list[float] = []
    result = d6.ENTRY.run(TINY, seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(1.0)
    assert result.table.equals(d6.ENTRY.run(TINY, silent).table)
    start = result.table.filter(metric=DISTANCE, layer=0, run=ALONE)["value"].to_list()
    assert start == pytest.approx([math.log10(0.6)] * 6)
    steps = result.table.filter(metric=DISTANCE, run=RELEASED)["layer"].max()
    assert steps == TINY.applied
    other = d6.ENTRY.run(replace(TINY, seed=1), silent)
    assert not result.table.equals(other.table)
    assert other.judgement.domain == d6.ENTRY.domain
    assert other.beyond.domain == d6.ENTRY.beyond
    for drawing in result.drawings:
        figures.draw(drawing, result)
    assert all(sentence.endswith(".") for sentence in result.sentences)
    assert all(map(math.isfinite, result.key_figures.values()))


def test_points_that_fly_apart_or_meet_have_finite_logarithms(monkeypatch):
    far = torch.tensor([[[0.0, 0.0], [0.0, 0.0]], [[math.nan, 0.0], [1.0, 0.0]]]).double()
    monkeypatch.setattr(d6, "alone", lambda *_: ([0.0], far[None]))
    monkeypatch.setattr(d6, "released", lambda *_: ([0.0], far[None]))
    logs = d6.measure(TINY, silent).filter(metric=DISTANCE)["value"].unique().to_list()
    assert sorted(logs) == pytest.approx([-16.0, 300.0])


def test_the_error_of_a_step_is_told_in_steps():
    (trained, _) = d6.train_alone(TINY, 4, PLAIN, silent)
    data = d6.next_places(TINY, skip=False)
    missed = (trained.model(data.inputs) - data.targets).square().sum(-1).mean().sqrt()
    assert d6.step_error(TINY, trained) == pytest.approx(
        float(missed) / (math.pi * 0.3 / 10), rel=1e-4
    )


def test_arcs_start_where_the_paper_starts_and_meet_at_the_other_end():
    places = d6.arcs(replace(TINY, arc=4))
    assert places.shape == (5, 2, 2)
    assert torch.allclose(places[0], torch.tensor([[-0.3, 0.0], [0.3, 0.0]]).double())
    assert torch.allclose(places[2], torch.tensor([[0.0, -0.3], [0.0, 0.3]]).double())
    assert torch.allclose(places[-1], places[0].flip(0))


def test_examples_lead_from_each_place_to_the_next():
    plain, skipping = (d6.next_places(TINY, skip=skip) for skip in (False, True))
    places = d6.arcs(TINY).float()
    assert torch.equal(plain.targets, places[1:])
    assert torch.allclose(skipping.inputs + skipping.targets, places[1:], atol=1e-7)


def test_a_skip_adds_to_where_a_point_is():
    spec = Spec(1, 2, 8, mlp_ratio=0.0, norm="none", skip=False, init="xavier")
    model = SequenceModel.random(spec, outputs=2, coordinates=2)
    start = d6.arcs(TINY)[0]
    moved = model.double()(start[None])[0]
    assert torch.allclose(d6.trajectory(TINY, model, 1, skip=False)[1], moved)
    assert torch.allclose(d6.trajectory(TINY, model, 1, skip=True)[1], start + moved)


def test_nothing_to_try_is_refused():
    with pytest.raises(InputError, match="name at least one"):
        d6.ENTRY.run(d6.Config(widths=()), silent)


def test_the_papers_scale_is_a_configuration():
    config = CATALOGUE["D6"].configuration("paper")
    assert (config.arc, config.applied, config.training) == (500, 299, Training())
    assert config.digest("D6") != d6.Config().digest("D6")
