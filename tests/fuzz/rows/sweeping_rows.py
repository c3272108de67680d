"""Grids, their runs, and what a run comes to."""

from table import add

from rankscope import run
from rankscope.experiments.catalogue import entry

SHAPE = {"layers": 1, "heads": 1, "width": 4, "samples": 1, "length": 4}
CONTENT = {**SHAPE, "mask": "window:{radius}", "axes": {"radius": [1, 2]}}
GRID = run.read_grid(CONTENT)
RUNS = run.plan(GRID).runs
add("run.read_grid", run.read_grid, source=CONTENT, quick=True)
add(
    "run.Grid",
    run.Grid,
    name="grid.toml",
    folder="",
    fields={"layers": 2},
    axes=GRID.axes,
)
add("run.Grid.settings", GRID.settings, point={"radius": 2})
add("run.plan", run.plan, grid=GRID)
add("run.SweepPlan", run.SweepPlan, grid=GRID, points=RUNS)
add(
    "run.Run",
    run.Run,
    key="0123456789ab",
    experiment="trace",
    axes={"layers": 2},
    fields={"layers": 2},
    folder="",
)
add("run.execute", run.execute, run=RUNS[0])
add("run.estimate", run.estimate, runs=RUNS)
add("run.SweepEstimate", run.SweepEstimate, runs=2, seconds=1.0, longest=0.5, bytes=1e6, unknown=0)
add("run.SweepPlan.left", run.plan(GRID).left, folder="swept")
add("run.SweepEstimate.in_words", run.estimate(RUNS).in_words, workers=2)
add("run.sweep", run.sweep, grid=CONTENT, folder="swept", engine="inline", quick=False)
add("run.drive", run.drive, runs=RUNS, folder="swept", engine=run.Inline(), work=run.execute)
SWEPT = run.sweep(CONTENT, "swept", engine="inline")
add("run.Sweep", run.Sweep, **vars(SWEPT))
add("run.RunRecord", run.RunRecord, key="a", experiment="trace", settings={}, ended=0.0)
add("run.table", run.table, folder="swept")
add("run.status", run.status, folder="swept")
add("run.with_settings", run.with_settings, rows=SWEPT.scan(), only=["radius=1"])
add("run.with_metric", run.with_metric, rows=SWEPT.scan(), metric="residual")
add("run.Processes", run.Processes, workers=2, threads=1, retries=2)
add("run.Inline.outcomes", run.Inline().outcomes, runs=RUNS, work=run.execute)
add("run.RayEngine", run.RayEngine, cpus=1.0, gpus=0.0, memory=0.5, retries=1, outstanding=4)
add(
    "run.reproduce",
    run.reproduce,
    ids=["D8"],
    folder="reproduced",
    scale="quick",
    seeds=1,
    fresh=False,
)
add("run.claim_runs", run.claim_runs, folder="reproduced")
D8 = entry("D8", "claim")
add("run.reproductions", run.reproductions, chosen={D8: {}}, folder="reproduced", redraw=False)
ALL_REPRODUCED = run.reproduce(["D8"], "reproduced")
REPRODUCED = ALL_REPRODUCED[0]
add("run.Reproductions", run.Reproductions, runs=(REPRODUCED,))
add("run.Reproductions.plot", ALL_REPRODUCED.plot, metric="seconds")
add("run.Sweep.plot", SWEPT.plot, metric="residual", x="radius")
add("run.Sweep.load", run.Sweep.load, path=SWEPT.save("swept.parquet"))
add("run.Reproduction", run.Reproduction, entry=D8, run=REPRODUCED.run, files={})
add("run.over_seeds", run.over_seeds, runs=[REPRODUCED.run])
add("run.ClaimSeries", run.ClaimSeries, runs=(REPRODUCED.run,))
add(
    "run.ClaimRun",
    run.ClaimRun,
    **{name: getattr(REPRODUCED.run, name) for name in run.ClaimRun.__dataclass_fields__},
)
