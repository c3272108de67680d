"""D6: two points under a trained layer, and every verdict from hand-made tables."""

import math
from dataclasses import replace

import pytest

from rankscope import Spec, tables
from rankscope.errors import InputError
from rankscope.experiments import kit
from rankscope.experiments.catalogue import CATALOGUE
from rankscope.experiments.claims import d6
from rankscope.experiments.claims.d6 import DISTANCE, ERROR, MLP, PURE, SKIP, deep_distances
from rankscope.models.training import Recipe, SequenceModel, Trained
from rankscope.process.progress import silent
from rankscope.show import figures

CONFIG = d6.Config(widths=(1, 2), seeds=3, applied=20)
SHORT = Recipe(6, 10, 3e-3, weight_decay=0.0, warmup=2)


def table(arrivals, errors=None):
    """Distances that fall below a hundredth at the given step, or never; the same for all seeds."""
    rows = []
    for (width, kind), arrival in arrivals.items():
        label = (f"width {width}", kind)
        for seed in range(3):
            error = (errors or {}).get((width, kind), 0.0)
            rows.append((*label, None, seed, ERROR, error))
            for step in range(21):
                rows.append((*label, step, seed, DISTANCE, -2.5 if step >= arrival else -0.2))
    return tables.from_rows(("model", "variant", "layer", "sample", "metric", "value"), rows)


def arrivals(pure, mlp, skip):
    kinds = {PURE: pure, MLP: mlp, SKIP: skip}
    return {
        (width, kind): each[at] for kind, each in kinds.items() for at, width in enumerate((1, 2))
    }


NEVER = math.inf


def judged(config, rows, learnt=CONFIG.learnt):
    """The verdict on one training, and its sentences."""
    checks, on, sentences = d6.check(config, d6.endings(config, rows), learnt)
    return kit.judged("a domain", checks, on), sentences


@pytest.mark.parametrize(
    ("given", "verdict", "words"),
    [
        (arrivals((3, 5), (4, 6), (NEVER, 9)), "holds", "Not borne out: nothing."),
        (arrivals((3, NEVER), (4, 2), (NEVER, NEVER)), "holds", "Not borne out: nothing."),
        (arrivals((NEVER, NEVER), (4, 6), (3, 3)), "fails", "Borne out: nothing."),
        (arrivals((5, 3), (4, 2), (5, 3)), "depends", "Not borne out: a larger width"),
        (arrivals((3, 5), (3, 6), (4, 9)), "depends", "Not borne out: an MLP"),
        (arrivals((3, 5), (4, 6), (4, 5)), "depends", "Not borne out: a skip"),
    ],
)
def test_each_verdict(given, verdict, words):
    judgement, sentences = judged(CONFIG, table(given))
    assert judgement.verdict == verdict
    assert words in sentences[0]


def test_layers_that_have_not_learnt_are_left_out():
    given = arrivals((3, 5), (1, 1), (4, 9))
    bad = dict.fromkeys([(1, MLP), (2, MLP)], 0.5)
    judgement, sentences = judged(CONFIG, table(given, bad))
    assert str(judgement) == "holds, not tried: with MLP"
    assert sentences[-1] == (
        "Not learnt, so not counted: with MLP of width 1, with MLP of width 2."
    )
    none, _ = judged(CONFIG, table(given, dict.fromkeys(given, 0.5)))
    assert str(none) == "not tried: pure attention of width 1 has not learnt its arcs"
    all_of_them, _ = judged(CONFIG, table(given, bad), 1.0)
    assert all_of_them.verdict == "depends"


def test_no_other_width_takes_the_place_of_the_smallest():
    """Width 2 moves the points together, but the statement is about width 1, which never learnt."""
    config = d6.Config(widths=(2, 1), seeds=3, applied=20)
    given = arrivals((NEVER, 3), (4, 6), (4, 9))
    judgement, sentences = judged(config, table(given, {(1, PURE): 0.5}))
    assert str(judgement) == (
        "holds, not tried: pure attention of the smallest width, a larger width"
    )
    assert sentences[1].startswith(
        "Not tried: that pure attention of the smallest width moves the points together "
        "(pure attention of width 1 has not learnt its arcs); that a larger width slows"
    )


def test_widths_are_compared_from_the_smallest_in_whatever_order_they_are_given():
    config = d6.Config(widths=(2, 1), seeds=3, applied=20)
    judgement, _ = judged(config, table(arrivals((3, 5), (4, 6), (4, 9))))
    assert str(judgement) == "holds"


def test_what_cannot_be_compared_is_said_and_not_taken_for_a_failure():
    """Only one part is left to fail, and the verdict names the three that were not tried."""
    given = arrivals((NEVER, NEVER), (4, 6), (3, 3))
    judgement, sentences = judged(CONFIG, table(given))
    assert str(judgement) == "fails, not tried: a larger width, with MLP, with skip"
    assert sentences[1] == (
        "Not tried: that a larger width slows or stops that (pure attention moves the points "
        "together at no width); that an MLP slows or stops it wherever pure attention does it (at "
        "no width have both learnt, and pure attention moves them together); that a skip slows or "
        "stops it wherever pure attention does it (at no width have both learnt, and pure "
        "attention moves them together)."
    )
    partly = table(arrivals((3, 5), (4, 6), (3, 5)), {(1, MLP): 0.5, (2, MLP): 0.5})
    depends, _ = judged(CONFIG, partly)
    assert depends.on.endswith("with skip does not; not tried: with MLP")


def test_a_training_that_broke_down_has_learnt_nothing():
    given = arrivals((3, 5), (4, 6), (4, 9))
    broken = table(given, {(1, PURE): math.nan})
    judgement, _ = judged(CONFIG, broken, math.inf)
    assert "not tried: pure attention of the smallest width" in str(judgement)
    score = Trained(SequenceModel.random(Spec(1, 1, 2), outputs=1, symbols=1), 0, 1, math.nan)
    assert math.isnan(d6.step_error(CONFIG, score))


def test_the_tables_count_seeds_and_steps():
    given = table(arrivals((3, NEVER), (4, 6), (4, 9)))
    ends = d6.endings(CONFIG, given)
    rows = {row[:2]: row[2:] for row in d6.listing("trained", ends).rows}
    assert rows["Pure attention", 1][:2] == ("3 of 3", 3.0)
    never = rows["Pure attention", 2]
    assert never[:2] == ("0 of 3", None)
    assert never[2].startswith("0.6")


def test_a_small_run_is_whole_repeatable_and_drawn():
    config = d6.Config(widths=(4,), seeds=2, arc=10, applied=2, recipe=SHORT, early=SHORT)
    seen: list[float] = []
    found = d6.ENTRY.run(config, seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    assert found.table.equals(d6.ENTRY.run(config, silent).table)
    start = found.table.filter(metric=DISTANCE, layer=0)["value"].to_list()
    assert start == pytest.approx([math.log10(0.6)] * 12)
    other = d6.ENTRY.run(d6.Config(**{**vars(config), "seed": 1}), silent)
    assert not found.table.equals(other.table)
    assert other.judgement.domain == d6.ENTRY.domain
    assert other.beyond.domain == "training stopped as early as in the paper's script"
    for drawing in found.drawings:
        figures.draw(drawing, found)
    assert all(sentence.endswith(".") for sentence in found.sentences)
    assert all(map(math.isfinite, found.key_figures.values()))


def test_progress_is_reported_while_layers_are_trained():
    long = replace(SHORT, steps=30)
    config = d6.Config(widths=(4,), seeds=1, arc=10, applied=1, recipe=long, early=long)
    seen: list[float] = []
    d6.ENTRY.run(config, seen.append)
    # Of the first of six layers: three reports in its training, before it is through.
    assert sum(share < 1 / 6 * 3 / 4 for share in seen) == 3
    assert seen == sorted(seen)


def test_the_error_of_a_step_is_told_in_steps():
    config = d6.Config(widths=(4,), seeds=1, arc=10, applied=1, recipe=SHORT, early=SHORT)
    (found,) = d6.train_layers(config, SHORT, 4, PURE, silent)
    data = d6.next_places(10, skip=False)
    missed = (found.model(data.inputs) - data.targets).square().sum(-1).mean().sqrt()
    assert d6.step_error(config, found) == pytest.approx(
        float(missed) / (math.pi * 0.3 / 10), rel=1e-4
    )


def test_doubts_of_scaled_arithmetic_reach_the_sentences(monkeypatch):
    def doubtful(*arguments, **options):
        return deep_distances(*arguments, **options).noted({"doubt": "a digit was lost"})

    monkeypatch.setattr(d6, "deep_distances", doubtful)
    config = d6.Config(widths=(4,), seeds=1, arc=10, applied=1, recipe=SHORT, early=SHORT)
    found = d6.ENTRY.run(config, silent)
    assert found.sentences[-2] == (
        "Note on 3 layers, trained: such as pure attention, width 4, seed 0: a digit was lost."
    )
    assert list(found.provenance["notes"]) == ["3 layers, trained", "3 layers, stopped early"]


def test_nothing_to_try_is_refused():
    with pytest.raises(InputError, match="name at least one"):
        d6.ENTRY.run(d6.Config(widths=()), silent)


def test_the_papers_scale_is_a_configuration():
    config = CATALOGUE["D6"].configuration("paper")
    assert (config.arc, config.applied) == (500, 150)
    assert config.digest("D6") != d6.Config().digest("D6")
