"""Live mode: values against plain hooks, and training that does not notice it."""

import json
import math
import os
import subprocess
import sys
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint

from rankscope.errors import InputError
from rankscope.monitor import _live
from rankscope.monitor._live import LiveWatch

LAYERS = 3
pytestmark = [  # of PyTorch's compilers, whichever test calls them first
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method:DeprecationWarning"),
]


class Block(nn.Module):
    """A residual branch with dropout; ``form`` is how the hidden states are returned."""

    def __init__(self, width=8, form="tuple"):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, width)
        self.drop = nn.Dropout(0.2)
        self.form = form

    def forward(self, x):
        x = x + self.drop(torch.relu(self.linear(self.norm(x))))
        ids = torch.zeros(2, dtype=torch.long)  # comes first, and is no hidden state
        return {"tensor": x, "tuple": (ids, x), "dict": {"ids": ids, "hidden_states": x}}[self.form]


class Model(nn.Module):
    """Blocks; ``reentrant`` is the kind of checkpointing, ``order`` which blocks run."""

    def __init__(self, *, reentrant=None, form="tuple", blocks=LAYERS, order=None):
        super().__init__()
        self.embed = nn.Linear(8, 8)
        self.blocks = nn.ModuleList(Block(form=form) for _ in range(blocks))
        self.reentrant, self.form = reentrant, form
        self.order = order or list(range(blocks))

    def forward(self, x):
        x = self.embed(x)
        for number in self.order:
            block = self.blocks[number]
            if self.reentrant is None:
                output = block(x)
            else:
                output = checkpoint(block, x, use_reentrant=self.reentrant)
            x = {"tensor": lambda o: o, "tuple": lambda o: o[1],
                 "dict": lambda o: o["hidden_states"]}[self.form](output)  # fmt: skip
        return x.square().mean()


def without_dropout(model):
    """The same in every pass, and not in evaluation mode, which is not heard."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


class Oracle:
    """Every output of every block, captured by plain hooks outside the backward pass."""

    def __init__(self, model):
        self.outputs = [[] for _ in model.blocks]
        for block, outputs in zip(model.blocks, self.outputs, strict=True):
            block.register_forward_hook(lambda _m, _a, out, kept=outputs: self.keep(kept, out))

    @staticmethod
    def keep(kept, output):
        if torch._C._current_graph_task_id() == -1:
            tensors = output.values() if isinstance(output, dict) else output
            tensors = [output] if isinstance(output, torch.Tensor) else tensors
            kept += [x.detach().double() for x in tensors if x.is_floating_point()]

    def values(self):
        return expected([torch.cat([x.flatten() for x in kept]) for kept in self.outputs])


def expected(outputs):
    values = {}
    for layer, entries in enumerate(outputs, 1):
        values["live/rms", layer] = math.sqrt(float((entries**2).sum()) / entries.numel())
        values["live/max", layer] = float(entries.abs().max())
    return values


def batch(step, rows=4):
    return torch.randn(rows, 5, 8, generator=torch.Generator().manual_seed(step))


def hooks_of(model):
    return [len(module._forward_hooks) for module in model.modules()]


@pytest.fixture(autouse=True)
def _nothing_compiled():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()
    _live._armed.clear()


@pytest.fixture
def inductor_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")


@pytest.mark.parametrize("form", ["tensor", "tuple", "dict"])
def test_micro_batches_of_an_armed_step_count_as_one(form):
    torch.manual_seed(0)
    model = Model(form=form)
    watch = LiveWatch(model.blocks)
    watch.start(LAYERS)
    model(batch(9)).backward()  # not armed
    watch.arm()
    oracle = Oracle(model)
    model(batch(0)).backward()
    model(batch(1, rows=2)).backward()  # of another size
    wanted = oracle.values()
    watch.disarm()
    model(batch(8)).backward()
    values = watch.values()
    assert values == pytest.approx(wanted, rel=1e-6)
    assert watch.note == ""
    assert watch.values() == {}  # they are forgotten


def test_arming_begins_with_nothing():
    model = without_dropout(Model())
    watch = LiveWatch(model.blocks)
    watch.start(LAYERS)
    for step in (0, 1):
        watch.arm()
        model(batch(step))
    watch.disarm()
    oracle = Oracle(model)
    model(batch(1))
    assert watch.values() == pytest.approx(oracle.values(), rel=1e-6)


def test_layers_may_be_numbered_as_in_the_whole_model():
    model = Model()
    watch = LiveWatch(model.blocks)
    watch.start([4, 5, 6])
    watch.arm()
    model(batch(0))
    assert {layer for _, layer in watch.values()} == {4, 5, 6}


def test_blocks_that_run_several_times_are_layers_in_the_order_of_calls():
    """Two micro-batches: the third call of a forward pass is layer 3 in both."""
    model = without_dropout(Model(blocks=2, order=[0, 1, 1, 1]))
    watch = LiveWatch(model.blocks)
    watch.start(4)
    watch.arm()
    oracle = Oracle(model)
    for step in (0, 1):
        model(batch(step))
    watch.disarm()
    first, second = oracle.outputs
    by_layer = [first, second[0::3], second[1::3], second[2::3]]
    wanted = expected([torch.cat([x.flatten() for x in outputs]) for outputs in by_layer])
    assert watch.values() == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_the_first_layer_that_is_not_finite_is_visible(bad):
    blocks = [nn.Identity(), nn.Identity()]
    watch = LiveWatch(blocks)
    watch.start(2)
    watch.arm()
    for fault in (1.0, bad, 2.0):  # healthy micro-batches before and after do not hide it
        x = batch(0)
        blocks[0](x)
        x[1, 2, 3] = fault
        blocks[1](x)
    values = watch.values()
    watch.stop()
    assert math.isfinite(values["live/rms", 1])
    assert math.isfinite(values["live/max", 1])
    assert str(values["live/rms", 2]) == str(values["live/max", 2]) == str(abs(bad))


def test_hooks_are_there_only_while_armed_and_never_after():
    model = Model()
    model.blocks[0].register_forward_hook(lambda *_: None)  # of the user
    before = hooks_of(model)
    watch = LiveWatch(model.blocks)
    watch.disarm()
    watch.arm()  # not started
    assert watch.values() == {}
    watch.start(LAYERS)
    watch.start(LAYERS)
    assert hooks_of(model) == before
    watch.arm()
    watch.arm()
    assert sum(hooks_of(model)) == sum(before) + LAYERS
    watch.disarm()
    watch.disarm()
    assert hooks_of(model) == before
    watch.arm()
    watch.stop()
    watch.stop()
    assert hooks_of(model) == before
    assert not _live._armed
    watch.start(LAYERS)  # again
    watch.arm()
    model(batch(0))
    assert len(watch.values()) == 2 * LAYERS
    watch.stop()


def test_missing_layers_are_named():
    class Nothing(nn.Linear):
        def forward(self, x):
            return [len(x)]

    model = Model()
    watch = LiveWatch([*model.blocks, Nothing(1, 1), Block()])
    watch.start(5)
    watch.arm()
    model(batch(0))
    watch._blocks[3](batch(0))
    values = watch.values()
    assert {layer for _, layer in values} == {1, 2, 3}
    assert "layers 4, 5" in watch.note
    watch.stop()


def test_no_blocks_are_refused():
    with pytest.raises(InputError, match="0 blocks and 3 layers"):
        LiveWatch([]).start(3)


def test_half_precision_is_summed_in_single_precision():
    """200,000 entries of 300: their squares overflow in half precision."""
    block = nn.Identity()
    watch = LiveWatch([block])
    watch.start(1)
    watch.arm()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        block(torch.full((2, 100, 1000), 300.0, dtype=torch.float16))
        block(torch.full((2, 100, 1000), 300.0, dtype=torch.bfloat16))
    block(torch.full((2, 100, 1000), -300.0, dtype=torch.float64))
    assert watch.values() == pytest.approx(
        {("live/rms", 1): 300.0, ("live/max", 1): 300.0}, rel=1e-4
    )
    watch.stop()


def compile_model(model, how):
    """The model to call; blocks stay those of ``model``."""
    if how == "eager":
        return model
    kind, backend = how.split()
    if kind == "function":
        return torch.compile(model, backend=backend)
    for module in [model] if kind == "method" else model.blocks:
        module.compile(backend=backend)
    return model


def train(how, *, watched, reentrant=None, autocast=False, seed=0):
    """Five steps of two micro-batches; steps 1 and 3 are recorded."""
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(seed)
    model = Model(reentrant=reentrant)
    run = compile_model(model, how)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    watch = LiveWatch(model.blocks)
    if watched:
        watch.start(LAYERS)
    losses, values, compiled = [], {}, []
    half = torch.autocast("cpu", dtype=torch.bfloat16) if autocast else nullcontext()
    for step in range(5):
        if watched and step in (1, 3):
            watch.arm()
        for part in range(2):
            with half:
                loss = run(batch(10 * step + part))
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
        watch.disarm()
        if watched and step in (1, 3):
            values[step] = watch.values()
        compiled.append(counters["frames"]["ok"])
    breaks = dict(counters["graph_break"])
    watch.stop()
    end = [losses, [p.detach() for p in model.parameters()], torch.get_rng_state()]
    return end, values, (compiled, breaks), watch.note


def assert_unchanged(plain, watched):
    assert watched[0] == plain[0]
    for ours, theirs in zip(watched[1], plain[1], strict=True):
        assert torch.equal(ours, theirs)
    assert torch.equal(watched[2], plain[2])


CASES = [
    ("eager", None, False), ("eager", True, False), ("eager", False, False), ("eager", None, True),
    ("eager", False, True),
    ("function aot_eager", None, False), ("function aot_eager", True, False),
    ("function aot_eager", False, False), ("method aot_eager", None, True),
    ("blocks aot_eager", None, False), ("blocks aot_eager", True, False),
    ("blocks aot_eager", False, False),
]  # fmt: skip


@pytest.mark.parametrize(("how", "reentrant", "autocast"), CASES)
def test_training_is_the_same_and_nothing_is_counted_twice(how, reentrant, autocast):
    plain, *_ = train(how, watched=False, reentrant=reentrant, autocast=autocast)
    watched, values, (compiled, breaks), note = train(
        how, watched=True, reentrant=reentrant, autocast=autocast
    )
    assert_unchanged(plain, watched)
    assert note == ""
    assert len(set(compiled)) == 1, "arming compiled something anew"
    assert breaks == {}
    wanted = eager_values(reentrant, autocast)
    assert set(values) == {1, 3}
    for step in (1, 3):  # dropout is drawn alike in eager and aot_eager
        assert values[step] == pytest.approx(wanted[step], rel=1e-5)


def eager_values(reentrant, autocast):
    """The same training with plain hooks, which see what the watch must have seen."""
    torch.manual_seed(0)
    model = Model(reentrant=reentrant)
    oracle = Oracle(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    half = torch.autocast("cpu", dtype=torch.bfloat16) if autocast else nullcontext()
    values = {}
    for step in range(5):
        for outputs in oracle.outputs:
            outputs.clear()
        for part in range(2):
            with half:
                loss = model(batch(10 * step + part))
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        values[step] = oracle.values()
        assert {len(outputs) for outputs in oracle.outputs} == {2}
    return values


@pytest.mark.usefixtures("inductor_cache")
def test_training_is_the_same_under_the_inductor():
    """In float32; in half precision it may fuse otherwise around an output that it must store."""
    plain, *_ = train("function inductor", watched=False)
    watched, values, (compiled, breaks), note = train("function inductor", watched=True)
    assert_unchanged(plain, watched)
    assert (note, breaks) == ("", {})
    assert set(compiled) == {1}
    assert all(len(found) == 2 * LAYERS for found in values.values())


def test_compiled_blocks_share_their_code():
    """As without the watch: two graphs, since only later blocks get an input with a gradient."""
    frames = []
    for watched in (False, True):
        torch._dynamo.reset()
        counters.clear()
        model = Model(blocks=10)
        compile_model(model, "blocks aot_eager")
        watch = LiveWatch(model.blocks)
        if watched:
            watch.start(10)
            watch.arm()
        model(batch(0)).backward()
        frames.append(counters["frames"]["ok"])
        watch.stop()
    assert frames[1] <= frames[0] + 1  # the hook itself


def test_no_kernel_runs_while_it_is_not_armed():
    model = Model()
    run = torch.compile(model, backend="aot_eager")
    watch = LiveWatch(model.blocks)
    watch.start(LAYERS)
    run(batch(0))
    norms = []
    for armed in (False, True):
        if armed:
            watch.arm()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            run(batch(0))
        names = [event.name for event in profile.events()]
        assert names.count("rankscope::observe") == LAYERS
        norms.append(names.count("aten::linalg_vector_norm"))
    assert norms == [0, 2 * LAYERS]
    watch.stop()


def test_a_model_that_was_compiled_and_called_before_says_so():
    model = Model()
    run = torch.compile(model, backend="aot_eager")
    run(batch(0))
    watch = LiveWatch(model.blocks)
    watch.start(LAYERS)
    watch.arm()
    run(batch(0))
    watch.disarm()
    assert watch.values() == {}
    assert "compiled and called before the monitor listened" in watch.note
    torch.compiler.reset()  # as the note says
    watch.arm()
    run(batch(0))
    assert len(watch.values()) == 2 * LAYERS
    assert watch.note == ""
    before = hooks_of(model)
    watch.stop()
    assert sum(before) - sum(hooks_of(model)) == LAYERS


def test_cuda_graphs_are_named_where_nothing_was_seen():
    model = Model()
    torch.compile(model, mode="reduce-overhead")
    watch = LiveWatch(model.blocks)
    watch.start(LAYERS)
    watch.arm()
    assert watch.values() == {}
    assert "CUDA graphs" in watch.note
    watch.stop()


PROCESSES = """
import json, math, os, sys
import torch, torch.distributed as dist
from torch import nn
from rankscope.monitor._live import LiveWatch

rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x.mean()


def sharded(model):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    mesh = init_device_mesh("cpu", (2,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


report = {}
for name, wrap in (("ddp", nn.parallel.DistributedDataParallel), ("fsdp2", sharded)):
    torch.manual_seed(0)
    model = Model()
    run = wrap(model)
    reductions = []
    plain_reduce = dist.all_reduce
    dist.all_reduce = lambda *args: (reductions.append(1), plain_reduce(*args))
    watch = LiveWatch(model.blocks)
    watch.start(3)
    captured = []
    for block in model.blocks:
        block.register_forward_hook(lambda _m, _a, out: captured.append(out.detach()))
    x = torch.randn(2 + rank, 5, 8, generator=torch.Generator().manual_seed(rank))
    for fault in (False, True):
        captured.clear()
        if fault and rank == 1:
            x[0, 0, 0] = math.nan
        watch.arm()
        run(x).backward()
        watch.disarm()
        values = watch.values()
        both = [None, None]
        dist.all_gather_object(both, captured)
        wanted = []
        for layer in range(3):
            entries = torch.cat([outputs[layer].flatten() for outputs in both]).double()
            wanted += [float(entries.square().mean().sqrt()), float(entries.abs().max())]
        report[f"{name} {fault}"] = [list(values.values()), wanted, watch.note]
    report[f"{name} reductions"] = len(reductions)
    dist.all_reduce = plain_reduce
    alone = LiveWatch(model.blocks, distributed=False)
    alone.start(3)
    assert alone.values() == {}
print(json.dumps(report), flush=True)
dist.barrier()
os._exit(0)  # Gloo's threads may abort a process that ends as usual
"""


def test_two_processes_reduce_their_sums(tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESSES, str(rank), str(tmp_path)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        outputs = [process.communicate(timeout=100) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], outputs[0][1] + outputs[1][1]
    reports = [json.loads(out) for out, _ in outputs]
    for report in reports:
        for name in ("ddp", "fsdp2"):
            values, wanted, note = report[f"{name} False"]
            assert values == pytest.approx(wanted, rel=1e-6)
            assert note == ""
            assert all(map(math.isnan, report[f"{name} True"][0]))
            assert report[f"{name} reductions"] == 4  # two at each of two steps
