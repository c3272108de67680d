"""What an alarm may do: stop the training, save the weights, or lower the learning rate."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

import torch

from rankscope.errors import KindError
from rankscope.monitor._history import Alarm
from rankscope.monitor._subject import is_sharded

if TYPE_CHECKING:
    from rankscope.monitor._monitor import Monitor

Action = Callable[[Alarm], Any] | Literal["stop", "save", "lower_lr"]
LOWERED: Final = 0.5
"""Factor on learning rates of ``lower_lr``."""


def act(action: Action, alarm: Alarm, monitor: "Monitor") -> None:
    """Do what was asked for in case of an alarm."""
    if callable(action):
        action(alarm)
    elif action == "stop":
        monitor.should_stop = True
    elif action == "save":
        (monitor.saver or partial(save_weights, monitor))(alarm.step)
    else:
        lower_learning_rates(monitor.optimizers, monitor.schedulers)


def save_weights(monitor: "Monitor", step: int) -> None:
    """Save the weights into the folder of the run."""
    if is_sharded(monitor.model):
        raise KindError("weights divided over processes are saved by the training loop's own code.")
    if monitor.is_main:
        torch.save(monitor.model.state_dict(), monitor.folder / f"weights-{step}.pt")


def lower_learning_rates(optimizers: Iterable[Any], schedulers: Iterable[Any]) -> None:
    """Multiply all learning rates by ``LOWERED``, also those from which schedulers start."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for name in ("lr", "initial_lr", "max_lr", "min_lr"):
                if name in group:
                    group[name] = group[name] * LOWERED
    for scheduler in schedulers:
        if hasattr(scheduler, "base_lrs"):
            scheduler.base_lrs = [rate * LOWERED for rate in scheduler.base_lrs]
        # Sequential and chained schedulers; their optimizer was lowered above.
        lower_learning_rates((), getattr(scheduler, "_schedulers", ()))
