"""On a GPU every call costs its launch and every look at a number waits: neither may come back."""

import math
from functools import partial

import pytest
import torch

from rankscope.core.deep import (
    ScaledTensor,
    SplitState,
    _doubts,
    _scaled_tensor,
    add_states,
    deep_trace,
)
from rankscope.core.network import Network, Spec
from rankscope.errors import InputError, ShapeError

from ...counting import Calls

BLOCKS = {
    # what a layer asks for (it was 2341, 2330, 3021, 819), and how often it waits (it was 22)
    "BERT's": ({"norm_place": "post"}, 1450, 6),
    "causal, pre-norm": ({"mask": "causal"}, 1450, 8),
    "gated": ({"gated": True, "activation": "silu", "norm": "rms"}, 1650, 6),
    "pure attention": ({"mlp_ratio": 0.0, "norm": "none", "skip": False}, 520, 3),
}


def asked(layers, tokens, **fields):
    net = Network.random(Spec(layers, 2, 8, **fields), seed=0, dtype=torch.float64)
    with Calls() as seen:
        deep_trace(net, tokens(2, 4, 8))
    return seen


@pytest.mark.parametrize("name", BLOCKS)
def test_a_layer_asks_for_little_and_waits_seldom(name, tokens, monkeypatch):
    # On a CPU the largest entry takes two more calls, which are faster there.
    on_gpu = partial(torch.linalg.vector_norm, ord=math.inf)
    monkeypatch.setattr(
        _scaled_tensor, "largest_entry", lambda x: on_gpu(x, dim=tuple(range(1, x.ndim)))
    )
    fields, most_calls, most_waits = BLOCKS[name]
    one, two = (asked(layers, tokens, **fields) for layers in (1, 2))
    assert two.computing.total() - one.computing.total() <= most_calls
    assert two.waiting.total() - one.waiting.total() <= most_waits


def test_a_deep_network_is_run_once(tokens, monkeypatch):
    """The step away that shows whether errors grow goes with the samples, not after them."""
    monkeypatch.setattr(_doubts, "_DEEP", 1)
    one, two = (asked(layers, tokens) for layers in (1, 2))
    assert two.computing["mm"] == 2 * one.computing["mm"] > 0


def test_parts_of_other_shapes_are_refused():
    state = SplitState.of(torch.randn(2, 3, 4, dtype=torch.float64))
    wide = SplitState.of(torch.randn(2, 3, 5, dtype=torch.float64))
    scaled, five = state.common, torch.zeros(5, dtype=torch.float64)
    for call in (
        lambda: scaled.times_exp(five),
        lambda: ScaledTensor.of(scaled.mantissa, terms=five),
        lambda: ScaledTensor.of(scaled.mantissa, lost=five),
        lambda: ScaledTensor(scaled.mantissa, five),
        lambda: scaled.select(torch.tensor([5])),
        lambda: scaled.join(wide.common),
        lambda: state.select(torch.tensor([0.5])),
        lambda: state.join(wide),
        lambda: SplitState(wide.common, state.deviation),
        lambda: add_states(state, wide),
        lambda: add_states(),
    ):
        with pytest.raises(ShapeError):
            call()
    for count in (0, 3, 2**62):
        with pytest.raises(InputError, match="out of range; expected 1 to 2"):
            state.first(count)
    assert len(state.first(1).mantissa) == 1
