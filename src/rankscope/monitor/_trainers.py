"""A monitor inside the training loops of Transformers, Lightning and Accelerate."""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from rankscope.errors import KindError
from rankscope.process import require

if TYPE_CHECKING:
    from rankscope.monitor._monitor import Monitor

_CONSOLE: Final = ("ProgressCallback", "PrinterCallback", "NotebookProgressCallback")
"""Callbacks that print all they get; forty numbers a line serve nobody."""
_FILTERED: Final = (
    "The trainer's own log replaces losses that are not finite by the mean of the others "
    "(logging_nan_inf_filter); the loss here is not filtered."
)


def attach(monitor: "Monitor", trainer: Any) -> None:
    """Follow a ``Trainer`` of Transformers, or log through an ``Accelerator``."""
    if hasattr(trainer, "callback_handler") and hasattr(trainer, "training_step"):
        _refuse_other_model(monitor, trainer)
        _forget_classes(monitor, trainer)
        trainer.callback_handler.callbacks.insert(0, trainer_callback(monitor, trainer))
    elif hasattr(trainer, "init_trackers") and hasattr(trainer, "prepare"):
        if monitor.log is None:
            monitor.log = lambda values, step: trainer.log(values, step=step)
    else:
        raise KindError(
            f"attach: got {type(trainer).__name__}, expected a Trainer of Transformers or an "
            "Accelerator; for Lightning use Trainer(callbacks=[monitor.lightning()]), and call "
            "monitor.step() in other loops."
        )


def _refuse_other_model(monitor: "Monitor", trainer: Any) -> None:
    trained = {id(parameter) for parameter in trainer.model.parameters()}
    if not any(id(parameter) in trained for parameter in monitor.model.parameters()):
        raise KindError(
            "the trainer trains another model than the monitor watches; make the monitor of "
            "trainer.model."
        )


def _forget_classes(monitor: "Monitor", trainer: Any) -> None:
    """K of the vocabulary is not that of other losses, as those of preferences (TRL's DPO)."""
    plain = require("transformers").Trainer.compute_loss
    kind = type(trainer)
    if kind.compute_loss is not plain and kind.__name__ != "SFTTrainer":
        monitor.history.facts["classes"] = monitor.classes


class _HeardSteps:
    """A trainer's ``training_step`` whose losses are kept, until it is taken off."""

    def __init__(self, trainer: Any) -> None:
        self.losses: list[Tensor] = []
        self._trainer, self._inner = trainer, trainer.training_step
        self._own = vars(trainer).get("training_step")
        self._is_on = True
        trainer.training_step = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        loss = self._inner(*args, **kwargs)
        if self._is_on:
            self.losses.append(loss.detach())
        return loss

    def take_off(self) -> None:
        """Put back what was there; one inside another goes with the outermost."""
        self._is_on = False
        self.losses.clear()
        top = vars(self._trainer).get("training_step")
        while isinstance(top, _HeardSteps) and not top._is_on:
            top = top._own
        vars(self._trainer).pop("training_step", None)
        if top is not None:
            self._trainer.training_step = top


def trainer_callback(monitor: "Monitor", trainer: Any) -> Any:
    """A ``TrainerCallback``. The loss of a step is known to ``training_step`` alone."""
    base: Any = require("transformers").TrainerCallback

    class MonitorCallback(base):  # type: ignore[misc]
        """Counts steps, and passes numbers on to the trainer's loggers."""

        def __init__(self) -> None:
            self._saves = self._logs_baseline = False
            self._heard: _HeardSteps | None = None
            self._settings: tuple[Any, Any, Any] = (None, None, [])

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self._put_back()  # an earlier training may have ended without on_train_end
            self._wrap()
            if args.logging_nan_inf_filter:
                monitor.history.facts["about loss"] = _FILTERED
            if state.global_step:
                monitor.rewind(state.global_step)
            self._logs_baseline = monitor.log == self._log and not state.global_step
            monitor.start()

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if self._heard is not None:
                self._heard.losses.clear()
            if self._logs_baseline and monitor.is_main:  # all loggers are ready now
                self._logs_baseline = False
                monitor.log_latest()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
            # Each is divided by the number of micro-batches already.
            losses = [] if self._heard is None else self._heard.losses
            loss = partial(sum, losses) if losses else None
            monitor.step(loss=loss, step=state.global_step)
            control.should_training_stop |= monitor.should_stop
            control.should_save |= self._saves
            self._saves = False
            return control

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self._put_back()
            monitor.close()

        def _wrap(self) -> None:
            """Hear losses, and let the trainer log and save."""
            self._heard = _HeardSteps(trainer)
            self._settings = (monitor.log, monitor.saver, monitor.schedulers)
            monitor.saver = self._save
            monitor.log = monitor.log or self._log
            scheduler = trainer.lr_scheduler
            monitor.schedulers = monitor.schedulers if scheduler is None else [scheduler]

        def _put_back(self) -> None:
            if self._heard is not None:
                self._heard.take_off()
                monitor.log, monitor.saver, monitor.schedulers = self._settings
                self._heard = None

        def _save(self, _step: int) -> None:
            self._saves = True

        def _log(self, values: dict[str, float], step: int) -> None:
            state, handler = trainer.state, trainer.callback_handler
            state.log_history.append({**values, "step": step})
            for callback in handler.callbacks:
                if callback is not self and type(callback).__name__ not in _CONSOLE:
                    callback.on_log(
                        trainer.args, state, trainer.control, logs=dict(values),
                        model=trainer.model, processing_class=trainer.processing_class,
                    )  # fmt: skip

    return MonitorCallback()


def lightning_callback(monitor: "Monitor") -> Any:
    """A callback of Lightning."""
    base: Any = require("lightning.pytorch").Callback

    class MonitorCallback(base):  # type: ignore[misc]
        """Counts optimizer steps, and passes numbers on to the trainer's loggers."""

        def __init__(self) -> None:
            self._steps = 0
            self._settings: tuple[Any, Any, Any] | None = None

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            self._steps = trainer.global_step
            self._settings = (monitor.log, monitor.saver, monitor.schedulers)
            monitor.schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
            monitor.saver = lambda step: trainer.save_checkpoint(
                monitor.folder / f"checkpoint-{step}.ckpt"
            )
            if self._steps:
                monitor.rewind(self._steps)
            monitor.start()
            if monitor.log is None:
                monitor.log = lambda values, step: [
                    logger.log_metrics(values, step) for logger in trainer.loggers
                ]
                if monitor.is_main and not self._steps:
                    monitor.log_latest()

        def on_train_batch_end(
            self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
        ) -> None:
            if trainer.global_step == self._steps:  # a micro-batch
                return
            self._steps = trainer.global_step
            loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
            if isinstance(loss, Tensor):  # divided by the number of micro-batches
                loss = partial(torch.mul, loss.detach(), trainer.accumulate_grad_batches)
            monitor.step(loss=loss, step=self._steps)
            trainer.should_stop |= monitor.should_stop

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            if self._settings is not None:
                monitor.log, monitor.saver, monitor.schedulers = self._settings
                self._settings = None
            monitor.close()

        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            self.on_train_end(trainer, pl_module)

    return MonitorCallback()
