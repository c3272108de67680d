"""``Monitor``: measures a model on a fixed probe while it is trained, and raises alarms."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

import torch
import torch.distributed as dist
from torch import Tensor

from rankscope.arguments import Count, Range, checked
from rankscope.core.tracing import digest
from rankscope.errors import InputError, RankscopeError
from rankscope.monitor._actions import Action, act
from rankscope.monitor._board import AlarmBoard
from rankscope.monitor._gradients import GradientWatch
from rankscope.monitor._history import (
    Alarm,
    History,
    Place,
    RunFile,
    StepRecord,
    new_folder,
    read_run,
)
from rankscope.monitor._live import LiveWatch
from rankscope.monitor._names import LOSS, OVERHEAD
from rankscope.monitor._probe import Mode, Pooling, Probe, ProbeOptions
from rankscope.monitor._processes import (
    agree,
    distributed,
    is_divisible,
    mean_of_processes,
    refuse_other_probes,
)
from rankscope.monitor._scalars import Scalars, add_ratios
from rankscope.monitor._subject import (
    Subject,
    class_name,
    find_classes,
    find_untrained,
    is_sharded,
    predicted_bands,
    read_subject,
)

if TYPE_CHECKING:
    import polars

Log = Callable[[dict[str, float], int], Any]
Steps = Annotated[int, Range(0, 2**63 - 1)]
_SAME: Final = ("model", "parameters", "probe", "layers", "mode", "precision", "about pooled")
"""Facts that must be the same for a run to be continued."""
_log = logging.getLogger("rankscope.monitor")


@checked
class Monitor:
    """Watch a model while it is trained: the same probe at every ``every``-th step.

    >>> from rankscope import Network, Spec
    >>> import tempfile
    >>> net = Network.random(Spec(2, 2, 8), seed=0)
    >>> with Monitor(net, torch.randn(4, 5, 8), every=10, folder=tempfile.mkdtemp()) as monitor:
    ...     for step in range(10):
    ...         recorded = monitor.step(loss=1.0)
    >>> [record.step for record in monitor.history.records]
    [0, 10]

    The baseline is taken when the monitor is made. ``probe`` is a small held-out batch: texts (with
    a ``tokenizer``), rows of token ids, or a batch as the model takes it. It runs through the
    uncompiled module without gradients; random states, buffers, modes and hooks are left as they
    were, so training is the same, bit for bit, as without the monitor. ``mode`` is "evaluation", or
    "training" for dropout and the like; ``autocast`` is the dtype of mixed precision, if the
    probe is to run in it. ``token_mask``, ``blocks``, ``layout``, ``stream`` and ``output`` are
    those of ``rankscope.trace``; ``pooling`` makes one vector of the tokens of a sample (default:
    the last token of causal models, the mean of others).

    Call ``step`` after every optimizer step, or ``attach`` a trainer. ``gradients`` measures
    gradients and updates at recorded steps; ``live`` also the training batch of these steps.
    ``predict`` compares with random networks of the same design, if it is known. ``classes`` is K
    of a loss that begins at ln K, and ``untrained`` whether the weights are as drawn; both are
    found out for models of Transformers.

    Everything measured is written to a ``folder``, which ``rankscope report`` and ``rankscope
    watch`` read; a folder that holds a run of this model and probe is continued, from ``step`` on
    (default: its last one). ``log`` gets up to 40 numbers, or those whose names match ``names``
    ("rank/*"), and the step. ``rules`` are those of docs/alarms.md; an alarm is logged as a
    warning, and ``on_alarm`` is called with it, or is "stop" (sets ``should_stop``), "save" or
    "lower_lr".

    With several processes all of them make a monitor, with the same probe, of which each then runs
    a part; the first one writes, logs and judges.
    """

    def __init__(
        self,
        model: Any,
        probe: Any,
        *,
        every: Count = 50,
        folder: str | Path | None = None,
        step: Steps | None = None,
        tokenizer: Any = None,
        token_mask: Tensor | None = None,
        blocks: Any = None,
        layout: Any = None,
        stream: Any = None,
        output: Any = None,
        mode: Mode = "evaluation",
        autocast: torch.dtype | None = None,
        pooling: Pooling | None = None,
        gradients: bool = True,
        live: bool = False,
        predict: bool | None = None,
        classes: Count | None = None,
        untrained: bool | None = None,
        rules: Iterable[str] | None = None,
        on_alarm: Callable[[Alarm], Any] | Literal["stop", "save", "lower_lr"] | None = None,
        log: Log | None = None,
        names: tuple[str, ...] = (),
    ) -> None:
        if on_alarm == "lower_lr" and not gradients:
            raise InputError(
                "on_alarm='lower_lr' needs gradients=True, by which the optimizers become known."
            )
        subject = read_subject(model, probe, tokenizer)
        if on_alarm == "save" and is_sharded(subject.model):
            raise InputError(
                "on_alarm='save' cannot save weights that are divided over processes; pass a "
                "function that saves them as the training loop does."
            )
        tracing = {"blocks": blocks, "layout": layout, "stream": stream, "output": output}
        options = ProbeOptions(token_mask, mode, autocast, pooling, tracing)
        self.model, self.every, self.log, self.classes = subject.model, every, log, classes
        self.should_stop = False
        """Whether an alarm asked to stop (``on_alarm="stop"``)."""
        self.schedulers: list[Any] = []
        """Learning-rate schedulers, which ``on_alarm="lower_lr"`` must lower too."""
        self.saver: Callable[[int], Any] | None = None
        """What ``on_alarm="save"`` calls with the step, where a trainer saves in its own way."""
        self._on_alarm: Action | None = on_alarm
        self._board, self._scalars = AlarmBoard(rules), Scalars(tuple(names))
        self.is_main = not distributed() or dist.get_rank() == 0
        """Whether this process writes, logs and judges."""
        if autocast not in (None, torch.bfloat16, torch.float16):
            raise InputError(f"autocast is {autocast}, expected torch.bfloat16 or torch.float16.")
        with _explained():
            self._probe = Probe(subject, options)
        self._gradients = GradientWatch(self.model, self._probe.blocks) if gradients else None
        self._live = LiveWatch(self._probe.blocks) if live else None
        self._started = False
        self._failed: set[str] = set()
        self._storing = 0.0
        self._count, self._due, self._stride = step or 0, every, 1
        self.history = History({})
        self._is_own = folder is None  # made here: there is no run to continue
        self._file = RunFile(agree(new_folder() if self._is_own and self.is_main else folder))
        self._begin(subject, options, step, classes=classes, untrained=untrained, predict=predict)

    # What was measured.

    @property
    def alarms(self) -> tuple[Alarm, ...]:
        """All alarms so far, the ended ones too."""
        return tuple(self.history.alarms)

    @property
    def table(self) -> "polars.DataFrame":
        """All values by step, layer and metric, also relative to baseline and prediction."""
        return add_ratios(self.history)

    @property
    def folder(self) -> Path:
        """The folder of the run."""
        return self._file.folder

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """The optimizers that have changed the model since ``start``."""
        return [] if self._gradients is None else self._gradients.optimizers

    def scalars(self, names: tuple[str, ...] = ("*",)) -> dict[str, float]:
        """Numbers of the latest record by the names of loggers; all, or those that match."""
        return Scalars(tuple(names)).of(self.history)

    def report(self, path: str | Path) -> Path:
        """Write a page with charts, alarms and the baseline; one HTML file."""
        from rankscope.monitor._result import write_report

        return write_report(self.history, path)

    def __repr__(self) -> str:
        steps = self.history.last.step
        begun = [alarm.rule for alarm in self.alarms if alarm.ended is None]
        state = f"alarms: {', '.join(begun)}" if begun else "no alarm"
        return f"Monitor of {self.history.facts['model']} at step {steps:,}: {state}"

    # The training loop.

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Listen to optimizers and, in live mode, to the blocks; ``step`` does it if need be."""
        if self._started:
            return
        self._started = True
        self._divide()  # models may have been sharded since the baseline
        if self._gradients is not None:
            self._gradients.start()
        if self._live is not None:
            self._live.start(self._probe.layers)
        self._plan()

    def close(self) -> None:
        """Remove all hooks and complete the file; does nothing the second time."""
        if not self._started:
            return
        self._started = False
        if self._gradients is not None:
            self._gradients.stop()
        if self._live is not None:
            self._live.stop()
        if self.is_main:
            self._store(self._file.begin)

    def step(
        self,
        loss: Tensor | float | Callable[[], Any] | None = None,
        *,
        step: Steps | None = None,
    ) -> bool:
        """Count one optimizer step; measure if it is due, and return whether it was.

        ``loss`` is that of the training batch, or a function that returns it; it is read at
        recorded steps only, and averaged over processes. ``step`` is the
        number of optimizer steps so far, if it is not one more than at the last call; the first
        call at or after a multiple of ``every`` is recorded.
        """
        self.start()
        count = self._count + 1 if step is None else step
        if count < self._count:  # the loop went back to a checkpoint
            self._due = -(-count // self.every) * self.every
        self._stride, self._count = max(count - self._count, 1), count
        is_due = count >= self._due
        if is_due:
            self._measure(loss)
        self._plan()
        return is_due

    def rewind(self, step: Steps) -> None:
        """Go back to a step, as a loop does that continues from a checkpoint: forget later ones."""
        if self.is_main and step < self.history.last.step:
            self.history.rewind(step + 1)
            self._store(self._file.begin)
        self._count = step
        self._plan()

    def attach(self, trainer: Any) -> Self:
        """Follow a ``Trainer`` of Transformers (or TRL), or log through an ``Accelerator``.

        The callback is the first of the trainer's, its numbers go to the trainer's loggers.
        """
        from rankscope.monitor._trainers import attach

        attach(self, trainer)
        return self

    def lightning(self) -> Any:
        """A callback for a ``Trainer`` of Lightning, whose loggers get the numbers."""
        from rankscope.monitor._trainers import lightning_callback

        return lightning_callback(self)

    # Inside.

    def _begin(
        self,
        subject: Subject,
        options: ProbeOptions,
        step: int | None,
        *,
        classes: int | None,
        untrained: bool | None,
        predict: bool | None,
    ) -> None:
        """Take the baseline, or continue a run."""
        probe = digest(subject.inputs)
        if distributed():
            refuse_other_probes(probe)
        with _explained():
            values = self._probe.first()
        untrained = find_untrained(self._probe.blocks) if untrained is None else untrained
        facts: dict[str, Any] = {
            "model": class_name(self.model),
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "probe": probe,
            "classes": classes or find_classes(self.model),
            "untrained": None if untrained is None else int(untrained),
            "mode": options.mode,
            "precision": str(options.autocast or _dtype(self.model)).removeprefix("torch."),
            "every": self.every,
            **self._probe.facts,
        }
        self.history = History(facts, {}, [StepRecord(step or 0, values)])
        is_new, problem = True, None
        if self.is_main:
            try:
                is_new = self._open(subject, options, step, predict=predict)
            except RankscopeError as error:
                problem = error
        count = self.history.last.step if step is None else step
        is_new, self._count, problem = agree((is_new, count, problem))
        if problem is not None:  # in every process: none waits for another
            raise problem
        self._divide()
        if is_new:
            self._judge()
            if self.is_main and self.alarms:
                self._store(self._file.begin)
        self._plan()

    def _divide(self) -> None:
        """Let each process run its part of the probe, where processes may run different samples."""
        if is_divisible(self.model):
            self._probe.divide()

    def _open(
        self, subject: Subject, options: ProbeOptions, step: int | None, *, predict: bool | None
    ) -> bool:
        """Continue the run in the folder, or write a new one; whether it is new."""
        facts = self.history.facts
        if self._file.exists() and not self._is_own:
            return self._continue(step)
        self.history.predicted, why = predicted_bands(
            subject, options.token_mask, self._probe.layers, wanted=predict
        )
        if why:
            facts["about prediction"] = why
        self._file.begin(self.history)
        return True

    def _continue(self, step: int | None) -> bool:
        """Go on with the run in the folder; whether it begins anew, at step 0."""
        facts, folder = self.history.facts, self._file.folder
        history = read_run(folder)
        for name in _SAME:
            if history.facts.get(name) != facts.get(name):
                raise InputError(
                    f"{folder} holds a run with another {name.removeprefix('about ')} "
                    f"({history.facts.get(name)}, here {facts.get(name)}); choose another folder."
                )
        if step is not None and step <= history.baseline.step:
            self.history.predicted = history.predicted
            self._file.begin(self.history)
            return True
        self.history = history
        if step is not None and step < history.last.step:
            history.rewind(step + 1)
            self._file.begin(history)
        _log.info("continuing the run in %s after step %d", folder, history.last.step)
        return False

    def _plan(self) -> None:
        """Prepare the next step that is recorded."""
        self._due = (self._count // self.every + 1) * self.every
        if self._gradients is not None:
            self._gradients.count, self._gradients.due = self._count, self._due
        if self._live is not None and self._started:
            if self._count + self._stride >= self._due:
                self._live.arm()
            else:
                self._live.disarm()

    def _measure(self, loss: Tensor | float | Callable[[], Any] | None) -> None:
        begun, spent = time.perf_counter(), self._storing
        if self._gradients is not None:
            spent, self._gradients.seconds = spent + self._gradients.seconds, 0.0
        values: dict[Place, float] = {}
        for what, read in (
            ("live mode", self._read_live),  # first: the probe runs through the same blocks
            ("the probe", self._probe.measure),
            ("measuring gradients", self._read_gradients),
            ("reading the loss", partial(self._read_loss, loss)),
        ):
            try:
                values |= read()
            except Exception as error:
                if distributed():  # the others wait for this process
                    raise
                self._report(what, f"failed; training goes on: {error}")
        values[OVERHEAD, None] = 1e3 * (spent + time.perf_counter() - begun)
        begun = time.perf_counter()
        if self.is_main:
            self.history.add(StepRecord(self._count, values))
        self._judge()
        self._storing = time.perf_counter() - begun

    def _read_live(self) -> dict[Place, float]:
        if self._live is None:
            return {}
        self._live.disarm()
        values = self._live.values()
        if self._live.note:
            self._report("live mode", self._live.note)
        return values

    def _read_gradients(self) -> dict[Place, float]:
        if self._gradients is None:
            return {}
        values = self._gradients.values()
        if unclear := self._gradients.unclear:
            layer, path = next(iter(unclear.items()))
            self._report(
                "gradients",
                f"queries, keys and values cannot be told apart in {len(unclear)} layers "
                f"(layer {layer}: {path})",
            )
        return values

    def _read_loss(self, loss: Tensor | float | Callable[[], Any] | None) -> dict[Place, float]:
        """The loss, its mean over processes."""
        loss = loss() if callable(loss) and not isinstance(loss, Tensor) else loss
        if isinstance(loss, Tensor):  # one for each device, from DataParallel
            loss = loss.detach().float().mean()
        value = None if loss is None else float(loss)
        if distributed():
            value = mean_of_processes(value, self.model)
        return {} if value is None else {(LOSS, None): value}

    def _judge(self) -> None:
        """Raise alarms, store and log the latest record."""
        alarms: list[Alarm] = []
        if self.is_main:
            alarms = self._board.update(self.history)
            if len(self.history.records) > 1:
                self._store(self._file.append)
            self.log_latest()
            for alarm in alarms:
                _log.warning("%s: %s (%s)", alarm.rule, alarm.sentence, alarm.url)
        if self._on_alarm is not None:
            for alarm in agree(alarms):
                try:
                    act(self._on_alarm, alarm, self)
                except (RankscopeError, OSError, RuntimeError) as error:
                    if callable(self._on_alarm):  # users may raise to end the training
                        raise
                    self._report("on_alarm", f"failed; training goes on: {error}")

    def log_latest(self) -> None:
        """Pass the latest record to ``log``; a logger that is down does not end the training."""
        if self.log is not None:
            try:
                self.log(self._scalars.of(self.history), self.history.last.step)
            except Exception as error:
                self._report("logging", f"failed; training goes on: {error}")

    def _store(self, write: Callable[[History], None]) -> None:
        """Write to the file of the run; a full disk must not end the training."""
        try:
            write(self.history)
        except (InputError, OSError) as error:
            self._report("storing a record", f"failed; training goes on: {error}")

    def _report(self, what: str, words: str) -> None:
        """Say once, and write down, what fails or cannot be measured."""
        if what not in self._failed:
            self._failed.add(what)
            self.history.facts[f"about {what}"] = f"from step {self._count}: {words}"
            _log.warning("step %d, %s: %s", self._count, what, words)


@contextmanager
def _explained() -> Iterator[None]:
    """Errors of the model on the probe, in a sentence."""
    try:
        yield
    except RankscopeError:
        raise
    except Exception as error:
        raise InputError(
            f"the model cannot run the probe: {type(error).__name__}: {error}"
        ) from error


def _dtype(model: torch.nn.Module) -> torch.dtype:
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
