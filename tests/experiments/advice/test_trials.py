"""The rule from both sides: what helps, what comes first, what agrees."""

import math
from dataclasses import replace

import pytest
import torch

from rankscope.ask import Subject
from rankscope.core.metrics import attention_entropy
from rankscope.core.network import Network, Spec
from rankscope.core.prediction import even_entropy, predict
from rankscope.experiments.advice import (
    CRITERIA,
    Change,
    Price,
    Spread,
    Standing,
    Trial,
    best_of_each_kind,
    helps,
    is_better,
    measured_values,
    ranked,
)

SPEC = Spec(2, 2, 8)
FREE, CHEAP, DEAR = (Price(0.0, 1.0, 1.0, only_initial=each) for each in (True, False, False))
DEAR = replace(DEAR, context=0.5)


def trial(*shortfalls: float, price: Price = FREE, kept: float = 0.0, measured=()) -> Trial:
    """One whose networks fall short by so much, all of it in the size of tokens."""
    return Trial(
        Change(f"{shortfalls}", SPEC),
        price,
        {},
        standing(shortfalls, kept),
        measured=standing(measured, kept) if measured else None,
    )


def standing(shortfalls, kept: float = 0.0) -> Standing:
    size = torch.tensor(shortfalls, dtype=torch.float64) + 1.0
    others = ("log10_gradient_ratio", "log10_query_share", "log10_entropy_share")
    return Standing(
        {
            "log10_dispersion_kept": torch.full_like(size, kept),
            "log10_size_growth": torch.where(size > 1, size, 0.0),
            **{name: torch.zeros_like(size) for name in others},
        }
    )


@pytest.mark.parametrize(
    ("one", "other", "better"),
    [
        ((0.5, 0.4, 0.6), (1.0, 0.9, 1.1), True),
        ((1.0, 0.9, 1.1), (0.5, 0.4, 0.6), False),
        ((0.5, 0.4, 0.95), (1.0, 0.9, 1.1), False),  # they overlap
        ((0.5, 0.4, 0.9), (1.0, 0.9, 1.1), False),  # they touch
        ((0.95, 0.95, 0.95), (1.0, 1.0, 1.0), False),  # too little
        ((0.0, 0.0, 0.0), (0.0, 0.0, 0.0), False),
        ((3.0, 3.0, 3.0), (math.inf, math.inf, math.inf), True),
        ((math.inf, 3.0, math.inf), (math.inf, math.inf, math.inf), False),
    ],
)
def test_better_is_below_apart_and_by_enough(one, other, better) -> None:
    assert is_better(Spread(*one), Spread(*other)) is better


def test_a_change_helps_if_its_draws_lie_below_all_others() -> None:
    original = trial(1.0, 1.2, 1.4)
    assert helps(trial(0.5, 0.9), original)
    assert not helps(trial(0.5, 1.1), original)
    assert not helps(original, original)


def test_the_order_is_shortfall_then_price_then_tokens_kept_apart() -> None:
    first = trial(0.01, price=FREE, kept=-0.1)
    second = trial(0.0, price=FREE, kept=-0.2)
    third = trial(0.02, price=CHEAP, kept=0.0)
    fourth = trial(0.0, price=DEAR, kept=0.0)
    last = trial(0.3, price=FREE, kept=0.0)
    assert ranked([last, fourth, third, second, first]) == [first, second, third, fourth, last]


def test_of_each_kind_the_best_is_chosen() -> None:
    kinds = {0.5: "skips", 0.2: "masks", 0.1: "skips", 0.9: "norms"}
    tried = {
        size: replace(trial(size), change=Change(f"{size}", SPEC, kind=kind))
        for size, kind in kinds.items()
    }
    assert best_of_each_kind(tried.values()) == [tried[0.1], tried[0.2], tried[0.9]]


@pytest.mark.parametrize(
    ("predicted", "measured", "agrees"),
    [
        ((1.0, 1.0), (1.05, 1.05), True),
        ((1.0, 1.0), (1.15, 1.15), False),
        ((0.0, 2.0), (4.0, 4.0), True),  # four standard errors, each √(1/2 + 1/2)
        ((0.0, 2.0), (5.5, 5.5), False),
        ((math.inf, 1.0), (math.inf, 2.0), True),
        ((1.0, 1.0), (), False),
    ],
)
def test_measured_agrees_with_predicted_within_their_errors(predicted, measured, agrees) -> None:
    assert trial(*predicted, measured=measured).agrees is agrees


@pytest.mark.parametrize(
    "spec",
    [Spec(3, 2, 64, norm_place="post", init="lecun"), Spec.pure_attention(3, 2, 64, init="lecun")],
)
def test_measured_values_have_the_law_of_the_prediction(spec, tokens) -> None:
    x = tokens(1, 5, 64)
    predicted = predict(spec, x, draws=40, gradients=True).values
    every = [measured_values(spec, x, None, seed=0, number=k, largest=1.0) for k in range(10)]
    assert {"log10_relative_dispersion", "token_norm", "attention_entropy", "query_gradient",
            "value_gradient", "state_gradient"} <= set(every[0])  # fmt: skip
    for name in every[0].keys() & predicted.keys():
        found = torch.stack([each[name] for each in every], 1).flatten(1)[1:]
        expected = predicted[name].flatten(1)[1:]
        if name.endswith("gradient"):
            found, expected = found.log(), expected.log()
        error = (found.var(1) / found.shape[1] + expected.var(1) / expected.shape[1]).sqrt()
        apart = (found.mean(1) - expected.mean(1)).abs()
        assert bool((apart <= 4.5 * error + 1e-9).all()), name


def test_networks_measured_are_independent_of_each_other_and_of_the_subject() -> None:
    x = torch.eye(5, 8).unsqueeze(0)
    one, two = (
        measured_values(SPEC, x, None, seed=0, number=number, largest=1.0)["token_norm"]
        for number in (0, 1)
    )
    assert one[0].item() == two[0].item()
    assert one[1].item() != two[1].item()


def test_large_tokens_are_measured_in_double_precision() -> None:
    huge = Spec(6, 2, 16, norm="none", init=1e3)
    x = torch.eye(5, 16).unsqueeze(0)
    found = measured_values(huge, x, None, seed=0, number=0, largest=1e40)
    assert found["token_norm"][-1].item() > 1e30


def test_a_design_that_cannot_be_measured_says_why() -> None:
    subject = Subject(Network.random(SPEC), torch.eye(5, 8).unsqueeze(0))
    change = Change("far too large", replace(SPEC, norm="none", init=1e200))
    tried = Trial(change, FREE, {"token_norm": torch.ones(3, 1, 1)}, standing((1.0,)))
    found = tried.measure(subject, networks=1, seed=0)
    assert found.measured is None
    assert found.failure


UNIFORM = torch.full((2, 1), math.log(8), dtype=torch.float64)


def standing_of(**changed: list[float]) -> Standing:
    """Of one network of two layers that keeps every limit, but for these metrics by layer."""
    nan = math.nan
    values = {
        "log10_relative_dispersion": [0.0, 0.0, 0.0],
        "token_norm": [1.0, 1.0, 1.0],
        "state_gradient": [1.0, 1.0, 1.0],
        "query_gradient": [nan, 1.0, 1.0],
        "value_gradient": [nan, 1.0, 1.0],
        "attention_entropy": [nan, math.log(8), math.log(8)],
        **changed,
    }
    tensors = {
        name: torch.tensor(each, dtype=torch.float64).reshape(3, 1, 1)
        for name, each in values.items()
    }
    return Standing.of(tensors, UNIFORM)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, 0.0),
        ({"log10_relative_dispersion": [0.0, -5.0, -0.3]}, 0.0),  # only the end counts
        ({"log10_relative_dispersion": [0.0, 0.0, -3.0]}, 3 - math.log10(2)),
        ({"log10_relative_dispersion": [-3.0, 0.0, -3.3]}, 0.0),  # beside what there was
        ({"log10_relative_dispersion": [-3.0, 0.0, 0.0]}, 0.0),  # more is no merit
        ({"token_norm": [2.0, 1.0, 2000.0]}, 2.0),
        ({"token_norm": [2.0, 1.0, 0.002]}, 2.0),
        ({"token_norm": [2.0, 1.0, 19.0]}, 0.0),
        ({"state_gradient": [1e-4, 1.0, 1.0]}, 3.0),
        ({"state_gradient": [1e4, 1.0, 1.0]}, 3.0),
        ({"state_gradient": [9.0, 1.0, 1.0]}, 0.0),
        ({"query_gradient": [math.nan, 1e-5, 1.0]}, 3.0),
        ({"query_gradient": [math.nan, 1e-5, 1.0], "value_gradient": [math.nan, 1e-4, 1.0]}, 0.0),
        ({"query_gradient": [math.nan, 1e5, 1.0]}, 0.0),
        ({"attention_entropy": [math.nan, math.log(8) / 1000, 1.0]}, 2.0),
        ({"attention_entropy": [math.nan, math.log(8) / 9, 1.0]}, 0.0),
        ({"token_norm": [1.0, 1.0, 1e3], "state_gradient": [1e3, 1.0, 1.0]}, 4.0),  # added up
        ({"token_norm": [1.0, 1.0, math.inf]}, math.inf),
        ({"state_gradient": [0.0, 1.0, 0.0]}, math.inf),  # 0/0 is known to be nothing good
        ({"query_gradient": [math.nan, 0.0, 1.0]}, math.inf),
    ],
)
def test_the_shortfall_is_what_lies_beyond_the_limits(changed, expected) -> None:
    found = standing_of(**changed)
    assert found.shortfall.tolist() == pytest.approx([expected])
    assert found.shortfall.tolist() == pytest.approx([sum(found.shortfalls.values()).item()])
    assert set(found.figures) == {each.metric for each in CRITERIA}


def test_more_dispersion_than_at_first_counts_as_all_of_it() -> None:
    assert standing_of(log10_relative_dispersion=[-3.0, 0.0, -1.0]).kept == 0.0
    assert standing_of(log10_relative_dispersion=[0.0, -5.0, -1.0]).kept == -1.0


def test_the_spread_is_the_mean_and_both_ends() -> None:
    values = {
        "log10_relative_dispersion": torch.tensor([[0.0, 0.0, 0.0], [0.0, -1.0, -2.0]]),
        "token_norm": torch.ones(2, 3),
        "state_gradient": torch.ones(2, 3),
        "query_gradient": torch.ones(2, 3),
        "value_gradient": torch.ones(2, 3),
        "attention_entropy": torch.ones(2, 3),
    }
    found = Standing.of(
        {name: each.double().unsqueeze(-1) for name, each in values.items()},
        torch.ones(1, 1, dtype=torch.float64),
    )
    less = math.log10(2)
    assert found.spread == pytest.approx(((3 - 2 * less) / 3, 0.0, 2 - less))
    assert found.kept == pytest.approx(-1.0)


@pytest.mark.parametrize("masks", [["full", "causal"], ["window:1", "window:0"]])
def test_uniform_attention_has_the_entropy_of_equal_logits(masks) -> None:
    spec = Spec(2, 1, 4, layer_masks=masks)
    token_mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    found = even_entropy(spec, 5, token_mask)[1:]
    for layer, mask in enumerate(spec.masks):
        for sample, tokens in enumerate((5, 3)):
            logits = torch.zeros(tokens, tokens, dtype=torch.float64)
            weights = logits.masked_fill(~mask.matrix(tokens), -math.inf).softmax(-1)
            expected = attention_entropy(weights[None, None]).item()
            assert found[layer, sample].item() == pytest.approx(expected)


def test_a_token_that_sees_itself_alone_lacks_no_entropy() -> None:
    figures = standing_of(attention_entropy=[math.nan, 0.0, 0.0]).figures
    assert figures["log10_entropy_share"].item() == -math.inf
    values = {name: torch.ones(2, 1, 1, dtype=torch.float64) for name in (
        "log10_relative_dispersion", "token_norm", "state_gradient", "query_gradient",
        "value_gradient",
    )}  # fmt: skip
    values["attention_entropy"] = torch.zeros(2, 1, 1, dtype=torch.float64)
    found = Standing.of(values, torch.zeros(1, 1, dtype=torch.float64))
    assert found.shortfall.item() == 0.0
