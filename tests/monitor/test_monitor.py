"""A monitor beside a training loop: what it records, and that training does not notice it."""

import copy
import json
import math
import os
import random
import signal
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from rankscope import Monitor, Network, Spec
from rankscope.errors import InputError
from rankscope.monitor._history import read_run
from rankscope.monitor._rules import RULES
from rankscope.monitor._scalars import Scalars

from .tiny import VOCABULARY, Written, ids, lively, padded


@pytest.fixture(autouse=True)
def _nothing_compiled():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


class Moody(Written):
    """A model with dropout, that draws from every generator and writes to its buffers."""

    def __init__(self, *, reentrant=None, layers=2):
        super().__init__(layers=layers, dropout=0.2)
        self.reentrant = reentrant
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("running", torch.zeros(16))
        self.frequencies = nn.Buffer(torch.ones(3), persistent=False)

    def forward(self, tokens):
        self.calls += 1
        x = self.embed(tokens)
        with torch.no_grad():
            self.running.mul_(0.9).add_(0.1 * x.mean((0, 1)))
            if tokens.shape[1] > len(self.frequencies):  # as dynamic rotary embeddings do
                self.frequencies = torch.ones(tokens.shape[1])
        for block in self.blocks:
            if self.reentrant is None or not self.training:
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(x)


class Drawing(Moody):
    """One that also draws from Python's and NumPy's generators."""

    def forward(self, tokens):
        noise = random.random() + np.random.rand()  # noqa: NPY002 - as models do
        return super().forward(tokens) + 1e-3 * noise


def state_of(*objects):
    """Everything that training could notice, as bytes and numbers."""
    tensors = {}
    for number, part in enumerate(objects):
        for path, value in _leaves(part.state_dict(), f"{number}"):
            tensors[path] = value.clone() if isinstance(value, torch.Tensor) else value
    tensors["torch"] = torch.get_rng_state()
    tensors["numpy"] = json.dumps(np.random.get_state(legacy=False)["state"]["key"].tolist())  # noqa: NPY002
    tensors["python"] = random.getstate()
    return tensors


def _leaves(value, path):
    if isinstance(value, dict):
        for name, part in value.items():
            yield from _leaves(part, f"{path}.{name}")
    else:
        yield path, value


def assert_same(a, b):
    assert a.keys() == b.keys()
    for name, value in a.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, b[name]), name
        else:
            assert value == b[name], name


def train(model, folder=None, *, steps=5, compiled=None, micro=1, autocast=None, **options):
    """Losses and everything that was changed; with a monitor if there is a folder."""
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    random.seed(1)
    running = model if compiled is None else torch.compile(model, backend=compiled)
    monitor = None
    if folder is not None:
        monitor = Monitor(running, ids(3, 7, seed=9), every=2, folder=folder / "run", **options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    with monitor or nullcontext():
        for step in range(steps):
            optimizer.zero_grad()
            for part in range(micro):
                batch = ids(4, 6, seed=10 * step + part)
                with torch.autocast("cpu", autocast) if autocast else nullcontext():
                    logits = running(batch[:, :-1])
                    loss = functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
                (loss / micro).backward()
            optimizer.step()
            losses.append(loss.item())
            if monitor is not None:
                assert monitor.step(loss=loss) == ((step + 1) % 2 == 0)
    return losses, state_of(model, optimizer), monitor


CASES = {
    "plain": {},
    "live": {"live": True},
    "training mode": {"mode": "training"},
    "micro-batches": {"micro": 3},
    "autocast": {"autocast": torch.bfloat16},
}


@pytest.mark.parametrize("case", CASES)
def test_training_is_bit_for_bit_the_same(case, tmp_path):
    options = dict(CASES[case])
    loop = {name: options.pop(name) for name in ("micro", "autocast") if name in options}
    torch.manual_seed(0)
    model = Drawing()
    twin = copy.deepcopy(model)
    losses, state, _ = train(model, **loop)
    same_losses, same_state, monitor = train(twin, tmp_path, **loop, **options)
    assert losses == same_losses
    assert_same(state, same_state)
    assert [record.step for record in monitor.history.records] == [0, 2, 4]
    assert monitor.history.course("loss") == [(2, losses[1]), (4, losses[3])]
    assert "update/ratio" in {name for name, _ in monitor.history.last.values}
    assert ("live/rms" in {name for name, _ in monitor.history.last.values}) == (case == "live")


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_is_not_counted_twice(reentrant, live, tmp_path):
    torch.manual_seed(0)
    model = Moody(reentrant=reentrant)
    twin = copy.deepcopy(model)
    losses, state, _ = train(model)
    same_losses, same_state, monitor = train(twin, tmp_path, live=live)
    assert losses == same_losses
    assert_same(state, same_state)
    assert len(monitor.history.last.at("rank/residual")) == 3
    assert len(monitor.history.last.at("live/rms")) == (2 if live else 0)


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_training_is_the_same_and_compiles_nothing_anew(backend, live, tmp_path):
    torch.manual_seed(0)
    model = Moody()
    twin = copy.deepcopy(model)
    losses, state, _ = train(model, compiled=backend)
    frames, graphs = dict(counters["frames"]), dict(counters["stats"])
    torch._dynamo.reset()
    counters.clear()
    same_losses, same_state, monitor = train(twin, tmp_path, compiled=backend, live=live)
    assert losses == same_losses
    assert_same(state, same_state)
    assert dict(counters["frames"]) == frames
    assert counters["stats"]["unique_graphs"] == graphs["unique_graphs"]
    assert len(monitor.history.records) == 3
    assert ("live/rms" in {name for name, _ in monitor.history.last.values}) == live


def everything_about(model):
    """Hooks, modes, attributes and buffers of all modules."""
    seen = []
    for name, module in model.named_modules():
        hooks = {key: len(value or ()) for key, value in vars(module).items() if "hook" in key}
        buffers = {key: id(buffer) for key, buffer in module._buffers.items()}
        seen.append((name, module.training, sorted(vars(module)), buffers, hooks))
    return seen


def test_hooks_modes_and_buffers_are_left_as_they_were(tmp_path):
    model = Moody()
    model.blocks[1].eval()  # a mixture of modes
    model.blocks[0].register_forward_hook(lambda *_: None)
    before = everything_about(model)
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    monitor = Monitor(model, ids(3, 7), every=1, folder=tmp_path / "run", live=True)
    assert everything_about(model) == before
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with monitor:
        monitor.step()
    assert everything_about(model) == before
    assert all(torch.equal(buffers[name], value) for name, value in model.named_buffers())
    assert not optimizer._optimizer_step_post_hooks
    assert not optimizer._optimizer_step_pre_hooks
    monitor.close()  # again


def test_hooks_are_removed_when_the_loop_raises(tmp_path):
    model = Moody()
    before = everything_about(model)
    with (
        pytest.raises(ZeroDivisionError),
        Monitor(model, ids(3, 7), every=1, folder=tmp_path / "run", live=True),
    ):
        raise ZeroDivisionError
    assert everything_about(model) == before


class Operators(TorchDispatchMode):
    """Counts every operator that runs, and backward too."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("options", [{}, {"live": True}, {"mode": "training"}])
def test_steps_that_are_not_recorded_run_no_further_operator(options, tmp_path):
    def operators(monitored):
        torch.manual_seed(0)
        model = Written()
        monitor = None
        if monitored:
            monitor = Monitor(model, ids(3, 7), every=4, folder=tmp_path / "run", **options)
            monitor.start()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        by_step = []
        for step in range(6):
            with Operators() as seen:
                loss = model(ids(2, 5, seed=step)).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                if monitor is not None:
                    monitor.step(loss=loss)
            by_step.append(seen.names)
        if monitor is not None:
            monitor.close()
        return by_step

    plain, monitored = operators(False), operators(True)
    for step in (0, 1, 2, 4, 5):  # the fourth is recorded
        assert monitored[step] == plain[step], step
    assert len(monitored[3]) > len(plain[3])


# What goes wrong.


def test_a_loss_that_is_not_a_number(tmp_path, caplog):
    caplog.set_level("WARNING", "rankscope.monitor")  # whatever an example has set
    model = lively("llama")
    with Monitor(model, padded(), every=1, folder=tmp_path / "run", predict=False) as monitor:
        monitor.step(loss=2.0)
        monitor.step(loss=torch.tensor(math.nan))
        monitor.step(loss=2.0)
    (alarm,) = [alarm for alarm in monitor.alarms if alarm.rule == "non-finite"]
    assert (alarm.step, alarm.layer) == (2, None)
    assert "loss" in alarm.sentence
    assert any("non-finite" in record.message for record in caplog.records)
    assert monitor.scalars()["alarm/non-finite"] == 1


@pytest.mark.parametrize(("path", "layer"), [("layers.1.mlp.down_proj", 2), ("embed_tokens", 0)])
def test_weights_that_are_not_numbers(path, layer, tmp_path):
    model = lively("llama")
    with Monitor(model, padded(), every=1, folder=tmp_path / "run") as monitor:
        monitor.step()
        with torch.no_grad():
            model.model.get_submodule(path).weight[0, :2] = math.nan
            if path == "embed_tokens":
                model.model.embed_tokens.weight.fill_(math.inf)
        assert monitor.step(loss=math.nan)
        assert monitor.step(loss=math.nan)
    (alarm,) = [alarm for alarm in monitor.alarms if alarm.rule == "non-finite"]
    assert (alarm.step, alarm.layer) == (2, layer)
    assert repr(read_run(monitor.folder).alarms) == repr(list(monitor.alarms))  # NaN is itself


def test_a_probe_that_fails_later_does_not_stop_training(tmp_path, caplog):
    caplog.set_level("WARNING", "rankscope.monitor")  # whatever an example has set
    model = Written()
    monitor = Monitor(model, ids(3, 7), every=1, folder=tmp_path / "run", gradients=False)
    model.forward = lambda ids: torch.zeros(*ids.shape, VOCABULARY)  # the blocks do not run
    with monitor:
        assert monitor.step(loss=1.0)
        assert monitor.step(loss=1.5)
    assert monitor.history.course("loss") == [(1, 1.0), (2, 1.5)]
    assert sum("training goes on" in record.message for record in caplog.records) == 1
    assert "from step 1" in read_run(monitor.folder).facts["about the probe"]


# Files.


def test_a_killed_run_continues_its_file(tmp_path):
    script = Path(__file__).parent / "killed_run.py"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "run")], env=environment, check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr
    with (tmp_path / "run" / "monitor.journal").open("ab") as journal:
        journal.write(b'{"number": 5, "step": 8, "val')  # a torn line
    assert [record.step for record in read_run(tmp_path / "run").records] == [0, 2, 4, 6]
    net = Network.random(Spec(2, 2, 8), seed=0)
    probe = torch.ones(2, 3, 8).cumsum(1).sin()
    with Monitor(net, probe, every=2, folder=tmp_path / "run") as monitor:
        assert [record.step for record in monitor.history.records] == [0, 2, 4, 6]
        for _ in range(3):
            monitor.step(loss=0.5)
    assert [record.step for record in read_run(tmp_path / "run").records] == [0, 2, 4, 6, 8]
    assert monitor.history.course("loss") == [(2, 2.0), (4, 4.0), (6, 6.0), (8, 0.5)]


@pytest.fixture
def net():
    return Network.random(Spec(2, 2, 8), seed=0)


@pytest.fixture
def probe():
    return torch.randn(4, 5, 8, generator=torch.Generator().manual_seed(0))


def run_to(net, probe, folder, steps, **options):
    with Monitor(net, probe, every=2, folder=folder, **options) as monitor:
        for step in range(steps):
            monitor.step(loss=float(step))
    return monitor


def steps_of(monitor):
    return [record.step for record in monitor.history.records]


def test_a_run_is_rewound_to_the_step_of_its_checkpoint(net, probe, tmp_path):
    run_to(net, probe, tmp_path / "run", 8)
    monitor = Monitor(net, probe, every=2, folder=tmp_path / "run", step=5)
    assert steps_of(monitor) == [0, 2, 4]
    assert read_run(tmp_path / "run").last.step == 4
    with monitor:
        assert monitor.step(loss=9.0)
        assert not monitor.step(loss=9.0)
    assert steps_of(monitor) == [0, 2, 4, 6]
    assert monitor.history.course("loss")[-1] == (6, 9.0)


def test_a_run_goes_on_from_a_later_step(net, probe, tmp_path):
    run_to(net, probe, tmp_path / "run", 4)
    monitor = Monitor(net, probe, every=2, folder=tmp_path / "run", step=7)
    with monitor:
        monitor.step(loss=1.0)
    assert steps_of(monitor) == [0, 2, 4, 8]


def test_steps_may_be_counted_by_the_loop(net, probe, tmp_path):
    with Monitor(net, probe, every=10, folder=tmp_path / "run", step=100) as monitor:
        assert steps_of(monitor) == [100]
        assert not monitor.step(step=105)
        assert monitor.step(step=110)
        assert not monitor.step(step=110)
        assert not monitor.step(step=119)
        assert monitor.step(step=123)  # the first at 120 or later
        assert not monitor.step(step=124)
        assert monitor.step(step=110)  # the loop went back to a checkpoint
        assert not monitor.step(step=108)
        assert monitor.step(step=110)
        assert monitor.step(step=120)
    assert steps_of(monitor) == [100, 110, 120]


@pytest.mark.parametrize("other", ["probe", "model", "parameters", "precision", "mode"])
def test_another_run_is_refused(other, net, probe, tmp_path):
    run_to(net, probe, tmp_path / "run", 4)
    before = (tmp_path / "run" / "monitor.parquet").read_bytes()
    options = {}
    if other == "probe":
        probe = probe + 1
    if other == "model":
        net = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2, enable_nested_tensor=False
        )
    if other == "parameters":
        net = Network.random(Spec(3, 2, 8), seed=0)
    if other == "precision":
        options["autocast"] = torch.bfloat16
    if other == "mode":
        options["mode"] = "training"
    with pytest.raises(InputError, match=f"another {other}.*choose another folder"):
        Monitor(net, probe, every=2, folder=tmp_path / "run", **options)
    assert (tmp_path / "run" / "monitor.parquet").read_bytes() == before


def test_a_run_without_a_folder_gets_the_next_number(net, probe, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = [Monitor(net, probe, predict=False).folder.name for _ in range(2)]
    assert folders == ["monitor-0001", "monitor-0002"]


# Actions.


def alarming(action, net, probe, folder, **options):
    """A monitor that has an alarm at step 2."""
    monitor = Monitor(net, probe, every=1, folder=folder, on_alarm=action, **options)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.4)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    monitor.schedulers.append(scheduler)
    with monitor:
        for loss in (1.0, math.nan):
            net(probe).mean().backward()
            optimizer.step()
            scheduler.step()
            monitor.step(loss=loss)
    scheduler.step()
    return monitor, optimizer


def test_alarms_call_a_function(net, probe, tmp_path):
    alarms = []
    monitor, _ = alarming(alarms.append, net, probe, tmp_path / "run")
    assert [alarm.rule for alarm in alarms] == ["non-finite"]
    assert alarms == list(monitor.alarms)


def test_alarms_stop(net, probe, tmp_path):
    assert alarming("stop", net, probe, tmp_path / "run")[0].should_stop
    assert not alarming(None, net, probe, tmp_path / "other")[0].should_stop


def test_alarms_save(net, probe, tmp_path):
    monitor, _ = alarming("save", net, probe, tmp_path / "run")
    saved = torch.load(monitor.folder / "weights-2.pt")
    assert_same(saved, net.state_dict())


def test_alarms_lower_the_learning_rate_for_good(net, probe, tmp_path):
    monitor, optimizer = alarming("lower_lr", net, probe, tmp_path / "run")
    assert [group["lr"] for group in optimizer.param_groups] == [0.2]
    assert monitor.optimizers == []  # none is kept


def test_learning_rates_need_gradients(net, probe, tmp_path):
    with pytest.raises(InputError, match="needs gradients=True"):
        Monitor(net, probe, folder=tmp_path / "run", on_alarm="lower_lr", gradients=False)


@pytest.mark.parametrize(
    "make",
    [
        lambda o: torch.optim.lr_scheduler.StepLR(o, 100),
        lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 100),
        lambda o: torch.optim.lr_scheduler.SequentialLR(
            o,
            [torch.optim.lr_scheduler.ConstantLR(o, 1.0, 1),
             torch.optim.lr_scheduler.LambdaLR(o, lambda _: 1.0)], [50],
        ),
        lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o),
    ],
)  # fmt: skip
def test_learning_rates_of_every_kind_of_scheduler(make, net, probe, tmp_path):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.4)
    scheduler = make(optimizer)
    with Monitor(net, probe, every=1, folder=tmp_path / "run", on_alarm="lower_lr") as monitor:
        monitor.schedulers.append(scheduler)
        for loss in (1.0, math.nan, 1.0, 1.0):
            optimizer.step()
            scheduler.step(*((loss,) if "Plateau" in type(scheduler).__name__ else ()))
            monitor.step(loss=loss)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.2, rel=0.01)


# Names and tables.


def test_at_most_forty_scalars_of_a_deep_model(tmp_path):
    net = Network.random(Spec(48, 2, 8), seed=0)
    logged = []
    probe = torch.randn(4, 5, 8)
    with Monitor(
        net, probe, every=1, folder=tmp_path / "run", predict=False, live=True,
        log=lambda values, step: logged.append((step, values)),
    ) as monitor:  # fmt: skip
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        net(probe).square().mean().backward()
        optimizer.step()
        monitor.step(loss=math.nan)  # an alarm is logged as well
    assert [step for step, _ in logged] == [0, 1]
    values = logged[-1][1]
    assert 30 <= len(values) <= 40
    assert {
        "rank/residual/L48", "rank/residual/L12", "rank/residual/L24/vs_init",
        "alarm/non-finite", "rankscope/overhead_ms", "pooled/mean_cosine",
    } <= set(values)  # fmt: skip
    assert len(monitor.scalars()) > 500
    # all rules at once: alarms stay, figures give way
    rules = list(RULES)
    alarm = monitor.alarms[0]
    monitor.history.alarms = [replace(alarm, rule=rule) for rule in rules]
    values = Scalars(()).of(monitor.history)
    assert len(rules) + 31 > 40  # without the limit
    assert len(values) == 40
    assert {f"alarm/{rule}" for rule in rules} <= set(values)


def test_names_choose_scalars(net, probe, tmp_path):
    logged = []
    names = ("rank/*/L01", "attention/entropy/L0?", "loss", "alarm/*", "*/vs_predicted")
    with Monitor(
        net, probe, every=1, folder=tmp_path / "run", names=names,
        log=lambda values, _step: logged.append(values),
    ) as monitor:  # fmt: skip
        monitor.step(loss=2.5)
    plain = {name for name in logged[-1] if "/vs_" not in name}
    assert plain == {
        "rank/residual/L01", "rank/mean_cosine/L01", "rank/effective_rank/L01",
        "attention/entropy/L01", "attention/entropy/L02", "loss",
    }  # fmt: skip
    assert "rank/residual/L02/vs_predicted" in logged[-1]
    assert logged[-1]["loss"] == 2.5
    assert monitor.scalars(("loss",)) == {"loss": 2.5}


def test_the_table_has_ratios(net, probe, tmp_path):
    with Monitor(net, probe, every=2, folder=tmp_path / "run") as monitor:
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.mul_(3.0)
        monitor.step(step=2)
    table = {
        (row["step"], row["metric"], row["layer"]): row["value"]
        for row in monitor.table.iter_rows(named=True)
    }
    value, start = (table[step, "rank/residual", 2] for step in (2, 0))
    assert value != pytest.approx(start, rel=1e-3)
    assert table[2, "rank/residual/vs_init", 2] == pytest.approx(value / start)
    low, high = (table[0, f"rank/residual/predicted_{end}", 2] for end in ("low", "high"))
    assert table[2, "rank/residual/vs_predicted", 2] == pytest.approx(2 * value / (low + high))
    assert not any(metric.startswith(("loss/", "rankscope/overhead_ms/")) for _, metric, _ in table)
    assert "no alarm" in repr(monitor)
