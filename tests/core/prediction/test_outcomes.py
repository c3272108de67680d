"""What a prediction comes to: every threshold from both sides, on curves made by hand."""

import math

import pytest
import torch

from rankscope import Spec, predict
from rankscope.core.network import Init
from rankscope.core.prediction import PredictedOutcome, Prediction

LAYERS = 12
AT = torch.arange(LAYERS + 1, dtype=torch.float64)


def curve(values, draws=10):
    """One curve for every draw, or a curve for each."""
    values = torch.as_tensor(values, dtype=torch.float64)
    return values.reshape(len(values), -1, 1).expand(-1, draws, 1)


def prediction(**metrics):
    """Tokens that keep apart, evenly seen, of constant size, but for the metrics given."""
    level = torch.ones_like(AT)
    values = {
        "log10_relative_dispersion": 0 * AT,
        "token_norm": level,
        "attention_entropy": level,
        **metrics,
    }
    curves = {
        name: each if torch.is_tensor(each) and each.ndim == 3 else curve(each)
        for name, each in values.items()
    }
    even = torch.ones(LAYERS + 1, 1, dtype=torch.float64)
    return Prediction(Spec(LAYERS, 1, 2), 0, curves, 0.0, even_entropy=even)


def outcome(about, **metrics) -> PredictedOutcome:
    return {each.about: each for each in prediction(**metrics).verdict}[about]


def tokens(log10):
    return outcome("tokens", log10_relative_dispersion=log10)


def straight(last, first=0.0):
    return first + (last - first) * AT / LAYERS


@pytest.mark.parametrize(
    ("last", "kind"),
    [
        (math.log10(0.999e-3), "depth collapse"),
        (math.log10(1.001e-3), "collapse under way"),
        (math.log10(0.099), "collapse under way"),
        (math.log10(0.101), "tokens kept apart"),
        (math.log10(1.09), "tokens kept apart"),
        (math.log10(1.11), "chaos"),
    ],
)
def test_what_becomes_of_tokens(last, kind):
    found = tokens(straight(last))
    assert found.kind == kind
    assert found.is_sure
    assert (found.layer is not None) == (kind == "depth collapse")


def test_a_collapse_says_from_which_layer_on_and_how_fast():
    found = tokens(-0.5 * AT)
    assert found.layer == 7  # the first below 10^−3
    assert "from layer 7 on" in found.sentence
    assert found.law == "exponential"
    assert "by a factor of 0.32 per layer" in found.sentence  # 10^−0.5
    assert found.figures["rate"] == pytest.approx(-0.5)
    faster = tokens(-0.001 * 3**AT)
    assert faster.law == "faster than exponential"
    assert "faster than exponential" in faster.sentence


def test_tokens_that_are_all_equal_have_collapsed():
    found = tokens(torch.where(AT < 3, -AT, -math.inf))
    assert found.kind == "depth collapse"
    assert "exactly 0" in found.sentence


@pytest.mark.parametrize(
    ("sizes", "kind", "words"),
    [
        (2.0**AT, "growing size", "grow exponentially, by a factor of 2 per layer"),
        ((AT + 1e-9).sqrt(), "growing size", "grow polynomially, like layer^0.5"),
        (0.5**AT, "shrinking size", "shrink exponentially, by a factor of 0.5 per layer"),
        (1.09 ** (AT / 6), "bounded size", "stay bounded"),
        (1.11 ** (AT / 6), "growing size", "grow exponentially"),
        (torch.where(AT < 9, 1.0, math.inf), "growing size", "grow: 1 at the input, ∞"),
        (0 * AT, "bounded size", "stay bounded"),
    ],
)
def test_what_becomes_of_sizes(sizes, kind, words):
    found = outcome("size", token_norm=sizes)
    assert found.kind == kind
    assert words in found.sentence


@pytest.mark.parametrize(
    ("least", "kind", "layer"),
    [
        (0.249, "entropy collapse", 5),
        (0.251, "selective attention", None),
        (0.949, "selective attention", None),
        (0.951, "even attention", None),
    ],
)
def test_what_becomes_of_attention(least, kind, layer):
    entropy = torch.where(AT >= 5, least, 1.0)
    entropy[0] = math.nan
    found = outcome("attention", attention_entropy=entropy)
    assert (found.kind, found.layer) == (kind, layer)
    assert found.figures["least"] == pytest.approx(least)


@pytest.mark.parametrize(
    ("ratio", "kind"),
    [
        (0.099, "vanishing gradients"),
        (0.101, "level gradients"),
        (9.9, "level gradients"),
        (10.1, "exploding gradients"),
    ],
)
def test_what_becomes_of_gradients(ratio, kind):
    states = torch.linspace(ratio, 1.0, LAYERS + 1)
    ones = torch.ones_like(AT)
    gradients = dict.fromkeys(("query_gradient", "key_gradient", "value_gradient"), ones)
    found = outcome("gradients", state_gradient=states, **gradients)
    assert found.kind == kind
    assert found.figures["ratio"] == pytest.approx(ratio, rel=1e-6)


@pytest.mark.parametrize(
    ("part", "kind"), [(0.0099, "starved queries"), (0.0101, "learning queries")]
)
def test_what_becomes_of_queries(part, kind):
    ones = torch.ones_like(AT)
    queries = torch.where(AT == 4, part, ones)
    found = outcome(
        "queries",
        state_gradient=ones,
        query_gradient=0.5 * queries,
        key_gradient=queries,  # the larger counts
        value_gradient=ones,
    )
    assert found.kind == kind
    assert found.layer == (4 if kind == "starved queries" else None)


def test_it_says_how_sure_it_is():
    """Of ten networks one may differ; with two the 10 to 90 % band straddles the threshold."""
    for below, sure in ((9, True), (8, False)):
        last = torch.tensor([-4.0] * below + [-2.0] * (10 - below), dtype=torch.float64)
        found = tokens((AT[:, None] / LAYERS * last).unsqueeze(-1))
        assert found.kind == "depth collapse"
        assert found.share == below / 10
        assert found.is_sure == sure
        doubt = "The sampled networks disagree: 80% show depth collapse, 20% show collapse under"
        assert (doubt in found.sentence) == (not sure)


def test_a_prediction_is_read_as_theory_says():
    """Pure attention collapses doubly exponentially; post-norm at twice LeCun exponentially."""
    x = torch.randn(8, 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    pure = predict(Spec.pure_attention(6, 2, 32, init="lecun"), x, draws=4, gradients=True)
    first = pure.verdict[0]
    assert (first.kind, first.law) == ("depth collapse", "faster than exponential")
    assert [each.about for each in pure.verdict] == [
        "tokens",
        "attention",
        "size",
        "gradients",
        "queries",
    ]
    assert pure.verdict[4].kind == "starved queries"  # Noci et al. 2022
    after = predict(Spec(16, 2, 32, norm_place="post", init=Init("lecun", 2.0)), x, draws=4)
    assert (after.verdict[0].kind, after.verdict[0].law) == ("depth collapse", "exponential")
    assert [each.kind for each in after.verdict[2:]] == ["bounded size"]


@pytest.mark.parametrize(
    ("mask", "seen"), [("full", (3, 3, 3)), ("causal", (1, 2, 3)), ("window:1", (2, 3, 2))]
)
def test_even_attention_is_over_the_keys_a_query_may_see(mask, seen):
    """Weights of zero attend evenly, whatever the mask and the padding."""
    x = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    padding = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    found = predict(Spec(2, 2, 8, mask=mask, init=0.0), x, draws=2, token_mask=padding)
    expected = sum(map(math.log, seen)) / 3
    assert float(found.even_entropy[2, 1]) == pytest.approx(expected)
    even = found.even_entropy.unsqueeze(1).expand_as(found.values["attention_entropy"])
    assert torch.allclose(found.values["attention_entropy"][1:], even[1:])
    assert found.verdict[1].kind == "even attention"


def test_what_leaves_the_range_of_floats_has_grown_or_shrunk():
    x = torch.randn(5, 8, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    large = predict(Spec(45, 2, 8, norm="none", init=1e4), x, draws=2)
    small = predict(Spec(24, 2, 8, norm="none", skip=False, init=1e-8), x, draws=2)
    assert large.values["token_norm"][-1].isinf().all()
    assert (small.values["token_norm"][-1] == 0).all()
    assert (large.verdict[2].kind, small.verdict[2].kind) == ("growing size", "shrinking size")
    nothing = predict(Spec(4, 2, 8), 0 * x, draws=2)
    assert nothing.verdict[2].kind == "bounded size"


@pytest.mark.parametrize(
    "spec", [Spec(4, 2, 8, init=0.0), Spec.pure_attention(30, 2, 8, init=1e-8)]
)
def test_queries_without_any_gradient_are_starved(spec):
    x = torch.randn(5, 8, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    assert predict(spec, x, draws=2, gradients=True).verdict[-1].kind == "starved queries"


def test_a_query_that_sees_one_key_alone_is_not_called_even():
    x = torch.randn(5, 8, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    found = predict(Spec(3, 2, 8, mask="window:0"), x, draws=2)
    assert str(found.verdict[1]) == "Every query sees only one key."
