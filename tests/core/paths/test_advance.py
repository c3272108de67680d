"""All lengths in one buffer: any chunk gives the same, the input stays, and nothing waits."""

import pytest
import torch

from rankscope.core.network import Network, Spec
from rankscope.core.paths import _frozen, _shares, path_lengths

from ...counting import Calls
from ...pairwise import pairwise
from .conftest import KINDS, batch

CHUNKED = pairwise(
    {
        "kind": ("parallel", "scaled skips", "identity for MLP", "sandwich", "post-norm"),
        "max_length": (None, 0, 1, 2),
        "count": ("attention", "both"),
    }
)


@pytest.mark.parametrize("case", CHUNKED, ids=str)
def test_chunks_of_any_size_give_the_same(case, lively, monkeypatch):
    net, x = lively(KINDS[case["kind"]]), batch()
    max_length, count = case["max_length"], case["count"]
    before = x.clone()
    at_once = path_lengths(net, x, max_length=max_length, count=count)
    monkeypatch.setattr(_shares, "_CPU_CHUNK", 1)
    one_by_one = path_lengths(net, x, max_length=max_length, count=count)
    assert torch.equal(x, before)
    torch.testing.assert_close(
        one_by_one.contributions, at_once.contributions, rtol=1e-12, atol=1e-14
    )
    assert one_by_one.complete == at_once.complete
    assert one_by_one.columns["value"] == pytest.approx(at_once.columns["value"], rel=1e-9)


@pytest.mark.parametrize("max_length", [None, 1])
def test_deeper_networks_wait_for_the_device_no_more_often(max_length, tokens):
    found = []
    for layers in (2, 5):
        net = Network.random(Spec(layers, 2, 8, mask="causal"), dtype=torch.float64)
        with Calls() as seen:
            path_lengths(net, tokens(2, 5, 8), max_length=max_length)
        found.append(seen.waiting.total())
    assert found[0] == found[1] > 0


def test_sums_that_overflow_are_no_broken_numbers(monkeypatch, lively):
    """A watch that saw something does no more than have every layer looked at in its turn."""
    net, x = lively(KINDS["pre-norm"]), batch()
    expected = path_lengths(net, x)
    monkeypatch.setattr(_frozen.FinitenessCheck, "saw_only_numbers", lambda _: False)
    found = path_lengths(net, x)
    assert found.columns == expected.columns
    assert torch.equal(found.contributions, expected.contributions)


def test_a_watch_sees_what_is_no_number_but_not_in_padding():
    net, x = Network.random(KINDS["pre-norm"]), batch()
    mask = torch.ones(2, 5).bool()
    mask[1, 4] = False
    x[1, 4, 2] = torch.nan
    for token_mask, fine in ((mask, True), (None, False)):
        watch = _frozen.FinitenessCheck()
        watch.note(net, 1, batch())
        watch.note(net, 2, x, token_mask)
        assert watch.saw_only_numbers() == fine
