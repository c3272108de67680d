"""What each of two processes does for test_processes.py; its rank and a folder are given."""

import datetime
import json
import math
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parent))
from tiny import TINY, Written, ids, padded

from rankscope import Monitor
from rankscope.errors import InputError

torch.set_num_threads(1)
RANK, FOLDER = int(sys.argv[1]), Path(sys.argv[2])
dist.init_process_group(
    "gloo", init_method=f"file://{FOLDER}/meeting", rank=RANK, world_size=2,
    timeout=datetime.timedelta(seconds=60),
)  # fmt: skip


def shard(model):
    for block in model.get_submodule("blocks"):
        fully_shard(block)
    return fully_shard(model)


WRAPPERS = {"ddp": DistributedDataParallel, "fsdp": shard}


def make(name="written"):
    torch.manual_seed(0)
    return Written(dropout=0.1) if name == "written" else TINY[name]()


def train(wrap, folder=None, probe=None, steps=4, **options):
    """Losses and weights; with a monitor if there is a folder."""
    model = wrap(make())
    monitor, logs, alarms = None, [], []
    if folder is not None:
        monitor = Monitor(
            model, ids(5, 7, seed=9) if probe is None else probe, every=2, folder=folder,
            log=lambda values, step: logs.append((step, values)), on_alarm=alarms.append, **options,
        )  # fmt: skip
        monitor.start()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(10 + RANK)
    losses = []
    for step in range(steps):
        batch = ids(2, 6, seed=10 * step + RANK)
        logits = model(batch[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if monitor is not None:
            monitor.step(loss=math.nan if step == steps - 1 else loss)
    if monitor is not None:
        monitor.close()
    return losses, full_weights(model), torch.get_rng_state(), (monitor, logs, alarms)


def full_weights(model):
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    return {
        name: tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor.clone()
        for name, tensor in inner.state_dict().items()
    }


def values_of(record):
    return {f"{name} {layer}": value for (name, layer), value in record.values.items()}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def training(case):
    """Bit for bit the same, and what was recorded on the way."""
    wrap, folder = WRAPPERS[case], FOLDER / f"{case} {RANK}"
    losses, weights, state, _ = train(wrap)
    result = {}
    for live in (False, True):
        again = train(wrap, FOLDER / f"{case} {live} {RANK}", live=live)
        result[f"same, live={live}"] = (
            losses == again[0] and same(weights, again[1]) and torch.equal(state, again[2])
        )
    monitor, logs, alarms = again[3]
    if RANK == 0:
        torch.save(weights, FOLDER / f"{case}.pt")
    return result | {
        "records": {record.step: values_of(record) for record in monitor.history.records},
        "files": [str(p.name) for p in folder.parent.glob(f"{case} True {RANK}/*")],
        "logged": [step for step, _ in logs],
        "alarms": [(alarm.rule, alarm.step) for alarm in alarms],
        "divided": monitor._probe._divided,
        "model": monitor.history.facts["model"],
    }


def measured(case, probe, model="written", **options):
    """The second record of a model that is not trained."""
    wrapped = WRAPPERS[case](make(model))
    folder = FOLDER / f"{case} {model} {len(list(FOLDER.iterdir()))} {RANK}"
    monitor = Monitor(wrapped, probe, every=1, folder=folder, gradients=False, **options)
    monitor.step()
    first, last = (values_of(monitor.history.records[k]) for k in (0, -1))
    return {"first": first, "last": last, "divided": monitor._probe._divided}


def refused():
    """Processes with different probes."""
    try:
        Monitor(make(), ids(4, 7, seed=RANK), folder=FOLDER / f"refused {RANK}")
    except InputError as error:
        return str(error)
    return "not refused"


def continued():
    """A folder that holds a run: the first process reads it, and all count on from its step."""
    options = {"every": 2, "on_alarm": "stop", "gradients": False}
    model, probe = make(), ids(5, 7, seed=9)
    steps = []
    for _ in range(2):
        monitor = Monitor(model, probe, folder=FOLDER / "continued", **options)
        for _ in range(3):
            if monitor.step(loss=1.0):
                steps.append(monitor._count)
        monitor.close()
    monitor.step(step=10, loss=math.nan)
    try:
        Monitor(model, probe[:, 1:], folder=FOLDER / "continued", **options)
        error = "not refused"
    except InputError as problem:
        error = str(problem)
    return {"steps": steps, "stop": monitor.should_stop, "error": error}


def saved():
    """Weights are saved once, and those that are sharded are refused."""
    model = make()
    monitor = Monitor(model, ids(4, 7), every=1, folder=FOLDER / "saved", on_alarm="save")
    monitor.step(loss=math.nan)
    monitor.close()
    return sorted(path.name for path in (FOLDER / "saved").glob("*.pt"))


def sharded_later():
    """As trainers do, which shard a model after the monitor was made; losses differ."""
    model = make("llama")
    monitor = Monitor(model, ids(4, 7), every=1, folder=FOLDER / "later", predict=False)
    for block in model.model.layers:
        fully_shard(block)
    fully_shard(model)
    with monitor:
        monitor.step(loss=math.nan if RANK else 1.0)
        monitor.step(loss=1.0 + 2 * RANK)
    records = monitor.history.records
    return {
        "values": [values_of(record) for record in records],
        "divided": monitor._probe._divided,
        "losses": [repr(record.get("loss")) for record in records[1:]],
        "alarms": [alarm.rule for alarm in monitor.alarms],
    }


result = {
    "ddp": training("ddp"),
    "fsdp": training("fsdp"),
    "one sample": {case: measured(case, ids(1, 7)) for case in WRAPPERS},
    "two samples": {case: measured(case, ids(2, 7)) for case in WRAPPERS},
    "mixtral": measured("ddp", padded(5, 8), "mixtral"),
    "refused": refused(),
    "continued": continued(),
    "saved": saved(),
    "sharded later": sharded_later(),
}
print(json.dumps(result), flush=True)
dist.barrier()
os._exit(0)  # Gloo's threads may abort a process that ends as usual
