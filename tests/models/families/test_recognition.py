"""Architectures that no family describes: recognised by their parts, proven by their numbers."""

import warnings
from collections.abc import Callable

import pytest
import torch
import transformers as hf
from torch import Tensor, nn

from rankscope import load, trace
from rankscope.core import deep, paths, theory
from rankscope.core.metrics import residual
from rankscope.core.network import LearnedSinks, Network, OffsetNorm
from rankscope.errors import (
    InputError,
    RankscopeError,
    ShapeError,
    UnsupportedModelError,
    VerificationError,
)
from rankscope.models.families import Family, Loaded, check
from rankscope.models.families import _architectures as architectures

from .conftest import enlivened
from .conftest import lively as lively_family

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it scripts functions, which PyTorch advises against
    import transformers.models.deberta_v2.modeling_deberta_v2

_SHAPE = {
    "vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
    "intermediate_size": 40, "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
_GROUPED = {**_SHAPE, "num_key_value_heads": 2}
_HEADS = {**_GROUPED, "head_dim": 8}
_MIXED = {
    "sliding_window": 5,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
_IMAGE = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40,
    "image_size": 32, "patch_size": 8,
}  # fmt: skip
_DEEPSEEK = {
    **_SHAPE, "num_key_value_heads": 4, "moe_intermediate_size": 16, "n_routed_experts": 4,
    "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2, "n_shared_experts": 1,
    "first_k_dense_replace": 1, "kv_lora_rank": 12, "q_lora_rank": 10, "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4, "v_head_dim": 8, "head_dim": 4,
}  # fmt: skip
_DEBERTA = {
    **_SHAPE, "relative_attention": True, "position_buckets": 16, "norm_rel_ebd": "layer_norm",
    "share_att_key": True, "pos_att_type": ["p2c", "c2p"],
}  # fmt: skip
_WAV2VEC2 = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40,
    "conv_dim": (32, 32), "conv_stride": (5, 2), "conv_kernel": (10, 3),
    "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}  # fmt: skip

MODELS: dict[str, Callable[[], nn.Module]] = {
    "gemma 2, capped logits, windows": lambda: hf.Gemma2Model(
        hf.Gemma2Config(**_HEADS, **_MIXED, attn_logit_softcapping=2.0, query_pre_attn_scalar=4)
    ),
    "gemma 3, two rotary bases": lambda: hf.Gemma3TextModel(
        hf.Gemma3TextConfig(**_HEADS, **_MIXED, query_pre_attn_scalar=4)
    ),
    "olmo 2, norms on outputs": lambda: hf.Olmo2Model(hf.Olmo2Config(**_GROUPED)),
    "cohere, parallel": lambda: hf.CohereModel(hf.CohereConfig(**_GROUPED)),
    "granite, multipliers": lambda: hf.GraniteModel(
        hf.GraniteConfig(**_GROUPED, attention_multiplier=0.3, residual_multiplier=0.22)
    ),
    "falcon, grouped": lambda: hf.FalconModel(
        hf.FalconConfig(**_SHAPE, new_decoder_architecture=True, num_kv_heads=2)
    ),
    "bloom, alibi": lambda: hf.BloomModel(
        hf.BloomConfig(vocab_size=97, hidden_size=32, n_layer=3, n_head=4)
    ),
    "mpnet, biases": lambda: hf.MPNetModel(hf.MPNetConfig(**{**_SHAPE, "pad_token_id": 1})),
    "modernbert, windows": lambda: hf.ModernBertModel(
        hf.ModernBertConfig(
            **_SHAPE, local_attention=6, global_attn_every_n_layers=2, cls_token_id=1,
            sep_token_id=2,
        )
    ),
    "phi 3, fused": lambda: hf.Phi3Model(hf.Phi3Config(**_GROUPED)),
    "glm, partial rotary": lambda: hf.GlmModel(hf.GlmConfig(**_HEADS)),
    "smollm 3, layers without positions": lambda: hf.SmolLM3Model(
        hf.SmolLM3Config(**_GROUPED, no_rope_layers=[1, 0, 1])
    ),
    "gpt-j, interleaved rotary": lambda: hf.GPTJModel(
        hf.GPTJConfig(vocab_size=97, n_embd=32, n_layer=3, n_head=4, rotary_dim=4, n_positions=256)
    ),
    "nemotron, 1 + w, squared relu": lambda: hf.NemotronModel(hf.NemotronConfig(**_HEADS)),
    "opt": lambda: hf.OPTModel(hf.OPTConfig(**_SHAPE, ffn_dim=40, word_embed_proj_dim=32)),
    "mixtral, experts": lambda: hf.MixtralModel(
        hf.MixtralConfig(**_GROUPED, num_local_experts=4, num_experts_per_tok=2)
    ),
    "qwen 2 moe, shared experts": lambda: hf.Qwen2MoeModel(
        hf.Qwen2MoeConfig(
            **_GROUPED, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16,
            shared_expert_intermediate_size=24,
        )
    ),
    "qwen 3 next, gates": lambda: hf.Qwen3NextModel(
        hf.Qwen3NextConfig(
            **_HEADS, layer_types=["full_attention"] * 3, num_experts=0, mlp_only_layers=[0, 1, 2]
        )
    ),
    "flint, sinks": lambda: hf.FlintModel(hf.FlintConfig(**_HEADS)),
    "deepseek v3, latent": lambda: hf.DeepseekV3Model(hf.DeepseekV3Config(**_DEEPSEEK)),
    "deepseek v3, whole queries": lambda: hf.DeepseekV3Model(
        hf.DeepseekV3Config(**{**_DEEPSEEK, "q_lora_rank": None})
    ),
    "deberta v3": lambda: hf.DebertaV2Model(hf.DebertaV2Config(**_DEBERTA)),
    "deberta, own projections of positions": lambda: hf.DebertaV2Model(
        hf.DebertaV2Config(**{**_DEBERTA, "share_att_key": False, "pos_att_type": ["c2p"]})
    ),
    "esm 2": lambda: hf.EsmModel(
        hf.EsmConfig(
            **{**_SHAPE, "pad_token_id": 1}, mask_token_id=32, position_embedding_type="rotary"
        )
    ),
    "esm c, divided branches": lambda: hf.EsmcModel(
        hf.EsmcConfig(
            vocab_size=97, hidden_size=32, num_hidden_layers=3, num_attention_heads=4,
            pad_token_id=0,
        )
    ),
    "bart's encoder": lambda: hf.BartModel(
        hf.BartConfig(
            vocab_size=97, d_model=32, encoder_layers=3, decoder_layers=1, pad_token_id=0,
            encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=40,
            decoder_ffn_dim=40, max_position_embeddings=256, bos_token_id=1, eos_token_id=2,
        )
    ),
    "dinov2, layer scale": lambda: hf.Dinov2Model(hf.Dinov2Config(**_IMAGE)),
    "dinov3, rotations of a grid": lambda: hf.DINOv3ViTModel(
        hf.DINOv3ViTConfig(**_IMAGE, num_register_tokens=2)
    ),
    "clip, text": lambda: hf.CLIPTextModel(hf.CLIPTextConfig(**_SHAPE)),
    "siglip, images": lambda: hf.SiglipVisionModel(hf.SiglipVisionConfig(**_IMAGE)),
    "whisper's encoder": lambda: hf.WhisperModel(
        hf.WhisperConfig(
            vocab_size=97, d_model=32, encoder_layers=3, decoder_layers=1, num_mel_bins=8,
            encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=40,
            decoder_ffn_dim=40, max_source_positions=20, pad_token_id=0, bos_token_id=1,
            eos_token_id=2, decoder_start_token_id=1,
        )
    ),
    "wav2vec 2": lambda: hf.Wav2Vec2Model(hf.Wav2Vec2Config(**_WAV2VEC2)),
}  # fmt: skip
REFUSED = {
    "gemma 2, capped logits, windows": "capped logits",
    "mixtral, experts": "mixtures of experts",
    "qwen 2 moe, shared experts": "mixtures of experts",
    "qwen 3 next, gates": "gates on its output",
    "flint, sinks": "learned sinks",
    "deepseek v3, latent": "latent projections",
    "deepseek v3, whole queries": "latent projections",
}
"""Models that scaled arithmetic does not support, and the part that is the reason."""
NO_PADDING = ("dinov2", "dinov3", "siglip", "whisper", "wav2vec", "opt", "bloom")


def lively(name: str) -> nn.Module:
    return enlivened(MODELS[name])


_LOADED: dict[str, Loaded] = {}


def loaded(name: str) -> Loaded:
    if name not in _LOADED:
        _LOADED[name] = load(lively(name), dtype=torch.float64)
    return _LOADED[name]


def states(network: Network, tokens: int = 6) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    shape = (2, tokens, network.spec.width)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def input_of(name: str) -> Tensor:
    """States of a few tokens; of an image all of them, whose rotations are those of its grid."""
    model = loaded(name)
    return model.inputs(model.noise_images(1)).x if "dinov3" in name else states(model.network)


@pytest.mark.parametrize("name", MODELS)
def test_float64_agrees_to_ten_digits(name: str) -> None:
    # BLOOM writes √(2/π) with eight digits.
    most = 1e-9 if "bloom" in name else 1e-10
    assert loaded(name).verification.worst < most
    assert len(loaded(name).verification.errors) == 3
    assert loaded(name).verify().worst < most, "on every probe"


@pytest.mark.parametrize("name", ["gemma 2, capped logits, windows", "mixtral, experts"])
def test_float32_agrees_to_its_rounding(name: str) -> None:
    assert load(lively(name)).verification.worst < 1e-5


@pytest.mark.parametrize("name", MODELS)
def test_weights_are_the_originals(name: str) -> None:
    theirs = {parameter.data_ptr() for parameter in loaded(name).original.parameters()}
    assert {parameter.data_ptr() for parameter in loaded(name).network.parameters()} <= theirs


@pytest.mark.parametrize("name", MODELS)
def test_paths_add_up_to_every_layer(name: str) -> None:
    network, x = loaded(name).network, input_of(name)
    lengths = paths.path_lengths(network, x)
    assert lengths.reconstruction_error < 1e-12
    with torch.no_grad():
        total = lengths.contributions.sum(0) + lengths.bias
        assert torch.allclose(total, network(x), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", MODELS)
def test_scaled_arithmetic_is_right_or_refused_by_name(name: str) -> None:
    network, x = loaded(name).network, input_of(name)
    if name in REFUSED:
        with pytest.raises(UnsupportedModelError, match=REFUSED[name]):
            deep.deep_trace(network, x)
        return
    measured = deep.deep_trace(network, x).table.filter(metric="log10_residual")
    with torch.no_grad():
        states = [x, *network.states(x)]
    plain = torch.stack([residual(state).log10() for state in states])
    pair = measured.sort("layer", "sample")["value"].to_torch(), plain.flatten()
    assert torch.allclose(*pair, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", MODELS)
def test_ablations_and_bounds_run_or_are_refused(name: str) -> None:
    network, x = loaded(name).network, input_of(name)
    with torch.no_grad():
        whole = network(x)
        for parts in (("skip",), ("mlp",), ("norm",), ("skip", "mlp", "norm")):
            assert not torch.allclose(network.without(*parts)(x), whole)
        assert not torch.allclose(network.without_heads((1, 0))(x), whole)
    bare = network.without("skip", "mlp", "norm")
    try:
        bounds = theory.bounds(bare.with_mask("full"), x[:, :4] if "dinov3" not in name else x)
    except UnsupportedModelError:
        return
    for layer in bounds.layers:
        assert layer.obstacle is not None or bool(
            (layer.log10_residual <= layer.log10_sharp_bound + 1e-9).all()
        )


@pytest.mark.parametrize("name", [name for name in MODELS if not name.startswith(NO_PADDING)])
def test_padding_changes_nothing(name: str) -> None:
    model = loaded(name)
    sentence = torch.tensor([[5, 17, 42, 8, 66, 23, 9]])
    outputs = []
    for left, right in ((0, 0), (3, 0), (0, 4)):
        if left and not model.family.takes(model.body, "position_ids"):
            continue
        ids = nn.functional.pad(sentence, (left, right), value=model.body.config.pad_token_id)
        mask = nn.functional.pad(torch.ones_like(sentence), (left, right)).bool()
        x, token_mask, _ = model.inputs(ids, token_mask=mask)
        with torch.no_grad():
            outputs.append(model.network(x, token_mask)[token_mask])
    for output in outputs[1:]:
        assert torch.allclose(output, outputs[0], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(
    "name", ["gemma 2, capped logits, windows", "flint, sinks", "qwen 3 next, gates"]
)
def test_attention_is_the_originals(name: str) -> None:
    model, metrics = loaded(name), ["attention_entropy", "sink_mass"]
    ids = torch.tensor([[5, 17, 42, 8, 66, 23, 9]])
    x, token_mask, _ = model.inputs(ids)
    ours = trace(model.network, x, token_mask=token_mask, metrics=metrics).table
    theirs = trace(model.body, model.arguments(ids), metrics=metrics).table
    pair = [frame.sort("metric", "layer", "head")["value"].to_list() for frame in (ours, theirs)]
    assert pair[0] == pytest.approx(pair[1], abs=1e-6)


def test_parts_are_what_their_names_say() -> None:
    gemma = loaded("gemma 3, two rotary bases").network
    assert isinstance(gemma.blocks[0].norms["attention"], OffsetNorm)
    assert [str(mask) for mask in gemma.spec.masks] == [
        "window(-4, +0)",
        "causal",
        "window(-4, +0)",
    ]
    bases = [block.attention.scores.then.frequencies[-1] for block in gemma.blocks]
    assert bases[0] == bases[2] != bases[1]
    assert isinstance(loaded("flint, sinks").network.blocks[0].attention.scores, LearnedSinks)
    assert loaded("olmo 2, norms on outputs").network.spec.norm_place == "output"
    assert loaded("cohere, parallel").network.spec.parallel
    assert loaded("granite, multipliers").network.spec.score_scale == pytest.approx(0.3)


def test_rows_of_sinks_sum_to_less_than_one() -> None:
    network = loaded("flint, sinks").network
    x = states(network)
    for block, seen in network.sighted_blocks(x.shape[1]):
        with torch.no_grad():
            sums = block.attention.pattern(block.norms["attention"](x), seen).sum(-1)
        assert bool((sums < 1).all())
        assert bool((sums > 0).all())


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("mixtral, experts", "mixtures of experts"),
        ("qwen 3 next, gates", "gates on the output"),
        ("smollm 3, layers without positions", "scores that differ"),
        ("granite, multipliers", "scaled branches"),
        ("deepseek v3, latent", "latent"),
    ],
)
def test_random_twins_of_what_a_spec_cannot_say_are_refused(name: str, part: str) -> None:
    spec = loaded(name).network.spec
    assert part in spec.describe()
    with pytest.raises(UnsupportedModelError, match=part):
        Network.random(spec)


def test_clip_has_two_towers() -> None:
    config = hf.CLIPConfig(text_config=_SHAPE, vision_config=_IMAGE, projection_dim=16)
    torch.manual_seed(0)
    model = hf.CLIPModel(config).eval()
    text, vision = load(model), load(model, tower="vision_model")
    assert (text.sees_images, vision.sees_images) == (False, True)
    assert text.network.spec.mask != vision.network.spec.mask
    with pytest.raises(InputError, match="tower='nave' is not in the model; it has text_model"):
        load(model, tower="nave")


class Twisted(nn.Module):
    """A part that computes what no known form does."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).sin()


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("mlp.act", "MLP"),
        ("attn.c_attn", "attention"),
    ],
)
def test_the_first_part_that_does_not_fit_is_named(path: str, part: str) -> None:
    model = lively_family("gpt2")
    inner = model.h[1].get_submodule(path)
    model.h[1].set_submodule(path, Twisted(inner))
    with pytest.raises(UnsupportedModelError, match=rf"layer 2 \(GPT2Block\): its {part} "):
        load(model)


def test_a_window_that_no_short_text_shows_is_seen() -> None:
    """A window of 100 tokens where the configuration says 120."""
    model = hf.MistralModel(hf.MistralConfig(**_GROUPED, sliding_window=100)).eval()
    assert str(load(model).network.spec.mask) == "window(-99, +0)"
    for layer in model.layers:
        layer.self_attn.sliding_window = 120
    model.config.sliding_window = 120
    assert str(load(model).network.spec.mask) == "window(-119, +0)"


def test_a_sum_between_blocks_is_no_block() -> None:
    model = lively("olmo 2, norms on outputs")
    model.layers[1].register_forward_pre_hook(lambda _m, args: (args[0] + 1, *args[1:]))
    with pytest.raises((VerificationError, UnsupportedModelError)):
        load(model)


def test_a_description_is_checked() -> None:
    family = Family("mine", example=MODELS["opt"])
    assert check(family).worst < 1e-10
    with pytest.raises(InputError, match="has no example"):
        check(Family("mine"))
    with pytest.raises(InputError, match="'keys' is not a role"):
        Family("mine", roles={"keys": "k"})
    with pytest.raises(UnsupportedModelError, match="its attention"):
        check(Family("mine", roles={"query": "k_proj", "key": "q_proj"}), lively("opt"))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"body": "tower"}, "body='tower' is not in the model; it has"),
        ({"layers": lambda _: []}, r"its layers are \[\], expected modules"),
        ({"layers": lambda _: [1]}, r"its layers are \[1\], expected modules"),
        ({"layers": lambda body: [body.decoder.layers[0]] * 2}, "names 2 layers, but 1 of them"),
        ({"layers": nn.Linear(1, 1)}, "layers is a module"),
        ({"recognise": lambda *_: None}, "recognise gives None, no RecognisedBlock"),
        ({"initialised": lambda _: {"depth": 1}}, "its initialised failed"),
        ({"initialised": lambda _: None}, "its initialised failed"),
        ({"scores": lambda _: None}, "its scores failed"),
        ({"scores": lambda _: [1]}, r"its scores are \[1\], expected readings"),
        ({"token_axis": 7}, "token_axis=7, expected 0 or 1"),
        ({"expects": {"dropout": torch.ones(2)}}, "expects"),
    ],
)
def test_descriptions_that_do_not_fit_are_refused_in_a_sentence(fields: dict, words: str) -> None:
    with pytest.raises(RankscopeError, match=words):
        check(Family("mine", **fields), lively("opt"))


@pytest.mark.parametrize(
    "probe",
    [torch.ones(1, 1).long(), torch.arange(3)[None]],
    ids=["one token", "three tokens"],
)
def test_a_probe_on_which_masks_look_alike_is_refused(probe: Tensor) -> None:
    with pytest.raises(UnsupportedModelError, match="cannot be told apart; give at least 4"):
        load(lively("opt"), probe=probe)


@pytest.mark.parametrize(
    "probe", [torch.ones(1, 5, dtype=torch.bool), torch.ones(1, 5, 4).long(), torch.ones(1, 5)]
)
def test_a_probe_is_token_ids_or_embeddings(probe: Tensor) -> None:
    with pytest.raises(ShapeError, match="expected token ids"):
        load(lively("opt"), probe=probe)


def test_packages_offer_descriptions(monkeypatch: pytest.MonkeyPatch) -> None:
    class Entry:
        name = "theirs"

        def __init__(self, offered: object) -> None:
            self.load = lambda: offered

    def offer(*offered: object) -> None:
        architectures._offered.cache_clear()
        entries = [Entry(one) for one in offered]
        monkeypatch.setattr(architectures, "entry_points", lambda **_: entries)

    offer(Family("theirs", ("opt",)))
    assert load(lively("opt")).family.name == "theirs"
    offer("no family")
    with pytest.raises(InputError, match=r"entry point theirs .* is a str"):
        load(lively("opt"))
    architectures._offered.cache_clear()


def test_everything_raised_is_ours() -> None:
    for model in (nn.Linear(2, 2), nn.Sequential(nn.ReLU()), nn.LSTM(3, 3, 2)):
        with pytest.raises(RankscopeError):
            load(model)
