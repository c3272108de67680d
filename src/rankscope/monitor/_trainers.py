"""A monitor inside the training loops of Transformers, Lightning and Accelerate."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

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
        trainer.callback_handler.callbacks.insert(0, trainer_callback(monitor, trainer))
    elif hasattr(trainer, "init_trackers") and hasattr(trainer, "prepare"):
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


def trainer_callback(monitor: "Monitor", trainer: Any) -> Any:
    """A ``TrainerCallback``. The loss of a step is known to ``training_step`` alone."""
    base: Any = require("transformers").TrainerCallback
    losses: list[Tensor] = []

    def recorded(plain_step: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        loss = plain_step(*args, **kwargs)
        losses.append(loss.detach())
        return loss

    class MonitorCallback(base):  # type: ignore[misc]
        """Counts steps, and passes numbers on to the trainer's loggers."""

        def __init__(self) -> None:
            self._saves = False

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            trainer.training_step = partial(recorded, trainer.training_step)
            if args.logging_nan_inf_filter:
                monitor.history.facts["about loss"] = _FILTERED
            if kwargs.get("lr_scheduler") is not None:
                monitor.schedulers = [kwargs["lr_scheduler"]]
            if monitor.log is None:
                monitor.log = self._log
            monitor.saver = self._save
            monitor.start()

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            losses.clear()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
            # Each is divided by the number of micro-batches already.
            loss = sum(losses) if losses else None
            monitor.step(loss=loss, step=state.global_step)
            control.should_training_stop |= monitor.should_stop
            control.should_save |= self._saves
            self._saves = False
            return control

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            vars(trainer).pop("training_step", None)
            losses.clear()
            monitor.close()

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

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            self._steps = trainer.global_step
            monitor.schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
            monitor.saver = lambda step: trainer.save_checkpoint(
                monitor.folder / f"checkpoint-{step}.ckpt"
            )
            if monitor.log is None:
                monitor.log = lambda values, step: [
                    logger.log_metrics(values, step) for logger in trainer.loggers
                ]
            monitor.start()

        def on_train_batch_end(
            self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
        ) -> None:
            if trainer.global_step == self._steps:  # a micro-batch
                return
            self._steps = trainer.global_step
            loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
            if isinstance(loss, Tensor):  # divided by the number of micro-batches
                loss = loss.detach() * trainer.accumulate_grad_batches
            monitor.step(loss=loss, step=self._steps)
            trainer.should_stop |= monitor.should_stop

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            monitor.close()

        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            monitor.close()

    return MonitorCallback()
