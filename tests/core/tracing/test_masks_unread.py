"""Masks that are given in a way that hides what they mean, or are about something else."""

import pytest
import torch
import transformers as hf
from torch import nn

from rankscope import trace
from rankscope.core.tracing import find_blocks
from rankscope.errors import InputError

IDS = torch.tensor([[1, 2, 3, 4, 5], [6, 7, 8, 0, 0]])
MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
SHAPE = {"vocab_size": 30, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}


class Anything(nn.Module):
    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder

    def forward(self, *args, **kwargs):
        return self.encoder(*args, **kwargs)


@pytest.fixture
def bert():
    torch.manual_seed(0)
    return hf.BertModel(hf.BertConfig(**SHAPE, intermediate_size=16)).eval()


def values(model, inputs, **options):
    return trace(model, inputs, metrics="relative_residual", **options).columns["value"]


def test_a_compiled_model_has_the_arguments_of_the_one_inside(bert):
    known = values(bert, {"input_ids": IDS, "attention_mask": MASK})
    compiled = torch.compile(bert, backend="eager")
    assert values(compiled, (IDS, MASK)) == pytest.approx(known)


def test_a_wrapper_that_takes_anything_does_not_hide_a_mask(bert):
    known = values(bert, {"input_ids": IDS, "attention_mask": MASK})
    with pytest.raises(InputError, match="argument 2 may be a mask"):
        trace(Anything(bert), (IDS, MASK))
    assert values(Anything(bert), (IDS, MASK), token_mask=MASK.bool()) == pytest.approx(known)


def test_a_decoder_alone_in_an_encoders_place_is_no_decoder():
    torch.manual_seed(0)
    config = hf.OPTConfig(**SHAPE, ffn_dim=16, word_embed_proj_dim=8, max_position_embeddings=16)
    model = hf.OPTModel(config).eval()
    known = values(model, {"input_ids": IDS, "attention_mask": MASK})
    wrapped = values(Anything(model), {"input_ids": IDS, "attention_mask": MASK})
    assert wrapped == pytest.approx(known)


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(30, 8)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(2))

    def forward(self, ids, mask=None):
        x = self.embedding(ids)
        x = x if mask is None else x * mask[..., None]
        for layer in self.layers:
            x = x + layer(x)
        return x


def test_a_mask_under_a_bare_name_is_not_passed_over():
    with pytest.raises(InputError, match="mask may be a mask that marks tokens or padding"):
        trace(Own(), {"ids": IDS, "mask": MASK.bool()})
    assert trace(Own(), {"ids": IDS, "mask": torch.ones(2, 5).bool()}).columns["value"]


def test_two_masks_are_not_guessed_between(bert):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.query, self.passage = bert, hf.BertModel(bert.config).eval()

        def forward(self, input_ids, attention_mask, p_input_ids, p_attention_mask):
            self.query(input_ids, attention_mask)
            return self.passage(p_input_ids, p_attention_mask)

    inputs = dict.fromkeys(("input_ids", "p_input_ids"), IDS)
    inputs |= dict.fromkeys(("attention_mask", "p_attention_mask"), MASK)
    with pytest.raises(InputError, match="attention_mask and p_attention_mask"):
        trace(Two(), inputs, blocks="passage.encoder.layer")


def test_the_mask_of_a_text_is_not_about_an_image():
    torch.manual_seed(0)
    text = hf.CLIPTextConfig(**SHAPE, intermediate_size=16, projection_dim=8)
    seen = {**SHAPE, "intermediate_size": 16, "image_size": 8, "patch_size": 4, "projection_dim": 8}
    del seen["vocab_size"]
    config = hf.CLIPConfig(text_config=text.to_dict(), vision_config=seen, projection_dim=8)
    model = hf.CLIPModel(config).eval()
    images = torch.randn(2, 3, 8, 8)
    both = {"input_ids": IDS, "attention_mask": MASK, "pixel_values": images}
    stack = find_blocks(model, "vision_model.encoder.layers")
    expected = values(model.vision_model, {"pixel_values": images})
    assert values(model, both, blocks=stack) == pytest.approx(expected)


def test_as_many_samples_as_tokens_leave_the_layout_open():
    square = torch.arange(25).reshape(5, 5) % 30
    with pytest.raises(InputError, match="as many samples as tokens, 5"):
        trace(Own(), {"ids": square})
    told = trace(Own(), {"ids": square}, layout="batch token feature")
    assert max(told.columns["sample"]) == 4


def test_figures_keep_their_digits_under_autocast(bert):
    with torch.no_grad():
        states = bert(IDS, MASK, output_hidden_states=True).hidden_states

    class Same(nn.Module):
        def forward(self, x):
            return x.clone()

    model = nn.Sequential(nn.Sequential(Same(), Same()))
    plain = trace(model, states[-1], metrics=("mean_cosine", "residual"), blocks=list(model)[:1])
    with torch.autocast("cpu", torch.bfloat16):
        cast = trace(model, states[-1], metrics=("mean_cosine", "residual"), blocks=list(model)[:1])
    assert cast.columns["value"] == plain.columns["value"]


def test_masks_of_something_else_are_left_alone():
    other = {"special_tokens_mask": MASK, "bool_masked_pos": MASK.bool(), "loss_mask": MASK}
    model = Anything(Own())
    model.encoder.forward = lambda ids, **_: Own.forward(model.encoder, ids)
    assert values(model, {"ids": IDS, **other}) == values(model, {"ids": IDS})
