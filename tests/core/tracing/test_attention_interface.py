"""Attention of models that are not ours, against the matrices that eager attention gives out."""

import dataclasses
import threading
from types import SimpleNamespace

import pytest
import torch
import transformers as hf
from transformers.modeling_utils import AttentionInterface

from rankscope.core import metrics
from rankscope.core.metrics import AttentionScores
from rankscope.core.tracing._attention import AttentionWatch
from rankscope.core.tracing._attention_reading import Call, mismatch, read
from rankscope.errors import ModelError

from .architectures import OWN_CODE, PICTURES, SEQUENCES, TEXT, build
from .watching import watched_attention

hf.utils.logging.set_verbosity_error()
IDS = torch.randint(3, 40, (2, 9), generator=torch.Generator().manual_seed(0))
LEFT = torch.ones_like(IDS)
LEFT[0, :2] = 0
MASKS = {"no mask": None, "left": LEFT, "right": LEFT.flip(-1)}
NO_SDPA = ("gemma2", "gpt_oss")
FUNCTION = AttentionInterface.get_interface


def watch(model, **inputs):
    """What the model gives, and the scores of each self-attention."""
    seen: list[AttentionScores] = []
    with torch.no_grad(), watched_attention(lambda _, scores: seen.append(scores), model) as heard:
        output = model(**inputs)
    assert heard.calls == len(seen)
    return output, seen


def far(scores: AttentionScores, matrix: torch.Tensor, rows: torch.Tensor | None = None) -> float:
    apart = (scores.matrix() - matrix.detach()).abs()
    return float(apart.max() if rows is None else (apart * rows[:, None, :, None]).max())


@pytest.mark.parametrize("name", TEXT)
def test_scores_are_those_of_the_model(name) -> None:
    model = build(TEXT[name])
    for mask in MASKS.values():
        model.set_attn_implementation("eager")
        output, seen = watch(model, input_ids=IDS, attention_mask=mask, output_attentions=True)
        matrices = output.attentions
        assert len(seen) == len(matrices) == 2
        if name not in NO_SDPA:
            model.set_attn_implementation("sdpa")
            seen += watch(model, input_ids=IDS, attention_mask=mask)[1]
            matrices = (*matrices, *matrices)
        for scores, matrix in zip(seen, matrices, strict=True):
            assert far(scores, matrix, mask) < 1e-5
            _figures_agree(scores, matrix, None if mask is None else mask.bool())


def _figures_agree(scores, matrix, token_mask) -> None:
    if scores.sinks is not None:  # rows of what eager attention gives out do not sum to one
        return
    scores = dataclasses.replace(scores, token_mask=token_mask)
    for name in ("attention_entropy", "renyi_entropy", "sink_mass", "high_pass_ratio"):
        expected = getattr(metrics, name)(matrix, token_mask=token_mask)
        assert torch.allclose(getattr(metrics, name)(scores), expected, atol=1e-5), name


@pytest.mark.parametrize("name", PICTURES)
def test_scores_of_pictures(name) -> None:
    model = build(PICTURES[name])
    picture = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    output, seen = watch(model, pixel_values=picture, output_attentions=True)
    assert len(seen) == 2
    for scores, matrix in zip(seen, output.attentions, strict=True):
        assert far(scores, matrix) < 1e-5


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("name", SEQUENCES)
def test_cross_attention_is_left_out(name, implementation) -> None:
    """As many tokens as the encoder has, so that lengths alone would not tell."""
    model = build(SEQUENCES[name])
    given = {"input_ids": IDS}
    if name == "whisper":
        generator = torch.Generator().manual_seed(0)
        given = {"input_features": torch.randn(2, 4, 18, generator=generator)}
    reference = model(**given, decoder_input_ids=IDS, output_attentions=True)
    model.set_attn_implementation(implementation)
    _, seen = watch(model, **given, decoder_input_ids=IDS)
    matrices = (*reference.encoder_attentions, *reference.decoder_attentions)
    assert len(seen) == len(matrices) == 3
    for scores, matrix in zip(seen, matrices, strict=True):
        assert far(scores, matrix) < 1e-5


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_queries_after_a_cache(implementation) -> None:
    model = build(TEXT["mistral"], implementation)
    whole, _ = watch(build(TEXT["mistral"]), input_ids=IDS, output_attentions=True)
    first, _ = watch(model, input_ids=IDS[:, :2], use_cache=True)
    _, seen = watch(model, input_ids=IDS[:, 2:], past_key_values=first.past_key_values)
    assert [scores.shape for scores in seen] == [(2, 4, 7, 9)] * 2
    for scores, matrix in zip(seen, whole.attentions, strict=True):
        assert far(scores, matrix[:, :, 2:]) < 1e-5


@pytest.mark.parametrize("name", ["gemma2", "qwen2", "gpt_oss"])
def test_half_precision(name) -> None:
    model = build(TEXT[name]).bfloat16()
    output, seen = watch(model, input_ids=IDS, attention_mask=LEFT, output_attentions=True)
    for scores, matrix in zip(seen, output.attentions, strict=True):
        assert scores.dtype == torch.float32
        assert far(scores, matrix.float(), LEFT) < 0.05


def test_graphs_and_autocast_change_no_figure() -> None:
    model = build(TEXT["qwen2"], "sdpa")
    seen: list[AttentionScores] = []
    entropies = []

    def measure(_module, scores) -> None:
        seen.append(scores)
        entropies.append(metrics.attention_entropy(scores))

    with torch.autocast("cpu", torch.bfloat16), watched_attention(measure, model):
        model(IDS).last_hidden_state.sum().backward()
    assert all(not found.requires_grad for found in entropies)
    again = metrics.attention_entropy(dataclasses.replace(seen[0]))
    assert torch.equal(entropies[0], again)


@pytest.mark.parametrize("name", OWN_CODE)
def test_models_with_code_of_their_own_are_not_heard(name) -> None:
    model = build(OWN_CODE[name])
    assert watch(model, input_ids=IDS)[1] == []
    assert f"{type(model).__name__} is neither" in str(AttentionWatch(print, [model]).unheard())


# What is left behind: nothing.


def test_nothing_is_left_behind() -> None:
    model = build(TEXT["qwen2"])
    plain = model(IDS).last_hidden_state
    output, _ = watch(model, input_ids=IDS)
    assert torch.equal(output.last_hidden_state, plain)
    assert AttentionInterface.get_interface is FUNCTION
    with pytest.raises(ZeroDivisionError), watched_attention(lambda *_: 1 / 0, model):
        model(IDS)
    assert AttentionInterface.get_interface is FUNCTION
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_contexts_in_one_another_hear_everything() -> None:
    model, outer, inner = build(TEXT["qwen2"]), [], []
    with torch.no_grad(), watched_attention(lambda *call: outer.append(call), model):
        model(IDS)
        with watched_attention(lambda *call: inner.append(call), model):
            model(IDS)
        model(IDS)
    assert (len(outer), len(inner)) == (6, 2)
    assert AttentionInterface.get_interface is FUNCTION


def test_each_thread_hears_its_own() -> None:
    """Four threads, one without a context, all inside at the same time."""
    model, heard, together = build(TEXT["qwen2"]), {}, threading.Barrier(4, timeout=20)

    def work(tokens: int) -> None:
        mine = heard.setdefault(tokens, [])
        with watched_attention(lambda _, scores: mine.append(scores.shape[2]), model):
            together.wait()
            model(IDS[:, :tokens])
            together.wait()

    threads = [threading.Thread(target=work, args=(tokens,)) for tokens in (3, 4, 5)]
    for thread in threads:
        thread.start()
    together.wait()
    model(IDS)
    together.wait()
    for thread in threads:
        thread.join()
    assert heard == {3: [3, 3], 4: [4, 4], 5: [5, 5]}
    assert AttentionInterface.get_interface is FUNCTION


# What cannot be read is refused.


def _twice_as_sharp(module, query, key, value, attention_mask, **options):
    return hf.models.qwen2.modeling_qwen2.eager_attention_forward(
        module, 2 * query, key, value, attention_mask, **options
    )


def test_attention_that_is_not_what_it_says_is_refused(monkeypatch) -> None:
    model = build(TEXT["qwen2"])
    monkeypatch.setitem(AttentionInterface._global_mapping, "sdpa", _twice_as_sharp)
    model.config._attn_implementation = "sdpa"
    with pytest.raises(ModelError, match="does not compute what its arguments describe"):
        watch(model, input_ids=IDS, attention_mask=LEFT)


@pytest.mark.parametrize("name", ["mine", "sdpa_other", "flash_attention_mine"])
def test_implementations_that_are_not_known_are_refused(name, monkeypatch) -> None:
    model = build(TEXT["qwen2"])
    monkeypatch.setitem(AttentionInterface._global_mapping, name, _twice_as_sharp)
    model.config._attn_implementation = name
    with pytest.raises(ModelError, match=rf"'{name}', is an unknown implementation.*"):
        watch(model, input_ids=IDS)


def test_dropout_is_refused() -> None:
    model = build((*TEXT["qwen2"][:2], {**TEXT["qwen2"][2], "attention_dropout": 0.5})).train()
    with pytest.raises(ModelError, match=r"model\.eval"):
        watch(model, input_ids=IDS)


# Implementations that do not run here: how their arguments are read.

Q, K = (torch.randn(2, h, 7, 4, generator=torch.Generator().manual_seed(h)) for h in (4, 2))
DISTANCE = torch.arange(7)[:, None] - torch.arange(7)


def call(implementation, mask, *, query=Q, is_causal=True, **options) -> Call:
    module = SimpleNamespace(is_causal=is_causal)
    options = {"scaling": 0.7, **options}
    return Call(implementation, print, module, query, K, K, mask, options)


def weights(allowed, *, softcap=None, sinks=None, query=Q) -> torch.Tensor:
    scores = 0.7 * query @ K.repeat_interleave(2, 1).mT
    if softcap is not None:
        scores = softcap * (scores / softcap).tanh()
    scores = scores.masked_fill(~allowed, -torch.inf)
    if sinks is not None:
        scores = torch.cat((scores, sinks[None, :, None, None].expand(2, 4, len(DISTANCE), 1)), -1)
    return scores.softmax(-1)[..., :7]


def test_flash_attention_is_read_from_its_flags() -> None:
    real = torch.ones(2, 7)
    real[1, :2] = 0
    sinks = torch.tensor([0.1, -1.0, 2.0, 0.0])
    flags = {"sliding_window": 3, "softcap": 1.5, "s_aux": sinks}
    found = read(call("flash_attention_2", real, **flags))
    allowed = (DISTANCE >= 0) & (DISTANCE < 3) & real.bool()[:, None, None, :]
    expected = weights(allowed, softcap=1.5, sinks=sinks)
    assert far(found, expected, (real * 1)) < 1e-6
    both_ways = read(call("flash_attention_3", None, sliding_window=3, is_causal=False))
    assert far(both_ways, weights(DISTANCE.abs() < 3)) < 1e-6
    late = read(call("flash_attention_2", None, query=Q[:, :, -2:]))
    assert far(late, weights(DISTANCE[-2:] >= 0, query=Q[:, :, -2:])) < 1e-6


def test_flex_attention_is_read_from_its_mask() -> None:
    from torch.nn.attention.flex_attention import create_block_mask

    def near(_sample, _head, query, key):
        return (query >= key) & (query - key < 4)

    block = create_block_mask(near, 2, None, 7, 7, "cpu")
    found = read(call("flex_attention", block, softcap=2.0))
    assert far(found, weights((DISTANCE >= 0) & (DISTANCE < 4), softcap=2.0)) < 1e-6
    added = torch.zeros(2, 1, 7, 9).masked_fill(torch.arange(9) > 4, -torch.inf)
    assert far(read(call("flex_attention", added)), weights(torch.arange(7) <= 4)) < 1e-6


def test_what_sdpa_does_not_heed_is_not_read() -> None:
    found = read(call("sdpa", None, sliding_window=2, s_aux=torch.ones(4)))
    assert far(found, weights(DISTANCE >= 0)) < 1e-6
    one = read(call("sdpa", None, query=Q[:, :, :1]))
    assert far(one, weights(torch.tensor(True), query=Q[:, :, :1])) < 1e-6


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (call("flash_attention_2", None, cu_seq_lens_q=torch.tensor([0, 7])), "packed into one"),
        (call("flash_attention_2", torch.ones(2, 1, 7, 7)), "a mask of shape"),
        (call("sdpa", None, query=Q[:, :3]), "does not look like self-attention"),
        (call("paged|eager", None), "is an unknown implementation"),
    ],
)
def test_calls_that_cannot_be_read(given, words) -> None:
    with pytest.raises(ModelError, match=words) as caught:
        read(given)
    assert "attn_implementation=" in str(caught.value)


# What is read is compared with what came out, also where tokens are nearly alike.


def doubt(*, noise, sharper=1.0, size=1.0, dtype=torch.float32, sinks=None) -> float:
    """The mismatch of causal attention over values that are 3 and a little noise."""
    value = (3 + noise * torch.randn(K.shape, generator=torch.Generator().manual_seed(5))).to(dtype)
    options = {} if sinks is None else {"s_aux": sinks}
    given = dataclasses.replace(call("flash_attention_2", None, **options), value=value)
    p = weights(DISTANCE >= 0, sinks=sinks, query=sharper * Q).double()
    output = size * p @ value.double().repeat_interleave(2, 1)
    return float(mismatch(given, read(given), output.transpose(1, 2).to(dtype)))


SINKS = torch.tensor([0.1, -1.0, 2.0, 0.0])


@pytest.mark.parametrize("noise", [1.0, 1e-1, 1e-2])
@pytest.mark.parametrize("sinks", [None, SINKS])
def test_another_softmax_is_seen_though_values_are_nearly_alike(noise, sinks) -> None:
    assert doubt(noise=noise, sinks=sinks) < 0.1
    if sinks is None:
        assert doubt(noise=noise, sharper=1.05) > 1
    assert doubt(noise=noise, sharper=1.3, sinks=sinks) > 1


@pytest.mark.parametrize("noise", [1.0, 0.1, 1e-2, 1e-4, 1e-6, 0.0])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_rounding_is_no_mismatch(noise, dtype) -> None:
    assert doubt(noise=noise, dtype=dtype) < 1
    assert doubt(noise=noise, dtype=dtype, size=1.3) > 1


def test_half_precision_tells_what_it_can() -> None:
    assert doubt(noise=1.0, sharper=2, dtype=torch.bfloat16) > 1
    assert doubt(noise=0.3, sharper=2, dtype=torch.float16) > 1
    assert doubt(noise=1e-4, sharper=2, dtype=torch.bfloat16) < 1  # below its rounding
