"""A model's own pooling against the original: sentence-transformers, CLIP, SigLIP, class tokens."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers as hf
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import normalize

from rankscope.core.pooling import CLASS, LAST, MAXIMUM, MEAN, ROOT, WEIGHTED
from rankscope.models.families import Loaded, load
from rankscope.models.families._pooling import leading_tokens

from .conftest import lively

TEXTS = ["A rose is a rose.", "Attention is not all you need, or is it?", "Yes."]
_SIZE = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
}
_TEXT = {**_SIZE, "vocab_size": 97, "max_position_embeddings": 32}
_IMAGE = {**_SIZE, "image_size": 32, "patch_size": 8}


def stirred(model: nn.Module) -> nn.Module:
    """In evaluation mode, with no weight at zero or one."""
    hf.utils.logging.set_verbosity_error()
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(1)
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval().double()


def clip(end: int = 96) -> nn.Module:
    text = {**_TEXT, "eos_token_id": end, "bos_token_id": 95, "pad_token_id": 1}
    return stirred(
        hf.CLIPModel(hf.CLIPConfig(text_config=text, vision_config=_IMAGE, projection_dim=12))
    )


def siglip() -> nn.Module:
    text = {**_TEXT, "projection_size": 24}
    return stirred(hf.SiglipModel(hf.SiglipConfig(text_config=text, vision_config=_IMAGE)))


def features(output: object) -> Tensor:
    return output if isinstance(output, Tensor) else output.pooler_output


class TestSentenceTransformers:
    def test_a_real_checkpoint(self, minilm: Path) -> None:
        """By hand: the mean of the last hidden states that are not padding, at length 1."""
        loaded = load(minilm, dtype=torch.float64)
        tokenizer = hf.AutoTokenizer.from_pretrained(minilm)
        model = hf.AutoModel.from_pretrained(minilm).double().eval()
        read = tokenizer(TEXTS, padding=True, return_tensors="pt")
        with torch.no_grad():
            states = model(**read).last_hidden_state
        for sample, text in enumerate(TEXTS):
            count = int(read["attention_mask"][sample].sum())
            mean = sum(states[sample, token] for token in range(count)) / count
            expected = mean / mean.square().sum().sqrt()
            got = loaded.embed(TEXTS)[sample]
            assert torch.allclose(got, expected, atol=1e-12), text
        assert loaded.pooling.words == "mean of its tokens, divided by its length (modules.json)"
        assert loaded.pooling.own
        assert not loaded.pooling.notes

    @pytest.mark.parametrize(
        ("config", "modes"),
        [
            ({"pooling_mode_cls_token": True}, (CLASS,)),
            ({"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}, (LAST,)),
            ({"pooling_mode_weightedmean_tokens": True}, (WEIGHTED,)),
            ({"pooling_mode_mean_sqrt_len_tokens": True}, (ROOT,)),
            # joined in the order of the package, not of the file
            ({"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}, (MAXIMUM, MEAN)),
            ({"pooling_mode": "lasttoken", "include_prompt": True}, (LAST,)),
            ({"pooling_mode": ["mean", "cls"]}, (CLASS, MEAN)),
        ],
    )
    def test_modes(self, tmp_path: Path, config: dict, modes: tuple[str, ...]) -> None:
        loaded = load(folder(tmp_path, ("Pooling", config)))
        assert loaded.pooling.modes == modes
        assert loaded.embed(torch.tensor([[3, 4, 5]])).shape == (1, 24 * len(modes))

    @pytest.mark.parametrize("activation", ["torch.nn.modules.activation.Tanh", "Identity"])
    def test_dense_and_normalize(self, tmp_path: Path, activation: str) -> None:
        weight, bias = torch.randn(5, 24), torch.randn(5)
        dense = {"in_features": 24, "out_features": 5, "activation_function": activation}
        path = folder(
            tmp_path,
            ("Pooling", {"pooling_mode_cls_token": True}),
            ("Dense", dense, {"linear.weight": weight, "linear.bias": bias}),
            ("Normalize", None),
        )
        loaded = load(path, dtype=torch.float64)
        ids = torch.tensor([[3, 4, 5], [6, 7, 8]])
        with torch.no_grad():
            first = loaded.original(ids).last_hidden_state[:, 0]
        mapped = first @ weight.double().T + bias.double()
        mapped = mapped.tanh() if activation.endswith("Tanh") else mapped
        expected = mapped / mapped.norm(dim=-1, keepdim=True)
        assert torch.allclose(loaded.embed(ids), expected, atol=1e-9)
        # The untrained twin has another map of the same shape, the same for the same seed.
        twins = [loaded.reinitialised(seed=seed) for seed in (1, 1, 2)]
        state, mask = torch.ones(1, 2, 24, dtype=torch.float64), torch.ones(1, 2, dtype=torch.bool)
        mine, first_twin, same, other = (each.pooling(state, mask) for each in (loaded, *twins))
        assert torch.equal(first_twin, same)
        assert not torch.allclose(first_twin, other)
        assert not torch.allclose(first_twin, mine)

    @pytest.mark.parametrize(
        ("change", "word"),
        [
            (lambda path: listed(path, "WeightedLayerPooling"), "WeightedLayerPooling"),
            (lambda path: listed(path, "Pooling", "../elsewhere"), "outside"),
            (lambda path: (path / "1_Pooling/config.json").write_text("{"), "damaged"),
            (lambda path: (path / "1_Pooling/config.json").write_text("[]"), "damaged"),
            (
                lambda path: (path / "1_Pooling/config.json").write_text('{"pooling_mode": "odd"}'),
                "odd",
            ),
            (
                lambda path: (path / "1_Pooling/config.json").write_text('{"pooling_mode": 3}'),
                "'3'",
            ),
            (lambda path: listed(path, "Dense", "2_Dense"), "Dense"),
            (lambda path: (path / "modules.json").write_text("[]"), "no pooling"),
            (lambda path: (path / "modules.json").write_text("[3]"), "without a type"),
        ],
    )
    def test_what_is_not_known_is_said_and_the_mean_is_used(
        self, tmp_path: Path, change: Callable[[Path], object], word: str
    ) -> None:
        path = folder(tmp_path, ("Pooling", {"pooling_mode_cls_token": True}))
        change(path)
        pooling = load(path).pooling
        assert pooling.modes == (MEAN,)
        assert not pooling.own
        assert word in pooling.notes[0]
        assert pooling.notes[0].endswith("the mean of the tokens is used instead.")

    def test_a_map_that_is_pickled_or_of_another_width_is_not_read(self, tmp_path: Path) -> None:
        for name, tensors in (("pickled", None), ("wide", {"linear.weight": torch.ones(5, 7)})):
            path = folder(
                tmp_path / name,
                ("Pooling", {"pooling_mode_cls_token": True}),
                ("Dense", {"in_features": 24, "out_features": 5}, tensors),
            )
            (path / "2_Dense/pytorch_model.bin").write_bytes(b"no pickle is opened")
            pooling = load(path).pooling
            assert (pooling.modes, len(pooling.notes)) == ((MEAN,), 1)

    def test_a_default_prompt_is_mentioned(self, tmp_path: Path) -> None:
        path = folder(tmp_path, ("Pooling", {"pooling_mode_cls_token": True}))
        prompts = {"prompts": {"query": "query: "}, "default_prompt_name": "query"}
        (path / "config_sentence_transformers.json").write_text(json.dumps(prompts))
        pooling = load(path).pooling
        assert pooling.modes == (CLASS,)
        assert "'query'" in pooling.notes[0]


def folder(path: Path, *modules: tuple) -> Path:
    """A tiny BERT with modules of sentence-transformers: (kind, configuration, tensors)."""
    lively("bert").save_pretrained(path)
    entries = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}
    ]
    for at, (kind, config, *tensors) in enumerate(modules, start=1):
        name = f"{at}_{kind}"
        (path / name).mkdir()
        if config is not None:
            (path / name / "config.json").write_text(json.dumps(config))
        if tensors and tensors[0] is not None:
            save_file(tensors[0], path / name / "model.safetensors")
        full = f"sentence_transformers.models.{kind}"
        entries.append({"idx": at, "name": str(at), "path": name, "type": full})
    (path / "modules.json").write_text(json.dumps(entries))
    return path


def listed(path: Path, kind: str, place: str = "1_Pooling") -> None:
    """Put another module in the place of the pooling, or after it."""
    entries = json.loads((path / "modules.json").read_text())
    entry = {"idx": 1, "name": "1", "path": place, "type": f"sentence_transformers.models.{kind}"}
    kept = entries if kind == "Dense" else entries[:1]
    (path / "modules.json").write_text(json.dumps([*kept, entry]))


class TestTowers:
    @pytest.mark.parametrize("end", [96, 2])
    def test_texts_of_clip(self, end: int) -> None:
        """Older configurations state 2 as the end token and mean the largest id."""
        model = clip(end)
        loaded = load(model)
        ids = torch.tensor([[95, 5, 6, 7, 96], [95, 8, 9, 96, 1]])
        mask = ids != 1
        with torch.no_grad():
            expected = features(model.get_text_features(ids, attention_mask=mask.long()))
        assert expected.shape == (2, 12)
        assert torch.allclose(loaded.embed(ids, token_mask=mask), expected, atol=1e-10)
        assert loaded.pooling.words == "last token after the last norm, through text_projection"

    def test_images_of_clip(self) -> None:
        model = clip()
        loaded = load(model, tower="vision_model")
        images = loaded.noise_images(3)
        with torch.no_grad():
            expected = features(model.get_image_features(images))
        assert torch.allclose(loaded.embed(images), expected, atol=1e-10)
        assert loaded.pooling.words == "class token after the last norm, through visual_projection"

    def test_texts_of_siglip(self) -> None:
        model = siglip()
        loaded = load(model)
        ids = torch.tensor([[5, 6, 7, 8], [9, 8, 7, 6]])
        with torch.no_grad():
            expected = features(model.get_text_features(ids))
        assert torch.allclose(loaded.embed(ids), expected, atol=1e-10)
        assert "padded" in loaded.pooling.notes[0]

    def test_images_of_siglip(self) -> None:
        model = siglip()
        loaded = load(model, tower="vision_model")
        images = loaded.noise_images(3)
        with torch.no_grad():
            expected = features(model.get_image_features(images))
        assert torch.allclose(loaded.embed(images), expected, atol=1e-10)
        assert loaded.pooling.words == "pooling head over all its tokens"
        read, _ = loaded.read(images)
        assert not read.special_mask.any()  # it has patches only


def dino(registers: int) -> nn.Module:
    config = hf.Dinov2WithRegistersConfig(**_IMAGE, num_register_tokens=registers)
    return stirred(hf.Dinov2WithRegistersModel(config))


class TestImages:
    @pytest.mark.parametrize("registers", [0, 3])
    def test_registers_are_neither_class_nor_patches(self, registers: int) -> None:
        model = dino(registers)
        loaded = load(model)
        images = loaded.noise_images(2)
        read, _ = loaded.read(images)
        special = torch.arange(1 + registers + 16) < 1 + registers
        assert torch.equal(read.special_mask, special.expand(2, -1))
        with torch.no_grad():
            output = model(images)
        assert torch.allclose(loaded.embed(images), output.pooler_output, atol=1e-10)
        assert torch.allclose(loaded.embed(images), output.last_hidden_state[:, 0], atol=1e-10)

    def test_other_leading_tokens(self) -> None:
        v3 = hf.DINOv3ViTModel(
            hf.DINOv3ViTConfig(**{**_IMAGE, "hidden_size": 32}, num_register_tokens=4)
        )
        assert leading_tokens(v3) == 5
        assert leading_tokens(lively("deit")) == 2  # class and distillation
        assert leading_tokens(lively("vit")) == 1
        assert leading_tokens(siglip().vision_model) == 0

    def test_a_class_token_rather_than_a_pooler_trained_for_something_else(self) -> None:
        model = lively("vit").double()
        loaded = load(model)
        images = loaded.noise_images(2)
        with torch.no_grad():
            output = model(images)
        assert torch.allclose(loaded.embed(images), output.last_hidden_state[:, 0], atol=1e-10)
        assert not torch.allclose(loaded.embed(images), output.pooler_output, atol=1e-2)


@pytest.mark.parametrize(
    ("name", "mode"),
    [("bert", MEAN), ("xlnet", MEAN), ("t5", MEAN), ("gpt2", LAST), ("llama", LAST)],
)
def test_models_that_state_no_pooling(name: str, mode: str) -> None:
    """The usual choice, of the hidden states after the model's last norm."""
    loaded: Loaded = load(lively(name).double())
    ids = torch.tensor([[3, 4, 5, 6], [7, 8, 9, 10]])
    with torch.no_grad():
        states = loaded.body(**loaded.arguments(ids)).last_hidden_state
    expected = states.mean(1) if mode == MEAN else states[:, -1]
    assert torch.allclose(loaded.embed(ids), expected, atol=1e-5)  # Llama's norms are in float32
    assert loaded.pooling.modes == (mode,)
    assert not loaded.pooling.own
    assert not torch.allclose(normalize(expected), normalize(states[:, 0]), atol=1e-3)
