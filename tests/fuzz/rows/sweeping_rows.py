"""Grids, their runs, and what a run comes to."""

from table import add

from rankscope import run

SHAPE = {"layers": 1, "heads": 1, "width": 4, "passages": 1, "length": 4}
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
add("run.Plan", run.Plan, grid=GRID, points=RUNS)
add(
    "run.Run",
    run.Run,
    key="0123456789ab",
    experiment="trace",
    axes={"layers": 2},
    fields={"layers": 2},
    folder="",
)
add("run.Run.from_json", run.Run.from_json, content=RUNS[0].to_json())
add("run.execute", run.execute, run=RUNS[0])
add("run.estimate", run.estimate, runs=RUNS)
add("run.Estimate", run.Estimate, runs=2, seconds=1.0, longest=0.5, bytes=1e6, unknown=0)
