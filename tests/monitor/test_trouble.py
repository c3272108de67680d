"""What a review and an attack found: a monitor neither disturbs nor mixes up what it measures."""

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from rankscope import Monitor, trace
from rankscope.errors import InputError
from rankscope.monitor._actions import lower_learning_rates
from rankscope.monitor._history import new_folder, read_run

from .tiny import Written, ids


class Plain(nn.Module):
    """Blocks of PyTorch, on real numbers."""

    def __init__(self, *, norm_first=False):
        super().__init__()
        torch.manual_seed(0)
        options = {"dropout": 0.0, "batch_first": True, "norm_first": norm_first}
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(16, 2, 32, **options) for _ in range(3)
        )

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


BATCH = torch.randn(4, 6, 16, generator=torch.Generator().manual_seed(1))


def monitor_of(model, probe=BATCH, *, folder, **options):
    return Monitor(model, probe, every=1, folder=folder / "run", predict=False, **options)


def test_live_mode_hears_training_batches_alone(tmp_path):
    """Neither the probe, nor that of another monitor, nor an evaluation in between."""
    values = []
    for scale in (1, 1000):
        model = Plain(norm_first=True)  # whose outputs grow with its input
        both = [
            Monitor(
                model, BATCH * scale, every=1, live=True, mode="training",
                folder=tmp_path / f"{scale}-{k}",
            )
            for k in range(2)
        ]  # fmt: skip
        for monitor in both:
            monitor.start()
        model(BATCH)
        with torch.no_grad():
            model.eval()(BATCH * 1e4)
        model.train()
        for monitor in both:
            monitor.step()
            values.append(monitor.history.last.get("live/max", 1))
            monitor.close()
    largest = model.blocks[0](BATCH).detach().abs().max().item()
    assert values == pytest.approx([largest] * 4)


def test_live_mode_hears_loops_that_count_in_twos(tmp_path):
    model = Plain()
    with Monitor(model, BATCH, every=10, live=True, folder=tmp_path / "run") as monitor:
        for step in range(2, 41, 2):
            model(BATCH)
            monitor.step(step=step)
    assert [step for step, _ in monitor.history.course("live/rms", 1)] == [10, 20, 30, 40]


def test_what_live_mode_cannot_hear_is_said(tmp_path, caplog):
    caplog.set_level("WARNING", "rankscope.monitor")
    with monitor_of(Plain(), folder=tmp_path, live=True) as monitor:
        monitor.step()  # no block ran
        monitor.step()
    assert "Live mode saw no" in monitor.history.facts["about live mode"]
    assert sum("Live mode saw no" in record.message for record in caplog.records) == 1


def test_writes_that_are_not_counted_are_undone():
    """BatchNorm and ``.data`` write to buffers without raising their version."""

    class Writing(Plain):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(16)
            self.register_buffer("mean", torch.zeros(16))

        def forward(self, x):
            self.mean.data.lerp_(x.mean((0, 1)), 0.1)
            self.norm.train()
            return super().forward(self.norm(x.transpose(1, 2)).transpose(1, 2))

    model = Writing()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    trace(model, BATCH)
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, before[name]), name


def test_dynamic_rotary_embeddings_forget_the_probe(tmp_path):
    """The original remembers the longest text, in a number beside its buffers."""
    losses = []
    for watched in (False, True):
        torch.manual_seed(0)
        rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
        model = LlamaForCausalLM(
            LlamaConfig(
                hidden_size=16,
                num_hidden_layers=2,
                num_attention_heads=2,
                num_key_value_heads=2,
                intermediate_size=32,
                vocab_size=50,
                max_position_embeddings=8,
                rope_parameters=rope,
            )
        )
        batch = torch.arange(32).reshape(2, 16)
        if watched:
            monitor_of(model, torch.arange(64).reshape(2, 32) % 50, folder=tmp_path)
        losses.append(model(input_ids=batch, labels=batch).loss.item())
    assert losses[0] == losses[1]


def test_the_probe_is_a_copy(tmp_path):
    class Writing(Plain):
        def forward(self, x):
            return super().forward(x.add_(1.0))

    probe = BATCH.clone()
    with monitor_of(Writing(), probe, folder=tmp_path) as monitor:
        probe.zero_()
        monitor.step()
        monitor.step()
    residuals = [value for _, value in monitor.history.course("rank/residual", 0)]
    assert residuals[0] > 0.5
    assert residuals == residuals[:1] * 3


def test_replaced_blocks_are_noticed(tmp_path):
    model = Plain()
    with monitor_of(model, folder=tmp_path) as monitor:
        model.blocks[1] = Plain().blocks[0]
        monitor.step(loss=1.0)
    assert "were added or replaced" in monitor.history.facts["about the probe"]
    assert monitor.history.last.at("attention/entropy") == {}


@pytest.mark.parametrize("loss", [torch.ones(2), torch.tensor([3.0]), lambda: 2.0])
def test_losses_of_any_form(loss, tmp_path):
    with monitor_of(Plain(), folder=tmp_path) as monitor:
        monitor.step(loss)
    assert monitor.history.last.get("loss") in (1.0, 2.0, 3.0)


def test_trouble_of_loggers_and_losses_does_not_end_training(tmp_path, caplog):
    caplog.set_level("WARNING", "rankscope.monitor")

    def log(_values, step):
        if step:
            raise ConnectionError("the logger is down")

    with monitor_of(Plain(), folder=tmp_path, log=log) as monitor:
        monitor.step(lambda: "no number")
        monitor.step(2.0)
    facts = read_run(monitor.folder).facts
    assert "the logger is down" in facts["about logging"]
    assert "about reading the loss" in facts
    assert monitor.history.course("loss") == [(2, 2.0)]


def test_facts_reach_the_journal(tmp_path):
    with monitor_of(Plain(), folder=tmp_path) as monitor:
        monitor.step(lambda: "no number")
        monitor.step(1.0)
        assert "about reading the loss" in read_run(monitor.folder).facts  # before it is closed


def test_saving_that_fails_does_not_end_training(tmp_path):
    with monitor_of(Plain(), folder=tmp_path, on_alarm="save") as monitor:
        monitor.saver = lambda step: torch.save({}, tmp_path / "missing" / f"{step}.pt")
        monitor.step(float("nan"))
    assert "about on_alarm" in monitor.history.facts


def test_a_median_of_zero_is_no_alarm(tmp_path):
    monitor = monitor_of(Plain(), torch.relu(BATCH - 0.5), folder=tmp_path)
    assert monitor.alarms == ()
    assert ("stream/max_over_median", 0) not in monitor.history.baseline.values


def test_there_is_one_record_for_a_step(tmp_path):
    with monitor_of(Plain(), folder=tmp_path) as monitor:
        monitor.step(step=5)
        monitor.step(step=0)
        monitor.step(step=1)
    assert [record.step for record in monitor.history.records] == [0, 1]


def test_a_run_that_begins_anew_has_its_own_baseline(tmp_path):
    first, second = Plain(), Plain()
    with torch.no_grad():
        second.blocks[0].linear1.weight.mul_(9)
    monitor_of(first, folder=tmp_path).close()
    anew = monitor_of(second, folder=tmp_path, step=0)
    fresh = Monitor(second, BATCH, folder=tmp_path / "other", predict=False)
    assert anew.history.baseline == fresh.history.baseline
    assert read_run(anew.folder).baseline == fresh.history.baseline


def test_folders_are_reserved(tmp_path):
    folders = [new_folder(tmp_path / "out") for _ in range(3)]
    assert [folder.name for folder in folders] == [f"monitor-000{k}" for k in (1, 2, 3)]
    assert all(folder.is_dir() for folder in folders)


def test_an_interrupted_write_is_not_repeated(tmp_path, monkeypatch):
    from rankscope.monitor import _history

    with monitor_of(Plain(), folder=tmp_path) as monitor:
        monitor.step()
        real = _history.os.fsync

        def interrupted(descriptor):
            real(descriptor)
            monkeypatch.setattr(_history.os, "fsync", real)
            raise KeyboardInterrupt

        monkeypatch.setattr(_history.os, "fsync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            monitor.step()
        monitor.step()
        assert [r.step for r in read_run(monitor.folder).records] == [0, 1, 2, 3]


def test_other_precisions_are_refused(tmp_path):
    with pytest.raises(InputError, match="expected torch"):
        monitor_of(Plain(), folder=tmp_path, autocast=torch.int32)


def test_nested_schedulers_are_lowered():
    for make in (
        lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=20),
        lambda optimizer: torch.optim.lr_scheduler.SequentialLR(
            optimizer,
            [torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _step: 1.0) for _ in range(2)],
            milestones=[15],
        ),
    ):
        rates = []
        for lowered in (False, True):
            optimizer = torch.optim.SGD(Written().parameters(), lr=0.1)
            scheduler = make(optimizer)
            for step in range(12):
                optimizer.step()
                scheduler.step()
                if lowered and step == 5:
                    lower_learning_rates([optimizer], [scheduler])
            rates.append(optimizer.param_groups[0]["lr"])
        assert rates[1] == pytest.approx(rates[0] / 2, rel=0.05)


def test_ids_beyond_the_vocabulary_are_refused_in_a_sentence(tmp_path):
    with pytest.raises(InputError, match="the model cannot run the probe"):
        monitor_of(Written(), ids() + 10_000, folder=tmp_path)
