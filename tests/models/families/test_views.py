"""Linear maps read out of somebody else's parameters: the right matrix, and no copy of it."""

import copy

import pytest
import torch
from torch import nn

from rankscope.core.network import View
from rankscope.models.recognition._projections import HeadAxis, Slots

HEADS, HEAD_WIDTH, FEATURES = 2, 3, 4
INNER = HEADS * HEAD_WIDTH


class Store(nn.Module):
    """Parameters somebody else owns."""

    def __init__(self, *shape, bias=None, name="weight"):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        setattr(self, name, nn.Parameter(torch.randn(*shape, generator=generator)))
        self.bias = None if bias is None else nn.Parameter(torch.randn(bias, generator=generator))


def fused_columns(part):
    """GPT-2: ``x @ W`` with queries, keys and values side by side, then split."""
    store = Store(FEATURES, 3 * INNER, bias=3 * INNER)
    pick = Slots(1, 3, part, part + 1, transposed=True)
    return store, pick, lambda x: (x @ store.weight + store.bias).split(INNER, -1)[part]


def fused_by_head(part):
    """GPT-NeoX: one ``nn.Linear`` whose outputs are (head, query/key/value, head_width)."""
    store = Store(3 * INNER, FEATURES, bias=3 * INNER)
    pick = Slots(HEADS, 3, part, part + 1)

    def theirs(x):
        whole = nn.functional.linear(x, store.weight, store.bias)
        return whole.unflatten(-1, (HEADS, 3, HEAD_WIDTH))[..., part, :].flatten(-2)

    return store, pick, theirs


def into_heads(part):
    """XLNet: ``einsum("ibh,hnd->ibnd")``; there is no bias."""
    del part
    store = Store(FEATURES, HEADS, HEAD_WIDTH)
    return store, HeadAxis(), lambda x: torch.einsum("bth,hnd->btnd", x, store.weight).flatten(2)


def out_of_heads(part):
    """XLNet: ``einsum("ibnd,hnd->ibh")``."""
    del part
    store = Store(INNER, HEADS, HEAD_WIDTH)

    def theirs(x):
        return torch.einsum("btnd,hnd->bth", x.unflatten(-1, (HEADS, HEAD_WIDTH)), store.weight)

    return store, HeadAxis(out_of_heads=True), theirs


CASES = [
    pytest.param(make, part, id=f"{make.__name__}-{part}")
    for make, parts in ((fused_columns, 3), (fused_by_head, 3), (into_heads, 1), (out_of_heads, 1))
    for part in range(parts)
]


def inputs(view):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, 5, view.weight.shape[1], generator=generator)


@pytest.mark.parametrize(("make", "part"), CASES)
def test_a_view_computes_what_the_original_does(make, part):
    store, pick, theirs = make(part)
    view = View(store, pick)
    x = inputs(view)
    torch.testing.assert_close(view(x), theirs(x), rtol=1e-6, atol=1e-6)
    by_hand = x @ view.weight.T + (0 if view.bias is None else view.bias)
    torch.testing.assert_close(view(x), by_hand, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("make", "part"), CASES)
def test_a_view_follows_the_original(make, part):
    store, pick, theirs = make(part)
    view = View(store, pick)
    with torch.no_grad():
        for parameter in store.parameters():
            parameter.mul_(-2.0)
    x = inputs(view)
    torch.testing.assert_close(view(x), theirs(x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("make", "part"), CASES)
def test_gradients_reach_the_original_where_the_view_looks(make, part):
    store, pick, _ = make(part)
    view = View(store, pick)
    view(inputs(view)).square().sum().backward()
    seen = int((store.weight.grad != 0).sum())
    assert seen == view.weight.numel()


def test_views_have_no_parameters_of_their_own():
    store, pick, _ = fused_columns(0)
    views = nn.ModuleList([View(store, pick), View(store, Slots(1, 3, 1, 2, transposed=True))])
    assert {id(p) for p in views.parameters()} == {id(p) for p in store.parameters()}
    assert views[0].weight.untyped_storage().data_ptr() == store.weight.data_ptr()


def test_copies_of_views_still_share_among_themselves():
    store = Store(FEATURES, 2 * INNER, bias=2 * INNER)
    pair = nn.ModuleList([View(store, Slots(1, 2, k, k + 1, transposed=True)) for k in (0, 1)])
    other = copy.deepcopy(pair)
    assert other[0].source is other[1].source
    assert other[0].source is not store
    x = inputs(pair[1])
    assert torch.equal(other[1](x), pair[1](x))


def test_a_parameter_of_another_name():
    store = Store(FEATURES, HEADS, HEAD_WIDTH, name="q")
    view = View(store, HeadAxis(), weight="q")
    assert torch.equal(view.weight, store.q.flatten(1).T)
    assert view.bias is None
