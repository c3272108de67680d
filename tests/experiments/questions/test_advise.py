"""What is advised: skips for pure attention, nothing for what lacks nothing."""

import math

import pytest
import torch

import rankscope
from rankscope.ask import Subject
from rankscope.core.network import Network, Spec
from rankscope.core.prediction import even_entropy, predict
from rankscope.errors import InputError, KindError, ShapeError
from rankscope.experiments.advice import Standing, changes, measured_values
from rankscope.experiments.questions.advise import AS_IS, Config, advise, cost, run

from ...models.families.conftest import lively as lively_model
from ..shown import can_be_shown, steps_of

FEW = {"draws": 4, "candidates": 2, "confirmed": 1, "networks": 2}
ONE = {"draws": 1, "candidates": 1, "confirmed": 1, "networks": 1}
PURE = Spec.pure_attention(5, 2, 16, init="lecun")
HEALTHY = Spec(2, 2, 16, init="lecun")


@pytest.fixture(scope="module")
def x():
    return torch.randn(1, 6, 16, generator=torch.Generator().manual_seed(5))


@pytest.fixture(scope="module")
def advice(x):
    return steps_of(run, Config(Subject(Network.random(PURE), x), **FEW))[0]


@pytest.fixture
def two_changes(monkeypatch):
    """The first two alternatives alone, where it does not matter which are tried."""
    every = changes
    monkeypatch.setattr("rankscope.experiments.advice.changes", lambda *given: every(*given)[:2])


def value(result, variant, metric):
    (found,) = result.table.filter(variant=variant, metric=metric)["value"].to_list()
    return found


def test_pure_attention_is_told_to_add_skips_and_measurement_confirms(advice) -> None:
    can_be_shown(advice)
    assert "tokens become alike" in advice.sentences[0]
    assert advice.sentences[1].startswith("The best change: skips added; predicted 0")
    assert "on 2 networks, which confirms it; tokens keep" in advice.sentences[1]
    assert "disagree" not in advice.sentences[1]
    for metric in ("predicted_shortfall", "measured_shortfall"):
        assert value(advice, AS_IS, metric) > 10
        assert value(advice, "skips added", metric) < 0.3
    assert value(advice, AS_IS, "log10_dispersion_kept") < -20
    assert value(advice, "skips added", "log10_measured_dispersion_kept") > -0.3


def test_figures_are_those_of_the_prediction_and_of_measured_networks(advice, x) -> None:
    uniform = even_entropy(PURE, 6, None)[1:]
    predicted = predict(PURE, x, draws=4, gradients=True).values
    expected = Standing.of(predicted, uniform)
    assert value(advice, AS_IS, "predicted_shortfall") == pytest.approx(expected.spread.mean)
    each = [measured_values(PURE, x, None, seed=0, number=k, largest=1.0) for k in range(2)]
    values = {name: torch.stack([one[name] for one in each], 1) for name in each[0]}
    measured = Standing.of(values, uniform)
    assert value(advice, AS_IS, "measured_shortfall") == pytest.approx(measured.spread.mean)
    for metric, figure in expected.figures.items():
        assert value(advice, AS_IS, metric) == pytest.approx(float(figure.mean()))


def test_every_change_is_in_the_table_with_its_price(advice) -> None:
    tried = {AS_IS, *(each.words for each in changes(PURE, 6))}
    told = advice.table.filter(metric="predicted_shortfall")
    assert set(told["variant"]) == tried
    assert told["variant"][0] == AS_IS
    assert value(advice, "MLPs added", "parameters_added") > 1
    assert value(advice, "causal mask", "context_share") == pytest.approx(21 / 36)
    unmeasured = advice.table.filter(metric="measured_shortfall", variant="causal mask")
    assert unmeasured["value"].to_list() == [None]


def test_the_chart_has_what_was_measured_beside_its_prediction(advice) -> None:
    (drawing,) = advice.drawings
    assert drawing.options == {"lowest": -6.0}  # it falls to 10^−50
    drawn = advice.table.filter(metric=drawing.metric)
    assert set(drawn["model"]) == {"predicted", "measured"}
    assert set(drawn["variant"]) == {AS_IS, "skips added"}
    assert set(drawn["layer"]) == set(range(6))


def test_a_healthy_design_is_told_that_nothing_helps(x) -> None:
    found, _ = steps_of(run, Config(Subject(Network.random(HEALTHY), x), **FEW))
    can_be_shown(found)
    assert found.sentences[0].endswith("it is within all limits.")
    assert found.sentences[1] == ("The design is within all limits, so no change was tried.")
    assert "help" not in found.sentences[0]
    assert found.drawings[0].options == {}
    assert value(found, AS_IS, "measured_shortfall") == 0.0


def test_where_the_best_is_no_better_it_says_so(x, monkeypatch) -> None:
    few = [each for each in changes(PURE, 6) if each.words.endswith("of width 16")]
    monkeypatch.setattr("rankscope.experiments.advice.changes", lambda *_: few)
    found = run(Config(Subject(Network.random(PURE), x), **FEW), lambda _: None)
    assert found.sentences[1].startswith("No change helps, of 1 that were tried: the best, 1 head ")
    listed = found.listings[0].rows
    assert [row[-1] for row in listed] == ["", "no"]
    assert listed[1][0] == few[0].words


@pytest.mark.usefixtures("two_changes")
def test_advice_is_the_same_whatever_stands_for_the_design(x) -> None:
    results = [advise(each, x, **ONE) for each in (PURE, Network.random(PURE, seed=7))]
    first, second = (each.table.filter(metric="predicted_shortfall") for each in results)
    assert first.equals(second)
    assert advise(PURE, x[0], **ONE).table.equals(results[0].table)


@pytest.mark.usefixtures("two_changes")
def test_a_model_is_taken_for_its_architecture() -> None:
    model = lively_model("gpt2")
    ids = torch.tensor([[1, 5, 9, 2, 7]])
    found = advise(rankscope.load(model, at_init=True), ids, **ONE)
    can_be_shown(found)
    again = advise(model, ids.tolist(), **ONE)
    assert found.table.equals(again.table)


@pytest.mark.usefixtures("two_changes")
def test_unless_given_the_bundled_text_is_read() -> None:
    found = advise(HEALTHY, **ONE)
    assert found.provenance["read"] == "1 × 32 tokens"


@pytest.mark.usefixtures("two_changes")
def test_another_seed_draws_other_networks(x) -> None:
    one, two = (advise(PURE, x, seed=seed, **ONE).table for seed in (0, 1))
    assert not one.equals(two)


def test_padding_changes_nothing(x) -> None:
    padded = torch.cat((x, torch.full((1, 2, 16), 7.0)), 1)
    mask = torch.tensor([[True] * 6 + [False] * 2])
    plain, masked = (
        predict(PURE, each, token_mask=which, draws=2, gradients=True).values
        for each, which in ((x, None), (padded, mask))
    )
    uniform = [even_entropy(PURE, 6, None)[1:], even_entropy(PURE, 8, mask)[1:]]
    assert uniform[0] == pytest.approx(uniform[1])
    assert plain.keys() == masked.keys()


@pytest.mark.parametrize(
    ("design", "options", "error", "said"),
    [
        (PURE, {"inputs": torch.ones(1, 6, 16)}, InputError, "all tokens of some sample are equal"),
        (PURE, {"inputs": torch.ones(1, 1, 16)}, InputError, "all tokens of some sample are equal"),
        (PURE, {"inputs": torch.randn(1, 6, 15)}, ShapeError, "16"),
        (PURE, {"inputs": torch.full((1, 6, 16), math.nan)}, InputError, "x|inputs"),
        (PURE, {"token_mask": torch.ones(1, 6, dtype=torch.bool)}, InputError, "give inputs"),
        (PURE, {"draws": 0}, InputError, "draws"),
        (PURE, {"networks": 1001}, InputError, "networks=1001"),
        (PURE, {"seed": -1}, InputError, "seed"),
        (12, {}, KindError, "model"),
        ("no such folder", {}, rankscope.errors.RankscopeError, "no such folder"),
    ],
)
def test_hostile_input_is_refused_with_what_is_wrong(design, options, error, said) -> None:
    with pytest.raises(error, match=said):
        advise(design, **options)


def test_tokens_left_out_of_the_figures_are_refused(x) -> None:
    measured = torch.tensor([[True] * 5 + [False]])
    with pytest.raises(InputError, match="about all tokens"):
        Config(Subject(Network.random(PURE), x, measured=measured))


def test_the_cost_goes_with_the_networks_tried(x) -> None:
    subject = Subject(Network.random(PURE), x)
    few, many = (cost(Config(subject, draws=draws, candidates=4)) for draws in (8, 80))
    assert few.seconds < many.seconds < 10 * few.seconds
    assert few.bytes == many.bytes > 0
