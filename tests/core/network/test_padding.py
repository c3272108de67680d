"""Padding tokens are not tokens: whatever surrounds a sequence, its outputs are the same."""

from dataclasses import dataclass

import pytest
import torch

from rankscope.core.masks import Causal, Explicit, Full, Window
from rankscope.core.network import Scores, Spec, Visibility
from rankscope.errors import InputError, KindError, ShapeError

N = 4  # real tokens of each sequence
GRAPH = torch.tensor([[1, 0, 0, 1], [1, 0, 1, 0], [0, 1, 1, 0], [1, 0, 0, 0]]).bool()
MASKS = {
    "full": Full(),
    "causal": Causal(),
    "window": Window(before=1, after=1),
    "causal-window": Window(before=2, after=0),
    "explicit": Explicit.of(GRAPH),
}
SIDES = {
    "right": [1, 1, 1, 1, 0, 0, 0],
    "left": [0, 0, 0, 1, 1, 1, 1],
    "both": [0, 1, 1, 1, 1, 0, 0],
    "inside": [1, 0, 1, 0, 0, 1, 1],
}


@dataclass(frozen=True)
class Distance:
    """A score that looks at positions, so that it would notice shifted ones."""

    slope: float

    def build(self, heads, head_width):
        del heads, head_width
        return DistanceScores(self.slope)


class DistanceScores(Scores):
    def __init__(self, slope):
        super().__init__()
        self.slope = slope

    def bias(self, query, key, positions):
        del key
        away = positions[:, :, None] - positions[:, None, :]
        return (-self.slope * away.abs()).to(query.dtype).unsqueeze(1)


def padded(x, pattern, garbage):
    """``x`` spread over the ones of ``pattern``, garbage elsewhere, and the token mask."""
    token_mask = torch.tensor(pattern).bool().expand(len(x), -1)
    wide = torch.full((*token_mask.shape, x.shape[-1]), garbage, dtype=x.dtype)
    wide[token_mask] = x.flatten(0, 1)
    return wide, token_mask


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("place", ["pre", "post"])
@pytest.mark.parametrize("scores", ["dot", Distance(0.7)], ids=["dot", "distance"])
def test_outputs_do_not_depend_on_padding(scores, place, mask, side, lively, tokens):
    spec = Spec(
        3, 2, 6, norm_place=place, mask=MASKS[mask], scores=scores, init="lecun", mlp_ratio=1
    )
    net = lively(spec)
    x = tokens(2, N, 6)
    wide, token_mask = padded(x, SIDES[side], 1e6)
    out = net(wide, token_mask)[token_mask].view_as(x)
    torch.testing.assert_close(out, net(x), rtol=0, atol=1e-10)


@pytest.mark.parametrize("mask", ["full", "causal", "window", "causal-window"])
def test_sequences_of_different_lengths_share_a_batch(mask, lively, tokens):
    net = lively(Spec(2, 2, 6, mask=MASKS[mask], init="lecun"))
    x = tokens(3, 5, 6)
    lengths = (5, 2, 1)
    token_mask = torch.arange(5) < torch.tensor(lengths)[:, None]
    out = net(x, token_mask)
    for sample, length in enumerate(lengths):
        alone = net(x[sample : sample + 1, :length])
        torch.testing.assert_close(out[sample, :length], alone[0], rtol=0, atol=1e-10)


def test_one_mask_for_all_samples(lively, tokens):
    net, x = lively(Spec(1, 2, 6)), tokens(3, 4, 6)
    one = torch.tensor([True, True, True, False])
    assert torch.equal(net(x, one), net(x, one.expand(3, 4)))


def test_output_at_padding_is_finite(lively, tokens):
    for mask in MASKS.values():
        wide, token_mask = padded(tokens(2, N, 6), SIDES["both"], 3.0)
        assert lively(Spec(2, 2, 6, mask=mask))(wide, token_mask).isfinite().all()


def test_sight_counts_real_tokens_only():
    token_mask = torch.tensor([[0, 1, 1, 0], [1, 1, 1, 1]]).bool()
    seen = Visibility.of(Causal(), 4, token_mask, torch.device("cpu"))
    assert seen.positions[0, 1:3].tolist() == [0, 1]
    assert seen.positions[1].tolist() == [0, 1, 2, 3]
    first = [[1, 0, 0, 0], [0, 1, 0, 0], [0, 1, 1, 0], [0, 0, 0, 1]]  # padding sees itself
    assert seen.allowed[0, 0].int().tolist() == first
    assert torch.equal(seen.allowed[1, 0], torch.ones(4, 4).tril().bool())


def test_full_attention_without_padding_needs_no_matrix():
    """None keeps the fused kernel's unmasked path, which is the fast one."""
    assert Visibility.of(Full(), 4, None, torch.device("cpu")).allowed is None


def test_a_token_left_blind_by_padding_is_an_error(lively, tokens):
    """Token 0 attends to token 2 alone; a sequence of two tokens leaves it nothing."""
    no_loops = torch.tensor([[0, 0, 1], [1, 0, 0], [1, 0, 0]]).bool()
    net = lively(Spec(1, 2, 6, mask=no_loops))
    x = tokens(2, 3, 6)
    assert net(x).isfinite().all()
    with pytest.raises(InputError, match="token 0 of sample 1 has no key to attend to"):
        net(x, torch.tensor([[True, True, True], [True, True, False]]))


@pytest.mark.parametrize(
    ("token_mask", "error", "words"),
    [
        (torch.ones(2, 3), KindError, "torch.bool"),
        (torch.ones(2, 4).bool(), ShapeError, r"\(2, 4\)"),
        (torch.tensor([[True, True, True], [False, False, False]]), InputError, r"sample \[1\]"),
        ([[True, True, True]] * 2, KindError, "list"),
    ],
    ids=["float", "length", "empty", "list"],
)
def test_wrong_token_masks(token_mask, error, words, lively, tokens):
    with pytest.raises(error, match=words):
        lively(Spec(1, 2, 6))(tokens(2, 3, 6), token_mask)
