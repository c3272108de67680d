"""Traces interrupted at random moments, and what each left behind.

``python tests/core/tracing/interruptions.py --count 5000`` runs a long campaign.
"""

import argparse
import collections
import importlib
import inspect
import os
import random
import signal
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch._dynamo
from torch import nn

from rankscope import Network, Spec, trace
from rankscope.core import tracing
from rankscope.core.tracing import _attention, _temporary_changes

legacy = importlib.import_module("numpy.random")  # the global state, as models draw from it
FOLDER = str(Path(tracing.__file__).parent) + os.sep
HAS_TIMER = hasattr(signal, "setitimer")  # not on Windows
TRACER = sys.gettrace()  # what measures coverage, if anything does
TRACE = inspect.unwrap(trace).__code__
EXITS = ("_temporary_changes.py", "_trace.py")
"""Where half of the injected interruptions strike: what restores a model is a small part of all."""


class Drawing(nn.Module):
    """Draws random numbers, whatever the mode."""

    def forward(self, x):
        return x + 0.001 * (torch.rand(()) + random.random() + legacy.rand())


class Encoder(nn.Module):
    """A stack whose attention does not go through Transformers, so every operation is watched."""

    def __init__(self):
        super().__init__()
        layers = (nn.TransformerEncoderLayer(8, 1, 16, batch_first=True) for _ in range(2))
        self.draw, self.layers = Drawing(), nn.ModuleList(layers)

    def forward(self, x):
        x = self.draw(x)
        for layer in self.layers:
            x = layer(x)
        return x


@dataclass
class Case:
    """A model, what it is traced with, and the figures it should give."""

    name: str
    model: nn.Module
    x: torch.Tensor
    metrics: list[str]
    autocast: bool = False
    values: list[float] = field(default_factory=list)

    def run(self):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            before = self.state()
            try:
                return trace(self.model, self.x, metrics=self.metrics).columns["value"]
            finally:
                sys.settrace(TRACER)
                if HAS_TIMER:
                    signal.setitimer(signal.ITIMER_REAL, 0)
                self.left = differences(before, self.state())

    def state(self):
        """All that a trace changes while it runs, by name."""
        hooks = [
            {name: list(items) for name, items in vars(module).items() if "_hooks" in name}
            for module in self.model.modules()
        ]
        interface = sys.modules["transformers.modeling_utils"].AttentionInterface.get_interface
        return {
            "hooks": hooks,
            "modes": [module.training for module in self.model.modules()],
            "python random": random.getstate(),
            "numpy random": str(legacy.get_state()),
            "torch random": torch.get_rng_state().tolist(),
            "gradients": torch.is_grad_enabled(),
            "autocast": (torch.is_autocast_enabled("cpu"), _autocast_nesting()),
            "function modes": torch._C._len_torch_function_stack(),
            "stance": torch._dynamo.eval_frame._stance,
            "attention interface": interface,
            "listeners": getattr(_attention._here, "listeners", ()),
            "numpy errors": np.geterr(),
            "records": records(),
            "locks": HELPER.submit(locks).result(),
        }


HELPER = ThreadPoolExecutor(1)


def _autocast_nesting():
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()


def records():
    """How much is kept for all traces together, by name."""
    return {
        name: len(kept)
        for module in (_temporary_changes, _attention)
        for name, kept in vars(module).items()
        if isinstance(kept, dict | set) and not name.startswith("__")
    }


def locks():
    """Which locks another thread can take."""
    free = {}
    for module in (_temporary_changes, _attention):
        for name, lock in vars(module).items():
            if isinstance(lock, type(threading.RLock())):
                free[f"{module.__name__}.{name}"] = lock.acquire(blocking=False)
                if free[f"{module.__name__}.{name}"]:
                    lock.release()
    return free


def differences(before, after):
    return [name for name in before if before[name] != after[name]]


def seed_all():
    """The same numbers drawn by every run."""
    legacy.seed(0)
    random.seed(0)
    torch.manual_seed(0)


def cases():
    """Each way in which a model is listened to."""
    transformers = importlib.import_module("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=11, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=16,
    )  # fmt: skip
    bert, ids = transformers.BertModel(config).train(), torch.tensor([[1, 2, 3]])
    bert.embeddings.register_forward_hook(lambda _module, _args, output: Drawing()(output))
    x = torch.randn(2, 5, 8)
    made = [
        Case("bert", bert, ids, ["residual", "attention_entropy"]),
        Case("bert, autocast", bert, ids, ["residual", "attention_entropy"], autocast=True),
        Case("encoder", Encoder().train(), x, ["residual", "effective_rank"]),
        Case("network", Network.random(Spec(2, 2, 8), seed=0).train(), x, ["attention_entropy"]),
    ]
    for case in made:
        case.run()  # what is found once for all is found
        seed_all()
        case.values = case.run()
        assert not case.left, case.left
    return made


class Injection:
    """Raises at the n-th event (call, line, instruction, return) of the code that traces."""

    def __init__(self, at=-1, error=KeyboardInterrupt):
        self.at, self.error, self.files = at, error, []

    def __call__(self, frame, _event, _argument):
        if not frame.f_code.co_filename.startswith(FOLDER):
            return None
        frame.f_trace_opcodes = True
        self.files.append(frame.f_code.co_filename)
        if len(self.files) == self.at:
            sys.settrace(TRACER)
            self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {_event}"
            raise self.error
        return self


class Signals:
    """Signals from a timer, which raise as Ctrl-C does wherever the trace is by then."""

    def __init__(self, after, times):
        self.times = times
        signal.signal(signal.SIGALRM, self.handle)
        signal.setitimer(signal.ITIMER_REAL, after, 1e-4)

    def handle(self, _signal, frame):
        while frame is not None and frame.f_code is not TRACE:
            frame = frame.f_back
        if frame is not None and self.times:
            self.times -= 1
            raise KeyboardInterrupt


class Campaign:
    """Seeded interruptions of both kinds, and the first that left something behind."""

    def __init__(self, seed=0):
        self.draw, self.cases, self.count = random.Random(seed), cases(), 0
        self.records = records()
        self.events, self.seconds, self.ended = {}, {}, collections.Counter()
        for case in self.cases:
            counting = Injection()
            sys.settrace(counting)
            case.run()
            self.events[case.name] = counting.files
            start = time.perf_counter()
            case.run()
            self.seconds[case.name] = time.perf_counter() - start

    def run(self, count, kinds=None):
        """What the first interruption that left anything left, and where it struck; or None."""
        for _ in range(count):
            case, kind = self.draw.choice(self.cases), self.draw.choice(kinds or list(KINDS))
            self.count += 1
            left, where = self.interrupt(case, kind)
            if left:
                return f"{case.name}, {kind}, {where}: {', '.join(left)}"
        return None

    def interrupt(self, case, kind):
        seed_all()
        interruption = KINDS[kind](self, case)
        try:
            case.run()
            ending = "went through"
        except KeyboardInterrupt:
            ending = "interrupted"
        except Exception as error:
            ending = repr(error)
        self.ended[kind, ending] += 1
        # How busy the machine is changes, and the end of a trace should be struck too.
        self.seconds[case.name] *= 0.7 if ending == "went through" else 1.03
        left = case.left + [ending] * (ending not in ("went through", "interrupted"))
        return left + self.later(case), getattr(interruption, "where", None)

    def signals(self, case, *, times):
        return Signals(self.draw.uniform(1e-6, 1.1 * self.seconds[case.name]), times)

    def injection(self, case):
        files = self.events[case.name]
        moments = range(1, len(files) + 1)
        if self.draw.random() < 0.5:
            moments = [at for at in moments if files[at - 1].endswith(EXITS)]
        injection = Injection(self.draw.choice(moments))
        sys.settrace(injection)
        return injection

    def later(self, case):
        """What is wrong with the next trace, once the model is trained again."""
        case.model.train()
        seed_all()
        try:
            values = case.run()
        except Exception as error:
            return [f"later {error!r:.80}"]
        wrong = [f"later {name}" for name in case.left]
        if not all(module.training for module in case.model.modules()):
            wrong.append("later evaluation mode")
        return wrong + ["later figures"] * (values != case.values)


KINDS = {"injected": Campaign.injection}
"""How a trace is interrupted: by an exception at an event, by a signal, by five close together."""
if HAS_TIMER:
    KINDS["signal"] = partial(Campaign.signals, times=1)
    KINDS["signals"] = partial(Campaign.signals, times=5)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    campaign = Campaign(options.seed)
    failure = campaign.run(options.count, options.kinds)
    print(dict(campaign.ended))
    print(f"after {campaign.count} interruptions: {failure or 'nothing was left behind'}")
    sys.exit(failure is not None)
