"""``predict`` as users call it: what it takes, what it gives, what it refuses."""

import json
import math
from threading import Thread

import pytest
import torch
from transformers import GPT2Config, GPT2Model, LlamaConfig, LlamaModel

from rankscope import Network, Spec, load, predict, trace
from rankscope.core.network import Described, Init, LearnedSinks, Lent, Scores, drawable
from rankscope.core.prediction import measured_gradients
from rankscope.core.prediction._predict import network_seed
from rankscope.core.prediction._prediction import _percentile
from rankscope.errors import (
    InputError,
    KindError,
    RankscopeError,
    ShapeError,
    SpecError,
    UnsupportedModelError,
)
from rankscope.metric_catalogue import metric

from .laws import tokens

SPEC = Spec(3, 2, 16, init=0.2)
FORWARD = (
    "relative_dispersion",
    "log10_relative_dispersion",
    "mean_cosine",
    "effective_rank",
    "token_norm",
    "attention_entropy",
)
BACKWARD = ("state", "query", "key", "value", "output", "up", "down")


def test_what_is_predicted():
    found = predict(SPEC, tokens(5, 16), draws=4)
    assert found.metrics == FORWARD
    assert all(values.shape == (4, 4, 1) for values in found.values.values())
    assert bool(found.values["attention_entropy"][0].isnan().all())
    assert bool((found.values["attention_entropy"][1:] <= math.log(5) + 1e-6).all())
    assert (found.draws, found.layers, found.spec, found.seed) == (4, 3, SPEC, 0)
    with_gradients = predict(SPEC, tokens(5, 16), draws=2, gradients=True)
    assert with_gradients.metrics == (*FORWARD, *(f"{name}_gradient" for name in BACKWARD))
    gated = predict(Spec(1, 2, 16, gated=True), tokens(5, 16), draws=2, gradients=True)
    assert "gate_gradient" in gated.metrics


def test_the_input_is_measured_as_it_is():
    x = tokens(5, 16)
    found = predict(SPEC, x, draws=2)
    columns = trace(Network.random(SPEC), x[None].float(), metrics=FORWARD[2:5]).columns
    for name, layer, value in zip(
        columns["metric"], columns["layer"], columns["value"], strict=True
    ):
        if layer == 0:
            assert float(found.values[name][0, 0]) == pytest.approx(value, rel=1e-5)


def test_a_draw_depends_on_no_other():
    x = tokens(5, 16)
    few, many = predict(SPEC, x, draws=2, seed=3), predict(SPEC, x, draws=5, seed=3)
    other = predict(SPEC, x, draws=2, seed=4)
    for name in FORWARD[:5]:
        assert torch.allclose(few.values[name], many.values[name][:, :2], rtol=1e-4), name
        assert not torch.allclose(few.values[name][1:], other.values[name][1:], rtol=1e-4), name


def test_a_sample_depends_on_no_other():
    x = torch.stack([tokens(5, 16, seed=seed) for seed in (1, 2)])
    both, alone = predict(SPEC, x, draws=3), predict(SPEC, x[0], draws=3)
    assert both.values["mean_cosine"].shape == (4, 3, 2)
    for name in FORWARD[:5]:
        assert torch.allclose(both.values[name][..., :1], alone.values[name], rtol=1e-4), name


def test_no_generator_is_touched():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    predict(SPEC, tokens(5, 16), draws=2, gradients=True)
    assert torch.equal(before, torch.get_rng_state())


def test_many_draws_are_taken_in_groups(monkeypatch):
    x = tokens(5, 16)
    whole = predict(SPEC, x, draws=5, gradients=True)
    monkeypatch.setattr("rankscope.core.prediction._ensemble._AT_ONCE", 1)
    parts = predict(SPEC, x, draws=5, gradients=True)
    for name in whole.metrics:
        one, other = whole.values[name], parts.values[name]
        assert torch.allclose(one, other, rtol=1e-4, equal_nan=True), name


BARE = Spec(3, 2, 16, mlp_as="activation")


@pytest.mark.parametrize(
    ("spec", "repeat"), [(Spec(3, 2, 16, shared_layers=True), 1), (SPEC, 2), (BARE, 1)]
)
def test_what_has_no_law_of_its_own_is_that_of_whole_networks(spec, repeat):
    x = tokens(5, 16)
    found = predict(spec, x, draws=2, repeat=repeat, gradients=True)
    assert found.layers == spec.layers * repeat
    network = Network.random(spec, seed=network_seed(0, 1)).repeat(repeat)
    columns = trace(network, x[None].float(), metrics=("mean_cosine", "token_norm")).columns
    rows = zip(columns["metric"], columns["layer"], columns["value"], strict=True)
    for name, layer, value in rows:
        assert float(found.values[name][layer, 1]) == pytest.approx(value, rel=1e-4, abs=1e-6)
    slopes = measured_gradients(network, x[None], seed=network_seed(0, 1))
    assert torch.allclose(found.values["query_gradient"][1:, 1], slopes["query_gradient"][1:])


def test_an_activation_alone_needs_the_features_themselves():
    with pytest.raises(InputError, match="pass the tokens x"):
        predict(BARE, kernel=torch.eye(3), draws=1)
    with pytest.raises(InputError, match="finite width"):
        predict(BARE, tokens(5, 16), draws=1, infinite_width=True)


def test_shared_layers_collapse_to_any_depth():
    spec = Spec.pure_attention(6, 2, 16, init=0.1, shared_layers=True)
    found = predict(spec, tokens(5, 16), draws=3)
    assert float(found.band("log10_relative_dispersion").high[6]) < -100


def test_gradients_of_one_network_are_autograds():
    x = tokens(5, 16)[None]
    network = Network.random(SPEC, dtype=torch.float64)
    found = measured_gradients(network, x, seed=2)
    assert found["state_gradient"].shape == (4, 1)
    weight = network.blocks[1].attention.query.weight
    from rankscope.streams import stream

    towards = torch.randn(
        1, 5, 16, generator=stream(2, "gradient", "measured"), dtype=torch.float64
    )
    (gradient,) = torch.autograd.grad((network(x) * towards).sum(), [weight])
    assert float(found["query_gradient"][2]) == pytest.approx(float(gradient.norm()))


def test_bands_hold_their_share():
    found = predict(SPEC, tokens(5, 16), draws=41)
    values, band = found.values["token_norm"][3, :, 0], found.band("token_norm")
    assert float(band.mean[3]) == pytest.approx(float(values.mean()))
    assert float(band.low[3]) == pytest.approx(float(values.sort().values[4]))
    assert float(band.high[3]) == pytest.approx(float(values.sort().values[36]))
    table = found.table
    assert table.columns == ["layer", "sample", "metric", "value"]
    assert table.height == 41 * (5 * 4 + 3)  # the input has no attention
    with pytest.raises(InputError, match="is not predicted; choose relative_dispersion"):
        found.band("rank")


def test_what_a_notebook_shows():
    found = predict(SPEC, tokens(5, 16), draws=3)
    assert repr(found).startswith("Prediction for Spec(3, 2, 16, init=")
    assert "3 draws" in found._repr_html_()
    drawn = json.dumps(found.plot().to_dict())
    assert all(metric(name).title in drawn for name in found.metrics)


def test_uniform_weights_are_said_to_be_normal_in_the_limit():
    x = tokens(5, 16)
    assert predict(SPEC, x, draws=1).width_error == 0
    assert predict(Spec(1, 2, 16, init="xavier"), x, draws=1).width_error == 1 / 16


X = tokens(5, 16)
REFUSED = {
    "nothing": (InputError, {}, "either the tokens x or kernel"),
    "both": (InputError, {"inputs": X, "kernel": X @ X.T}, "and not both"),
    "another width": (ShapeError, {"inputs": tokens(5, 15)}, r"expected \(\.\.\., 16\) last"),
    "four axes": (ShapeError, {"inputs": X[None, None]}, "expected"),
    "no tokens": (ShapeError, {"inputs": X[:0]}, "expected"),
    "NaN": (InputError, {"inputs": X * math.nan}, "finite"),
    "whole numbers": (KindError, {"inputs": X.long()}, "x"),
    "no symmetry": (InputError, {"kernel": torch.ones(3, 3).triu()}, "is not symmetric"),
    "no Gram matrix": (InputError, {"kernel": -torch.eye(3)}, "an eigenvalue of -1"),
    "too many directions": (
        InputError,
        {"kernel": torch.eye(17)},
        "more than 16 positive eigenvalues",
    ),
    "no draws": (RankscopeError, {"inputs": X, "draws": 0}, "draws"),
    "a negative seed": (RankscopeError, {"inputs": X, "seed": -1}, "seed"),
    "a mask of another length": (
        ShapeError,
        {"inputs": X, "token_mask": torch.ones(4, dtype=torch.bool)},
        "token_mask",
    ),
    "nothing but padding": (
        InputError,
        {"inputs": X, "token_mask": torch.zeros(5, dtype=torch.bool)},
        "token",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case):
    error, arguments, words = REFUSED[case]
    with pytest.raises(error, match=words):
        predict(SPEC, **arguments)


def test_specs_that_cannot_be_drawn_are_refused():
    with pytest.raises(SpecError, match="cannot be initialised at random"):
        predict(Spec(1, 2, 16, scores=Described("its own")), X)
    for more in ({"repeat": 2}, {"gradients": True}):
        with pytest.raises(InputError, match="omit infinite_width"):
            predict(SPEC, X, infinite_width=True, **more)


def test_digits_that_may_be_lost_are_noted():
    large = Spec.pure_attention(8, 4, 64, init=Init("lecun", 5.0))
    assert (
        "may have lost ten or more digits" in predict(large, tokens(16, 64), draws=4).notes["doubt"]
    )
    assert predict(Spec.pure_attention(8, 4, 64), tokens(16, 64), draws=4).notes == {}


def test_percentiles_between_infinities():
    rows = torch.tensor([[-math.inf] * 3 + [-5.0] * 8], dtype=torch.float64)
    assert _percentile(rows, 0.1).isneginf().all()
    assert _percentile(rows, 0.25).isneginf().all()
    assert float(_percentile(rows, 0.9)) == -5.0


def test_the_default_dtype_changes_nothing():
    expected = predict(SPEC, X, draws=2).values["mean_cosine"]
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(predict(SPEC, X, draws=2).values["mean_cosine"], expected)
    finally:
        torch.set_default_dtype(torch.float32)


def test_each_kernel_of_a_batch_is_checked_by_its_own_size():
    wrong = torch.stack([1e8 * torch.eye(2), torch.diag(torch.tensor([1.0, -1.0]))])
    with pytest.raises(InputError, match="an eigenvalue of -1"):
        predict(SPEC, kernel=wrong, draws=1)
    assert predict(SPEC, kernel=1.7e308 * torch.eye(3).double(), draws=1).layers == 3


def test_several_threads_leave_the_number_of_threads_as_it_was():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        other = Thread(target=lambda: predict(Spec(20, 2, 16), tokens(16, 16), draws=8))
        other.start()
        predict(Spec(5, 2, 16), tokens(16, 16), draws=4)
        other.join()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_inference_mode_is_no_hindrance():
    with torch.inference_mode():
        found = predict(Spec(2, 2, 16, shared_layers=True), X.clone(), draws=1, gradients=True)
        slopes = measured_gradients(Network.random(SPEC), X.clone()[None])
    assert bool(found.values["query_gradient"][1:].isfinite().all())
    assert bool(slopes["query_gradient"][1:].isfinite().all())


def test_gradients_of_models_and_frozen_networks_are_measured():
    """Queries, keys and values of GPT-2 are slices of one matrix."""
    config = GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=30, n_positions=8)
    network = load(GPT2Model(config)).network
    found = measured_gradients(network, tokens(5, 16)[None])
    assert bool(found["query_gradient"][1:].isfinite().all())
    frozen = Network.random(SPEC).requires_grad_(False)
    assert torch.allclose(
        measured_gradients(frozen, X[None])["query_gradient"][1:],
        measured_gradients(Network.random(SPEC), X[None])["query_gradient"][1:],
    )


def test_gradients_of_what_overflows_are_refused():
    with pytest.raises(InputError, match="finite"):
        measured_gradients(Network.random(SPEC), X[None] * math.nan)
    with pytest.raises(InputError, match=r"layer \d+: the hidden state has overflowed"):
        measured_gradients(Network.random(Spec(120, 2, 16, norm="none", init=1000.0)), X[None])


def test_centred_attention_without_a_skip_is_followed_in_floats_and_noted():
    spec = Spec(4, 2, 16, centered=True, norm="none", skip=False, mlp_ratio=0, init="lecun")
    found = predict(spec, X, draws=8)
    assert float(found.band("log10_relative_dispersion").low[4]) > -0.5
    assert "plain float64" in found.notes["doubt"]


def test_scores_of_a_model_are_lent_to_random_networks():
    config = LlamaConfig(
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=30,
    )
    network = load(LlamaModel(config)).network
    spec = drawable(network)
    assert isinstance(network.spec.scores, Described)
    assert str(spec.scores) == str(network.spec.scores)
    scores = Network.random(spec).blocks[0].attention.scores
    assert type(scores) is type(network.blocks[0].attention.scores)
    assert predict(spec, X, draws=2).layers == 2
    assert drawable(Network.random(SPEC)) == SPEC


def test_parts_that_no_spec_describes_are_refused_by_name():
    spec = Spec(2, 2, 16, undescribed=["a mixture of experts"])
    for ask in (lambda: predict(spec, tokens(5, 16)), lambda: Network.random(spec)):
        with pytest.raises(UnsupportedModelError, match="does not describe: a mixture of experts"):
            ask()


def test_a_learned_sink_is_one_more_outcome_of_each_row():
    """With equal logits, and a sink of the same, a row of n keys has n + 1 equal outcomes."""
    sinks = LearnedSinks(torch.nn.Parameter(torch.zeros(2)), Scores())
    spec = Spec(1, 2, 16, scores=Lent("sinks", sinks), score_scale=0.0)
    entropy = predict(spec, tokens(5, 16), draws=2).values["attention_entropy"][1]
    assert entropy.tolist() == [[pytest.approx(math.log(6), rel=1e-5)]] * 2
