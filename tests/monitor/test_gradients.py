"""Gradients and updates by layer, against values computed by hand from gradients and weights."""

import copy
import gc
import json
import math
import os
import subprocess
import sys
import weakref
from itertools import pairwise

import pytest
import torch
import transformers as hf
from torch import nn
from torch.optim import optimizer as torch_optimizer
from torch.utils._python_dispatch import TorchDispatchMode

from rankscope.core.network import Network, Spec
from rankscope.core.tracing import find_blocks
from rankscope.monitor._gradients import GradientWatch
from rankscope.monitor._roles import Roles

QK, MLP, UPDATE = "grad/qk_over_v", "grad/qk_over_mlp", "update/ratio"
LAYERS = 2
SIZES = {
    "hidden_size": 16, "num_hidden_layers": LAYERS, "num_attention_heads": 4, "vocab_size": 30,
    "max_position_embeddings": 16,
}  # fmt: skip


def norm(*tensors):
    return math.sqrt(sum(float(tensor.detach().double().square().sum()) for tensor in tensors))


class Encoder(nn.Module):
    """PyTorch's own encoder on random vectors instead of tokens."""

    def __init__(self, width=16, layers=LAYERS, dropout=0.0):
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 1, 3 * width, dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.vectors = nn.Embedding(30, width)

    def forward(self, ids):
        return self.encoder(self.vectors(ids))


class OnIds(nn.Module):
    """A network of ours with an embedding."""

    def __init__(self, net):
        super().__init__()
        self.vectors, self.net = nn.Embedding(30, net.spec.width), net

    def forward(self, ids):
        return self.net(self.vectors(ids))


def bert():
    config = hf.BertConfig(**SIZES, intermediate_size=40)
    return hf.BertModel(config, add_pooling_layer=False)


def llama():
    return hf.LlamaModel(hf.LlamaConfig(**SIZES, intermediate_size=40, num_key_value_heads=2))


def gpt2():
    config = hf.GPT2Config(n_embd=16, n_layer=LAYERS, n_head=4, vocab_size=30, n_positions=16)
    return hf.GPT2Model(config)


def network():
    return OnIds(Network.random(Spec(LAYERS, 4, 16), seed=0))


def bert_parts(block):
    attention = block.attention.self
    return (
        [attention.query.weight.grad, attention.key.weight.grad],
        [attention.value.weight.grad],
        [block.intermediate.dense.weight.grad, block.output.dense.weight.grad],
    )


def llama_parts(block):
    attention, mlp = block.self_attn, block.mlp
    return (
        [attention.q_proj.weight.grad, attention.k_proj.weight.grad],
        [attention.v_proj.weight.grad],
        [mlp.gate_proj.weight.grad, mlp.up_proj.weight.grad, mlp.down_proj.weight.grad],
    )


def gpt2_parts(block):
    fused = block.attn.c_attn.weight.grad  # (input, output)
    return (
        [fused[:, :32]],
        [fused[:, 32:]],
        [block.mlp.c_fc.weight.grad, block.mlp.c_proj.weight.grad],
    )


def encoder_parts(block):
    query_key, value = block.self_attn.in_proj_weight.grad.tensor_split([2 * 16])
    return [query_key], [value], [block.linear1.weight.grad, block.linear2.weight.grad]


def network_parts(block):
    attention, mlp = block.attention, block.mlp
    return (
        [attention.query.weight.grad, attention.key.weight.grad],
        [attention.value.weight.grad],
        [mlp.up.weight.grad, mlp.down.weight.grad],
    )


FAMILIES = {
    "bert": (bert, bert_parts),
    "llama": (llama, llama_parts),
    "gpt2": (gpt2, gpt2_parts),
    "encoder": (Encoder, encoder_parts),
    "network": (network, network_parts),
}


def make(name, seed=0):
    torch.manual_seed(seed)
    model = FAMILIES[name][0]()
    return model, find_blocks(model.net if isinstance(model, OnIds) else model)


def loss_of(model, seed=0):
    ids = torch.randint(0, 30, (3, 7), generator=torch.Generator().manual_seed(seed))
    out = model(ids)
    states = out if isinstance(out, torch.Tensor) else out.last_hidden_state
    target = torch.randn(states.shape, generator=torch.Generator().manual_seed(seed + 1))
    return (states * target).square().mean()


def watching(model, blocks, due=0):
    watch = GradientWatch(model, blocks)
    watch.start()
    watch.due = due
    return watch


@pytest.fixture(autouse=True)
def _no_hooks_left():
    yield
    for hooks in (
        torch_optimizer._global_optimizer_pre_hooks,
        torch_optimizer._global_optimizer_post_hooks,
    ):
        hooks.clear()


@pytest.mark.parametrize("name", FAMILIES)
def test_ratios_are_those_of_the_gradients_and_of_the_weights(name):
    model, blocks = make(name)
    watch = watching(model, blocks)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loss_of(model).backward()
    before = copy.deepcopy([dict(block.named_parameters()) for block in blocks])
    optimizer.step()
    values = watch.values()
    assert len(values) == 3 * LAYERS
    for layer, block in enumerate(blocks, start=1):
        query_key, value, mlp = (norm(*part) for part in FAMILIES[name][1](block))
        assert values[QK, layer] == pytest.approx(query_key / value, rel=1e-5)
        assert values[MLP, layer] == pytest.approx(query_key / mlp, rel=1e-5)
        old = before[layer - 1]
        matrices = {path: p for path, p in block.named_parameters() if p.ndim >= 2}
        change = norm(*(p - old[path] for path, p in matrices.items()))
        size = norm(*(old[path] for path in matrices))
        assert values[UPDATE, layer] == pytest.approx(change / size, rel=1e-6)
    assert watch.values() == {}


def _falcon(**options):
    return hf.FalconConfig(**SIZES, alibi=False, **options)


FUSED = {
    "phi3": lambda: hf.Phi3Config(
        **SIZES, intermediate_size=40, num_key_value_heads=2, pad_token_id=0
    ),
    "bloom": lambda: hf.BloomConfig(hidden_size=16, n_layer=2, n_head=4, vocab_size=30),
    "gpt_neox": lambda: hf.GPTNeoXConfig(**SIZES, intermediate_size=40),
    "falcon": lambda: _falcon(new_decoder_architecture=True, num_kv_heads=2),
    "falcon, one key": lambda: _falcon(multi_query=True, new_decoder_architecture=False),
    "falcon, old": lambda: _falcon(multi_query=False, new_decoder_architecture=False),
    "bigcode": lambda: hf.GPTBigCodeConfig(n_embd=16, n_layer=2, n_head=4, vocab_size=30),
    "bigcode, all keys": lambda: hf.GPTBigCodeConfig(
        n_embd=16, n_layer=2, n_head=4, vocab_size=30, multi_query=False
    ),
    "codegen": lambda: hf.CodeGenConfig(
        n_embd=16, n_layer=2, n_head=4, vocab_size=30, rotary_dim=4
    ),
    "deberta": lambda: hf.DebertaConfig(**SIZES, intermediate_size=40),
    "gpt2": lambda: hf.GPT2Config(n_embd=16, n_layer=2, n_head=4, vocab_size=30),
    "modernbert": lambda: hf.ModernBertConfig(**SIZES, intermediate_size=40, pad_token_id=0),
    "qwen3_next": lambda: hf.Qwen3NextConfig(
        **SIZES, intermediate_size=40, num_key_value_heads=2, head_dim=8,
        layer_types=["full_attention"] * 2, num_experts=0, mlp_only_layers=[0, 1],
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("family", FUSED)
def test_attention_weights_depend_on_queries_and_keys_alone(family, monkeypatch):
    """The outputs of a fused matrix on which the softmax of its layer depends."""
    patterns = []
    plain = nn.functional.softmax

    def softmax(*given, **options):
        patterns.append(plain(*given, **options))
        return patterns[-1]

    torch.manual_seed(0)
    model = hf.AutoModel.from_config(FUSED[family](), attn_implementation="eager").eval()
    blocks = find_blocks(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    for module in (torch, nn.functional):
        monkeypatch.setattr(module, "softmax", softmax)
    model(torch.arange(1, 8)[None])
    pattern = next(pattern for pattern in patterns if pattern.ndim == 4)
    roles = Roles(blocks)
    matrix, role = next((p, roles.of(p)) for p in blocks[0].parameters() if roles.of(p).fused)
    (slope,) = torch.autograd.grad((pattern * torch.randn_like(pattern)).sum(), matrix)
    depends = slope.abs().sum(1 - role.fused.axis) > 0
    places = torch.arange(len(depends)) % role.fused.size

    def among(stretches):
        return sum((places >= start) & (places < stop) for start, stop in stretches).bool()

    assert torch.equal(depends, among(role.fused.queries_keys))
    if role.fused.values:
        assert torch.equal(~depends, among(role.fused.values))
    assert roles.complete == {1, 2}


class Attention(nn.Module):
    """Attention of a given way to name and store its matrices."""

    def __init__(self, **parts):
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)


class Block(nn.Module):
    def __init__(self, **parts):
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)


def step_on_all(model, blocks, parameters=None, optimizer=torch.optim.SGD):
    """One step with random gradients for all parameters that need them."""
    watch = watching(model, blocks)
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.randn(parameter.shape, generator=generator)
    optimizer(list(parameters or model.parameters()), lr=0.1).step()
    return watch


def linears(**shapes):
    return {name: nn.Linear(*shape, bias=False) for name, shape in shapes.items()}


@pytest.mark.parametrize(
    ("attention", "left_out"),
    [
        (Attention(**linears(query_key_value=(8, 24))), "attn.query_key_value.weight"),
        (Attention(**linears(qkv=(8, 20))), "attn.qkv.weight"),
        (Attention(**linears(q=(8, 8), kv_b_proj=(4, 16))), "attn.kv_b_proj.weight"),
        (Attention(qkv=nn.ModuleDict(linears(base_layer=(8, 24), lora_A=(8, 2)))),
         "attn.qkv.lora_A.weight"),
        (Attention(**linears(key=(8, 8), value=(8, 8))), None),
        (nn.ModuleDict({"key": (shared := nn.Linear(8, 8)), "value": shared, "q": shared}),
         "attn.key.weight"),
    ],
    ids=["by head or not", "sizes", "latent", "adapter", "no queries", "shared"],
)  # fmt: skip
def test_what_cannot_be_told_apart_is_left_out(attention, left_out):
    block = Block(attn=attention, mlp=nn.Linear(8, 8))
    watch = step_on_all(block, [block])
    assert set(watch.values()) == {(UPDATE, 1)}
    assert watch.unclear == ({} if left_out is None else {1: left_out})


def test_an_adapter_counts_for_the_projection_it_adapts():
    def adapted():
        base, factors = nn.Linear(8, 8), linears(lora_A=(8, 2), lora_B=(2, 8))
        return nn.ModuleDict({"base_layer": base.requires_grad_(False), **factors})

    block = Block(
        self_attn=nn.ModuleDict(
            {"q_proj": adapted(), "k_proj": nn.Linear(8, 8), "v_proj": adapted()}
        )
    )
    block.self_attn.k_proj.requires_grad_(False)
    values = step_on_all(block, [block]).values()
    query, value = (
        [block.self_attn[name][factor].weight.grad for factor in ("lora_A", "lora_B")]
        for name in ("q_proj", "v_proj")
    )
    assert set(values) == {(QK, 1), (UPDATE, 1)}
    assert values[QK, 1] == pytest.approx(norm(*query) / norm(*value), rel=1e-6)


def test_the_innermost_name_says_the_role():
    parts = nn.ModuleDict(linears(q_proj=(8, 8), k_proj=(8, 8), v_proj=(8, 8)))
    block = Block(attn=Attention(qkv_proj=parts))
    values = step_on_all(block, [block]).values()
    query, key, value = (part.weight.grad for part in parts.values())
    assert values[QK, 1] == pytest.approx(norm(query, key) / norm(value), rel=1e-6)


def test_biases_are_left_out():
    """PyTorch's biases of keys and values have three axes."""
    block = Block(attn=nn.MultiheadAttention(8, 2, add_bias_kv=True))
    before = copy.deepcopy(block.attn)
    values = step_on_all(block, [block]).values()
    pairs = [
        (block.attn.in_proj_weight, before.in_proj_weight),
        (block.attn.out_proj.weight, before.out_proj.weight),
    ]
    change = norm(*(new.detach() - old.detach() for new, old in pairs))
    assert values[UPDATE, 1] == pytest.approx(change / norm(*(old for _, old in pairs)), rel=1e-6)


def test_cross_attention_is_left_out():
    block = nn.TransformerDecoderLayer(8, 2, 16)
    values = step_on_all(block, [block]).values()
    query_key, value = block.self_attn.in_proj_weight.grad.tensor_split([16])
    assert values[QK, 1] == pytest.approx(norm(query_key) / norm(value), rel=1e-6)
    mlp = norm(block.linear1.weight.grad, block.linear2.weight.grad)
    assert values[MLP, 1] == pytest.approx(norm(query_key) / mlp, rel=1e-6)


def test_a_block_that_layers_share_counts_for_the_first():
    block = nn.TransformerEncoderLayer(8, 2, 16)
    values = step_on_all(block, [block, block, block]).values()
    assert {layer for _, layer in values} == {1}


@pytest.mark.parametrize("how", ["clipped", "scaled", "scaler"])
def test_clipping_and_loss_scale_change_nothing(how):
    found = []
    for changed in (False, True):
        model, blocks = make("bert")
        watch = watching(model, blocks)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        scaler = torch.amp.GradScaler(
            "cpu", init_scale=2.0**12, enabled=changed and how == "scaler"
        )
        loss = scaler.scale(loss_of(model))
        (loss * 1024 if changed and how == "scaled" else loss).backward()
        if changed and how == "clipped":
            assert nn.utils.clip_grad_norm_(model.parameters(), 1e-3) > 1e-2
        scaler.step(optimizer)
        values = watch.values()
        found.append({place: v for place, v in values.items() if place[0] != UPDATE})
        watch.stop()
    assert len(found[0]) == 2 * LAYERS
    assert found[1] == pytest.approx(found[0], rel=1e-5)


def test_nothing_over_nothing_is_left_out_and_broken_gradients_are_kept():
    block = nn.TransformerEncoderLayer(8, 2, 16)
    watch = watching(block, [block])
    optimizer = torch.optim.SGD(block.parameters(), lr=0.0)

    def values(query_key, value, mlp):
        for parameter in block.parameters():
            parameter.grad = torch.full_like(parameter, mlp)
        block.self_attn.in_proj_weight.grad[:16] = query_key
        block.self_attn.in_proj_weight.grad[16:] = value
        optimizer.step()
        return watch.values()

    assert values(1.0, 1.0, 1.0)[UPDATE, 1] == 0
    assert set(values(0.0, 0.0, 1.0)) == {(MLP, 1), (UPDATE, 1)}
    assert values(0.0, 0.0, 1.0)[MLP, 1] == 0
    assert values(1.0, 0.0, 1.0)[QK, 1] == math.inf
    assert math.isnan(values(math.nan, 1.0, 1.0)[QK, 1])
    assert math.isnan(values(math.inf, math.inf, 1.0)[QK, 1])
    assert values(1.0, math.inf, 1.0)[QK, 1] == 0
    assert values(1.0, math.nan, 0.5)[MLP, 1] == pytest.approx(2 * math.sqrt(128 / 256))


def test_frozen_parameters_are_left_out():
    model, blocks = make("llama")
    blocks[0].self_attn.q_proj.requires_grad_(False)
    blocks[1].mlp.requires_grad_(False)
    watch = watching(model, blocks)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    loss_of(model).backward()
    optimizer.step()
    values, attention = watch.values(), blocks[0].self_attn
    expected = norm(attention.k_proj.weight.grad) / norm(attention.v_proj.weight.grad)
    assert values[QK, 1] == pytest.approx(expected, rel=1e-5)
    assert (QK, 2) in values
    assert (MLP, 2) not in values
    blocks[0].self_attn.k_proj.requires_grad_(False)
    optimizer.zero_grad()
    loss_of(model).backward()
    optimizer.step()
    values = watch.values()
    assert (QK, 1) not in values  # queries and keys are both frozen: not "vanished"
    assert (UPDATE, 1) in values


def test_sparse_gradients_are_left_out():
    block = Block(
        attn=Attention(
            q=nn.Embedding(5, 3, sparse=True), **linears(k=(3, 3), v=(3, 3)), kv=None
        )
    )  # fmt: skip
    watch = watching(block, [block])
    attention = block.attn
    (attention.q(torch.tensor([1, 2])) @ attention.k.weight @ attention.v.weight).sum().backward()
    assert attention.q.weight.grad.is_sparse
    torch.optim.SGD(block.parameters(), lr=0.1).step()
    expected = norm(attention.k.weight.grad) / norm(attention.v.weight.grad)
    assert watch.values()[QK, 1] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_low_precision_is_summed_in_float32(dtype):
    """Squares of 300 overflow in float16, and ones in bfloat16 stop adding at 256."""
    block = nn.TransformerEncoderLayer(32, 2, 16, dtype=dtype)
    for parameter in block.parameters():
        parameter.grad = torch.full_like(parameter, 300.0)
    watch = watching(block, [block])
    torch.optim.SGD(block.parameters(), lr=0.0).step()
    values = watch.values()
    assert values[QK, 1] == pytest.approx(math.sqrt(2), rel=1e-6)
    assert values[MLP, 1] == pytest.approx(math.sqrt(2 * 32 * 32 / (2 * 32 * 16)), rel=1e-6)


@pytest.mark.parametrize("accumulated", [1, 3, 4, 7])
@pytest.mark.parametrize("every", [1, 4, 5, 10])
def test_the_last_optimizer_step_before_a_record_is_measured(accumulated, every):
    block = nn.TransformerEncoderLayer(4, 1, 8)
    optimizer = torch.optim.SGD(block.parameters(), lr=0.0)
    watch = watching(block, [block], due=every)
    stepped, measured = [], []
    for micro in range(60):
        if (micro + 1) % accumulated == 0:
            for parameter in block.parameters():
                parameter.grad = torch.ones_like(parameter)
            block.self_attn.in_proj_weight.grad[:8] = float(micro + 1)
            optimizer.step()
            stepped.append(micro + 1)
        watch.count += 1
        if watch.count == watch.due:
            ratio = watch.values().get((QK, 1))
            measured.append((watch.count, ratio and round(ratio / math.sqrt(2))))
            watch.due += every
    for (earlier, _), (count, ratio) in pairwise([(0, None), *measured]):
        inside = [step for step in stepped if earlier < step <= count]
        assert ratio == (inside[-1] if inside else ratio)
    assert len(measured) == 60 // every


class _Count(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls.append(str(func))
        return func(*args, **(kwargs or {}))


def test_steps_that_are_not_measured_launch_nothing():
    def calls(due, *, watched):
        model, blocks = make("bert")
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        loss_of(model).backward()
        watch = watching(model, blocks, due) if watched else None
        with _Count() as counter:
            optimizer.step()
        if watch:
            watch.stop()
        return counter.calls

    plain = calls(0, watched=False)
    assert calls(2, watched=True) == plain
    measured = calls(1, watched=True)
    assert len(measured) > len(plain)
    for waits in ("_local_scalar_dense", "nonzero"):
        assert sum(waits in call for call in measured) == sum(waits in call for call in plain)


@pytest.mark.parametrize("options", [{"foreach": True}, {"fused": True}, {"foreach": False}])
def test_training_is_the_same_bit_for_bit(options):
    def train(watched):
        torch.manual_seed(0)
        model = Encoder(dropout=0.1)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, **options)
        watch = watching(model, find_blocks(model)) if watched else None
        measured = 0
        for step in range(5):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            optimizer.step()
            if watch:
                measured += len(watch.values())
                watch.count += 1
        if watch:
            watch.stop()
            assert measured == 5 * 3 * LAYERS
        return [*model.parameters(), torch.get_rng_state()]

    for watched, plain in zip(train(True), train(False), strict=True):
        assert torch.equal(watched, plain)


def test_only_its_own_model_is_measured():
    (model, blocks), (other, _) = make("bert"), make("bert", seed=1)
    watch = watching(model, blocks)
    optimizer = torch.optim.SGD(other.parameters(), lr=1e-2)
    loss_of(other).backward()
    optimizer.step()
    assert watch.values() == {}


def test_optimizers_of_one_model_are_merged():
    def measured(split):
        model, blocks = make("bert")
        watch = watching(model, blocks)
        loss_of(model).backward()
        for part in split(list(model.parameters())):
            torch.optim.SGD(part, lr=1e-2).step()
        watch.stop()
        return watch.values()

    whole = measured(lambda parameters: [parameters])
    thirds = measured(lambda parameters: [parameters[k::3] for k in range(3)])
    single = measured(lambda parameters: [[parameter] for parameter in parameters])
    assert len(whole) == 3 * LAYERS
    assert thirds == pytest.approx(whole, rel=1e-6)
    assert single == pytest.approx(whole, rel=1e-6)


class _Outer(torch.optim.Optimizer):
    """An optimizer that lets others step, as ZeroRedundancyOptimizer does."""

    def __init__(self, parameters, inner):
        self.inner = inner
        super().__init__(parameters, {})

    def step(self):
        self.inner.step()


def test_an_optimizer_inside_another_one_is_not_counted_twice():
    def measured(*, nested):
        model, blocks = make("llama")
        watch = watching(model, blocks)
        loss_of(model).backward()
        if nested:
            keys = [p for name, p in model.named_parameters() if "k_proj" in name]
            optimizer = _Outer(model.parameters(), torch.optim.SGD(keys, lr=1e-2))
        else:
            optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        optimizer.step()
        watch.stop()
        return watch.values()

    nested, plain = measured(nested=True), measured(nested=False)
    assert [nested[QK, k] for k in (1, 2)] == pytest.approx([plain[QK, k] for k in (1, 2)])


def test_a_step_that_fails_does_not_stop_later_measurements():
    class Failing(torch.optim.SGD):
        fails = True

        def step(self):
            if self.fails:
                raise RuntimeError("on purpose")
            super().step()

    block = nn.TransformerEncoderLayer(8, 2, 16)
    optimizer = Failing(block.parameters(), lr=0.1)
    watch = step_on_all(block, [block])
    watch.values()
    with pytest.raises(RuntimeError, match="on purpose"):
        optimizer.step()
    assert watch.values() == {}
    watch.count += 1
    other = torch.optim.SGD(block.parameters(), lr=0.1)
    other.step()
    assert len(watch.values()) == 3
    optimizer.fails = False
    optimizer.step()
    assert len(watch.values()) == 3


def test_of_several_steps_at_one_count_the_last_is_measured():
    block = nn.TransformerEncoderLayer(8, 2, 16)
    optimizer = torch.optim.SGD(block.parameters(), lr=0.0)
    watch = watching(block, [block], due=3)
    for count in range(3):
        for size in (1.0, 5.0):
            for parameter in block.parameters():
                parameter.grad = torch.ones_like(parameter)
            block.self_attn.in_proj_weight.grad[:16] = size + count
            optimizer.step()
        watch.count += 1
    assert watch.values()[QK, 1] == pytest.approx(7 * math.sqrt(2))


def test_hooks_are_added_once_and_removed():
    hooks = (
        torch_optimizer._global_optimizer_pre_hooks,
        torch_optimizer._global_optimizer_post_hooks,
    )
    model, blocks = make("bert")
    watch = GradientWatch(model, blocks)
    assert [len(registered) for registered in hooks] == [0, 0]
    for _ in range(2):
        watch.start()
        watch.start()
        assert [len(registered) for registered in hooks] == [1, 1]
        watch.stop()
        watch.stop()
        assert [len(registered) for registered in hooks] == [0, 0]
    watch.due = 0
    loss_of(model).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert watch.values() == {}


def test_a_forgotten_watch_keeps_no_model_alive():
    model, blocks = make("bert")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_of(model).backward()
    watch = watching(model, blocks)
    optimizer.step()
    gone = weakref.ref(model)
    assert not any(weakref.getweakrefs(p) for p in model.parameters())  # they may be swapped
    del model, blocks, optimizer, watch
    gc.collect()
    assert gone() is None
    block = nn.Linear(2, 2)
    block(torch.ones(1, 2)).sum().backward()
    torch.optim.SGD(block.parameters(), lr=0.1).step()  # its hooks are still there and do nothing


def test_parameters_that_are_replaced_are_found_again():
    block = nn.TransformerEncoderLayer(8, 2, 16)
    watch = GradientWatch(block, [block])
    assert watch.values() == {}
    for name, parameter in list(block.self_attn.named_parameters(recurse=False)):
        setattr(block.self_attn, name, nn.Parameter(parameter.detach().clone()))
    assert len(step_on_all(block, [block]).values()) == 3
    watch.start()
    watch.due = 0
    torch.optim.SGD(block.parameters(), lr=0.1).step()
    assert len(watch.values()) == 3


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("first", ["compiled", "watched"])
def test_compiled_optimizer_steps_are_measured(first):
    torch.compiler.reset()
    block = nn.TransformerEncoderLayer(8, 2, 16)
    optimizer = torch.optim.SGD(block.parameters(), lr=0.1)
    step = torch.compile(optimizer.step, backend="eager")
    for parameter in block.parameters():
        parameter.grad = torch.ones_like(parameter)
    watch = GradientWatch(block, [block])
    if first == "compiled":
        step()
    watch.start()
    watch.due = 0
    before = copy.deepcopy([p.detach() for p in block.parameters() if p.ndim > 1])
    step()
    values = watch.values()
    after = [p.detach() for p in block.parameters() if p.ndim > 1]
    change = norm(*(new - old for new, old in zip(after, before, strict=True)))
    assert values[QK, 1] == pytest.approx(math.sqrt(2))
    assert values[UPDATE, 1] == pytest.approx(change / norm(*before), rel=1e-6)
    torch.compiler.reset()


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_what_measures_is_never_compiled(monkeypatch):
    torch.compiler.reset()
    compiled = []
    for name in ("_before", "_after"):
        monkeypatch.setattr(
            GradientWatch, name, lambda *_: compiled.append(torch.compiler.is_compiling())
        )
    block = nn.Linear(2, 2)
    watch = watching(block, [block])
    block.weight.grad = torch.ones_like(block.weight)
    torch.compile(torch.optim.SGD(block.parameters(), lr=0.1).step, backend="eager")()
    watch.stop()
    assert compiled == [False, False]
    torch.compiler.reset()


@pytest.mark.parametrize("along", ["rows", "columns", "noise"])
def test_updates_of_large_matrices_are_estimated(along):
    """One entry in 64 of a matrix with 64 columns, whose sizes change along rows or columns."""
    block = Block(mlp=nn.Linear(64, 4096, bias=False), attn=nn.Linear(8, 8, bias=False))
    watch = watching(block, [block])
    generator = torch.Generator().manual_seed(0)
    weight = block.mlp.weight
    gradient = torch.randn(weight.shape, generator=generator)
    if along != "noise":
        slope = torch.linspace(0, 4, 4096 if along == "rows" else 64)
        gradient *= slope[:, None] if along == "rows" else slope
    block.attn.weight.grad = torch.zeros_like(block.attn.weight)
    weight.grad, before = gradient, weight.detach().clone()
    size = norm(before, block.attn.weight)
    torch.optim.SGD(block.parameters(), lr=0.1).step()
    expected = norm(weight.detach() - before) / size
    assert watch.values()[UPDATE, 1] == pytest.approx(expected, rel=0.05)
    weight.grad = torch.zeros_like(weight)
    torch.optim.SGD(block.parameters(), lr=0.1).step()
    assert watch.values()[UPDATE, 1] == 0


TWO_PROCESSES = """
import json, os, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from rankscope.monitor._gradients import GradientWatch

torch.set_num_threads(1)
rank, folder = int(sys.argv[1]), sys.argv[2]
if rank >= 0:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(5, 1, 9, 0.0, batch_first=True) for _ in range(2)
        )

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def shard(model, mesh=None):
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def shard_some(model, mesh=None):
    for layer in model.layers:
        fully_shard(layer.linear1, mesh=mesh)
    return model


def replicas():
    return init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicas", "shards"))


CASES = {
    "ddp": DistributedDataParallel,
    "fsdp": shard,
    "hsdp": lambda model: shard(model, replicas()),
    "some": shard_some,
    "some, hsdp": lambda model: shard_some(model, replicas()),
}


def measure(wrap, x):
    torch.manual_seed(0)
    model = Model()
    watch = GradientWatch(model, list(model.layers))
    wrapped = wrap(model)
    watch.start()
    assert not watch.values()  # a sum over processes, if parameters are sharded
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-2)
    for step in range(2):
        watch.due = step + 1
        optimizer.zero_grad()
        (wrapped(x) ** 3).mean().backward()
        optimizer.step()
        watch.count += 1
        values = watch.values()
    watch.stop()
    return {f"{name} {layer}": value for (name, layer), value in values.items()}


x = torch.randn(4, 6, 5, generator=torch.Generator().manual_seed(1))
if rank < 0:
    found = {case: measure(nn.Identity(), x[:2] if "some" in case else x) for case in CASES}
else:  # nothing averages the gradients of parameters that are not sharded: equal data for "some"
    own = x[2 * rank : 2 * rank + 2]
    found = {case: measure(wrap, x[:2] if "some" in case else own) for case, wrap in CASES.items()}
print(json.dumps(found), flush=True)
if rank >= 0:
    dist.barrier()
os._exit(0)  # Gloo's threads may abort a process that ends as usual
"""


def test_two_processes_measure_what_one_does(tmp_path):
    """Under DDP, FSDP2 (uneven shards that cut through the keys), with replicas, and partly."""
    script = tmp_path / "train.py"
    script.write_text(TWO_PROCESSES)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, script, str(rank), tmp_path],
            env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for rank in (-1, 0, 1)
    ]  # fmt: skip
    outputs = [process.communicate(timeout=120) for process in started]
    assert [process.returncode for process in started] == [0, 0, 0], outputs
    alone, *ranks = (json.loads(out) for out, _ in outputs)
    assert alone["ddp"] != alone["some"]
    for found in ranks:
        for case, expected in alone.items():
            assert len(expected) == 6
            assert found[case] == pytest.approx(expected, rel=1e-4), case
    assert ranks[0] == ranks[1]
