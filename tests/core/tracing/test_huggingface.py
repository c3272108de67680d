"""``trace`` on tiny random Hugging Face models, whose own hidden states are the oracle."""

import pytest
import torch

from rankscope.core.metrics import dispersion, residual
from rankscope.core.tracing import find_blocks, trace
from rankscope.errors import BlocksNotFoundError

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # theirs, not ours

METRICS = ("relative_residual", "dispersion")
IDS = torch.tensor([[1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 0, 0]])
ATTENTION_MASK = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
TEXT = {"input_ids": IDS, "attention_mask": ATTENTION_MASK}
BERT_LIKE = {
    "vocab_size": 11, "hidden_size": 8, "num_hidden_layers": 3, "num_attention_heads": 2,
    "intermediate_size": 16, "max_position_embeddings": 16,
}  # fmt: skip


def bert():
    return transformers.BertModel(transformers.BertConfig(**BERT_LIKE))


def albert():
    config = BERT_LIKE | {"num_hidden_layers": 12, "embedding_size": 4}
    return transformers.AlbertModel(
        transformers.AlbertConfig(**config, bos_token_id=1, eos_token_id=2)
    )


def gpt2():
    return transformers.GPT2Model(
        transformers.GPT2Config(
            vocab_size=11, n_embd=8, n_layer=3, n_head=2, n_positions=16, bos_token_id=1,
            eos_token_id=2,
        )
    )  # fmt: skip


def vit():
    sizes = {"hidden_size": 8, "num_hidden_layers": 3, "num_attention_heads": 2}
    return transformers.ViTModel(
        transformers.ViTConfig(**sizes, intermediate_size=16, image_size=8, patch_size=4)
    )


def t5():
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            vocab_size=11, d_model=8, d_kv=4, d_ff=16, num_layers=3, num_decoder_layers=2,
            num_heads=2, decoder_start_token_id=0,
        )
    )  # fmt: skip


def made(make):
    """A model with weights large enough that layers differ visibly."""
    torch.manual_seed(0)
    model = make().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return model


def measured(states, token_mask):
    """Rows as a trace writes them: by layer, then metric, then sample."""
    found = []
    for state in states:
        found += residual(state, relative=True, token_mask=token_mask).tolist()
        found += dispersion(state, token_mask=token_mask).tolist()
    return found


@pytest.mark.parametrize(
    ("make", "layers"),
    [(bert, 3), (albert, 12), (gpt2, 3), (vit, 3)],
    ids=["bert", "albert", "gpt2", "vit"],
)
def test_every_layer_is_the_models_own_hidden_state(make, layers):
    model = made(make)
    text = make is not vit
    inputs = TEXT if text else {"pixel_values": torch.randn(2, 3, 8, 8)}
    token_mask = ATTENTION_MASK.bool() if text else None
    with torch.no_grad():
        states = list(model(**inputs, output_hidden_states=True).hidden_states)
    assert len(states) == layers + 1
    traced = trace(model, inputs, metrics=METRICS)
    expected = measured(states, token_mask)
    found = traced.columns["value"]
    if make is gpt2:  # its last entry has gone through the final norm, which is no block
        per_layer = len(found) // (layers + 1)
        assert found[-per_layer:] != pytest.approx(expected[-per_layer:], rel=1e-3)
        found, expected = found[:-per_layer], expected[:-per_layer]
    assert found == pytest.approx(expected, rel=1e-5)
    assert traced.provenance.model == type(model).__name__


def test_gpt2_last_layer_comes_before_the_final_norm():
    model = made(gpt2)
    last = []
    model.h[-1].register_forward_hook(lambda *call: last.append(call[-1]))
    traced = trace(model, TEXT, metrics=METRICS)
    state = last[0][0] if isinstance(last[0], tuple) else last[0]
    expected = measured([state], ATTENTION_MASK.bool())
    assert traced.columns["value"][-4:] == pytest.approx(expected, rel=1e-6)


def test_albert_is_one_block_run_twelve_times():
    model = made(albert)
    assert len(find_blocks(model)) == 1
    assert sorted(set(trace(model, TEXT).columns["layer"])) == list(range(13))


def test_an_encoder_decoder_asks_for_a_name():
    model = made(t5)
    with pytest.raises(BlocksNotFoundError, match="several stacks of blocks") as caught:
        trace(model, {"input_ids": IDS, "decoder_input_ids": IDS[:, :4]})
    assert "'encoder.block'" in str(caught.value)
    assert "'decoder.block'" in str(caught.value)


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_either_stack_of_an_encoder_decoder(stack):
    model = made(t5)
    inputs = {"input_ids": IDS, "decoder_input_ids": IDS[:, :4]}
    with torch.no_grad():
        out = model(**inputs, output_hidden_states=True)
    states = out.encoder_hidden_states if stack == "encoder" else out.decoder_hidden_states
    traced = trace(model, inputs, blocks=f"{stack}.block", metrics=METRICS)
    expected = measured(states[:-1], None)  # the last has gone through the final norm
    assert traced.columns["value"][: len(expected)] == pytest.approx(expected, rel=1e-5)
    assert max(traced.columns["layer"]) == len(states) - 1


@pytest.mark.parametrize("length", [4, 6])
def test_the_encoders_mask_is_not_the_decoders(length):
    """``attention_mask`` speaks of ``input_ids``; at equal lengths mixing them up is silent."""
    model = made(t5)
    inputs = TEXT | {"decoder_input_ids": IDS.flip(0, 1)[:, :length]}
    with torch.no_grad():
        states = model(**inputs, output_hidden_states=True).decoder_hidden_states
    traced = trace(model, inputs, blocks="decoder.block", metrics=METRICS)
    expected = measured(states[:-1], None)
    assert traced.columns["value"][: len(expected)] == pytest.approx(expected, rel=1e-5)


def test_xlnet_keeps_its_tokens_in_front():
    torch.manual_seed(0)
    config = transformers.XLNetConfig(vocab_size=40, d_model=16, n_layer=2, n_head=2, d_inner=16)
    model = transformers.XLNetModel(config).eval()
    inputs = {"input_ids": IDS, "attention_mask": ATTENTION_MASK}
    with torch.no_grad():
        states = model(**inputs, output_hidden_states=True).hidden_states
    traced = trace(model, inputs, metrics=METRICS)
    assert traced.columns["value"] == pytest.approx(
        measured(states, ATTENTION_MASK.bool()), rel=1e-5
    )


def test_positional_masks_are_seen():
    model = made(bert)
    by_name = trace(model, {"input_ids": IDS, "attention_mask": ATTENTION_MASK})
    assert trace(model, (IDS, ATTENTION_MASK)).columns == by_name.columns


def test_padding_changes_nothing_for_bert():
    model = made(bert)
    alone = trace(model, {"input_ids": IDS[1:, :4], "attention_mask": ATTENTION_MASK[1:, :4]})
    both = trace(model, TEXT)
    second = [
        value
        for sample, value in zip(both.columns["sample"], both.columns["value"], strict=True)
        if sample == 1
    ]
    assert second == pytest.approx(alone.columns["value"], rel=1e-4)


def test_models_around_the_blocks():
    """A head on top changes neither the blocks found nor what is measured."""
    model = transformers.BertForSequenceClassification(transformers.BertConfig(**BERT_LIKE)).eval()
    assert trace(model, TEXT).columns == trace(model.bert, TEXT).columns


class Wrapped(torch.nn.Module):
    """A model inside another, as a task's own model is."""

    def __init__(self, model):
        super().__init__()
        self.inner = torch.nn.ModuleDict({"model": model})

    def forward(self, **inputs):
        return self.inner["model"](**inputs)


def xlnet():
    config = transformers.XLNetConfig(vocab_size=40, d_model=16, n_layer=2, n_head=2, d_inner=16)
    return transformers.XLNetModel(config)


@pytest.mark.parametrize("wrap", [Wrapped, torch.nn.DataParallel, lambda m: Wrapped(Wrapped(m))])
@pytest.mark.parametrize("square", [False, True])
def test_xlnet_in_a_wrapper(wrap, square):
    model = made(xlnet)
    inputs = {name: tensor[:, :2] if square else tensor for name, tensor in TEXT.items()}
    traced, bare = trace(wrap(model), inputs), trace(model, inputs)
    assert traced.columns == bare.columns
    assert traced.provenance.settings["layout"] == "token batch feature: XLNet"
    assert set(traced.columns["sample"]) == {0, 1}


def longformer():
    return transformers.LongformerModel(
        transformers.LongformerConfig(**BERT_LIKE, attention_window=8)
    )


@pytest.mark.parametrize("padded", [False, True])
def test_longformers_own_padding_is_not_measured(padded):
    """It fills up six tokens to a window of eight; its own hidden states are cut back."""
    model = made(longformer)
    inputs = TEXT if padded else {"input_ids": IDS}
    with torch.no_grad():
        states = model(**inputs, output_hidden_states=True).hidden_states
    traced = trace(model, inputs, metrics=METRICS)
    expected = measured(
        [state[:, :6] for state in states], ATTENTION_MASK.bool() if padded else None
    )
    assert traced.columns["value"] == pytest.approx(expected, rel=1e-4)
    assert traced.provenance.settings["padding"] == "2 positions the model adds on the right"
    chosen = torch.tensor([False, True, True, True, False, False]).expand(2, 6)
    some = trace(model, inputs, metrics=METRICS, measured=chosen)
    assert some.columns["value"] == pytest.approx(
        measured([state[:, :6] for state in states], chosen), rel=1e-4
    )


def test_swin_counts_stages_and_says_so():
    config = transformers.SwinConfig(
        image_size=16, patch_size=2, embed_dim=8, depths=[2, 2], num_heads=[2, 2], window_size=2
    )
    torch.manual_seed(0)
    model, inputs = (
        transformers.SwinModel(config).eval(),
        {"pixel_values": torch.randn(2, 3, 16, 16)},
    )
    with torch.no_grad():
        states = model(**inputs, output_hidden_states=True).hidden_states
    traced = trace(model, inputs, metrics=METRICS)
    assert traced.provenance.settings["stack"] == (
        "encoder.layers: 2 SwinStage, with 2 to 2 blocks inside each; each outer block is one layer"
    )
    assert traced.columns["value"] == pytest.approx(measured(states[:3], None), rel=1e-5)
    names = [f"encoder.layers.{stage}.blocks.{block}" for stage in range(2) for block in range(2)]
    assert max(trace(model, inputs, blocks=names).columns["layer"]) == 4


def test_what_was_decided_is_recorded():
    settings = trace(made(bert), TEXT).provenance.settings
    assert settings["stack"] == "encoder.layer: 3 BertLayer"
    assert settings["layout"] == "batch token feature: the axes of input_ids"
    assert settings["mask"] == "attention_mask: 1 is a token"
    assert settings["tensor"] == "the only tensor that a block returns"


def test_models_that_differ_in_nothing_but_a_setting_have_other_names():
    """Two and four heads on the same weights."""
    two, four = (
        transformers.BertModel(
            transformers.BertConfig(**BERT_LIKE | {"num_attention_heads": heads})
        )
        for heads in (2, 4)
    )
    four.load_state_dict(two.state_dict())
    one, other = trace(two, TEXT), trace(four, TEXT)
    assert one.columns != other.columns
    assert one.provenance.weights == other.provenance.weights
    assert one.provenance != other.provenance


def test_images_and_texts_are_not_mixed_up():
    """CLIP sees two images and reads three texts; either stack has its own samples."""
    text = {"hidden_size": 8, "num_hidden_layers": 3, "num_attention_heads": 2}
    torch.manual_seed(0)
    model = transformers.CLIPModel(
        transformers.CLIPConfig(
            text_config={**text, "vocab_size": 11, "intermediate_size": 16},
            vision_config={**text, "intermediate_size": 16, "image_size": 8, "patch_size": 4},
        )
    ).eval()
    inputs = {"input_ids": IDS[[0, 1, 0]], "pixel_values": torch.randn(2, 3, 8, 8)}
    for stack, samples in (("text_model", 3), ("vision_model", 2)):
        traced = trace(model, inputs, blocks=f"{stack}.encoder.layers")
        assert len(set(traced.columns["sample"])) == samples


def test_xlnets_own_mask_marks_the_padding():
    model = made(xlnet)
    turned = {"input_ids": IDS, "input_mask": (1 - ATTENTION_MASK).float()}
    assert trace(model, turned).columns == trace(model, TEXT).columns
