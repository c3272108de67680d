"""The shortfall by hand, and the entropy of uniform attention against a softmax of zeros."""

import math

import pytest
import torch

from rankscope.core.metrics import attention_entropy
from rankscope.core.network import Spec
from rankscope.core.prediction import even_entropy
from rankscope.experiments.advice import CRITERIA, Standing

UNIFORM = torch.full((2, 1), math.log(8), dtype=torch.float64)


def standing(**changed: list[float]) -> Standing:
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
    found = standing(**changed)
    assert found.shortfall.tolist() == pytest.approx([expected])
    assert found.shortfall.tolist() == pytest.approx([sum(found.shortfalls.values()).item()])
    assert set(found.figures) == {each.metric for each in CRITERIA}


def test_more_dispersion_than_at_first_counts_as_all_of_it() -> None:
    assert standing(log10_relative_dispersion=[-3.0, 0.0, -1.0]).kept == 0.0
    assert standing(log10_relative_dispersion=[0.0, -5.0, -1.0]).kept == -1.0


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
    figures = standing(attention_entropy=[math.nan, 0.0, 0.0]).figures
    assert figures["log10_entropy_share"].item() == -math.inf
    values = {name: torch.ones(2, 1, 1, dtype=torch.float64) for name in (
        "log10_relative_dispersion", "token_norm", "state_gradient", "query_gradient",
        "value_gradient",
    )}  # fmt: skip
    values["attention_entropy"] = torch.zeros(2, 1, 1, dtype=torch.float64)
    found = Standing.of(values, torch.zeros(1, 1, dtype=torch.float64))
    assert found.shortfall.item() == 0.0
