"""What does a monitor cost in a training loop, and beside other ways of watching?

Copies of one model are trained in turn, step by step, so that other load affects all alike. Times
are processor time of one thread: on a busy machine it counts what a step itself takes. Neither
``wandb`` nor ``torch-module-monitor`` is needed by rankscope. Whichever is not installed is left
out, and that is said; to add them without touching this environment:
``pip install --target others --no-deps torch-module-monitor h5py && pip install --target others
wandb``, and then ``PYTHONPATH=others python benchmarks/monitor.py``.
"""

import copy
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from importlib.metadata import PackageNotFoundError, version
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers as hf
from torch import Tensor, nn

from measuring import Job, Ratio, interleaved, peak_bytes
from rankscope import Monitor

EVERY, RECORDS = 50, 5
WORDS, BATCH, TOKENS, PROBE = 1000, 8, 64, 8
LENGTH = 128
"""Tokens of a text that BERT-base reads."""
PLAIN, AGAIN, OURS = "plain loop", "plain loop, once more", "rankscope.Monitor"
Step = Callable[[], object]


class Loop:
    """A copy of the model and a plain training step of it."""

    def __init__(self, model: nn.Module, batch: Tensor) -> None:
        self.model, self.batch = copy.deepcopy(model).train(), batch
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)

    def backward(self) -> Tensor:
        """Loss and gradients of the batch."""
        loss: Tensor = self.model(input_ids=self.batch, labels=self.batch).loss
        self.optimizer.zero_grad()
        loss.backward()
        return loss.detach()

    def step(self) -> Tensor:
        """One step."""
        loss = self.backward()
        self.optimizer.step()
        return loss


def make(layers: int = 6, width: int = 192, heads: int = 6) -> nn.Module:
    """A small GPT-2 with random weights, without dropout."""
    torch.manual_seed(0)
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    rates = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    sizes = {"n_layer": layers, "n_head": heads, "n_embd": width, "n_positions": TOKENS}
    return hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=WORDS, **sizes, **ends, **rates))


Others = Callable[[Loop, ExitStack], tuple[str, Step]]


def main() -> list[Ratio]:
    """Training with and without, the cost of a step that is not recorded, memory, and the probe."""
    logging.getLogger("rankscope.monitor").setLevel(logging.ERROR)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        others = training(BATCH, (with_hooks, with_wandb, with_others))
        larger = training(2 * BATCH, ())
        return [*larger, *others, *idle(), *memory(), *probe()]
    finally:
        torch.set_num_threads(threads)


def training(batch_size: int, others: tuple[Others, ...]) -> list[Ratio]:
    """Ways of watching beside the plain loop, step by step in turn."""
    model, batch = make(), torch.randint(0, WORDS, (batch_size, TOKENS))
    with ExitStack() as stack:
        loops = watched_loops(model, batch, stack, others)
        times: dict[str, list[float]] = {name: [] for name in loops}
        for number in range(RECORDS * EVERY):
            for name, step in loops.items():
                start = time.process_time()
                step()
                if number:
                    times[name].append(time.process_time() - start)
    usual = statistics.median(times[PLAIN])
    print(
        f"Training, a GPT-2 of 6 layers, width 192, {batch_size} × {TOKENS} tokens, one thread: "
        f"{1e3 * usual:.0f} ms a step; recorded every {EVERY} steps, probe {PROBE} × {TOKENS}"
    )
    overheads = {name: _overhead(seconds, usual) for name, seconds in times.items()}
    for name, (whole, quiet, recorded) in overheads.items():
        print(
            f"  {name:<45} {whole:6.3f}×   a step without a record {quiet:6.3f}×, with one "
            f"{1e3 * (recorded - usual):+7.1f} ms",
            flush=True,
        )
    # Steps without a record differ by noise: ``idle`` measures what they cost.
    whole = 1 + (overheads[OURS][2] - usual) / (EVERY * usual)
    return [Ratio(f"monitored training / plain, {batch_size} × {TOKENS} tokens", whole, 1.01)]


def _overhead(seconds: list[float], usual: float) -> tuple[float, float, float]:
    """Whole time over the plain one, a step without a record over it, and a step with one.

    Medians of both kinds of steps, as often as each occurs. The first step is not among them.
    """
    steps = list(enumerate(seconds, start=2))
    quiet = statistics.median(second for step, second in steps if step % EVERY)
    record = statistics.median(second for step, second in steps if step % EVERY == 0)
    return ((EVERY - 1) * quiet + record) / (EVERY * usual), quiet / usual, record


def watched_loops(
    model: nn.Module, batch: Tensor, stack: ExitStack, others: tuple[Others, ...]
) -> dict[str, Step]:
    """A training step of each way of watching, on a copy of the model each."""
    plain, again, ours = (Loop(model, batch) for _ in range(3))
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    probe = torch.randint(0, WORDS, (PROBE, TOKENS))
    monitor = stack.enter_context(
        Monitor(ours.model, {"input_ids": probe}, every=EVERY, folder=f"{folder}/run")
    )
    loops: dict[str, Step] = {PLAIN: plain.step, OURS: lambda: monitor.step(loss=ours.step())}
    for other in others:
        try:
            name, step = other(Loop(model, batch), stack)
        except PackageNotFoundError as error:
            print(f"  {error.name} is not installed: left out")
            continue
        loops[name] = step
    return loops | {AGAIN: again.step}


def with_hooks(loop: Loop, _stack: ExitStack) -> tuple[str, Step]:
    """The relative residual of every block at every step, as one would write it."""
    kept: list[float] = []

    def hook(_module: nn.Module, _args: object, output: Any) -> None:
        x = (output[0] if isinstance(output, tuple) else output).detach()
        rest = torch.linalg.vector_norm(x - x.mean(1, keepdim=True), dim=(1, 2))
        kept.append(float((rest / torch.linalg.vector_norm(x, dim=(1, 2))).median()))

    for block in loop.model.transformer.h:
        block.register_forward_hook(hook)
    return "hand-written hooks, every step", loop.step


def with_wandb(loop: Loop, stack: ExitStack) -> tuple[str, Step]:
    """``wandb.watch`` offline: histograms of all gradients."""
    known = version("wandb")
    import wandb

    folder = stack.enter_context(tempfile.TemporaryDirectory())
    run = wandb.init(mode="offline", dir=folder, settings=wandb.Settings(silent=True))
    stack.callback(run.finish)
    run.watch(loop.model, log="gradients", log_freq=EVERY)
    name = f"wandb {known} watch, gradients every {EVERY} steps"
    return name, lambda: run.log({"loss": float(loop.step())})


def with_others(loop: Loop, _stack: ExitStack) -> tuple[str, Step]:
    """torch-module-monitor: the residual of every module's output and norms of gradients."""
    known = version("torch-module-monitor")
    from torch_module_monitor import ModuleMonitor

    count = [0]
    monitor = ModuleMonitor(monitor_step_fn=lambda step: step % EVERY == 0)
    monitor.set_module(loop.model)
    monitor.add_activation_metric("residual", lambda x: (x - x.mean(1, keepdim=True)).norm())
    monitor.add_gradient_metric("norm", lambda x: x.norm())

    def step() -> None:
        count[0] += 1
        monitor.begin_step(count[0])
        loop.backward()
        monitor.monitor_gradients()
        loop.optimizer.step()
        monitor.end_step()
        if monitor.is_step_monitored(count[0]):
            monitor.get_step_metrics()

    return f"torch-module-monitor {known}, every {EVERY} steps", step


def idle() -> list[Ratio]:
    """The calls of a step that is not recorded, with their hooks on the optimizer; no kernel."""
    weight = nn.Parameter(torch.zeros(1))
    optimizer, others = torch.optim.SGD([weight]), torch.optim.SGD([nn.Parameter(torch.zeros(1))])
    ids, count = torch.randint(0, WORDS, (PROBE, TOKENS)), 2000
    with tempfile.TemporaryDirectory() as folder:
        model = make()
        model.extra = weight
        with Monitor(model, {"input_ids": ids}, every=10**6, folder=f"{folder}/run") as monitor:

            def watched() -> None:
                for _ in range(count):
                    optimizer.step()
                    monitor.step()

            def plain() -> None:
                for _ in range(count):
                    others.step()

            jobs: dict[str, Job] = {PLAIN: plain, OURS: watched}
            seconds = interleaved(jobs, rounds=5, clock=time.process_time)
    each = (seconds[OURS] - seconds[PLAIN]) / count
    print(f"A step that is not recorded: {1e6 * each:.1f} µs")
    return [Ratio("a step that is not recorded / a thousandth of 50 ms", each / 50e-6, 1.0)]


def memory() -> list[Ratio]:
    """Peak of a training step that is recorded, its gradients and updates included."""
    model, batch = make(), torch.randint(0, WORDS, (BATCH, TOKENS))
    plain, ours = Loop(model, batch), Loop(model, batch)
    probe_batch = {"input_ids": torch.randint(0, WORDS, (PROBE, TOKENS))}
    with tempfile.TemporaryDirectory() as folder:
        monitor = Monitor(ours.model, probe_batch, every=1, folder=f"{folder}/run")
        with monitor:
            steps: dict[str, Job] = {
                PLAIN: plain.step,
                OURS: lambda: monitor.step(loss=ours.step()),
            }
            for step in steps.values():
                step()
            peaks = {name: peak_bytes(step) for name, step in steps.items()}
    print(
        f"Peak memory of a recorded step: {peaks[PLAIN] / 2**20:.1f} → "
        f"{peaks[OURS] / 2**20:.1f} MiB"
    )
    return [Ratio("peak memory, monitored / plain", peaks[OURS] / peaks[PLAIN], 1.01)]


def probe() -> list[Ratio]:
    """A probe pass over a plain forward pass: BERT-base, 8 × 128 here and 32 × 128 on a GPU."""
    on_gpu = torch.cuda.is_available()
    device, samples = ("cuda", 32) if on_gpu else ("cpu", 8)
    torch.manual_seed(0)
    model = hf.BertModel(hf.BertConfig()).eval().to(device)
    ids = torch.randint(0, 30000, (samples, LENGTH), device=device)
    with tempfile.TemporaryDirectory() as folder:
        monitor = Monitor(
            model, {"input_ids": ids}, every=1, folder=f"{folder}/run", gradients=False,
            predict=False,
        )  # fmt: skip

        def plain() -> None:
            with torch.no_grad():
                model(input_ids=ids)
            if on_gpu:
                torch.cuda.synchronize()

        jobs: dict[str, Job] = {PLAIN: plain, OURS: monitor.step}
        clock = time.perf_counter if on_gpu else time.process_time
        seconds = interleaved(jobs, rounds=30 if on_gpu else 7, clock=clock)
    ratio = seconds.ratio(OURS, PLAIN)
    print(
        f"A record of BERT-base, {samples} × {LENGTH} tokens, {device}: "
        f"{1e3 * seconds[PLAIN]:.0f} → {1e3 * seconds[OURS]:.0f} ms, {ratio:.3f}×"
    )
    return [Ratio(f"a record / forward, BERT-base {samples} × {LENGTH}, {device}", ratio, 1.3)]


if __name__ == "__main__":
    for measured in main():
        verdict = "met" if measured.met else "MISSED"
        print(f"{measured.what:<50} {measured.measured:6.3f}  bar {measured.bar:.3f}  {verdict}")
