"""Metrics of attention in a trace: those of the matrices that eager attention gives out."""

import pytest
import torch
import transformers as hf
from torch import nn

from rankscope.core import metrics
from rankscope.core.network import Spec
from rankscope.core.tracing import MEASURES, trace
from rankscope.errors import InputError, ModelError

from .architectures import OWN_CODE, SEQUENCES, TEXT, build

hf.utils.logging.set_verbosity_error()
IDS = torch.randint(3, 40, (2, 9), generator=torch.Generator().manual_seed(0))
LEFT = torch.ones_like(IDS)
LEFT[0, :2] = 0
GIVEN = {"input_ids": IDS, "attention_mask": LEFT}
EXACT = ["attention_entropy", "renyi_entropy", "largest_weight", "sink_mass", "high_pass_ratio"]
EXACT += ["dobrushin", "second_singular_value"]
BRACKETS = {"dobrushin": "dobrushin_{}", "second_singular_value": "second_singular_{}"}


def figures(traced, metric):
    """``(layer, sample, head)`` values of one metric."""
    table = traced.columns
    rows = [
        (layer, sample, head, value)
        for layer, sample, head, name, value in zip(
            *(table[name] for name in ("layer", "sample", "head", "metric", "value")), strict=True
        )
        if name == metric
    ]
    assert len(rows) == len({row[:3] for row in rows})
    layers, samples, heads = (1 + max(row[axis] for row in rows) for axis in range(3))
    found = torch.full((layers - 1, samples, heads), torch.nan, dtype=torch.float64)
    for layer, sample, head, value in rows:
        found[layer - 1, sample, head] = value
    return found


def matrices(model, given):
    with torch.no_grad():
        return model(**given, output_attentions=True).attentions


@pytest.mark.parametrize("name", ["qwen2", "mistral", "gemma2", "opt", "modernbert"])
@pytest.mark.parametrize("given", [{"input_ids": IDS}, GIVEN], ids=["whole", "left padding"])
def test_figures_are_those_of_the_matrices(name, given) -> None:
    model = build(TEXT[name])
    token_mask = LEFT.bool() if "attention_mask" in given else None
    attentions = matrices(model, given)
    expected = {
        each: torch.stack([getattr(metrics, each)(p, token_mask=token_mask) for p in attentions])
        for each in EXACT
    }
    kinds = ["eager"] if name == "gemma2" else ["eager", "sdpa"]
    for implementation in kinds:
        model.set_attn_implementation(implementation)
        traced = trace(model, given, metrics=EXACT)
        for each in EXACT:
            assert torch.allclose(figures(traced, each), expected[each].double(), atol=1e-5), each


@pytest.mark.parametrize("name", ["qwen2", "gemma2", "opt"])
def test_bounds_enclose_the_figures_of_the_matrices(name) -> None:
    model = build(TEXT[name])
    ends = [text.format(end) for text in BRACKETS.values() for end in ("lower", "upper")]
    traced = trace(model, GIVEN, metrics=ends)
    for exact, text in BRACKETS.items():
        of_matrix = getattr(metrics, exact)
        attentions = matrices(model, GIVEN)
        truth = torch.stack([of_matrix(p, token_mask=LEFT.bool()) for p in attentions]).double()
        assert bool((figures(traced, text.format("lower")) <= truth + 1e-5).all())
        assert bool((figures(traced, text.format("upper")) >= truth - 1e-5).all())


def test_states_and_attention_in_one_pass() -> None:
    """Rows of both kinds: heads for attention alone, the input's layer for states alone."""
    model = build(TEXT["qwen2"])
    both = trace(model, GIVEN, metrics=["residual", "sink_mass"])
    rows = list(
        zip(both.columns["metric"], both.columns["layer"], both.columns["head"], strict=True)
    )
    states = [(layer, head) for name, layer, head in rows if name == "residual"]
    assert states == [(layer, None) for layer in range(3) for _ in range(2)]
    assert {layer for name, layer, _ in rows if name == "sink_mass"} == {1, 2}
    alone = trace(model, GIVEN, metrics=["residual"]).columns
    values = [v for v, row in zip(both.columns["value"], rows, strict=True) if row[0] == "residual"]
    assert alone["value"] == values
    assert torch.equal(
        figures(both, "sink_mass"),
        figures(trace(model, GIVEN, metrics="sink_mass"), "sink_mass"),
    )


MEANS = ["attention_entropy", "renyi_entropy", "largest_weight", "sink_mass"]


def long_inputs() -> dict[str, torch.Tensor]:
    """200 tokens: a whole sample, and one of 40."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, 40, (2, 200), generator=generator)
    mask = torch.ones_like(ids)
    mask[1, :160] = 0
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_sampled_queries_beside_all(implementation) -> None:
    model = build(TEXT["qwen2"], implementation)
    given = long_inputs()
    exact = trace(model, given, metrics=[*MEANS, "residual"])
    sampled = trace(model, given, metrics=[*MEANS, "residual"], attention="sampled")
    assert "64 queries" in sampled.provenance.settings["attention"]
    assert "attention" not in exact.provenance.settings
    assert "error" not in exact.columns
    table = sampled.columns
    errors = dict.fromkeys((0, 1), ())
    for name, sample, error, value, all_rows in zip(
        *(table[column] for column in ("metric", "sample", "error", "value")),
        exact.columns["value"],
        strict=True,
    ):
        if name == "residual":
            assert error is None
            assert value == all_rows
            continue
        errors[sample] += (error,)
        assert abs(value - all_rows) <= 4 * error + 1e-6
    assert min(errors[0]) > 0
    assert set(errors[1]) == {0.0}  # 40 real tokens are all used


def test_sampled_queries_of_a_network(lively) -> None:
    net = lively(Spec(3, 2, 8, mask="causal", init="lecun"))
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 150, 8, generator=generator, dtype=torch.float64)
    exact, sampled, short, whole = (
        trace(net, inputs, metrics=MEANS, attention=attention)
        for inputs, attention in (
            (x, "all"),
            (x, "sampled"),
            (x[:, :64], "sampled"),
            (x[:, :64], "all"),
        )
    )
    for value, error, all_rows in zip(
        sampled.columns["value"], sampled.columns["error"], exact.columns["value"], strict=True
    ):
        assert 0 < abs(value - all_rows) <= 4 * error
    assert set(short.columns["error"]) == {0.0}
    assert short.columns["value"] == pytest.approx(whole.columns["value"], abs=1e-6)


def test_what_is_no_mean_over_queries_is_not_sampled(lively) -> None:
    net = lively(Spec(2, 2, 8))
    x = torch.randn(1, 5, 8)
    with pytest.raises(InputError, match="dobrushin, score_gamma are not one; request only"):
        trace(net, x, metrics=["dobrushin", "sink_mass", "score_gamma"], attention="sampled")
    refused = {
        name
        for name, measure in MEASURES.items()
        if measure.of == "attention" and name not in MEANS
    }
    for name in refused:
        with pytest.raises(InputError, match=f"{name} is not one"):
            trace(net, x, metrics=name, attention="sampled")
    assert len(refused) == 8


def test_tracing_changes_nothing() -> None:
    model = build(TEXT["qwen2"], "sdpa")
    with torch.no_grad():
        plain = model(**GIVEN).last_hidden_state
        trace(model, GIVEN, metrics=EXACT)
        assert torch.equal(model(**GIVEN).last_hidden_state, plain)
    assert not any(each._forward_pre_hooks or each._forward_hooks for each in model.modules())


# What cannot be heard, or not as one attention a layer, is refused.


@pytest.mark.parametrize("name", OWN_CODE)
def test_models_with_code_of_their_own_are_refused(name) -> None:
    model = build(OWN_CODE[name])
    with pytest.raises(ModelError, match=f"{type(model).__name__} is neither.*rankscope.load"):
        trace(model, {"input_ids": IDS}, metrics=["attention_entropy"])


def test_models_of_pytorch_are_refused() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    with pytest.raises(ModelError, match="TransformerEncoder is neither"):
        trace(model, torch.randn(1, 4, 8), metrics=["attention_entropy"])


class Twice(nn.Module):
    """A block of two blocks, so that each layer attends twice."""

    def __init__(self, first, second):
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x, **options):
        return self.second(self.first(x, **options), **options)


def test_a_layer_that_attends_twice_is_refused() -> None:
    options = {**TEXT["qwen2"][2], "num_hidden_layers": 4}
    model = build((*TEXT["qwen2"][:2], options))
    layers = model.layers
    model.layers = nn.ModuleList([Twice(*layers[:2]), Twice(*layers[2:])])
    model.config.num_hidden_layers = 2
    given = {**GIVEN, "use_cache": False}
    with pytest.raises(InputError, match=r"layer 1 has 2 attention calls.*blocks=\[\.\.\.\]"):
        trace(model, given, metrics=["attention_entropy"])
    inner = [block for pair in model.layers for block in (pair.first, pair.second)]
    traced = trace(model, given, metrics=["attention_entropy"], blocks=inner)
    assert figures(traced, "attention_entropy").shape == (4, 2, 4)
    assert trace(model, given).columns["value"]  # metrics of states need no attention


class Still(nn.Module):
    """A layer that hands on what it is given."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x, **_):
        return 1 * x


def test_a_layer_that_does_not_attend_is_refused() -> None:
    model = build(TEXT["qwen2"])
    model.layers[1] = Still(model.layers[1])
    with pytest.raises(InputError, match="layer 2 has 0 attention calls"):
        trace(model, GIVEN, metrics=["attention_entropy"], blocks="layers")
    model.layers[0] = Still(model.layers[0])
    with pytest.raises(ModelError, match="Qwen2Model is neither"):
        trace(model, GIVEN, metrics=["attention_entropy"])


def test_the_decoder_of_two_stacks_is_measured_by_its_own_attention() -> None:
    """Cross-attention is not heard, nor is the encoder while its blocks are not named."""
    model = build(SEQUENCES["bart"])
    given = {"input_ids": IDS, "decoder_input_ids": IDS[:, :5]}
    with torch.no_grad():
        output = model(**given, output_attentions=True)
    truths = {"encoder": output.encoder_attentions, "decoder": output.decoder_attentions}
    for name, attentions in truths.items():
        traced = trace(model, given, metrics=["attention_entropy"], blocks=f"{name}.layers")
        expected = torch.stack([metrics.attention_entropy(p) for p in attentions]).double()
        assert torch.allclose(figures(traced, "attention_entropy"), expected, atol=1e-5)


def test_a_wrong_mask_is_named_with_the_layer() -> None:
    """Real queries attend to what the mask calls padding."""
    model = build(TEXT["qwen2"])
    with pytest.raises(InputError, match=r"layer 1, sink_mass: attention is not a distribution"):
        trace(model, {"input_ids": IDS}, metrics=["sink_mass"], token_mask=LEFT.bool())


# Our own network.


class Wrapper(nn.Module):
    """A network inside a model, behind an embedding."""

    def __init__(self, net):
        super().__init__()
        self.embedding, self.net = nn.Embedding(40, 8, dtype=torch.float64), net

    def forward(self, input_ids, token_mask=None):
        return self.net(self.embedding(input_ids), token_mask)


@pytest.mark.parametrize("token_mask", [None, LEFT.bool()], ids=["whole", "left padding"])
def test_a_network_inside_a_wrapper(token_mask, lively) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        wrapper = Wrapper(lively(Spec(3, 2, 8, mask="causal", init="lecun")))
    given = (
        {"input_ids": IDS} if token_mask is None else {"input_ids": IDS, "token_mask": token_mask}
    )
    attention = [name for name, measure in MEASURES.items() if measure.of == "attention"]
    inside = trace(wrapper, given, metrics=attention)
    x = wrapper.embedding(IDS).detach()
    alone = trace(wrapper.net, x, metrics=attention, token_mask=token_mask)
    for name in attention:
        assert figures(inside, name).shape == (3, 2, 2)
        assert torch.equal(figures(inside, name), figures(alone, name)), name


def test_beside_a_cache_its_tokens_are_among_the_keys() -> None:
    model = build(TEXT["qwen2"])
    with torch.no_grad():
        cache = model(input_ids=IDS[:, :5], attention_mask=LEFT[:, :5]).past_key_values
    later = {"input_ids": IDS[:, 5:], "attention_mask": LEFT, "past_key_values": cache}
    model.set_attn_implementation("sdpa")
    found = figures(trace(model, later, metrics=["attention_entropy"]), "attention_entropy")
    model.set_attn_implementation("eager")
    p = torch.stack(matrices(model, GIVEN))[..., 5:, :].double()
    assert torch.allclose(found, -torch.special.xlogy(p, p).sum(-1).mean(-1), atol=1e-5)


def test_another_model_that_a_block_asks_is_not_its_attention() -> None:
    model, other = build(TEXT["qwen2"]), build(TEXT["mistral"])
    alone = trace(model, GIVEN, metrics=["attention_entropy"])
    inner = []

    def ask(*_):
        inner.append(trace(other, GIVEN, metrics=["attention_entropy"]))

    model.layers[0].register_forward_hook(ask)
    assert trace(model, GIVEN, metrics=["attention_entropy"]).columns == alone.columns
    assert inner == [trace(other, GIVEN, metrics=["attention_entropy"])]


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_queries_that_overflow_are_named_and_not_taken_for_another_computation(
    implementation,
) -> None:
    model = build(TEXT["mistral"])
    model.set_attn_implementation(implementation)
    with torch.no_grad():
        model.layers[1].self_attn.q_proj.weight.fill_(3e38)
    said = "layer 2: queries overflow" if implementation == "sdpa" else "layer 2, attention_entropy"
    with pytest.raises(InputError, match=said):
        trace(model, GIVEN, metrics=["attention_entropy"])
