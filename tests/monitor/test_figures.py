"""Every number of a probe against NumPy, from matrices of the same model in float64."""

import copy
import math
from contextlib import contextmanager
from unittest import mock

import numpy as np
import pytest
import torch
import transformers as hf
from torch import nn
from torch.nn import functional

from rankscope import Monitor, Network, Spec

from .tiny import Written, enlivened, ids, lively, padded

MASKED = -1e4
"""Logits below are hidden keys."""


def measured(model, probe, folder, **options):
    """The baseline of a monitor, by metric and layer; a later record of it is equal."""
    monitor = Monitor(model, probe, every=1, folder=folder / "run", predict=False, **options)
    with monitor:
        monitor.step()
    again = dict(monitor.history.last.values)
    assert again.pop(("rankscope/overhead_ms", None)) > 0
    assert again == monitor.history.baseline.values
    return again


# The oracle: NumPy and what the model itself returns.


def expected_of_states(states, real):
    """Figures of hidden states by layer; ``real`` says which tokens are not padding."""
    values = {}
    for layer, state in enumerate(states):
        residuals, cosines, ranks, sizes, peaks = [], [], [], [], []
        for x, mask in zip(state.double().numpy(), real.numpy(), strict=True):
            x = x[mask]
            residuals.append(np.linalg.norm(x - x.mean(0)) / np.linalg.norm(x))
            units = x / np.linalg.norm(x, axis=1, keepdims=True)
            gram = units @ units.T
            pairs = len(x) * (len(x) - 1)
            cosines.append((gram.sum() - len(x)) / pairs if pairs else 1.0)
            ranks.append(rank_of(x))
            sizes.append(np.sqrt((x**2).mean()))
            peaks.append(np.abs(x).max() / lower_median(np.abs(x)))
        values["rank/residual", layer] = np.median(residuals)
        values["rank/mean_cosine", layer] = np.median(cosines)
        values["rank/effective_rank", layer] = np.median(ranks)
        values["stream/rms", layer] = np.median(sizes)
        values["stream/max_over_median", layer] = np.max(peaks)
    return values


def rank_of(x):
    shares = np.linalg.svd(x, compute_uv=False)
    shares = shares / shares.sum()
    shares = shares[shares > 0]
    return np.exp(-(shares * np.log(shares)).sum())


def lower_median(x):
    return np.sort(x.flatten())[(x.size - 1) // 2]


def expected_of_logits(logits, real, sinks=None):
    """Figures of one layer from (batch, head, query, key), hidden keys at −∞."""
    by_sample = []
    for number, mask in enumerate(real.numpy()):
        heads = []
        for head in range(logits.shape[1]):
            rows = logits[number, head].double().numpy()[mask][:, mask]
            sink = None if sinks is None else float(sinks[head])
            heads.append([figures_of_row(row, sink) for row in rows])
        by_sample.append(np.array(heads).mean(1))  # head, figure
        by_sample[-1][:, 1] = np.array(heads)[..., 1].max(1)
    table = np.array(by_sample)  # sample, head, figure
    return {
        "attention/entropy": np.median(table[..., 0].mean(1)),
        "attention/entropy_min": np.median(table[..., 0].min(1)),
        "attention/max_logit": table[..., 1].max(),
        "attention/logit_deviation": np.median(table[..., 2].mean(1)),
        "attention/sink": np.median(table[..., 3].mean(1)),
    }


def figures_of_row(row, sink):
    seen = row[row > MASKED]
    extended = seen if sink is None else np.append(seen, sink)
    weights = np.exp(extended - extended.max())
    weights /= weights.sum()
    nonzero = weights[weights > 0]
    on_first = weights[0] if row[0] > MASKED else 0.0
    on_sink = 0.0 if sink is None else weights[-1]
    entropy = -(nonzero * np.log(nonzero)).sum()
    return entropy, np.abs(seen).max(), seen.std(), on_first + on_sink


def expected_shares(outputs, states, real, name):
    """Norm of an output over that of the stream after the layer."""
    values = {}
    for layer, output in enumerate(outputs, 1):
        ratios = [
            np.linalg.norm(out[mask]) / np.linalg.norm(x[mask])
            for out, x, mask in zip(
                output.double().numpy(), states[layer].double().numpy(), real.numpy(), strict=True
            )
        ]
        values[name, layer] = np.median(ratios)
    return values


def expected_pooled(state, real, *, last):
    rows = [x[mask][-1] if last else x[mask].mean(0)
            for x, mask in zip(state.double().numpy(), real.numpy(), strict=True)]  # fmt: skip
    pooled = np.array(rows)
    units = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
    n = len(units)
    return {
        ("pooled/effective_rank", None): rank_of(pooled),
        ("pooled/mean_cosine", None): ((units @ units.T).sum() - n) / (n * (n - 1)),
    }


@contextmanager
def softmaxes():
    """The inputs of every softmax over (batch, head, query, key), in order."""
    seen, plain = [], functional.softmax

    def softmax(x, *args, **kwargs):
        if x.ndim == 4:
            seen.append(x.detach().double().clone())
        return plain(x, *args, **kwargs)

    with mock.patch.object(functional, "softmax", softmax):
        yield seen


def observed(model, blocks, inputs, *paths):
    """States, and outputs of modules of each block, of a float64 copy in eager mode."""
    states, outputs = [], {path: [] for path in paths}

    def keep(kept):
        def hook(_module, _args, output):
            kept.append((output[0] if isinstance(output, tuple) else output).detach().clone())

        return hook

    def keep_first(_module, args, kwargs):
        states.append((args or tuple(kwargs.values()))[0].detach().clone())

    modules = model.get_submodule(blocks)
    modules[0].register_forward_pre_hook(keep_first, with_kwargs=True)
    for block in modules:
        block.register_forward_hook(keep(states))
        for path in paths:
            block.get_submodule(path).register_forward_hook(keep(outputs[path]))
    with softmaxes() as logits, torch.no_grad():
        model(**inputs) if isinstance(inputs, dict) else model(inputs)
    return states, [outputs[path] for path in paths], logits


MODELS = {
    # blocks, the modules whose outputs are added, whether the last token is pooled
    "bert": ("encoder.layer", ("attention.output.dense", "output.dense"), False),
    "llama": ("model.layers", ("self_attn", "mlp"), True),
    "gpt2": ("transformer.h", ("attn", "mlp"), True),
    "mixtral": ("model.layers", ("self_attn", "mlp"), True),
    "gpt-oss": ("model.layers", ("self_attn", "mlp"), True),
    "gemma2": ("model.layers", ("post_attention_layernorm", "post_feedforward_layernorm"), True),
    "gemma3": ("model.layers", ("post_attention_layernorm", "post_feedforward_layernorm"), True),
}


def expected(name, model, probe):
    """All figures of a model of Transformers."""
    blocks, parts, last = MODELS[name]
    model = copy.deepcopy(model).double()
    model.set_attn_implementation("eager")
    model.set_experts_implementation("eager")
    states, (attention, mlp), logits = observed(model, blocks, probe, *parts)
    real = probe["attention_mask"].bool()
    tokens = real.shape[1]
    values = expected_of_states(states, real)
    assert len(logits) == len(states) - 1
    for layer, layer_logits in enumerate(logits, 1):
        sinks = None
        if layer_logits.shape[-1] == tokens + 1:  # gpt-oss appends its sink to the logits
            sinks = model.get_submodule(blocks)[layer - 1].self_attn.sinks.detach()
            assert not torch.equal(layer_logits[..., :tokens], layer_logits[..., 1:])
            # it also shifts all logits by their maximum
            shift = sinks[:, None] - layer_logits[..., tokens]
            layer_logits = layer_logits[..., :tokens] + shift[..., None]
        figures = expected_of_logits(layer_logits, real, sinks)
        values |= {(metric, layer): value for metric, value in figures.items()}
    values |= expected_shares(attention, states, real, "stream/attention_share")
    values |= expected_shares(mlp, states, real, "stream/mlp_share")
    return values | expected_pooled(states[-1], real, last=last)


@pytest.mark.parametrize("name", MODELS)
def test_models_of_transformers_with_padding(name, tmp_path):
    model, probe = lively(name), padded()
    values = measured(model, probe, tmp_path)
    routers = {place: values.pop(place) for place in list(values) if "router" in place[0]}
    assert values == pytest.approx(expected(name, model, probe), rel=2e-4, abs=1e-6)
    assert bool(routers) == (name in ("mixtral", "gpt-oss"))


@pytest.mark.parametrize(("name", "path"), [("mixtral", "mlp.gate"), ("gpt-oss", "mlp.router")])
def test_routers_against_counting(name, path, tmp_path):
    model, probe = lively(name), padded(4, 6)
    with torch.no_grad():  # an expert that nobody chooses
        for layer in model.model.layers:
            router = layer.get_submodule(path)
            router.weight.mul_(20.0)[3] = 0.0
            if getattr(router, "bias", None) is not None:
                router.bias[3] = -1e4
    values = measured(model, probe, tmp_path)
    real = probe["attention_mask"].bool().flatten()
    for layer in (1, 2):
        router = model.model.layers[layer - 1].get_submodule(path)
        rows = []
        hook = router.register_forward_pre_hook(lambda _m, args, rows=rows: rows.append(args[0]))
        with torch.no_grad():
            model(**probe)
        hook.remove()
        counts = np.zeros(5)
        for x, counted in zip(rows[0].reshape(-1, 24), real, strict=True):
            logits = (router.weight @ x).detach()
            if getattr(router, "bias", None) is not None:
                logits = logits + router.bias.detach()
            for expert in np.argsort(-logits.numpy())[:2] if counted else ():
                counts[expert] += 1
        shares = counts[counts > 0] / counts.sum()
        assert values["router/entropy", layer] == pytest.approx(-(shares * np.log(shares)).sum())
        assert values["router/dead", layer] == pytest.approx((counts == 0).mean())
    if name == "gpt-oss":
        assert values["router/dead", 1] > 0


class Encoder(nn.Module):
    """PyTorch's encoder, with batch or tokens first."""

    def __init__(self, batch_first):
        super().__init__()
        layer = nn.TransformerEncoderLayer(24, 4, 40, batch_first=batch_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x):
        return self.encoder(x)


@pytest.mark.parametrize("batch_first", [False, True])
def test_encoder_of_pytorch(batch_first, tmp_path):
    model = enlivened(lambda: Encoder(batch_first))
    x = torch.randn(5, 7, 24, generator=torch.Generator().manual_seed(3))
    probe = x if batch_first else x.transpose(0, 1)
    layout = "batch token feature" if batch_first else "token batch feature"
    values = measured(model, probe, tmp_path, layout=layout)
    double = copy.deepcopy(model).double()
    states, (mixed, written), _ = observed(
        double, "encoder.layers", probe.double(), "self_attn", "linear2"
    )
    if not batch_first:
        states, mixed, written = (
            [t.transpose(0, 1) for t in ts] for ts in (states, mixed, written)
        )
    real = torch.ones(5, 7, dtype=torch.bool)
    wanted = expected_of_states(states, real) | expected_pooled(states[-1], real, last=False)
    for layer, block in enumerate(double.encoder.layers, 1):
        weight, bias = block.self_attn.in_proj_weight, block.self_attn.in_proj_bias
        wanted |= _attention_of(states[layer - 1], weight, bias, layer, real, heads=4)
    wanted |= expected_shares(mixed, states, real, "stream/attention_share")
    wanted |= expected_shares(written, states, real, "stream/mlp_share")
    assert values == pytest.approx(wanted, rel=2e-4, abs=1e-6)


def _attention_of(x, weight, bias, layer, real, *, heads, causal=False):
    """Attention figures from the input of a projection to queries, keys and values."""
    qkv = torch.nn.functional.linear(x, weight, bias).detach()
    q, k, _ = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in qkv.chunk(3, -1))
    logits = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(q.shape[-1])
    if causal:
        tokens = x.shape[1]
        logits = logits.masked_fill(torch.ones(tokens, tokens).triu(1).bool(), -math.inf)
    figures = expected_of_logits(logits, real)
    return {(metric, layer): value for metric, value in figures.items()}


def expected_of_written(model, probe):
    double = copy.deepcopy(model).double()
    states, (normed, mixed, written), _ = observed(double, "blocks", probe, "ln_1", "proj", "mlp")
    real = torch.ones(*probe.shape[:2], dtype=torch.bool)
    values = expected_of_states(states, real)
    for layer, block in enumerate(double.blocks, 1):
        values |= _attention_of(normed[layer - 1], block.qkv.weight, block.qkv.bias, layer, real,
                                heads=2, causal=True)  # fmt: skip
    values |= expected_shares(mixed, states, real, "stream/attention_share")
    values |= expected_shares(written, states, real, "stream/mlp_share")
    return values | expected_pooled(states[-1], real, last=True)


def test_a_model_as_people_write_it(tmp_path):
    model, probe = enlivened(Written), ids(5, 8)
    values = measured(model, probe, tmp_path)
    assert values == pytest.approx(expected_of_written(model, probe), rel=2e-4, abs=1e-6)


def test_a_network_of_ours_with_padding(tmp_path):
    net = Network.random(Spec(2, 2, 8, mask="causal"), seed=0)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=torch.manual_seed(1)))
    x = torch.randn(4, 6, 8, generator=torch.Generator().manual_seed(3))
    mask = torch.ones(4, 6, dtype=torch.bool)
    mask[1, 4:] = mask[2, 5:] = False
    values = measured(net, x, tmp_path, token_mask=mask, pooling="mean")
    double = copy.deepcopy(net).double()
    states, outputs = [x.double()], {"attention": [], "mlp": []}
    wanted = {}
    for layer, block in enumerate(double.blocks, 1):
        state, part = states[-1], block.attention
        normed = block.norms["attention"](state)
        weight = torch.cat([part.query.weight, part.key.weight, part.value.weight])
        bias = torch.cat([part.query.bias, part.key.bias, part.value.bias])
        wanted |= _attention_of(normed, weight, bias, layer, mask, heads=2, causal=True)
        q, k, v = functional.linear(normed, weight, bias).chunk(3, -1)
        q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in (q, k, v))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        outputs["attention"].append(part.output(mixed.transpose(1, 2).flatten(2)).detach())
        state = state + outputs["attention"][-1]
        normed = block.norms["mlp"](state)
        hidden = functional.gelu(functional.linear(normed, block.mlp.up.weight, block.mlp.up.bias))
        outputs["mlp"].append(block.mlp.down(hidden).detach())
        states.append((state + outputs["mlp"][-1]).detach())
    wanted |= expected_of_states(states, mask) | expected_pooled(states[-1], mask, last=False)
    wanted |= expected_shares(outputs["attention"], states, mask, "stream/attention_share")
    wanted |= expected_shares(outputs["mlp"], states, mask, "stream/mlp_share")
    assert values == pytest.approx(wanted, rel=2e-4, abs=1e-6)


def test_padding_on_the_left_is_left_out(tmp_path):
    model, right = lively("gpt2"), padded()
    values = {}
    for side in ("right", "left"):
        probe = dict(right)
        if side == "left":
            roll = (1 - right["attention_mask"]).sum(-1).tolist()
            probe = {name: torch.stack([row.roll(n) for row, n in zip(part, roll, strict=True)])
                     for name, part in right.items()}  # fmt: skip
        positions = (probe["attention_mask"].cumsum(-1) - 1).clamp_min(0)
        values[side] = measured(model, {**probe, "position_ids": positions}, tmp_path / side)
    assert values["left"] == pytest.approx(values["right"], rel=2e-4, abs=1e-6)


@pytest.mark.parametrize("lengths", [[1, 1, 1], [1, 5, 4]])
def test_samples_of_one_token(lengths, tmp_path):
    model = lively("bert")
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    probe = {"input_ids": ids(3, max(lengths)) * mask, "attention_mask": mask}
    values = measured(model, probe, tmp_path)
    wanted = expected("bert", model, probe)
    if max(lengths) == 1:
        assert values["rank/residual", 1] == pytest.approx(0.0, abs=1e-6)
        assert values["attention/entropy", 1] == 0
    assert values == pytest.approx(wanted, rel=2e-4, abs=1e-5)


def test_a_sample_that_is_not_finite(tmp_path):
    model, probe = lively("llama"), padded()
    monitor = Monitor(model, probe, every=1, folder=tmp_path / "run", predict=False)
    before = dict(monitor.history.last.values)
    broken = int(probe["input_ids"][2, 1])
    others = [row for row in range(4) if broken not in probe["input_ids"][row]]
    assert 2 <= len(others) < 4
    with torch.no_grad():
        model.model.embed_tokens.weight[broken] = math.inf
    monitor.step()
    values = monitor.history.last.values
    rest = {name: part[others] for name, part in probe.items()}
    wanted = expected("llama", model, rest)
    for (metric, layer), value in values.items():
        if metric.startswith("rank/"):  # medians over the samples that have a value
            assert value == pytest.approx(wanted[metric, layer], rel=2e-4, abs=1e-6)
        elif metric.startswith(("stream/", "attention/")):
            assert not math.isfinite(value), (metric, layer)
    assert {place for place in before if place[0].startswith("rank/")} <= set(values)
    assert ("pooled/mean_cosine", None) not in values
    assert [(alarm.rule, alarm.layer) for alarm in monitor.alarms if alarm.step == 1][:1] == [
        ("non-finite", 0)
    ]


@pytest.mark.parametrize("name", ["bert", "llama", "gemma2"])
@pytest.mark.parametrize("how", ["bfloat16", "autocast"])
def test_half_precision_measures_what_is_stored(name, how, tmp_path):
    model, probe = lively(name), padded()
    wanted = expected(name, model, probe)
    if how == "bfloat16":
        values = measured(model.bfloat16(), probe, tmp_path)
    else:
        values = measured(model, probe, tmp_path, autocast=torch.bfloat16)
    assert values == pytest.approx(wanted, rel=0.1, abs=0.05)
    assert values != pytest.approx(wanted, rel=1e-4)  # it did run in half precision


def test_training_mode_runs_dropout_and_keeps_the_random_state(tmp_path):
    model = enlivened(lambda: Written(dropout=0.3)).train()
    plain = measured(model, ids(), tmp_path / "evaluation")
    state = torch.get_rng_state()
    values = measured(model, ids(), tmp_path / "training", mode="training")
    assert torch.equal(torch.get_rng_state(), state)
    assert values["rank/residual", 0] == plain["rank/residual", 0]
    assert values["rank/residual", 2] != pytest.approx(plain["rank/residual", 2], rel=1e-3)
    assert all(module.training for module in model.modules())


def test_blocks_that_run_several_times_are_several_layers(tmp_path):
    config = hf.AlbertConfig(
        vocab_size=61, embedding_size=16, hidden_size=24, num_hidden_layers=3,
        num_attention_heads=4, intermediate_size=40, max_position_embeddings=64,
    )  # fmt: skip
    model, probe = enlivened(lambda: hf.AlbertModel(config)), padded()
    values = measured(model, probe, tmp_path)
    double = copy.deepcopy(model).double()
    double.set_attn_implementation("eager")
    with softmaxes() as logits, torch.no_grad():
        states = double(**probe, output_hidden_states=True).hidden_states
    real = probe["attention_mask"].bool()
    wanted = expected_of_states(states, real) | expected_pooled(states[-1], real, last=False)
    for layer, layer_logits in enumerate(logits, 1):
        figures = expected_of_logits(layer_logits, real)
        wanted |= {(metric, layer): value for metric, value in figures.items()}
    assert {place: values[place] for place in wanted} == pytest.approx(wanted, rel=2e-4, abs=1e-6)


def test_large_states(tmp_path):
    """Ranks are estimated, and medians are of some entries, where there are many."""
    net = Network.random(Spec(1, 1, 520, mlp_ratio=0.1), seed=0)
    x = torch.randn(2, 530, 520, generator=torch.Generator().manual_seed(1))
    x[:, :, 7] *= 40.0  # a massive feature
    values = measured(net, x, tmp_path, gradients=False)
    assert values["rank/effective_rank", 0] == pytest.approx(
        np.median([rank_of(sample.double().numpy()) for sample in x]), rel=0.02
    )
    peak = max(float(sample.abs().max() / sample.abs().median()) for sample in x)
    assert values["stream/max_over_median", 0] == pytest.approx(peak, rel=0.1)
