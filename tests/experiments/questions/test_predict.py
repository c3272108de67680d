"""What a design will do, beside one network that has weights."""

import math
from dataclasses import replace

import pytest
import torch

from rankscope import Network, Spec, predict
from rankscope.ask import Subject
from rankscope.core.network import Described, Init
from rankscope.core.prediction import measured_gradients
from rankscope.errors import InputError
from rankscope.experiments.questions.predict import Config, run

from ..shown import can_be_shown, steps_of

SPEC = Spec(6, 2, 16, init="lecun", norm_place="post")


def subject(tokens, spec=SPEC, seed=3, samples=2):
    return Subject(Network.random(spec, seed=seed), tokens(samples, 7, 16).float())


def values(result, metric, variant):
    rows = result.table.filter(metric=metric, variant=variant).sort("layer", "sample")
    return rows["value"].to_list()


def test_the_prediction_and_the_network_are_side_by_side(tokens) -> None:
    asked = subject(tokens)
    found, seen = steps_of(run, Config(asked, draws=6, draw_seed=5))
    assert seen == [0.75, 1.0]
    can_be_shown(found)
    by_hand = predict(SPEC, asked.x, draws=6, seed=5)
    assert values(found, "mean_cosine", "predicted") == pytest.approx(
        by_hand.values["mean_cosine"].flatten().tolist()
    )
    traced = asked.to(torch.float64).trace(["relative_dispersion"]).table.sort("layer", "sample")
    measured = values(found, "relative_dispersion", "this network")
    assert measured == pytest.approx(traced["value"].to_list())
    entropies = values(found, "attention_entropy", "this network")
    assert len(entropies) == 6 * 2  # the mean over the heads
    assert found.sentences[0] == by_hand.verdict[0].sentence
    assert "of the figures of this network lie in the band" in found.sentences[-1]
    assert "of 12" in found.sentences[-1]


def test_inside_and_outside_of_the_band(tokens) -> None:
    """A network with ten times the weights is not one of them, in any layer."""
    own = Config(subject(tokens, samples=1), draws=32)
    inside = run(own, lambda _: None).sentences[-1]
    share = float(inside.split("%")[0])
    assert share > 40
    strange = subject(tokens, samples=1)
    with torch.no_grad():
        for weight in strange.network.parameters():
            weight.mul_(10.0)
    outside = run(Config(strange, draws=32), lambda _: None).sentences
    assert "token norm at 0 of 6" in outside[-1]
    assert "% of the figures of this model lie in the band" in outside[-1]
    assert "architecture at initialisation, lecun weights" in outside[-2]
    assert "for the model with its own weights" in outside[-2]
    fresh = replace(strange, about={"origin": "random"})
    assert "as its library initialises it" in run(Config(fresh), lambda _: None).sentences[-2]


def test_the_logarithm_is_always_in_the_table(tokens) -> None:
    found, _ = steps_of(run, Config(subject(tokens), draws=4))
    for name in ("predicted", "this network"):
        plain = values(found, "relative_dispersion", name)
        logarithms = values(found, "log10_relative_dispersion", name)
        assert logarithms == pytest.approx([math.log10(each) for each in plain], abs=1e-6)


def test_exponents_are_told_where_floats_end(tokens) -> None:
    pure = Spec.pure_attention(6, 2, 16, init="lecun")
    found, _ = steps_of(run, Config(subject(tokens, pure), draws=4))
    assert "relative_dispersion" not in set(found.table["metric"])
    ends = {
        name: values(found, "log10_relative_dispersion", name)[-1]
        for name in ("predicted", "this network")
    }
    assert all(-1000 < end < -50 for end in ends.values())
    assert "faster than exponential" in found.sentences[0]
    can_be_shown(found)


def test_gradients_if_asked_for(tokens) -> None:
    asked = subject(tokens)
    found, _ = steps_of(run, Config(asked, draws=4, gradients=True))
    by_hand = measured_gradients(asked.network, asked.x)["value_gradient"][1:]
    measured = values(found, "value_gradient", "this network")
    assert measured == pytest.approx(by_hand.flatten().tolist())
    assert len(found.drawings) == 2
    assert any(sentence.startswith("Gradients") for sentence in found.sentences)
    assert ", gradients at " in found.sentences[-1]


def test_the_score_of_a_model_is_predicted_as_it_is(tokens) -> None:
    asked = subject(tokens)
    described = Network(Spec(6, 2, 16, scores=Described("T5's")), list(asked.network.blocks))
    found = run(Config(Subject(described, asked.x), draws=2), lambda _: None)
    assert "T5's scores" in found.provenance["predicted"]


def test_a_network_that_overflows_leaves_the_prediction(tokens) -> None:
    large = Spec(60, 2, 16, norm="none", init=1e6)
    found = run(Config(subject(tokens, large), draws=2), lambda _: None)
    assert any("could not be measured: " in each for each in found.sentences)
    assert set(found.table["variant"]) == {"predicted"}


def test_which_side_of_the_map_a_design_is_on(tokens) -> None:
    """Gates beside a large skip of attention drive nearly equal tokens apart (claim P7)."""
    skips = {"attention_skip": 4.0, "mlp_skip": 0.3}
    gated = {"gated": True, "activation": "silu", "norm_place": "post", "init": Init("lecun", 2.0)}
    for spec, side in (
        (Spec.pure_attention(6, 2, 16, init="lecun"), "collapse"),
        (Spec(6, 2, 16, **skips, **gated), "chaos"),
    ):
        found = run(Config(subject(tokens, spec), draws=8), lambda _: None)
        assert any(f"on the side of {side}" in each for each in found.sentences), side
    still = run(Config(subject(tokens, Spec(6, 2, 16, init=0.001)), draws=4), lambda _: None)
    assert any("between collapse and chaos" in each for each in still.sentences)


def test_what_cannot_be_predicted_is_refused(tokens) -> None:
    asked = subject(tokens)
    hidden = torch.ones(2, 7, dtype=torch.bool)
    with pytest.raises(InputError, match="predictions are about all tokens"):
        run(Config(Subject(asked.network, asked.x, measured=hidden)), lambda _: None)
    with pytest.raises(InputError, match="draws"):
        Config(asked, draws=0)
