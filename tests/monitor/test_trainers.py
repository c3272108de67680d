"""A monitor in real trainers: Transformers' Trainer, Lightning and Accelerate, a few steps each."""

import copy
import csv
import math

import accelerate
import lightning
import pytest
import torch
import transformers as hf
from accelerate.tracking import GeneralTracker
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from rankscope import Monitor
from rankscope.errors import KindError
from rankscope.monitor._history import read_run

from .tiny import VOCABULARY, Written, fresh, ids, padded

BERT = {
    "vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 24, "max_position_embeddings": 32, "num_labels": 3,
}  # fmt: skip
pytestmark = pytest.mark.filterwarnings(  # Lightning's use of PyTorch
    "ignore:`isinstance\\(treespec, LeafSpec\\)` is deprecated:FutureWarning"
)


def classifier():
    torch.manual_seed(0)
    return hf.BertForSequenceClassification(hf.BertConfig(**BERT))


def texts(rows=12):
    labels = torch.arange(rows) % 3
    return [
        {"input_ids": row, "labels": label}
        for row, label in zip(ids(rows, 8), labels, strict=True)
    ]  # fmt: skip


class Recorder(hf.TrainerCallback):
    """What a reporting callback gets."""

    def __init__(self):
        self.logs = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.logs.append((state.global_step, dict(logs)))


def trainer_of(model, folder, *, callbacks=(), data=None, **options):
    settings = {
        "output_dir": str(folder), "per_device_train_batch_size": 2, "max_steps": 6,
        "logging_steps": 1, "report_to": [], "disable_tqdm": True, "save_strategy": "no",
        "use_cpu": True, "seed": 3, "learning_rate": 1e-3,
    }  # fmt: skip
    arguments = hf.TrainingArguments(**(settings | options))
    return hf.Trainer(model, arguments, train_dataset=data or texts(), callbacks=list(callbacks))


def losses_of(trainer):
    return [log["loss"] for log in trainer.state.log_history if "loss" in log]


def weights_of(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("micro", [1, 2])
def test_the_trainer_of_transformers(micro, tmp_path):
    plain = trainer_of(classifier(), tmp_path / "plain", gradient_accumulation_steps=micro)
    plain.train()
    recorder, model = Recorder(), classifier()
    trainer = trainer_of(
        model, tmp_path / "out", callbacks=[recorder], gradient_accumulation_steps=micro
    )
    monitor = Monitor(model, padded(), every=2, folder=tmp_path / "run", predict=False)
    assert monitor.attach(trainer) is monitor
    assert type(trainer.callback_handler.callbacks[0]).__name__ == "MonitorCallback"
    trainer.train()
    assert [record.step for record in monitor.history.records] == [0, 2, 4, 6]
    # training is the same, and the loss is the trainer's
    assert losses_of(trainer) == losses_of(plain)
    torch.testing.assert_close(weights_of(model), weights_of(plain.model), rtol=0, atol=0)
    recorded = monitor.history.course("loss")
    assert recorded == [
        (step, pytest.approx(losses_of(trainer)[step - 1], rel=1e-3)) for step in (2, 4, 6)
    ]
    # its numbers go to the loggers, with the step of the trainer
    logged = [(step, logs) for step, logs in recorder.logs if "rank/residual/L02" in logs]
    assert [step for step, _ in logged] == [0, 2, 4, 6]
    assert logged[-1][1]["rank/residual/L02"] == monitor.history.last.get("rank/residual", 2)
    assert all(len(logs) <= 40 for _, logs in logged)
    assert any("rank/residual/L02" in log for log in trainer.state.log_history)
    # nothing is left behind
    assert "training_step" not in vars(trainer)
    assert monitor.history.facts["about loss"].startswith("The trainer's own log replaces losses")
    assert read_run(tmp_path / "run").facts["about loss"] == monitor.history.facts["about loss"]
    assert monitor.history.facts["classes"] == 3


def test_a_causal_model_and_tensorboard(tmp_path):
    model = fresh("gpt2")
    rows = [{"input_ids": row, "labels": row} for row in ids(8, 8)]
    trainer = trainer_of(
        model, tmp_path / "out", data=rows, report_to=["tensorboard"], max_steps=4,
        logging_nan_inf_filter=False,
    )  # fmt: skip
    with_environment = trainer.callback_handler.callbacks
    assert any("TensorBoard" in type(callback).__name__ for callback in with_environment)
    monitor = Monitor(model, ids(), every=2, folder=tmp_path / "run", predict=False)
    monitor.attach(trainer)
    trainer.train()
    (folder,) = {path.parent for path in tmp_path.rglob("events.out.tfevents.*")}
    events = EventAccumulator(str(folder)).Reload()
    tags = [tag for tag in events.Tags()["scalars"] if "rank/residual/L02" in tag]
    assert any(tag.endswith("L02") for tag in tags)
    plain = next(tag for tag in tags if tag.endswith("L02"))
    scalars = {event.step: event.value for event in events.Scalars(plain)}
    assert scalars == pytest.approx(dict(monitor.history.course("rank/residual", 2)))
    assert "about loss" not in monitor.history.facts
    assert monitor.history.facts["classes"] == VOCABULARY


def test_a_trainer_resumes_from_its_checkpoint(tmp_path):
    model = classifier()
    first = trainer_of(model, tmp_path / "out", save_strategy="steps", save_steps=3, max_steps=3)
    Monitor(model, padded(), every=1, folder=tmp_path / "run").attach(first)
    first.train()
    assert [record.step for record in read_run(tmp_path / "run").records] == [0, 1, 2, 3]
    model = classifier()
    second = trainer_of(model, tmp_path / "out", max_steps=5)
    monitor = Monitor(model, padded(), every=1, folder=tmp_path / "run").attach(second)
    second.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-3"))
    records = read_run(tmp_path / "run").records
    assert [record.step for record in records] == [0, 1, 2, 3, 4, 5]
    assert len(monitor.history.course("loss")) == 5
    assert [step for step, _ in monitor.history.course("update/ratio", 1)] == [1, 2, 3, 4, 5]


def test_a_trainer_resumes_from_an_earlier_checkpoint(tmp_path):
    model = classifier()
    first = trainer_of(model, tmp_path / "out", save_strategy="steps", save_steps=2, max_steps=5)
    Monitor(model, padded(), every=1, folder=tmp_path / "run").attach(first)
    first.train()
    model = classifier()
    second = trainer_of(model, tmp_path / "out", max_steps=3)
    Monitor(model, padded(), every=1, folder=tmp_path / "run").attach(second)
    second.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))
    assert [record.step for record in read_run(tmp_path / "run").records] == [0, 1, 2, 3]


def broken_at(step, model):
    """A callback that spoils the weights when a step has begun."""

    class Spoil(hf.TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == step - 1:
                with torch.no_grad():
                    model.bert.encoder.layer[1].output.dense.weight.fill_(math.nan)

    return Spoil()


def test_an_alarm_stops_the_trainer(tmp_path):
    model = classifier()
    trainer = trainer_of(model, tmp_path / "out", callbacks=[broken_at(3, model)])
    monitor = Monitor(model, padded(), every=1, folder=tmp_path / "run", on_alarm="stop")
    monitor.attach(trainer)
    trainer.train()
    assert trainer.state.global_step == 3
    assert [(alarm.rule, alarm.step) for alarm in monitor.alarms] == [("non-finite", 3)]


def test_an_alarm_saves_a_checkpoint_of_the_trainer(tmp_path):
    model = classifier()
    trainer = trainer_of(model, tmp_path / "out", callbacks=[broken_at(3, model)], max_steps=4)
    Monitor(model, padded(), every=1, folder=tmp_path / "run", on_alarm="save").attach(trainer)
    trainer.train()
    assert [path.name for path in (tmp_path / "out").glob("checkpoint-*")] == ["checkpoint-3"]


def test_an_alarm_lowers_the_learning_rate_of_the_trainer(tmp_path):
    model = classifier()
    trainer = trainer_of(
        model, tmp_path / "out", callbacks=[broken_at(3, model)], lr_scheduler_type="constant"
    )
    Monitor(model, padded(), every=1, folder=tmp_path / "run", on_alarm="lower_lr").attach(trainer)
    trainer.train()
    assert trainer.lr_scheduler.get_last_lr() == [pytest.approx(0.5e-3)] * 2


def test_a_trainer_that_raises_leaves_nothing_behind(tmp_path):
    model = classifier()

    class Fail(hf.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            raise ZeroDivisionError

    trainer = trainer_of(model, tmp_path / "out", callbacks=[Fail()])
    with Monitor(model, padded(), every=1, folder=tmp_path / "run", live=True) as monitor:
        monitor.attach(trainer)
        with pytest.raises(ZeroDivisionError):
            trainer.train()
    assert [record.step for record in read_run(tmp_path / "run").records] == [0, 1]
    assert not any(module._forward_hooks for module in model.modules())


def test_two_monitors_of_one_trainer(tmp_path):
    model = classifier()
    trainer = trainer_of(model, tmp_path / "out", max_steps=2)
    monitors = [
        Monitor(model, probe, every=1, folder=tmp_path / name, predict=False).attach(trainer)
        for name, probe in (("a", padded()), ("b", ids(4, 5)))
    ]
    trainer.train()
    courses = [monitor.history.course("loss") for monitor in monitors]
    assert courses[0] == courses[1]
    assert [step for step, _ in courses[0]] == [1, 2]
    assert "training_step" not in vars(trainer)


def test_another_model_and_other_things_are_refused(tmp_path):
    monitor = Monitor(classifier(), padded(), folder=tmp_path / "run", predict=False)
    with pytest.raises(KindError, match="trains another model"):
        monitor.attach(trainer_of(classifier(), tmp_path / "out"))
    with pytest.raises(KindError, match=r"got dict, expected a Trainer.*monitor\.lightning"):
        monitor.attach({})


# Lightning.


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.model = Written(dropout=0.1)
        self.losses = []

    def training_step(self, batch, _index):
        (rows,) = batch
        logits = self.model(rows[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 100)]


def fit(module, folder, *, callbacks=(), logger=False, steps=4, micro=1, **options):
    lightning.seed_everything(4, verbose=False)
    trainer = lightning.Trainer(
        max_steps=steps, callbacks=list(callbacks), logger=logger, accelerator="cpu",
        default_root_dir=folder, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, accumulate_grad_batches=micro, log_every_n_steps=1, **options,
    )  # fmt: skip
    loader = DataLoader(TensorDataset(ids(16, 6)), batch_size=2)
    trainer.fit(module, loader)
    return trainer


@pytest.mark.parametrize("micro", [1, 2])
def test_lightning(micro, tmp_path):
    plain = Module()
    fit(plain, tmp_path, micro=micro)
    module = Module()
    monitor = Monitor(module.model, ids(), every=2, folder=tmp_path / "run", live=True)
    loggers = [CSVLogger(tmp_path, "csv"), TensorBoardLogger(tmp_path, "board")]
    fit(module, tmp_path, callbacks=[monitor.lightning()], logger=loggers, micro=micro)
    assert module.losses == plain.losses
    torch.testing.assert_close(weights_of(module), weights_of(plain), rtol=0, atol=0)
    assert [record.step for record in monitor.history.records] == [0, 2, 4]
    # the loss of the last micro-batch, not divided
    expected = [(step, pytest.approx(plain.losses[step * micro - 1])) for step in (2, 4)]
    assert monitor.history.course("loss") == expected
    assert {"update/ratio", "live/rms"} <= {name for name, _ in monitor.history.last.values}
    (path,) = (tmp_path / "csv").rglob("metrics.csv")
    table = csv.DictReader(path.read_text().splitlines())
    rows = [row for row in table if row["rank/residual/L02"]]
    assert {int(row["step"]) for row in rows} == {0, 2, 4}
    assert float(rows[-1]["rank/residual/L02"]) == monitor.history.last.get("rank/residual", 2)
    (board,) = (tmp_path / "board").rglob("events.out.tfevents.*")
    assert "rank/residual/L02" in EventAccumulator(str(board.parent)).Reload().Tags()["scalars"]
    assert not any(module._forward_hooks for module in module.modules())


def test_lightning_monitors_its_own_module(tmp_path):
    module = Module()
    module.forward = lambda rows: module.model(rows)
    monitor = Monitor(module, ids(), every=2, folder=tmp_path / "run")
    fit(module, tmp_path, callbacks=[monitor.lightning()])
    assert [record.step for record in monitor.history.records] == [0, 2, 4]


def test_an_alarm_stops_lightning_and_saves(tmp_path):
    for action in ("stop", "save"):
        module = Module()
        monitor = Monitor(
            module.model, ids(), every=1, folder=tmp_path / action, on_alarm=action
        )  # fmt: skip

        class Spoil(lightning.Callback):
            def on_train_batch_start(self, trainer, pl_module, _batch, _index):
                if trainer.global_step == 1:
                    with torch.no_grad():
                        pl_module.model.head.weight.fill_(math.nan)

        trainer = fit(module, tmp_path, callbacks=[Spoil(), monitor.lightning()])
        assert monitor.alarms[0].rule == "non-finite"
        assert trainer.global_step == (2 if action == "stop" else 4)
    assert (tmp_path / "save" / "checkpoint-2.ckpt").is_file()


# Accelerate.


class Tracker(GeneralTracker):
    name = "ours"
    requires_logging_directory = False

    def __init__(self):
        self.logs = []

    @property
    def tracker(self):
        return self.logs

    def store_init_configuration(self, values):
        pass

    def log(self, values, step, **_options):
        self.logs.append((step, values))


def run_accelerate(accelerator, model, monitor=None, steps=4):
    torch.manual_seed(5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = DataLoader(TensorDataset(ids(16, 6)), batch_size=2)
    prepared, optimizer, data = accelerator.prepare(model, optimizer, data)
    losses, done = [], 0
    for (rows,) in data:
        with accelerator.accumulate(prepared):
            logits = prepared(rows[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
        if accelerator.sync_gradients:
            done += 1
            if monitor is not None:
                monitor.step(loss=loss)
        if done == steps:
            break
    return losses


@pytest.mark.parametrize("precision", ["no", "bf16"])
@pytest.mark.parametrize("micro", [1, 2])
def test_accelerate(precision, micro, tmp_path):
    def accelerator_with(trackers):
        accelerate.state.AcceleratorState._reset_state(True)
        made = accelerate.Accelerator(
            cpu=True, mixed_precision=precision, gradient_accumulation_steps=micro,
            log_with=trackers or None,
        )  # fmt: skip
        if trackers:
            made.init_trackers("run")
        return made

    torch.manual_seed(0)
    model = Written(dropout=0.1)
    twin = copy.deepcopy(model)
    losses = run_accelerate(accelerator_with([]), model)
    tracker = Tracker()
    accelerator = accelerator_with([tracker])
    autocast = torch.bfloat16 if precision == "bf16" else None
    monitor = Monitor(twin, ids(), every=2, folder=tmp_path / "run", autocast=autocast)
    with monitor.attach(accelerator):
        assert run_accelerate(accelerator, twin, monitor) == losses
    torch.testing.assert_close(weights_of(twin), weights_of(model), rtol=0, atol=0)
    assert [record.step for record in monitor.history.records] == [0, 2, 4]
    assert [step for step, _ in tracker.logs] == [2, 4]
    residual = monitor.history.last.get("rank/residual", 2)
    assert tracker.logs[-1][1]["rank/residual/L02"] == residual
    assert monitor.history.facts["precision"] == ("float32" if precision == "no" else "bfloat16")
    assert "update/ratio" in {name for name, _ in monitor.history.last.values}


def test_accelerate_prepared_models_are_unwrapped(tmp_path):
    accelerate.state.AcceleratorState._reset_state(True)
    accelerator = accelerate.Accelerator(cpu=True, mixed_precision="bf16")
    model = Written()
    plain = Monitor(model, ids(), folder=tmp_path / "plain", predict=False)
    prepared = accelerator.prepare(model)
    monitor = Monitor(prepared, ids(), folder=tmp_path / "run", predict=False)
    # what was prepared runs in bfloat16 by itself
    assert monitor.history.last.values == pytest.approx(plain.history.last.values, rel=0.1, abs=0.1)
    assert isinstance(monitor.model, nn.Module)
