"""Scaled arithmetic at its edges: nothing to measure, too much to hold, and mixtures of both."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from rankscope.core.deep import _run, deep_states, deep_trace
from rankscope.core.masks import Window
from rankscope.core.metrics import residual
from rankscope.core.network import Init, Network, NormedHeads, Scores, Spec
from rankscope.errors import InputError, UnsupportedModelError
from rankscope.models.families import load

from .cases import BARE, EVERY_RULE, SPECS, spec
from .comparing import by_layer, difference, gap
from .kinds import Kind
from .oracle import log10_residual, plain_states

PURE = Spec(4, 2, 4, init=Init("normal", 0.4), bias=False, **BARE)
EVERY_KIND = [
    *(*EVERY_RULE, "normed heads", "sink"),
    *("pre-norm", "post-norm", "RMSNorm after", "sphere", "gated"),
]


def logs(net, x, token_mask=None, **options):
    return by_layer(deep_trace(net, x, token_mask=token_mask, **options), "log10_residual")


@pytest.mark.parametrize("name", EVERY_KIND)
def test_equal_tokens_stay_equal(name, lively):
    net, x = lively(SPECS[name]), torch.full((1, 3, 4), 0.1, dtype=torch.float64)
    trace = deep_trace(net, x)
    assert by_layer(trace, "log10_residual").tolist() == [[-math.inf]] * 3
    assert by_layer(trace, "log10_relative_residual").tolist() == [[-math.inf]] * 3
    assert bool(by_layer(trace, "log10_contraction").isnan().all())  # nothing to compare
    assert "beyond" not in trace.provenance.notes  # they are equal, not too close to tell


@pytest.mark.parametrize("name", ["pure attention", "pre-norm", "post-norm", "sphere", "rotary"])
def test_a_single_token_differs_from_nobody(name, lively, tokens):
    net, x = lively(SPECS[name]), tokens(2, 1, 4)
    assert logs(net, x).tolist() == [[-math.inf] * 2] * 3
    states = [state.tensor() for _, state in deep_states(net, x)]
    torch.testing.assert_close(states[-1], net(x), rtol=1e-13, atol=1e-13)
    masked = torch.tensor([[False, True, False]])
    assert logs(net, tokens(1, 3, 4), masked).tolist() == [[-math.inf]] * 3


@pytest.mark.parametrize("name", EVERY_KIND)
def test_an_input_of_zeros(name, lively):
    net, x = lively(SPECS[name]), torch.zeros(1, 3, 4, dtype=torch.float64)
    assert logs(net, x).tolist() == [[-math.inf]] * 3
    state = [state for _, state in deep_states(net, x)][-1]
    torch.testing.assert_close(state.tensor(), net(x), rtol=1e-12, atol=1e-12)


def test_zero_divided_by_zero_is_zero():
    net = Network.random(PURE, dtype=torch.float64)
    trace = deep_trace(net, torch.zeros(1, 3, 4, dtype=torch.float64))
    assert bool(by_layer(trace, "log10_relative_residual").isneginf().all())
    assert bool(by_layer(trace, "local_exponent").isnan().all())


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_is_named(bad, lively, tokens):
    net, x = lively(spec()), tokens(1, 3, 4)
    broken = x.clone()
    broken[0, 1, 2] = bad
    with pytest.raises(InputError, match=r"\[0, 1, 2\]"):
        logs(net, broken)
    mask = torch.tensor([[True, False, True]])
    torch.testing.assert_close(logs(net, broken, mask), logs(net, x, mask))
    with torch.no_grad():
        net.blocks[1].mlp.up.weight[0, 0] = bad
    with pytest.raises(InputError, match=r"layer 2: the weights .*mlp\.up\.weight are not finite"):
        logs(net, x)


def test_what_fails_says_at_which_layer(lively, tokens):
    class Odd(Scores):
        fused = False

    net = lively(spec())
    net.blocks[1].attention.scores = Odd()
    with pytest.raises(UnsupportedModelError, match=r"layer 2: .* does not support the score Odd"):
        logs(net, tokens(1, 3, 4))


def test_a_score_that_plain_numbers_cannot_follow_is_refused(lively, tokens):
    # Normalised heads without positions: every query asks the same but for its last digits.
    net = lively(spec(**BARE))
    net.blocks[0].attention.scores = NormedHeads(nn.Identity(), nn.Identity(), Scores())
    with pytest.raises(UnsupportedModelError, match=r"layer 1: .* agree to all digits"):
        logs(net, tokens(1, 1, 4) + 1e-12 * tokens(1, 3, 4, seed=2))


EXPLODING = {
    "attention": Spec(50, 2, 4, init=Init("normal", 1e100), **BARE),
    "attention and skips": Spec(8, 2, 4, init=Init("normal", 1e100), mlp_ratio=0, norm="none"),
    "MLP": Spec(8, 2, 4, init=Init("normal", 1e100), norm="none", score_scale=0.0),
    "gated": Spec(8, 2, 4, init=Init("normal", 1e40), norm="none", gated=True, score_scale=0.0),
    "normed": Spec(8, 2, 4, init=Init("normal", 1e100)),
}


@pytest.mark.parametrize("name", EXPLODING)
def test_exploding_networks_are_defined(name, tokens):
    net = Network.random(EXPLODING[name], dtype=torch.float64)
    trace = deep_trace(net, tokens(1, 3, 4))
    for metric in ("log10_residual", "log10_relative_residual"):
        got = by_layer(trace, metric)
        assert not bool(got.isnan().any() | got.isposinf().any())
    if name == "MLP":  # two maps of 1e100 a layer
        assert by_layer(trace, "log10_residual")[-1].item() == pytest.approx(8 * 200, rel=0.05)


def test_a_network_that_explodes_beyond_all_logarithms(tokens, lively, monkeypatch):
    def exploded(_block, state, _visibility):  # the true way there is a thousand layers long
        return replace(state, deviation=replace(state.deviation, log=state.log_scale + math.inf))

    monkeypatch.setattr(_run, "apply_block", exploded)
    with pytest.raises(InputError, match=r"layer 1: the hidden state has overflowed"):
        logs(lively(spec()), tokens(1, 3, 4))


def test_exploding_as_the_oracle_does(tokens):
    wide = Spec(3, 2, 4, init=Init("normal", 1e20), norm="none", score_scale=0.0, activation="silu")
    assert gap(Network.random(wide, dtype=torch.float64), tokens(1, 3, 4)) < 1e-10


def test_collapse_beyond_all_logarithms(tokens):
    net = Network.random(PURE, dtype=torch.float64).repeat(175)  # 700 layers
    trace = deep_trace(net, tokens(1, 3, 4))
    got = by_layer(trace, "log10_residual")[:, 0]
    gone = int(got.isneginf().float().argmax())
    assert 600 < gone < 680
    assert bool(got[gone:].isneginf().all())
    assert bool(got[:gone].isfinite().all())
    assert got[gone - 1] < -1e307
    note = trace.provenance.notes["beyond"]
    assert note == f"from layer {gone} on the logarithm is below −1.8e308"
    exponents = by_layer(trace, "local_exponent")[:, 0]
    torch.testing.assert_close(exponents[30 : gone - 1], torch.full((gone - 31,), 3.0).double())


def test_float32_networks_are_converted_and_left_alone(tokens):
    net = Network.random(replace(PURE, bias=True), seed=3)
    before = [parameter.clone() for parameter in net.parameters()]
    x = tokens(1, 3, 4).float()
    got = logs(net, x)
    assert {parameter.dtype for parameter in net.parameters()} == {torch.float32}
    for old, new in zip(before, net.parameters(), strict=True):
        assert torch.equal(old, new)
    assert torch.equal(got, logs(net.double(), x.double()))
    assert gap(net.double(), x.double()) < 1e-10
    assert all(state.mantissa.dtype == torch.float64 for _, state in deep_states(net, x))


def test_no_gradient_is_kept(lively, tokens):
    x = tokens(1, 3, 4).requires_grad_()
    assert not any(state.mantissa.requires_grad for _, state in deep_states(lively(spec()), x))


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5", "xlnet", "qwen3", "neox"])
def test_loaded_models_agree_with_their_forward_pass(name):
    hf = pytest.importorskip("transformers")
    torch.manual_seed(0)
    net = load(TINY[name](hf).eval()).network.double()
    x = torch.randn(2, 6, 24, dtype=torch.float64)
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]]).bool()
    for variant in (net, net.without("skip"), net.without("skip", "mlp")):
        got = logs(variant, x, mask, norm="fro")
        with torch.no_grad():
            states = [x, *variant.states(x, mask)]
        expected = torch.stack([residual(s, norm="fro", token_mask=mask).log10() for s in states])
        clear = expected > -6  # below, float64 itself has no digits to compare
        assert bool(clear[:2].all())
        torch.testing.assert_close(got[clear], expected[clear], rtol=1e-7, atol=1e-7)


_SHAPE = {
    "vocab_size": 23,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 32,
}
_GROUPED = {**_SHAPE, "num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2}
_T5 = {"vocab_size": 23, "d_model": 24, "d_kv": 8, "d_ff": 40, "num_layers": 2, "num_heads": 4}
_GPT2 = {"vocab_size": 23, "n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 32}
_XLNET = {"vocab_size": 23, "d_model": 24, "n_layer": 2, "n_head": 4, "d_inner": 40}
TINY = {
    "bert": lambda hf: hf.BertModel(hf.BertConfig(**_SHAPE)),
    "gpt2": lambda hf: hf.GPT2Model(hf.GPT2Config(**_GPT2, bos_token_id=1, eos_token_id=2)),
    "llama": lambda hf: hf.LlamaModel(hf.LlamaConfig(**_GROUPED)),
    "t5": lambda hf: hf.T5EncoderModel(hf.T5Config(**_T5)),
    "xlnet": lambda hf: hf.XLNetModel(hf.XLNetConfig(**_XLNET)),
    "qwen3": lambda hf: hf.Qwen3Model(hf.Qwen3Config(**_GROUPED, head_dim=8)),
    "neox": lambda hf: hf.GPTNeoXModel(hf.GPTNeoXConfig(**_SHAPE)),
}


@pytest.mark.parametrize("name", EVERY_KIND)
def test_padding_changes_nothing(name, lively, tokens):
    net, x = lively(replace(SPECS[name], norm="none", skip=0.0)), 0.5 * tokens(1, 3, 4)
    alone = logs(net, x)
    nonsense = torch.full((1, 2, 4), 1e9, dtype=torch.float64)
    for parts, mask in (
        ((nonsense, x), [0, 0, 1, 1, 1]),
        ((x, nonsense), [1, 1, 1, 0, 0]),
        ((x[:, :1], nonsense, x[:, 1:]), [1, 0, 0, 1, 1]),
    ):
        padded = logs(net, torch.cat(parts, 1), torch.tensor([mask]).bool())
        torch.testing.assert_close(padded, alone, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", EVERY_KIND)
def test_samples_of_every_size_in_one_batch(name, lively, tokens):
    net, base = lively(replace(SPECS[name], layers=1)), tokens(1, 1, 4, seed=8)
    samples = [
        tokens(1, 3, 4),
        base + 1e-9 * tokens(1, 3, 4),
        1e-250 * tokens(1, 3, 4),
        torch.zeros(1, 3, 4, dtype=torch.float64),
    ]
    if name == "normed heads":
        del samples[2]
    together = logs(net, torch.cat(samples))
    alone = torch.cat([logs(net, x) for x in samples], 1)
    torch.testing.assert_close(together, alone, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", ["pure attention", "linear kernel", "gaussian kernel"])
def test_logits_among_the_least_floats_beside_others(name, lively, tokens):
    # Products near 1e-320 have few digits left; whether a division by them is taken must not hang
    # on what else is in the batch.
    net = lively(replace(SPECS[name], layers=1, bias=False, **BARE))
    for exponent in (-161.0, -161.5, -162.0, -320.0):
        x = torch.cat((0.2 * tokens(1, 3, 4), 10.0**exponent * tokens(1, 3, 4)))
        assert gap(net, x) < 1e-10


def drawn_to_the_first(strength, size, mask, lively, tokens):
    """log10 residuals, scaled and exact, of a layer that leaves ``e^−strength`` to other keys."""
    sink = replace(SPECS["sink"].scores, tokens=1, strength=strength)
    net, x = lively(spec(scores=sink, mask=mask, layers=1, **BARE)), size * tokens(1, 3, 4)
    return logs(net, x)[-1], log10_residual(plain_states(net, x, digits=2200)[-1])


@pytest.mark.parametrize("mask", ["full", "causal"])
@pytest.mark.parametrize("strength", [300.0, 800.0, 1500.0])
def test_weights_below_all_floats(strength, mask, lively, tokens):
    got, expected = drawn_to_the_first(strength, 1.0, mask, lively, tokens)
    assert expected.item() < -0.4 * strength
    assert difference(got, expected) < 1e-12


def test_weights_below_all_floats_of_queries_that_hardly_differ(lively, tokens):
    got, expected = drawn_to_the_first(800.0, 0.01, "full", lively, tokens)
    assert difference(got, expected) < 1e-12


def test_logits_beyond_all_floats(lively, tokens):
    assert gap(lively(spec(mlp_ratio=0.0, norm="none")), 1e150 * tokens(1, 3, 4)) < 1e-10


def test_padding_leaves_one_sample_a_single_support_and_another_several(lively, tokens):
    # Under a causal mask a sample of one real token sees one key; the other sample's differ.
    net, x = lively(spec(mask="causal", **BARE)), 0.3 * tokens(2, 3, 4)
    mask = torch.tensor([[True, False, False], [True, True, True]])
    together = logs(net, x, mask)
    assert together[:, 0].isneginf().all()
    torch.testing.assert_close(together[:, 1:], logs(net, x[1:]), rtol=1e-13, atol=1e-13)
    assert gap(net, x[1:]) < 1e-10


def test_padding_asks_nothing(lively, tokens):
    # A window wider than the sequence: all real queries see the same, a padding query only itself.
    net = lively(spec(mask=Window(before=9, after=9), layers=1, **BARE))
    x = tokens(1, 1, 4, seed=9) + 1e-9 * tokens(1, 5, 4)
    mask = torch.tensor([[False, True, True, False, True]])
    assert logs(net, x, mask)[-1].item() < -24
    assert gap(net, x, mask) < 1e-10


EXPONENTS = {
    "full": (PURE, 3),
    "absolute positions": (replace(PURE, bias=True), 3),
    "a sink": (replace(PURE, scores=SPECS["sink"].scores), 3),
    "linear kernel": (replace(PURE, scores=SPECS["linear kernel"].scores), 3),
    "gaussian kernel": (replace(PURE, scores=SPECS["gaussian kernel"].scores), 3),
    "sparsemax": (replace(PURE, scores=SPECS["sparsemax"].scores), 3),
    "causal": (replace(PURE, mask="causal"), 1),
    "rotary": (replace(PURE, scores=Kind("rotary"), bias=True), 1),
    "buckets": (replace(PURE, scores=Kind("buckets")), 1),
    "alibi": (replace(PURE, scores=SPECS["alibi"].scores), 1),
    "full, with skips": (replace(PURE, skip=1.0), 1),
}


@pytest.mark.parametrize("name", EXPONENTS)
def test_the_law_of_collapse(name, lively, tokens):
    # N1: scores of pairs of positions, masks and skips turn the cubic step into a linear one.
    described, exponent = EXPONENTS[name]
    net = lively(described).repeat(4 if exponent == 3 else 10)
    trace = deep_trace(net, tokens(1, 3, 4))
    last = by_layer(trace, "local_exponent")[-1].item()
    if name == "full, with skips":  # nothing need fall at all; the ratio of residuals is level
        contraction = by_layer(trace, "log10_contraction")[-8:, 0]
        assert contraction.abs().max() < 1
    else:
        assert last == pytest.approx(exponent, abs=0.05)


@pytest.mark.parametrize("skip", [False, True])
def test_centred_attention_needs_a_skip(skip):
    network = Network.random(Spec(1, 1, 4, skip=skip, centered=True))
    x = torch.randn(1, 3, 4, generator=torch.Generator().manual_seed(0))
    if skip:
        assert max(deep_trace(network, x).columns["layer"]) == 1
    else:
        with pytest.raises(UnsupportedModelError, match=r"layer 1: .* centred attention without"):
            deep_trace(network, x)
