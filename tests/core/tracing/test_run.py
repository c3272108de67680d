"""``trace`` on our own network: right numbers, and a model left exactly as it was found."""

import dataclasses
import math
import weakref

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

from rankscope.core import metrics
from rankscope.core.masks import Window
from rankscope.core.network import Network, Spec, Visibility
from rankscope.core.tracing import DEFAULT_METRICS, MEASURES, trace, trace_in_batches
from rankscope.errors import InputError, KindError, RankscopeError, ShapeError

HIDDEN = [name for name, measure in MEASURES.items() if measure.of != "attention"]
ATTENTION = [name for name, measure in MEASURES.items() if measure.of == "attention"]


def small(**options):
    return Spec(3, 2, 8, init="lecun", mlp_ratio=2, **options)


def states(net, x, token_mask=None):
    """The input and every block's output, one block after the other."""
    seen = Visibility.of(net.spec.mask, x.shape[1], token_mask, x.device)
    found = [x]
    with torch.no_grad():
        for block in net.blocks:
            found.append(block(found[-1], seen))
    return found


def compute(name, x, **options):
    if name == "relative_residual":
        return metrics.residual(x, relative=True, **options)
    if name == "relative_dispersion":
        return metrics.residual(x, norm="fro", relative=True, **options)
    return getattr(metrics, name)(x, **options)


def values(traced, metric):
    """``{(layer, sample): value}`` of one metric of hidden states."""
    columns = traced.columns
    rows = zip(
        columns["layer"], columns["sample"], columns["metric"], columns["value"], strict=True
    )
    return {(layer, sample): value for layer, sample, name, value in rows if name == metric}


def hooks(model):
    return sum(
        len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks)
        for m in model.modules()
    )


# The numbers.


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", HIDDEN)
def test_hidden_metrics_of_every_layer(name, padded, lively, tokens):
    net, x = lively(small(mask=Window(before=2, after=1))), tokens(2, 5, 8)
    token_mask = torch.tensor([[1, 1, 1, 1, 1], [0, 1, 1, 1, 0]]).bool() if padded else None
    found = values(trace(net, x, metrics=[name], token_mask=token_mask), name)
    expected = {
        (layer, sample): value
        for layer, state in enumerate(states(net, x, token_mask))
        for sample, value in enumerate(compute(name, state, token_mask=token_mask).tolist())
    }
    assert found.keys() == expected.keys()
    assert found == pytest.approx(expected, rel=1e-12)


def test_dispersion_without_our_own_metrics(lively, tokens):
    net, x = lively(small()), tokens(2, 5, 8)
    found = values(trace(net, x), "dispersion")
    for layer, state in enumerate(states(net, x)):
        for sample, matrix in enumerate(state.numpy()):
            by_hand = np.sqrt(((matrix - matrix.mean(0)) ** 2).sum())
            assert found[layer, sample] == pytest.approx(by_hand, rel=1e-12)


def test_default_metrics_and_columns(lively, tokens):
    traced = trace(lively(small()), tokens(2, 5, 8))
    assert list(traced.columns) == ["layer", "sample", "metric", "value"]
    assert list(dict.fromkeys(traced.columns["metric"])) == list(DEFAULT_METRICS)
    assert sorted(set(traced.columns["layer"])) == [0, 1, 2, 3]
    assert {len(column) for column in traced.columns.values()} == {4 * 4 * 2}


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", ATTENTION)
def test_attention_metrics_of_every_head(name, padded, lively, tokens):
    net, x = lively(small(mask="causal")), tokens(2, 5, 8)
    token_mask = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]]).bool() if padded else None
    table = trace(net, x, metrics=[name], token_mask=token_mask).table
    assert table.columns == ["layer", "head", "sample", "metric", "value"]
    found = {(layer, head, sample): value for layer, head, sample, _, value in table.rows()}

    seen = Visibility.of(net.spec.mask, 5, token_mask, x.device)
    expected = {}
    for layer, (block, state) in enumerate(
        zip(net.blocks, states(net, x, token_mask), strict=False)
    ):
        normed = block.norms["attention"](state)
        pattern = block.attention.pattern(normed, seen).detach()
        if name == "score_gamma":  # zeros of a matrix do not tell what the scores were
            per_head = gamma_by_hand(block.attention.logits(normed, seen), token_mask)
        else:
            per_head = getattr(metrics, name)(pattern, token_mask=token_mask)
        for sample, heads in enumerate(per_head.tolist()):
            for head, value in enumerate(heads):
                expected[layer + 1, head, sample] = value
    assert len(expected) == 3 * 2 * 2
    assert found == pytest.approx(expected, rel=1e-12, abs=1e-14)


def gamma_by_hand(logits, token_mask):
    """Under a causal mask: ranges over the real tokens up to the query, less the mean query's."""
    batch, heads, tokens, _ = logits.shape
    found = torch.zeros(batch, heads, dtype=torch.float64)
    for sample, head in np.ndindex(batch, heads):
        real = torch.ones(tokens).bool() if token_mask is None else token_mask[sample]
        scores = logits[sample, head].detach()[real][:, real]
        own = scores - scores.mean(0)
        ranges = [row[: i + 1].max() - row[: i + 1].min() for i, row in enumerate(own)]
        found[sample, head] = math.sqrt(sum(ranges) / max(ranges))
    return found


def test_uniform_attention_by_hand(lively, tokens):
    """Logits of scale zero: all rows are 1/n, whatever the weights."""
    net = lively(small(score_scale=0.0))
    table = trace(net, tokens(1, 4, 8), metrics=ATTENTION).table
    for name, value in {
        "attention_entropy": math.log(4), "dobrushin": 0.0, "second_singular_value": 0.0,
        "high_pass_ratio": 0.0, "renyi_entropy": math.log(4), "largest_weight": 0.25,
        "sink_mass": 0.25, "dobrushin_lower": 0.0, "dobrushin_upper": 0.0, "score_gamma": 1.0,
    }.items():  # fmt: skip
        rows = table.filter(table["metric"] == name)
        assert rows["value"].to_list() == pytest.approx([value] * 6, abs=1e-12)


def test_hidden_and_attention_metrics_together(lively, tokens):
    table = trace(lively(small()), tokens(2, 5, 8), metrics=["dobrushin", "dispersion"]).table
    of_hidden = table.filter(table["metric"] == "dispersion")
    of_attention = table.filter(table["metric"] == "dobrushin")
    assert of_hidden["head"].null_count() == len(of_hidden) == 4 * 2
    assert of_attention["head"].null_count() == 0
    assert len(of_attention) == 3 * 2 * 2
    assert set(of_attention["layer"]) == {1, 2, 3}


@pytest.mark.parametrize("make", [lambda n: n.repeat(2), lambda n: n.without("mlp").repeat(2)])
@pytest.mark.parametrize("shared", [False, True])
def test_a_block_run_again_is_another_layer(shared, make, lively, tokens):
    net, x = make(lively(small(shared_layers=shared))), tokens(1, 4, 8)
    traced = trace(net, x, metrics=["dispersion", "dobrushin"])
    found = [
        value
        for name, value in zip(traced.columns["metric"], traced.columns["value"], strict=True)
        if name == "dispersion"
    ]
    expected = [metrics.dispersion(state).item() for state in states(net, x)]
    assert found == pytest.approx(expected, rel=1e-12)
    assert len(found) == 7


def test_named_twice_is_measured_once(lively, tokens):
    traced = trace(lively(small()), tokens(1, 4, 8), metrics=["residual", "residual"])
    assert len(traced.columns["value"]) == 4


def test_one_name_alone(lively, tokens):
    traced = trace(lively(small()), tokens(1, 4, 8), metrics="residual")
    assert set(traced.columns["metric"]) == {"residual"}


def test_own_metrics(lively, tokens):
    net, x = lively(small()), tokens(2, 4, 8)
    asked = []

    def largest(state, *, token_mask):
        asked.append(token_mask)
        return state.abs().amax((-2, -1))

    token_mask = torch.tensor([[True] * 4, [True, True, True, False]])
    found = values(trace(net, x, metrics={"largest": largest}, token_mask=token_mask), "largest")
    expected = [state.abs().amax((-2, -1)).tolist() for state in states(net, x, token_mask)]
    assert [[found[layer, 0], found[layer, 1]] for layer in range(4)] == expected
    assert all(torch.equal(one, token_mask) for one in asked)


@pytest.mark.parametrize(
    "wrong",
    [1.0, None, torch.tensor(1.0), torch.ones(3), torch.ones(2, 3), torch.ones(2, 4, 8)],
    ids=["number", "none", "scalar", "batch", "two-axes", "three-axes"],
)
def test_own_metrics_must_give_one_number_per_sample(wrong, lively, tokens):
    with pytest.raises(RankscopeError, match="mine"):
        trace(lively(small()), tokens(2, 4, 8), metrics={"mine": lambda *_, **__: wrong})


@pytest.mark.parametrize("name", HIDDEN + ATTENTION)
@pytest.mark.parametrize("side", ["left", "right", "both"])
def test_padding_changes_no_number(side, name, lively, tokens):
    net, x = lively(small(mask="causal")), tokens(2, 4, 8)
    before, after = {"left": (3, 0), "right": (0, 3), "both": (1, 2)}[side]
    wide = torch.nn.functional.pad(x, (0, 0, before, after), value=1e3)
    token_mask = torch.zeros(2, 7, dtype=torch.bool)
    token_mask[:, before : before + 4] = True
    plain = trace(net, x, metrics=[name])
    surrounded = trace(net, wide, metrics=[name], token_mask=token_mask)
    assert surrounded.columns["value"] == pytest.approx(plain.columns["value"], rel=1e-8, abs=1e-10)
    assert {k: v for k, v in surrounded.columns.items() if k != "value"} == {
        k: v for k, v in plain.columns.items() if k != "value"
    }


# Tokens that the model sees and the figures leave out.

WITHOUT_FIRST = torch.tensor([[False, True, True, True], [False, True, True, False]])


@pytest.mark.parametrize("name", HIDDEN)
def test_measured_tokens_alone_count(name, lively, tokens):
    net, x = lively(small()), tokens(2, 4, 8)
    token_mask = torch.tensor([[True] * 4, [True, True, True, False]])
    traced = trace(net, x, metrics=[name], token_mask=token_mask, measured=WITHOUT_FIRST)
    expected = [
        value
        for state in states(net, x, token_mask)
        for value in compute(name, state, token_mask=WITHOUT_FIRST).tolist()
    ]
    assert traced.columns["value"] == pytest.approx(expected, rel=1e-12)


def test_measured_does_not_touch_attention_metrics(lively, tokens):
    net, x = lively(small()), tokens(2, 4, 8)
    token_mask = torch.tensor([[True] * 4, [True, True, True, False]])
    chosen = ("residual", *ATTENTION)
    plain = trace(net, x, metrics=chosen, token_mask=token_mask).table
    less = trace(net, x, metrics=chosen, token_mask=token_mask, measured=WITHOUT_FIRST).table
    assert not less.equals(plain)
    of_attention = pl.col("metric") != "residual"
    assert less.filter(of_attention).equals(plain.filter(of_attention))


@pytest.mark.parametrize("way", ["token_mask", "attention_mask"])
def test_padding_is_never_measured(way, tokens):
    """``measured`` chooses among the tokens; padding is none, whatever it says there."""
    model, x = Taking(), tokens(2, 4, 8).float()
    token_mask = torch.tensor([[True] * 4, [True, True, True, False]])
    but_first = torch.tensor([False, True, True, True]).expand(2, 4)
    expected = trace(model, x, token_mask=token_mask & but_first).columns
    if way == "token_mask":
        found = trace(model, x, token_mask=token_mask, measured=but_first)
    else:
        inputs = {"hidden_states": x, "attention_mask": token_mask.long()}
        found = trace(model, inputs, measured=but_first)
    assert found.columns == expected


def test_measured_in_batches(lively, tokens):
    net, x = lively(small()), tokens(2, 4, 8)
    whole = trace(net, x, measured=WITHOUT_FIRST)
    parts = trace_in_batches(net, x, batch_size=1, measured=WITHOUT_FIRST)
    for name in DEFAULT_METRICS:
        assert values(parts, name) == pytest.approx(values(whole, name), rel=1e-10)


@pytest.mark.parametrize(
    ("measured", "error"),
    [
        (torch.ones(2, 4), KindError),
        ([[True] * 4] * 2, KindError),
        (torch.ones(2, 3).bool(), ShapeError),
        (torch.zeros(2, 4).bool(), InputError),
    ],
    ids=["float", "list", "length", "nothing"],
)
def test_wrong_measured_is_named(measured, error, lively, tokens):
    with pytest.raises(error, match="measured"):
        trace(lively(small()), tokens(2, 4, 8), measured=measured)


# Several batches.


@pytest.mark.parametrize("batch_size", [1, 2, 3, 5, 99])
@pytest.mark.parametrize("padded", [False, True])
def test_batches_change_nothing(padded, batch_size, lively, tokens):
    net, x = lively(small()), tokens(5, 4, 8)
    token_mask = torch.arange(4) < torch.tensor([4, 2, 3, 1, 4])[:, None] if padded else None
    calls = []
    whole = trace(net, x, token_mask=token_mask)
    parts = trace_in_batches(
        net, x, batch_size=batch_size, token_mask=token_mask, on_step=calls.append
    )
    for name in DEFAULT_METRICS:
        assert values(parts, name) == pytest.approx(values(whole, name), rel=1e-10)
    assert calls == [min(batch_size * n, 5) / 5 for n in range(1, 1 + math.ceil(5 / batch_size))]
    assert _without_digests(parts) == _without_digests(whole)


def _without_digests(traced):
    """Where a trace came from, but for the names of its batches' inputs and masks."""
    origin = traced.provenance
    settings = {k: words for k, words in origin.settings.items() if k != "token_mask"}
    return dataclasses.replace(origin, inputs=None, settings=settings)


def test_one_mask_for_all_batches(lively, tokens):
    """A mask ``(token,)`` belongs to every sample; it must not be cut like the batch."""
    net, x = lively(small()), tokens(4, 4, 8)
    one = torch.tensor([True, True, True, False])
    parts = trace_in_batches(net, x, batch_size=2, token_mask=one)
    assert values(parts, "residual") == pytest.approx(
        values(trace(net, x, token_mask=one), "residual"), rel=1e-10
    )


@pytest.mark.parametrize("batch_size", [0, -1])
def test_wrong_batch_size(batch_size, lively, tokens):
    with pytest.raises(InputError, match="batch_size"):
        trace_in_batches(lively(small()), tokens(2, 4, 8), batch_size=batch_size)


def test_no_sample_at_all(lively, tokens):
    with pytest.raises(RankscopeError):
        trace_in_batches(lively(small()), tokens(2, 4, 8)[:0], batch_size=2)


# Ways to give inputs and masks.


def test_inputs_as_tensor_mapping_and_sequence(lively, tokens):
    net, x = lively(small()), tokens(2, 4, 8)
    expected = trace(net, x).columns
    assert trace(net, {"x": x}).columns == expected
    assert trace(net, (x,)).columns == expected
    assert trace(net, [x]).columns == expected


@pytest.mark.parametrize("way", ["mapping", "sequence"])
def test_a_token_mask_among_the_inputs_counts_for_the_metrics_too(way, lively, tokens):
    net, x = lively(small()), tokens(2, 4, 8)
    token_mask = torch.tensor([[True] * 4, [True, True, False, False]])
    inputs = {"x": x, "token_mask": token_mask} if way == "mapping" else (x, token_mask)
    expected = trace(net, x, token_mask=token_mask).columns
    assert trace(net, inputs).columns == expected


class Taking(nn.Module):
    """A model that takes ``hidden_states`` and an ``attention_mask``, as Hugging Face's do."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2))

    def forward(self, hidden_states, attention_mask=None):
        del attention_mask
        for layer in self.layers:
            hidden_states = layer(hidden_states)
        return hidden_states


@pytest.mark.parametrize("dtype", [torch.bool, torch.long, torch.float32])
def test_attention_mask_is_the_token_mask(dtype, tokens):
    model, x = Taking(), tokens(2, 4, 8).float()
    token_mask = torch.tensor([[True] * 4, [True, True, False, False]])
    inputs = {"hidden_states": x, "attention_mask": token_mask.to(dtype)}
    expected = trace(model, x, token_mask=token_mask).columns
    assert trace(model, inputs).columns == expected
    assert trace(model, x).columns != expected
    every = torch.ones(2, 4).bool()
    assert trace(model, inputs, token_mask=every).columns == trace(model, x).columns


def test_a_mask_of_pairs_is_no_token_mask(tokens):
    model, x = Taking(), tokens(2, 4, 8).float()
    pairs = {"hidden_states": x, "attention_mask": torch.ones(2, 1, 4, 4).tril()}
    assert trace(model, pairs).columns == trace(model, x).columns


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        (
            {"metrics": ["rank"]},
            InputError,
            "unknown metric 'rank'; choose among relative_residual",
        ),
        ({"metrics": []}, InputError, "no metric"),
        ({"metrics": {}}, InputError, "no metric"),
        ({"token_mask": torch.ones(2, 4)}, KindError, "torch.bool"),
        ({"token_mask": [[True] * 4] * 2}, KindError, "token_mask is a list"),
        ({"token_mask": torch.ones(2, 3).bool()}, ShapeError, r"\(2, 3\)"),
        ({"token_mask": torch.zeros(2, 4).bool()}, InputError, "leaves no token"),
        ({"layout": "feature first"}, InputError, "layout"),
    ],
    ids=["metric", "none", "empty", "float", "list", "length", "blank", "layout"],
)
@pytest.mark.parametrize("ours", [True, False], ids=["network", "foreign"])
def test_wrong_options(ours, options, error, words, lively, tokens):
    model = lively(small()) if ours else Taking().double()
    with pytest.raises(error, match=words):
        trace(model, tokens(2, 4, 8), **options)
    assert hooks(model) == 0


def test_inputs_that_nobody_takes_are_not_dropped(lively, tokens):
    x, token_mask = tokens(2, 4, 8), torch.ones(2, 4).bool()
    with pytest.raises((TypeError, InputError)):
        trace(lively(small()), (x, token_mask, "something else"))
    with pytest.raises((TypeError, InputError)):
        trace(lively(small()), {"x": x, "attention": token_mask})


@pytest.mark.parametrize("inputs", ["a text", 3, None], ids=repr)
def test_wrong_inputs(inputs, lively):
    with pytest.raises(KindError, match=r"inputs.* is a "):
        trace(lively(small()), inputs)


@pytest.mark.parametrize("model", [torch.sin, "bert", None], ids=["function", "name", "none"])
def test_wrong_models(model):
    with pytest.raises(KindError, match=r"expected a torch\.nn\.Module"):
        trace(model, torch.ones(1, 2, 3))


# Numbers that are none.


@pytest.mark.parametrize("layer", [1, 2, 3])
@pytest.mark.parametrize("metric", ["residual", "effective_rank"])
def test_nan_names_the_layer_it_first_shows_in(metric, layer, lively, tokens):
    net = lively(small())
    with torch.no_grad():
        net.blocks[layer - 1].mlp.down.bias[0] = math.nan
    with pytest.raises(InputError, match=f"^layer {layer}, .* is nan at"):
        trace(net, tokens(1, 4, 8), metrics=[metric])
    assert hooks(net) == 0


def test_infinity_in_the_input_is_layer_zero(lively, tokens):
    x = tokens(1, 4, 8)
    x[0, 1, 2] = math.inf
    with pytest.raises(InputError, match=r"layer 0, .*not finite at \[0, 1\]"):
        trace(lively(small()), x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_measured_in_single(dtype, tokens):
    model, x = Taking().to(dtype), tokens(2, 4, 8).to(dtype)
    found = values(trace(model, x), "dispersion")
    state = x
    for layer in range(3):
        expected = metrics.dispersion(state.float()).tolist()
        assert [found[layer, 0], found[layer, 1]] == pytest.approx(expected, rel=1e-6)
        state = model.layers[layer](state) if layer < 2 else None


def test_our_network_in_half_precision(lively, tokens):
    net, x = lively(small()), tokens(2, 4, 8)
    precise = trace(net, x, metrics=["dispersion", "attention_entropy"])
    rough = trace(net.to(torch.bfloat16), x.bfloat16(), metrics=["dispersion", "attention_entropy"])
    assert rough.columns["value"] == pytest.approx(precise.columns["value"], rel=0.05)


# The model is left as it was found.


class Failing(nn.Module):
    """Two blocks, the second of which fails when told to."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)) for _ in "ab")
        self.broken = False

    def forward(self, x):
        x = self.layers[0](x)
        if self.broken:
            raise RuntimeError("the model broke")
        return self.layers[1](x)


def broken_metric(*_, **__):
    raise ZeroDivisionError("the metric broke")


@pytest.mark.parametrize("fails", ["nothing", "model", "metric", "value"])
@pytest.mark.parametrize("training", ["all", "none", "mixed"])
def test_hooks_and_modes_are_restored(training, fails, tokens):
    model, x = Failing(), tokens(2, 4, 8).float()
    model.train(training == "all")
    if training == "mixed":
        model.layers[1].train()
        model.layers[1][0].eval()
    model.layers[0].register_forward_hook(lambda *_: None)  # the user's own
    modes = [module.training for module in model.modules()]
    model.broken = fails == "model"
    chosen = {"mine": broken_metric} if fails == "metric" else DEFAULT_METRICS
    if fails == "value":
        x[0] = math.nan
    expected = {"model": RuntimeError, "metric": ZeroDivisionError, "value": InputError}
    if fails == "nothing":
        trace(model, x)
    else:
        with pytest.raises(expected[fails]):
            trace(model, x, metrics=chosen)
    assert [module.training for module in model.modules()] == modes
    assert hooks(model) == 1
    assert torch.is_grad_enabled()


def test_attention_hooks_are_removed(lively, tokens):
    net = lively(small())
    trace(net, tokens(1, 4, 8), metrics=ATTENTION)
    assert hooks(net) == 0


def test_the_model_runs_in_evaluation_mode(tokens):
    """Dropout would make two traces differ."""
    model, x = Failing(), tokens(2, 4, 8).float()
    assert model.training
    assert trace(model, x).columns == trace(model, x).columns


def test_gradients_are_not_tracked(lively, tokens):
    seen = []

    def spy(x, *, token_mask):
        del token_mask
        seen.append((x.requires_grad, torch.is_grad_enabled()))
        return x.sum((-2, -1))

    net = lively(small())
    trace(net, tokens(1, 4, 8).requires_grad_(), metrics={"spy": spy})
    assert not any(enabled for _, enabled in seen)
    assert not any(required for required, _ in seen[1:])
    assert all(p.grad is None for p in net.parameters())


class Watched(nn.Module):
    """A block that notes, when called, which earlier outputs are still alive."""

    def __init__(self, born, alive):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.born, self.alive = born, alive

    def forward(self, x):
        self.alive.append(sum(ref() is not None for ref in self.born))
        out = self.linear(x)
        self.born.append(weakref.ref(out))
        return out


def test_no_activation_is_kept(tokens):
    born, alive = [], []
    model = nn.Sequential(*(Watched(born, alive) for _ in range(5)))
    traced = trace(model, tokens(2, 4, 8).float())
    assert len(set(traced.columns["layer"])) == 6
    assert len(born) == 5
    assert [ref() for ref in born] == [None] * 5
    assert max(alive) <= 1, "only the input of the running block may be alive"


def test_weights_are_untouched(lively, tokens):
    net = lively(small())
    before = {name: value.clone() for name, value in net.state_dict().items()}
    trace(net, tokens(1, 4, 8), metrics=list(MEASURES))
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


# Where it came from.


def test_provenance_of_a_network():
    spec = small()
    net = Network.random(spec, seed=5)
    origin = trace(net, torch.ones(1, 2, 8)).provenance
    assert (origin.model, origin.spec, origin.seed) == ("Network", spec.digest(seed=5), 5)
    assert origin.versions["torch"] == str(torch.__version__)
    variant = trace(net.without("skip"), torch.ones(1, 2, 8)).provenance
    assert variant.spec == net.without("skip").spec.digest(seed=5) != origin.spec


def test_provenance_of_a_foreign_model(tokens):
    origin = trace(Taking(), tokens(1, 2, 8).float()).provenance
    assert (origin.model, origin.spec, origin.seed) == ("Taking", None, None)


def test_measured_is_refused_where_only_attention_is_measured(lively, tokens):
    with pytest.raises(InputError, match="omit it"):
        trace(
            lively(small()),
            tokens(1, 5, 8),
            metrics=["attention_entropy"],
            measured=torch.tensor([[False, True, True, True, False]]),
        )
