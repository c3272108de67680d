"""Every family computes what its original does, layer by layer, and padding changes nothing."""

import pytest
import torch
import transformers as hf
from torch import nn

from rankscope import trace
from rankscope.core.tracing import MEASURES
from rankscope.errors import UnsupportedModelError, VerificationError
from rankscope.models.families import load, verify
from rankscope.models.recognition._precision import full_precision

from .conftest import TEXTUAL, TINY, lively


@pytest.mark.parametrize("name", TINY)
def test_float64_agrees_to_ten_digits(name: str) -> None:
    loaded = load(lively(name), dtype=torch.float64)
    assert len(loaded.verification.errors) == loaded.network.spec.layers
    assert loaded.verification.worst < 1e-10


@pytest.mark.parametrize("name", TINY)
def test_float32_agrees_to_its_rounding(name: str) -> None:
    assert load(lively(name)).verification.worst < 1e-5


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "neox", "t5", "vit"])
def test_bfloat16_agrees_to_its_rounding(name: str) -> None:
    loaded = load(lively(name), dtype=torch.bfloat16)
    assert loaded.verification.tolerance == 1e-1
    assert loaded.network.blocks[0].attention.query.weight.dtype == torch.bfloat16


@pytest.mark.parametrize("name", TINY)
def test_weights_are_shared_with_the_original(name: str) -> None:
    loaded = load(lively(name))
    theirs = {parameter.data_ptr() for parameter in loaded.original.parameters()}
    ours = {parameter.data_ptr() for parameter in loaded.network.parameters()}
    assert ours <= theirs


@pytest.mark.parametrize("name", ["llama", "qwen3", "t5"])
def test_originals_keep_their_precision_while_they_are_compared(name: str) -> None:
    """Their norms step down to float32; inside ``full_precision`` they do not."""
    norms = [m for m in lively(name).double().modules() if hasattr(m, "variance_epsilon")]
    x = torch.randn(2, 3, norms[0].weight.shape[0], dtype=torch.float64)
    exact = nn.functional.rms_norm(x, x.shape[-1:], norms[0].weight, norms[0].variance_epsilon)
    with full_precision():
        inside = norms[0](x)
    assert torch.allclose(inside, exact, rtol=1e-14, atol=0)
    assert not torch.allclose(norms[0](x), exact, rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", ["bert", "albert", "xlnet", "gpt2", "llama", "neox", "t5", "vit"])
def test_a_wrong_weight_is_found_and_its_layer_named(name: str) -> None:
    loaded = load(lively(name).double())
    wrong = loaded.network.double()
    if name == "albert":
        expected = 1  # one block serves all layers
        block = wrong.blocks[0]
    else:
        expected = 2
        block = wrong.blocks[1]
    with torch.no_grad():
        for parameter in block.mlp.parameters():
            parameter.mul_(1 + 1e-5)
    spoiled = type(loaded)(wrong, loaded.original, loaded.family, loaded.verification, loaded.name)
    with pytest.raises(VerificationError, match=rf"{loaded.family.name}: our layer {expected} "):
        verify(spoiled)


def test_a_forward_of_ones_own_is_put_back() -> None:
    """Accelerate gives modules a forward of their own; verification must not lose it."""
    model = lively("llama").double()
    norm = model.model.layers[0].input_layernorm
    mine = norm.forward
    norm.forward = lambda hidden: mine(hidden)
    own = norm.forward
    verify(model)
    assert norm.__dict__["forward"] is own


def test_what_happens_between_blocks_is_noticed() -> None:
    """Every block is recognised, and their sequence is not the model's."""
    model = lively("bert")
    model.encoder.layer[0].register_forward_hook(lambda _m, _x, output: output * 1.5)
    with pytest.raises((VerificationError, UnsupportedModelError), match="layer 1"):
        load(model)
    assert load(lively("bert")).family.name == "BERT"


def test_verify_returns_a_table_and_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    verification = verify(lively("bert"))
    assert capsys.readouterr().out == ""
    assert str(verification).count("layer") == 4
    assert verification.table.columns == ["layer", "metric", "value"]
    assert verification.table["layer"].to_list() == [1, 2, 3]


def test_loading_leaves_the_model_in_its_mode_and_without_hooks() -> None:
    model = lively("gpt2").train()
    model.h[0].eval()
    load(model)
    assert model.training
    assert not model.h[0].training
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def padded(rows: list[list[int]], left: int, right: int, fill: int) -> tuple:
    ids = torch.tensor([[fill] * left + row + [fill] * right for row in rows])
    mask = torch.tensor([[False] * left + [True] * len(row) + [False] * right for row in rows])
    return ids, mask


@pytest.mark.parametrize("name", TEXTUAL)
def test_padding_changes_no_figure(name: str) -> None:
    """The same sentence alone, left-padded and right-padded, in every metric."""
    loaded = load(lively(name), dtype=torch.float64)
    sentence = [[5, 17, 42, 8, 66, 23, 9]]
    fill = loaded.body.config.pad_token_id or 0
    figures = []
    for left, right in ((0, 0), (3, 0), (0, 4)):
        ids, mask = padded(sentence, left, right, fill)
        x, token_mask, _ = loaded.inputs(ids, token_mask=mask)
        traced = trace(loaded.network, x, metrics=list(MEASURES), token_mask=token_mask)
        figures.append(torch.tensor(traced.columns["value"], dtype=torch.float64))
    assert torch.allclose(figures[0], figures[1], rtol=1e-5, atol=1e-9)
    assert torch.allclose(figures[0], figures[2], rtol=1e-5, atol=1e-9)


def test_what_has_no_known_form_is_refused_by_layer_and_part() -> None:
    model = lively("gpt2")
    model.h[1].mlp.act = nn.Tanh()
    with pytest.raises(UnsupportedModelError, match=r"layer 2 .*its MLP.*rankscope\.trace"):
        load(model)
    with pytest.raises(UnsupportedModelError, match="no stack of blocks"):
        load(nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [("gpt2", "add_cross_attention", True), ("xlnet", "attn_type", "uni")],
)
def test_what_a_family_does_not_convert_is_refused(name: str, option: str, value: object) -> None:
    model = lively(name)
    setattr(model.config, option, value)
    with pytest.raises(UnsupportedModelError, match=f"{option}={value!r}"):
        load(model)


def test_unknown_rotary_embeddings_are_refused() -> None:
    model = lively("llama")
    model.model.rotary_emb.rope_type = "axial"
    with pytest.raises(UnsupportedModelError, match="'axial'"):
        load(model)


ROTARY = {
    "dynamic": {"factor": 4.0},
    "longrope": {"short_factor": [1.1, 1.3, 1.5], "long_factor": [2.0, 3.0, 5.0]},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "yarn": {"factor": 4.0},
    "linear": {"factor": 2.0},
}


@pytest.mark.parametrize("kind", ROTARY)
def test_rotary_embeddings_of_every_length(kind: str) -> None:
    """Short texts and long ones, each by a fresh original: some remember the longest so far."""
    rope = {"rope_type": kind, "rope_theta": 10000.0, **ROTARY[kind]}
    rope["original_max_position_embeddings"] = 32
    shape = {"vocab_size": 97, "hidden_size": 24, "num_hidden_layers": 2, "intermediate_size": 40}
    limit = 32 if kind == "dynamic" else 128
    config = hf.LlamaConfig(
        **shape, num_attention_heads=4, max_position_embeddings=limit, rope_parameters=rope
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        weights = hf.LlamaModel(config).state_dict()
    outputs = []
    for tokens in (20, 100):
        model = hf.LlamaModel(config).eval()
        model.load_state_dict(weights)
        ids = torch.arange(tokens).remainder(97)[None]
        with torch.no_grad():
            network = load(model).network
            expected = model(ids, output_hidden_states=True).hidden_states
            states = list(network.states(expected[0]))
        assert torch.allclose(states[0], expected[1], rtol=1e-4, atol=1e-6)
        outputs.append(states[0][0, :20])
    changes = kind in ("dynamic", "longrope")
    assert torch.allclose(*outputs, rtol=1e-4, atol=1e-6) != changes
