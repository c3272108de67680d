"""Padding masks of every kind, read as the model reads them, or refused."""

import math

import pytest
import torch
from torch import nn

from rankscope.core.metrics import dispersion
from rankscope.core.tracing import trace
from rankscope.errors import InputError

TOKENS = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [0, 1, 1, 1, 1]]).bool()
ALL = torch.ones(3, 5).bool()


class Taking(nn.Module):
    """A model whose mask has any name."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8)) for _ in range(2))

    def forward(self, x, **masks):
        del masks
        for layer in self.layers:
            x = layer(x)
        return x


def added(mask, far=-math.inf):
    """What is added to logits: nothing at tokens, and very little chance at padding."""
    return torch.zeros(mask.shape).masked_fill(~mask, far)


READ = {
    "bool": ("attention_mask", TOKENS, TOKENS, "True is a token"),
    "integers": ("attention_mask", TOKENS.long(), TOKENS, "1 is a token"),
    "reals": ("attention_mask", TOKENS.float(), TOKENS, "1 is a token"),
    "all ones": ("attention_mask", ALL.float(), ALL, "1 is a token"),
    "global ones": ("attention_mask", TOKENS.long() * 2, TOKENS, "more than 0 is a token"),
    "added": ("attention_mask", added(TOKENS), TOKENS, "0 is a token"),
    "added, lowest": ("attention_mask", added(TOKENS, -3.4e38), TOKENS, "0 is a token"),
    "added, -10000": ("attention_mask", added(TOKENS, -1e4), TOKENS, "0 is a token"),
    "added, no padding": ("attention_mask", added(ALL), ALL, "0 is a token"),
    "PyTorch's": ("src_key_padding_mask", ~TOKENS, TOKENS, "True is padding"),
    "PyTorch's, added": ("src_key_padding_mask", added(TOKENS), TOKENS, "0 is a token"),
    "PyTorch's, of attention": ("key_padding_mask", ~TOKENS, TOKENS, "True is padding"),
    "PyTorch's, no padding": ("src_key_padding_mask", added(ALL), ALL, "0 is a token"),
    "causal": ("attention_mask", torch.ones(3, 1, 5, 5).tril(), None, "of pairs"),
    "causal, added": ("attention_mask", added(torch.ones(5, 5).tril().bool())[None], None, "pairs"),
}


@pytest.mark.parametrize("kind", READ)
def test_masks_that_can_be_read(kind, tokens):
    name, mask, expected, words = READ[kind]
    model, x = Taking(), tokens(3, 5, 8).float()
    traced = trace(model, {"x": x, name: mask}, metrics=["dispersion"])
    with torch.no_grad():
        states = [x, model.layers[0](x), model(x)]
    by_hand = [v for state in states for v in dispersion(state, token_mask=expected).tolist()]
    assert traced.columns["value"] == pytest.approx(by_hand, rel=1e-6)
    assert words in traced.provenance.settings["mask"]
    assert name in traced.provenance.settings["mask"]


REFUSED = {
    "neither": ("attention_mask", torch.rand(3, 5)),
    "negative integers": ("attention_mask", torch.full((3, 5), -1)),
    "padding as numbers": ("src_key_padding_mask", (~TOKENS).float()),
    "padding as integers": ("src_key_padding_mask", (~TOKENS).long()),
    "either way": ("padding_mask", TOKENS),
    "XLNet's, elsewhere": ("input_mask", TOKENS.float()),
    "hidden keys": ("attention_mask", TOKENS[:, None, None].long()),
    "hidden keys of pairs": ("attention_mask", TOKENS[:, None].expand(3, 5, 5)),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_masks_of_two_readings_are_refused(kind, tokens):
    name, mask = REFUSED[kind]
    model, x = Taking(), tokens(3, 5, 8).float()
    with pytest.raises(InputError, match=rf"{name}.*token_mask="):
        trace(model, {"x": x, name: mask})
    told = trace(model, {"x": x, name: mask}, token_mask=TOKENS)
    assert told.columns == trace(model, x, token_mask=TOKENS).columns
    assert told.provenance.settings["mask"] == "token_mask, as specified"


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("as_numbers", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_pytorch_itself_reads_its_masks_so(batch_first, as_numbers, tokens):
    """The oracle is the model: what it calls padding changes none of what is measured."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=batch_first, dtype=torch.float64)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    mask = added(TOKENS).double() if as_numbers else ~TOKENS
    found = []
    for noise in (0.0, 1e3):
        x = torch.where(TOKENS[..., None], tokens(3, 5, 8), noise)
        inputs = {"src": x if batch_first else x.transpose(0, 1), "src_key_padding_mask": mask}
        found.append(trace(model, inputs, metrics=["dispersion"]).columns["value"])
    assert found[0] == pytest.approx(found[1], rel=1e-9)
