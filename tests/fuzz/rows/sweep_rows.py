"""Sweeps in folders, and the engines that carry them out."""

from table import SLOW, add

from rankscope import run

ASKED = {"layers": 1, "heads": 1, "width": 4, "samples": 1, "length": 4, "axes": {"seed": [0]}}
RUNS = run.plan(run.read_grid(ASKED)).runs
DONE = run.sweep(ASKED, "swept", engine="inline")
SLOW |= {"run.sweep", "run.drive"}
add(
    "run.sweep",
    run.sweep,
    grid=ASKED,
    folder="swept",
    engine="inline",
    workers=None,
    quick=False,
    retry_failed=False,
    wait=False,
    on_outcome=None,
)
add("run.Sweep", run.Sweep, **vars(DONE))
add(
    "run.drive",
    run.drive,
    runs=RUNS,
    folder="swept",
    engine=run.Inline(),
    work=run.execute,
    grid={"name": "a"},
    retry_failed=False,
    wait=False,
    on_outcome=None,
)
add("run.status", run.status, folder="swept")
add("run.table", run.table, folder="swept")
add("run.Processes", run.Processes, workers=1, threads=1, retries=2)
add(
    "run.RayEngine",
    run.RayEngine,
    address=None,
    cpus=1.0,
    gpus=0.0,
    memory=2**20,
    retries=3,
    outstanding=4,
)
