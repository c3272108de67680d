"""P7: forecasts against hand computations, the verdict in worlds made for it, and a small run."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import binom, entropy, rankdata, spearmanr

from rankscope import Spec, predict
from rankscope.core.network import Init
from rankscope.errors import InputError
from rankscope.experiments import kit
from rankscope.experiments.claims import _p7_networks, p7
from rankscope.experiments.claims._p7_networks import ALIKE, ANGLE, DISTANCE, GRADIENT, OWN, STARTS
from rankscope.experiments.claims.p7 import EXPLAINABLE, EXPLAINED, distance_correlation, value_of
from rankscope.experiments.learning import SORTING, TaskPlan, learn, lesson
from rankscope.models.training import Classify, Recipe, Sorting
from rankscope.process.progress import silent
from rankscope.show import figures

TINY = p7.Config(
    depths=(2,),
    places=("post",),
    scales=(1.0, 4.0),
    runs=1,
    seeds=2,
    plan=TaskPlan(1, 8, Recipe(12, 4, warmup=2), 8, 6, 0.9, tokens=3),
    rates=(1e-3, 1e-2),
    draws=2,
    sequences=1,
)
MAP = p7.Config()


def world(loss_of, *, noise=0.02, config=MAP):
    """A table of designs with exponents at random; ``loss_of`` says what they reach."""
    draws = np.random.default_rng(0)
    given, losses = [], []
    for _ in config.designs:
        own = {}
        for start in STARTS:
            angle, gradient = draws.uniform(-1, 1, 2)
            own[f"{ANGLE}, {start}"], own[f"{GRADIENT}, {start}"] = angle, gradient
            own[f"{DISTANCE}, {start}"] = math.hypot(angle, gradient)
        given.append(own)
        loss = loss_of(own, draws)
        losses.append([loss + noise * draws.normal() for _ in range(config.runs * config.seeds)])
    return p7.forecast_table(config, given, losses)


def conclude(table):
    return kit.conclude(p7.ENTRY, MAP, table)


def valley(start):
    return lambda own, _: own[f"{DISTANCE}, {start}"]


@pytest.mark.parametrize("start", STARTS)
def test_exponents_that_decide_forecast_and_others_do_not(start):
    table = world(valley(start))
    result = conclude(table)
    other = OWN if start == ALIKE else ALIKE
    assert str(result.judgement).startswith("Supported in part: at tokens nearly")
    named = {ALIKE: "tokens nearly alike", OWN: "the task's own tokens"}
    for place, runs in ((start, "3 of 3 runs"), (other, "0 of 3 runs")):
        assert f"at {named[place]} both exponents explain enough in {runs} (" in str(
            result.judgement
        )
    assert "; init scale and both skips, which need no prediction, explain -" in str(
        result.judgement
    )
    beyond = p7.judge(MAP, table).beyond
    assert [held for name, held in beyond.items() if f", {start}, " in name] == [True]
    assert f"best single figure: {DISTANCE}, {start} (0.9" in result.sentences[0]
    for group in MAP.groups:
        # Both directions hurt, so that neither exponent forecasts by itself.
        for name in (ANGLE, GRADIENT):
            assert value_of(table, group, EXPLAINED, f"{name}, {start}") < 0.7
        assert value_of(table, group, EXPLAINED, p7.both(other)) < 0.2


def test_where_both_starts_say_the_same_the_claim_holds():
    def same(own, _):
        for name in (ANGLE, GRADIENT, DISTANCE):
            own[f"{name}, {OWN}"] = own[f"{name}, {ALIKE}"]
        return own[f"{DISTANCE}, {OWN}"]

    table = world(same)
    result = conclude(table)
    assert result.verdict == "holds"
    assert result.sentences[-1].startswith("48 of 48 designs beat a guess (loss 1.73)")
    assert distance_correlation(table, OWN) > 0.98


def test_designs_that_learn_nothing_can_be_left_out_of_an_order():
    table = world(lambda own, _: min(own[f"{DISTANCE}, {OWN}"], 0.5) * 4, noise=0.0)
    assert distance_correlation(table, OWN, 1.9) == pytest.approx(1.0)
    assert distance_correlation(table, OWN) < 0.95
    told = conclude(table).sentences[-1]
    reached = table.filter(parameter=p7.SCALE, metric=p7.LOSS)["value"]
    assert told.startswith(
        f"{(reached < 1.63).sum() // (MAP.runs * MAP.seeds)} of 48 designs beat a guess"
    )


def test_losses_that_have_nothing_to_do_with_exponents_fail_the_claim():
    assert conclude(world(lambda _, draws: draws.uniform(0, 2))).verdict == "fails"


def test_nothing_is_tried_where_only_seeds_differ():
    judgement = conclude(world(lambda *_: 1.0)).judgement
    assert str(judgement) == "Not tested: the designs differ by no more than the seeds do"


def test_a_share_of_what_is_explainable_is_what_counts():
    """With noisy seeds exponents explain less, and are asked for no more."""
    table = world(valley(ALIKE), noise=0.25)
    shares = p7.by_run(table, p7.TOGETHER, EXPLAINED, p7.both(ALIKE))
    limits = p7.by_run(table, p7.TOGETHER, EXPLAINABLE)
    assert len(shares) == MAP.runs
    for run, (share, most) in enumerate(zip(shares, limits, strict=True), 1):
        assert share < most < 0.9
        for enough, held in ((share / most - 0.01, True), (share / most + 0.01, False)):
            assert (
                p7.judge(replace(MAP, enough=enough), table).stated[f"{ALIKE}, run {run}"] is held
            )


def test_a_verdict_that_changes_from_run_to_run_says_so():
    """In the second run losses have nothing to do with the exponents."""
    draws = np.random.default_rng(0)

    def shuffled(own, _):
        return own[f"{DISTANCE}, {ALIKE}"]

    calm = world(shuffled)
    losses = calm.filter(metric=p7.LOSS, parameter=p7.SCALE).sort("sample", maintain_order=True)
    by_design = losses["value"].to_numpy().reshape(MAP.runs * MAP.seeds, -1).T.copy()
    by_design[:, 2:4] = draws.permutation(by_design[:, 2:4])
    figures_of = [
        {
            name: float(calm.filter(metric=p7.LOSS, parameter=name)["setting"][6 * number])
            for start in STARTS
            for name in (f"{ANGLE}, {start}", f"{GRADIENT}, {start}", f"{DISTANCE}, {start}")
        }
        for number in range(len(MAP.designs))
    ]
    table = p7.forecast_table(MAP, figures_of, by_design.tolist())
    judgement = conclude(table).judgement
    assert list(p7.judge(MAP, table).stated.values()) == [True, False, True, *[False] * 3]
    assert str(judgement).startswith(
        "Supported in part: at tokens nearly alike both exponents explain enough in 2 of 3 runs ("
    )
    assert str(judgement).count("not stable over seeds") == 1


def test_forecasts_are_those_of_a_hand_computation():
    figure, losses = [1.0, 2.0, 10.0, 50.0], [1.0, 2.0, 4.0, 8.0]
    places = _p7_networks.rank(figure)[:, None]
    assert places[:, 0].tolist() == pytest.approx([0, 1 / 3, 2 / 3, 1])
    # The nearest by rank: 2 of the first, both neighbours of those between, 3 of the last.
    near = _p7_networks.by_neighbours(places, np.array(losses), 1)
    assert near.tolist() == [2.0, 2.5, 5.0, 4.0]
    # Means of the others: 14/3, 13/3, 11/3, 7/3.
    missed = 1 + 0.25 + 1 + 16
    whole = (11**2 + 7**2 + 1 + 17**2) / 9
    found = _p7_networks.score([figure], losses, 1)
    assert found["neighbour_share"] == pytest.approx(1 - missed / whole)


def test_a_smooth_forecast_is_that_of_a_hand_computation():
    """Of two others at m ± d the regression keeps ``±d / (1 + ridge − k)``, k between the two."""
    places, losses = np.array([[0.0], [0.5], [1.0]]), np.array([1.0, 5.0, 3.0])
    found = _p7_networks.by_smoothing(places, losses)
    assert found[1] == pytest.approx(2.0)  # as near to either, so their mean
    near, far = math.exp(-(0.5**2) / 0.18), math.exp(-1 / 0.18)
    # For the first the others have 5 and 3, ±1 around 4; for the last 1 and 5, ±2 around 3.
    assert found[0] == pytest.approx(4 + (near - far) / (1.1 - near))
    assert found[2] == pytest.approx(3 + 2 * (near - far) / (1.1 - near))


def test_no_design_knows_its_own_loss():
    draws = np.random.default_rng(1)
    places, losses = draws.uniform(size=(12, 2)), draws.uniform(size=12)
    for forecast in (
        lambda y: _p7_networks.by_neighbours(places, y, 3),
        lambda y: _p7_networks.by_smoothing(places, y),
    ):
        before = forecast(losses)
        for design in range(12):
            changed = losses.copy()
            changed[design] += 5.0
            after = forecast(changed)
            assert after[design] == pytest.approx(before[design])
            assert not np.allclose(np.delete(after, design), np.delete(before, design))


WORLDS = {
    "cone": (np.hypot, 0.85),
    "slope": (lambda a, g: a - g, 0.9),
    "cliff": (lambda a, g: (a < -0.3) | (g > 0.4), 0.6),
}


@pytest.mark.parametrize("name", WORLDS)
def test_what_the_forecast_can_do_where_two_figures_decide_and_where_none_does(name):
    """As its module says; the medians of 20 worlds of 48 designs."""
    decides, least = WORLDS[name]
    told, untold = [], []
    for seed in range(20):
        draws = np.random.default_rng(seed)
        a, g, *others = draws.uniform(-1, 1, (4, 48))
        losses = decides(a, g).astype(float).tolist()
        told.append(_p7_networks.score([a, g], losses, 3)[EXPLAINED])
        untold.append(_p7_networks.score(others, losses, 3)[EXPLAINED])
    assert np.median(told) > least
    assert np.median(untold) < 0.1


def test_no_forecast_explains_nothing():
    losses = np.array([0.5, 1.0, 4.0])
    others = np.array([2.5, 2.25, 0.75])
    assert _p7_networks.explained(others, losses) == 0.0
    assert _p7_networks.explained(losses, losses) == 1.0
    assert _p7_networks.score([[1.0, 1.0, 1.0]], losses, 1)[EXPLAINED] == pytest.approx(0.0)


def test_ties_favour_no_design():
    places = _p7_networks.rank([0.0, 0.0, 0.0, 1.0])[:, None]
    losses = np.array([1.0, 2.0, 6.0, 9.0])
    assert _p7_networks.by_neighbours(places, losses, 1).tolist() == [4.0, 3.5, 1.5, 3.0]


def test_what_is_explainable_is_what_seeds_leave():
    # Means 2 and 6 have variance 8; seeds have variance 2, their means a noise of 1.
    assert _p7_networks.explainable([[1.0, 3.0], [5.0, 7.0]]) == pytest.approx(1 - 1 / 8)
    assert _p7_networks.explainable([[0.0, 9.0], [1.0, 8.0]]) == 0.0
    draws = np.random.default_rng(3)
    designs, seeds = draws.normal(0, 2, (4000, 1)), draws.normal(0, 3, (4000, 5))
    expected = 4 / (4 + 9 / 5)
    found = _p7_networks.explainable((designs + seeds).tolist())
    assert found == pytest.approx(expected, abs=0.02)


def test_ranks_and_correlations_against_scipy():
    draws = np.random.default_rng(4)
    one, other = draws.integers(0, 6, 30).astype(float), draws.normal(size=30)
    assert _p7_networks.rank(one) == pytest.approx((rankdata(one) - 1) / 29)
    expected = spearmanr(one, other).statistic
    assert _p7_networks.correlate(one, other) == pytest.approx(expected)
    assert _p7_networks.correlate(one, np.ones(30)) == _p7_networks.correlate([], []) == 0.0
    with pytest.raises(InputError, match="not a number"):
        _p7_networks.rank([1.0, math.nan])
    with pytest.raises(InputError, match="neighbours=3 of 3 designs"):
        _p7_networks.score([[1.0, 2.0, 3.0]], [1.0, 2.0, 3.0], 3)


def test_a_guess_has_the_entropy_of_order_statistics():
    below = [[binom.sf(place, 6, s / 10) for s in range(11)] for place in range(6)]
    expected = np.mean([entropy(np.diff(each)) for each in below])
    assert _p7_networks.guess_loss(10, 6) == pytest.approx(expected)
    assert _p7_networks.guess_loss(10, 1) == pytest.approx(math.log(10))
    labels = Sorting(tokens=6).draw(20_000, 0, "guess").targets
    counted = [torch.bincount(labels[:, place], minlength=10).double() for place in range(6)]
    assert np.mean([entropy(each) for each in counted]) == pytest.approx(expected, abs=0.005)


def test_exponents_of_networks_that_are_known():
    """Without weights a skip of a half halves all states and all gradients, and keeps angles."""
    x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    spec = Spec(4, 2, 16, norm="none", skip=0.5, init=Init("lecun", 0.0))
    prediction = predict(spec, x, draws=2, gradients=True)
    found = _p7_networks.read_figures(prediction)
    assert found[ANGLE] == pytest.approx(0.0, abs=1e-9)
    # Attention and MLP each have a skip: a quarter in every layer.
    assert found[GRADIENT] == pytest.approx(math.log(1 / 4))
    assert found["norm growth"] == pytest.approx(math.log(1 / 4))
    assert found["attention entropy"] == pytest.approx(math.log(5))
    start = float(prediction.values["log10_relative_dispersion"][0].mean())
    assert found["last dispersion"] == pytest.approx(start)


def test_small_angles_close_as_uniform_attention_makes_them():
    """Nearly equal tokens attend evenly: what differs keeps the skip's share of each sum.

    Of a state ``s·x + y``, where all tokens have the same y, independent of x and of squared size
    ``v``, angles shrink by ``s/√(s² + v)``; LeCun's values and outputs have v = 1.
    """
    width, skip = 1024, 1.5
    x = torch.randn(1, 4, width, generator=torch.Generator().manual_seed(0))
    spec = Spec(
        1, 4, width, mlp_ratio=0.0, norm="none", skip=skip, init=Init("lecun"), score_scale=0.0
    )
    close = _p7_networks.nearly_alike(x)
    found = _p7_networks.read_figures(predict(spec, close, draws=16, gradients=True))
    assert found[ANGLE] == pytest.approx(math.log(skip / math.sqrt(skip**2 + 1)), abs=0.02)
    assert close.square().sum() == pytest.approx(float(x.double().square().sum()))


def test_stacked_designs_end_where_each_would_alone():
    designs = [design for design in TINY.designs if design.layers == 2][:2]
    assert [design.scale for design in designs] == [1.0, 4.0]
    specs = {seed: TINY.spec(design) for seed, design in zip((5, 6), designs, strict=True)}
    (found,) = _p7_networks.reached_losses(specs, TINY.plan, (1e-2,), silent, most=100.0)
    for seed, loss in zip(specs, found, strict=True):
        own = lesson(SORTING, TINY.plan, seed, spec=specs[seed])
        plan = replace(TINY.plan, recipe=replace(TINY.plan.recipe, learning_rate=1e-2))
        (trained,) = learn([own], plan, [seed], "cpu", silent)
        outputs = trained.model(own.evaluate.inputs)
        alone = float(Classify().loss(outputs[None], own.evaluate.targets[None]))
        assert loss == pytest.approx(alone, rel=1e-4)
    (capped,) = _p7_networks.reached_losses(specs, TINY.plan, (1e-2,), silent, most=0.5)
    assert capped == [0.5, 0.5]


def test_training_that_diverges_counts_as_a_guess():
    specs = {0: TINY.spec(TINY.designs[0]), 1: TINY.spec(TINY.designs[0])}
    (found,) = _p7_networks.reached_losses(specs, TINY.plan, (1e30,), silent, most=1.7)
    assert found == [1.7, 1.7]


def test_a_design_has_its_better_rate(monkeypatch):
    calls = []

    def losses(specs, *_, **__):
        calls.append(list(specs))
        return [[1.0, 1.0, 5.0, 5.0], [2.0, 0.5, 3.0, 4.0]]

    monkeypatch.setattr(p7, "reached_losses", losses)
    found = p7._train(TINY, silent)
    assert found[:2] == [[1.0, 1.0], [3.0, 4.0]]
    assert len(found) == len(TINY.designs)
    seeds = [seed for call in calls for seed in call]
    assert seeds == list(range(2 * len(TINY.designs)))
    # Each run has its better rate.
    found = p7._train(replace(TINY, runs=2, seeds=1), silent)
    assert found[:2] == [[1.0, 0.5], [3.0, 4.0]]
    calls.clear()
    p7._train(replace(TINY, seed=1), silent)
    assert not set(seeds) & {seed for call in calls for seed in call}


@pytest.fixture(scope="module")
def small():
    seen: list[float] = []
    return p7.ENTRY.run(TINY, seen.append), seen


def test_a_small_run_is_whole_and_drawn(small):
    found, seen = small
    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(1.0)
    assert found.judgement is not None
    losses = found.table.filter(metric=p7.LOSS, parameter=p7.SCALE)
    assert losses.height == len(TINY.designs) * TINY.seeds
    assert losses["value"].is_between(0.0, _p7_networks.guess_loss(10, 3)).all()
    assert set(found.table["metric"]) == set(found.shown)
    for drawing in found.drawings:
        figures.draw(drawing, found)
    assert all(map(math.isfinite, found.key_figures.values()))
    assert all(sentence.endswith(".") for sentence in found.sentences)


def test_a_seed_gives_the_same_numbers_again_and_another_gives_others(small):
    first = small[0]
    again, other = (p7.ENTRY.run(config, silent) for config in (TINY, replace(TINY, seed=1)))
    assert first.table.equals(again.table)
    assert not first.table.equals(other.table)
    # With one depth, all designs are those of this depth.
    for start in STARTS:
        whole, alone = (
            value_of(first.table, group, EXPLAINED, p7.both(start)) for group in TINY.groups
        )
        assert whole == alone


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"depths": ()}, "0 depths"),
        ({"scales": (1.0,)}, "3 designs of each of 1 depths"),
        ({"seeds": 1}, "at least two seeds"),
        ({"rates": ()}, "one rate"),
    ],
)
def test_nothing_to_compare_is_refused(change, message):
    with pytest.raises(InputError, match=message):
        p7.ENTRY.run(replace(TINY, **change), silent)


def test_the_papers_scale_is_a_configuration():
    paper = p7.Config(**p7.PAPER)
    assert len(paper.designs) == 2 * 2 * 6 * 5
    assert paper.spec(paper.designs[-1]).layers == 12
