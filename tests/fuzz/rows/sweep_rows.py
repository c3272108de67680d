"""Sweeps in folders, and the engines that carry them out."""

from table import SLOW, add

from rankscope import run as sweeping

ASKED = {"layers": 1, "heads": 1, "width": 4, "passages": 1, "length": 4, "axes": {"seed": [0]}}
RUNS = sweeping.plan(sweeping.read_grid(ASKED)).runs
DONE = sweeping.sweep(ASKED, "swept", engine="inline")
SLOW |= {"sweeping.sweep", "sweeping.drive"}
add(
    "sweeping.sweep",
    sweeping.sweep,
    grid=ASKED,
    folder="swept",
    engine="inline",
    workers=None,
    quick=False,
    retry_failed=False,
    wait=False,
    on_outcome=None,
)
add("sweeping.Sweep", sweeping.Sweep, folder=DONE.folder, progress=DONE.progress, merged=0)
add(
    "sweeping.drive",
    sweeping.drive,
    runs=RUNS,
    folder="swept",
    engine=sweeping.Inline(),
    work=sweeping.execute,
    grid={"name": "a"},
    retry_failed=False,
    wait=False,
    on_outcome=None,
)
add("sweeping.status", sweeping.status, folder="swept")
add("sweeping.table", sweeping.table, folder="swept")
add("sweeping.Processes", sweeping.Processes, workers=1, threads=1, retries=2)
add(
    "sweeping.RayEngine",
    sweeping.RayEngine,
    address=None,
    cpus=1.0,
    gpus=0.0,
    memory=2**20,
    retries=3,
    outstanding=4,
)
