"""Weights that are no numbers: said so, by name, before they read as collapse."""

import math

import pytest
import torch
from torch import nn

from rankscope import diagnose
from rankscope.core.network import Network, Spec
from rankscope.core.tracing import trace
from rankscope.errors import InputError

BAD = [math.nan, math.inf, -math.inf]
PARTS = ["attention.query", "attention.key", "attention.value", "attention.output", "mlp.up"]


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("part", PARTS)
def test_a_network_names_the_weight(part, bad, tokens):
    net = Network.random(Spec(3, 2, 8), dtype=torch.float64)
    with torch.no_grad():
        net.blocks[1].get_submodule(part).weight[1, 2] = bad
    words = rf"layer 2, blocks\.1\.{part}\.weight is {bad} at \[1, 2\] \(1 of"
    with pytest.raises(InputError, match=words):
        trace(net, tokens(2, 6, 8))
    with pytest.raises(InputError, match=words):
        diagnose(net, tokens(2, 6, 8))


def test_why_it_matters():
    """PyTorch's fused attention gives zeros for rows of NaN: perfect collapse, to all appearances.

    If it ever stops to, the check costs time for nothing.
    """
    rows = torch.full((1, 1, 4, 8), math.nan)
    out = nn.functional.scaled_dot_product_attention(rows, rows, torch.ones(1, 1, 4, 8))
    assert not out.isnan().all()


def bert(**options):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=11, hidden_size=8, num_hidden_layers=3, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=16, **options,
    )  # fmt: skip
    return transformers.BertModel(config).eval()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_hugging_face_model_names_the_weight(attention, bad):
    model = bert(attn_implementation=attention)
    with torch.no_grad():
        model.encoder.layer[2].attention.self.query.weight[0, 0] = bad
    words = r"layer 3, encoder\.layer\.2\.attention\.self\.query\.weight is"
    with pytest.raises(InputError, match=words):
        trace(model, torch.tensor([[1, 2, 3]]))


@pytest.mark.filterwarnings("ignore")
def test_what_the_blocks_do_not_use_is_only_noted():
    model = bert()
    with torch.no_grad():
        model.pooler.dense.weight[0, 0] = math.nan
    traced = trace(model, torch.tensor([[1, 2, 3]]))
    assert traced.provenance.settings["not finite"] == "pooler.dense.weight"


@pytest.mark.parametrize(("value", "refused"), [(-math.inf, False), (math.nan, True)])
def test_masks_in_buffers_may_be_infinite(value, refused, tokens):
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8, dtype=torch.float64)
            self.register_buffer("mask", torch.full((5, 5), value).triu(1))

        def forward(self, x):
            return self.linear(x)

    model = nn.Sequential(Masked(), Masked())
    if refused:
        with pytest.raises(InputError, match=r"layer 1, 0\.mask is nan"):
            trace(model, tokens(1, 5, 8))
    else:
        assert "not finite" not in trace(model, tokens(1, 5, 8)).provenance.settings


def test_large_weights_are_numbers(tokens):
    net = Network.random(Spec(2, 2, 8, norm_place="post"), dtype=torch.float64)
    with torch.no_grad():
        net.blocks[0].attention.query.weight.fill_(1e308)
    found = trace(net, tokens(1, 4, 8) * 1e-308)
    assert all(map(math.isfinite, found.columns["value"]))


# Finite weights whose queries or keys are not.


@pytest.mark.parametrize("part", ["query", "key"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_a_network_whose_queries_overflow(dtype, part, tokens):
    """Every score of a row is NaN, and the fused kernel would give zeros: perfect collapse."""
    net = Network.random(Spec(3, 2, 8, norm="none"), dtype=dtype)
    with torch.no_grad():
        weight = getattr(net.blocks[1].attention, part).weight
        weight.fill_(torch.finfo(dtype).max)
    x = tokens(2, 6, 8).abs().add(4).to(dtype)
    with pytest.raises(InputError, match="layer 2"):
        trace(net, x)
    if part == "query":
        with pytest.raises(InputError, match=r"layer 2: queries overflow float(16|32|64) .*wider"):
            trace(net, x, metrics={"count": lambda h, **_: h.new_ones(len(h))})


@pytest.mark.parametrize(("size", "refused"), [(1e17, False), (1e21, True)])
def test_products_of_queries_and_keys_that_overflow(size, refused, tokens):
    """Each is a number, their products are all -∞ in single precision: a row that sees nothing."""
    net = Network.random(Spec(2, 2, 8, norm="none"))
    with torch.no_grad():
        net.blocks[0].attention.query.weight.fill_(size)
        net.blocks[0].attention.key.weight.fill_(-size)
    x = tokens(2, 6, 8).abs().float()
    if refused:
        with pytest.raises(InputError, match="layer 1: products of queries and keys overflow"):
            trace(net, x)
    else:
        assert all(map(math.isfinite, trace(net, x).columns["value"]))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_hugging_face_model_whose_queries_overflow(attention):
    """BERT is normed after each layer, so that zeros for attention leave no other trace."""
    model = bert(attn_implementation=attention)
    with torch.no_grad():
        query = model.encoder.layer[1].attention.self.query
        query.bias.fill_(torch.finfo(torch.float32).max)
        query.weight.fill_(0.0)[:, 0] = 3e38
        model.encoder.layer[0].output.LayerNorm.bias[0] = 50.0
    with pytest.raises(InputError, match="layer 2"):
        trace(model, torch.tensor([[1, 2, 3]]))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("batch_first", [True, False])
def test_an_encoder_of_pytorch_whose_queries_overflow(batch_first, tokens):
    """With the batch first it is one operation, which hands NaN on."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=batch_first)
    model = nn.TransformerEncoder(layer, 2).eval()
    with torch.no_grad():
        model.layers[1].self_attn.in_proj_bias[:16].fill_(1e21)
        model.layers[1].self_attn.in_proj_bias[:8].fill_(-1e21)
    with pytest.raises(InputError, match="layer 2"):
        trace(model, tokens(3, 5, 8).float())


@pytest.mark.filterwarnings("ignore")
def test_wavlm_whose_queries_overflow():
    """It calls PyTorch's attention itself, its packed weights an empty tensor."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.WavLMConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
        conv_dim=(8, 8), conv_stride=(5, 2), conv_kernel=(10, 3), num_feat_extract_layers=2,
        num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, do_stable_layer_norm=False,
    )  # fmt: skip
    model = transformers.WavLMModel(config).eval()
    given = {"input_values": torch.randn(1, 200)}
    found = trace(model, given, blocks="encoder.layers")
    assert all(map(math.isfinite, found.columns["value"]))
    with torch.no_grad():
        attention = model.encoder.layers[1].attention
        attention.q_proj.weight.mul_(1e25)
        attention.k_proj.weight.mul_(1e25)
    with pytest.raises(InputError, match="layer 2: products of queries and keys overflow"):
        trace(model, given, blocks="encoder.layers")
