"""Weights and inputs on which several readings agree: the right one is chosen, or none."""

from collections.abc import Callable

import pytest
import torch
import transformers as hf
from torch import nn

from rankscope import load
from rankscope.errors import InputError, UnsupportedModelError
from rankscope.models.families import Family, Loaded, check
from rankscope.models.families._verification import Probe, compare, text_arguments

_SHAPE = {
    "vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
    "intermediate_size": 40, "max_position_embeddings": 512,
}  # fmt: skip
_GROUPED = {**_SHAPE, "num_key_value_heads": 2}
_GPT = {"vocab_size": 97, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 512}

FRESH: dict[str, Callable[[], nn.Module]] = {
    "scale": lambda: hf.GraniteModel(hf.GraniteConfig(**_GROUPED, attention_multiplier=0.1)),
    "pairs of rotary coordinates": lambda: hf.Cohere2Model(hf.Cohere2Config(**_GROUPED)),
    "stored table of rotations": lambda: hf.GPTJModel(hf.GPTJConfig(**_GPT, rotary_dim=4)),
    "scale by layer": lambda: hf.GPT2Model(
        hf.GPT2Config(**_GPT, scale_attn_by_inverse_layer_idx=True)
    ),
    "biases of distances": lambda: hf.MPNetModel(hf.MPNetConfig(**_SHAPE)),
    "activation": lambda: hf.OpenAIGPTModel(hf.OpenAIGPTConfig(**_GPT)),
    "norms after rotations": lambda: hf.HunYuanDenseV1Model(
        hf.HunYuanDenseV1Config(**_GROUPED, head_dim=8)
    ),
    "biases that layers share": lambda: hf.T5Model(
        hf.T5Config(vocab_size=97, d_model=32, d_kv=8, d_ff=40, num_layers=3, num_heads=4)
    ),
}
"""Models as their library draws them, by what small or constant weights leave open."""


def made(name: str) -> nn.Module:
    torch.manual_seed(0)
    return FRESH[name]().eval()


def error_elsewhere(loaded: Loaded, tokens: int = 24) -> float:
    """The error in float64, with other weights and on another input."""
    generator = torch.Generator().manual_seed(1)
    body = loaded.body.double()  # in place, so that the network, which shares its weights, follows
    with torch.no_grad():
        for parameter in body.parameters():
            size = 0.3 if parameter.ndim == 1 else parameter.shape[-1] ** -0.5
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter += size * noise
    ids = torch.randint(3, 97, (2, tokens), generator=generator)
    mask = torch.ones_like(ids, dtype=torch.bool)
    probe = Probe(text_arguments(loaded.family, body, ids, mask), mask)
    return compare(loaded.family, body, loaded.network, [probe]).worst


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", FRESH)
def test_a_fresh_model_is_read_as_in_float64(name: str, dtype: torch.dtype) -> None:
    """Wrong scales and pairings differ by less than the rounding of halves."""
    loaded = load(made(name), dtype=dtype)
    # Tables that were rounded to halves stay rounded.
    rounded = name == "stored table of rotations" and dtype != torch.float32
    assert error_elsewhere(loaded) < (3e-2 if rounded else 1e-6)


@pytest.mark.parametrize("parallel", [False, True])
def test_zero_projections_do_not_hide_the_order_of_sums(parallel: bool) -> None:
    torch.manual_seed(0)
    config = hf.GPTNeoXConfig(**_SHAPE, use_parallel_residual=parallel)
    model = hf.GPTNeoXModel(config).double().eval()
    for layer in model.layers:
        nn.init.zeros_(layer.attention.dense.weight)
        nn.init.zeros_(layer.mlp.dense_4h_to_h.weight)
    loaded = load(model)
    assert loaded.network.spec.parallel is parallel
    assert error_elsewhere(loaded) < 1e-10


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_weights_are_left_as_they_were(dtype: torch.dtype) -> None:
    model = made("biases that layers share").to(dtype)
    stored = {name: (t, t.data_ptr(), t.clone()) for name, t in model.state_dict().items()}
    load(model)
    for name, tensor in model.state_dict().items():
        _, pointer, values = stored[name]
        assert tensor.data_ptr() == pointer
        assert torch.equal(tensor, values)


def test_weights_are_restored_after_an_error() -> None:
    model = made("scale").bfloat16()
    broken = model.layers[1].mlp.down_proj
    values = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    hook = broken.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(UnsupportedModelError, match="does not run"):
        load(model)
    hook.remove()
    for name, tensor in model.state_dict().items():
        assert tensor.dtype == torch.bfloat16
        assert torch.equal(tensor, values[name])


def test_a_window_of_another_name_is_the_configured_one() -> None:
    torch.manual_seed(0)
    config = hf.GPTNeoConfig(
        vocab_size=97, hidden_size=32, num_layers=2, num_heads=4, window_size=200,
        attention_types=[[["global", "local"], 1]], max_position_embeddings=512,
    )  # fmt: skip
    loaded = load(hf.GPTNeoModel(config).double().eval())
    assert error_elsewhere(loaded, tokens=300) < 1e-10


_LATENT = {
    **_SHAPE, "num_key_value_heads": 4, "kv_lora_rank": 8, "q_lora_rank": 12,
    "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8, "n_routed_experts": 4,
    "num_experts_per_tok": 2, "first_k_dense_replace": 3, "n_group": 1, "topk_group": 1,
    "moe_intermediate_size": 16, "index_n_heads": 2, "index_head_dim": 16,
}  # fmt: skip
_SCALED = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 2.0, "beta_fast": 32.0,
    "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 200, "llama_4_scaling_beta": 0.5,
}  # fmt: skip


@pytest.mark.parametrize(
    ("option", "build"),
    [
        ("clip_qkv", lambda: hf.OlmoModel(hf.OlmoConfig(**_GROUPED, clip_qkv=8.0))),
        ("clip_qkv", lambda: hf.MptModel(
            hf.MptConfig(d_model=32, n_heads=4, n_layers=2, vocab_size=97, attn_config=
                         {"clip_qkv": 8.0})
        )),
        ("index_topk", lambda: hf.DeepseekV32Model(hf.DeepseekV32Config(**_LATENT))),
        ("llama_4_scaling_beta", lambda: hf.Ministral3Model(
            hf.Ministral3Config(**_GROUPED, rope_parameters=_SCALED)
        )),
    ],
)  # fmt: skip
def test_what_no_probe_shows_is_refused(option: str, build: Callable[[], nn.Module]) -> None:
    with pytest.raises(UnsupportedModelError, match=option):
        load(build().eval())


def test_parameters_without_a_role_are_refused() -> None:
    model = made("scale")
    model.layers[1].mlp.extra = nn.Parameter(torch.zeros(3))
    with pytest.raises(UnsupportedModelError, match=r"layer 2 .*mlp\.extra has no known role"):
        load(model)


def test_scales_that_differ_between_layers_are_not_described_by_a_spec() -> None:
    spec = load(made("scale by layer")).network.spec
    assert "scores that differ between layers" in spec.undescribed


@pytest.mark.parametrize(
    "probe",
    [torch.tensor([[5]]), {"input_ids": torch.full((2, 1), 5)}],
    ids=["one token", "one token each"],
)
def test_a_probe_on_which_all_attention_agrees_is_refused(probe: object) -> None:
    with pytest.raises(UnsupportedModelError, match="cannot be told apart"):
        load(made("scale"), probe=probe)


@pytest.mark.parametrize("mask", [[1, 2], torch.ones(1, 3), torch.ones(1, 1, 9, 9)], ids=str)
def test_masks_of_probes_are_checked(mask: object) -> None:
    with pytest.raises((InputError, UnsupportedModelError), match="mask"):
        load(made("scale"), probe={"input_ids": torch.arange(9)[None], "attention_mask": mask})


@pytest.mark.parametrize(
    ("family", "sentence"),
    [
        (Family("mine", body="no.where"), "body='no.where' is not in the model"),
        (Family("mine", layers=lambda body: body.nothing), "mine: its layers failed"),
        (Family("mine", layers=lambda _body: []), "mine: its layers are"),
        (Family("mine", scores=lambda parts: parts.nothing), "mine: its scores failed"),
        (Family("mine", scores=lambda _parts: [1]), "mine: its scores are"),  # type: ignore[list-item]
        (Family("mine", recognise=lambda *_: 1 / 0), "mine: its recognise failed"),  # type: ignore[arg-type, return-value]
        (Family("mine", recognise=lambda *_: None), "mine: its recognise gives None"),  # type: ignore[arg-type, return-value]
        (Family("mine", initialised=lambda _config: {"no": 1}), "mine: its initialised failed"),
        (Family("mine", token_axis=0), "token_axis"),
    ],
)
def test_what_a_description_raises_becomes_a_sentence(family: Family, sentence: str) -> None:
    with pytest.raises((InputError, UnsupportedModelError), match=sentence):
        check(family, made("scale"))


def test_an_example_that_fails_becomes_a_sentence() -> None:
    with pytest.raises(InputError, match="mine: its example failed"):
        check(Family("mine", example=lambda: {}["no"]))
