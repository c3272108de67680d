"""One way through more samples than fit at once."""

import pytest
import torch

from rankscope.core.batches import batches, gathered
from rankscope.core.network import Network, Rotary, Spec
from rankscope.core.tracing import trace, trace_in_batches
from rankscope.errors import InputError, KindError, ShapeError

X = torch.arange(5 * 3 * 2.0).view(5, 3, 2)
ROWS = torch.tensor([[1, 1, 1], [1, 0, 1], [0, 1, 1], [1, 1, 0], [0, 0, 1]]).bool()


def test_every_sample_comes_once_with_its_own_rows_of_the_masks():
    found = list(batches(X, ROWS, ~ROWS, size=2))
    assert [batch.start for batch in found] == [0, 2, 4]
    for part, whole in (("x", X), ("token_mask", ROWS), ("measured", ~ROWS)):
        assert torch.equal(torch.cat([getattr(batch, part) for batch in found]), whole)


@pytest.mark.parametrize("mask", [ROWS[1], ROWS[1:2]], ids=["(token,)", "(1, token)"])
def test_a_mask_of_one_row_belongs_to_all_samples(mask):
    for batch in batches(X, mask, mask, size=2):
        assert batch.token_mask is mask
        assert batch.measured is mask


def test_nothing_is_masked_if_no_mask_is_given():
    (only,) = batches(X, size=9)
    assert only.start == 0
    assert only.token_mask is None
    assert only.measured is None


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: batches(X, size=0), InputError, "batch_size=0 is out of range; expected 1"),
        (lambda: batches(X, size=2.0), KindError, "batch_size=2.0 is a float"),
        (lambda: batches(X[:0], size=1), InputError, "x has no samples"),
        (lambda: batches(X, ROWS[:3], size=2), ShapeError, "token_mask has 3 rows for 5 samples"),
        (lambda: batches(X[:3], None, ROWS, size=2), ShapeError, "measured has 5 rows for 3"),
    ],
)
def test_what_cannot_be_run(call, error, words):
    with pytest.raises(error, match=words):
        list(call())


@pytest.mark.parametrize("measured", [None, ROWS[1], torch.tensor([[0, 1, 1]]).bool()])
def test_a_trace_in_batches_is_the_trace(measured):
    net = Network.random(Spec(2, 1, 2, mask="causal"))
    mask = ROWS | torch.tensor([False, True, True])
    whole = trace(net, X, token_mask=mask, measured=measured)
    parts = trace_in_batches(net, X, batch_size=2, token_mask=mask, measured=measured)
    key = ["layer", "metric", "sample"]
    left, right = whole.table.sort(key), parts.table.sort(key)
    assert left.select(key).equals(right.select(key))
    torch.testing.assert_close(left["value"].to_torch(), right["value"].to_torch())


@pytest.mark.parametrize("mask", ["full", "causal", "window:3"])
def test_gathered_tokens_have_the_states_they_have_with_padding_between_them(mask: str) -> None:
    network = Network.random(Spec(2, 2, 8, mask=mask, scores=Rotary()), dtype=torch.float64)
    x = torch.randn(3, 9, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    some = torch.rand(3, 9, generator=torch.Generator().manual_seed(1)) < 0.5
    some[0, 0] = True
    near, kept = gathered(x, some)
    assert kept.shape[1] == int(some.sum(-1).max()) < 9
    assert torch.equal(near[kept], x[some])
    torch.testing.assert_close(network(near, kept)[kept], network(x, some)[some])
