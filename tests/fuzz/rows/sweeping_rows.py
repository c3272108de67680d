"""Grids, their runs, and what a run comes to."""

from table import add

from rankscope import run as sweeping

SHAPE = {"layers": 1, "heads": 1, "width": 4, "passages": 1, "length": 4}
CONTENT = {**SHAPE, "mask": "window:{radius}", "axes": {"radius": [1, 2]}}
GRID = sweeping.read_grid(CONTENT)
RUNS = sweeping.plan(GRID).runs
add("sweeping.read_grid", sweeping.read_grid, source=CONTENT, quick=True)
add(
    "sweeping.Grid",
    sweeping.Grid,
    name="grid.toml",
    folder="",
    fields={"layers": 2},
    axes=GRID.axes,
)
add("sweeping.Grid.settings", GRID.settings, point={"radius": 2})
add("sweeping.plan", sweeping.plan, grid=GRID)
add("sweeping.Plan", sweeping.Plan, grid=GRID, points=RUNS)
add(
    "sweeping.Run",
    sweeping.Run,
    key="0123456789ab",
    experiment="trace",
    axes={"layers": 2},
    fields={"layers": 2},
    folder="",
)
add("sweeping.Run.from_json", sweeping.Run.from_json, content=RUNS[0].to_json())
add("sweeping.execute", sweeping.execute, run=RUNS[0])
add("sweeping.estimate", sweeping.estimate, runs=RUNS)
add("sweeping.Estimate", sweeping.Estimate, runs=2, seconds=1.0, longest=0.5, bytes=1e6, unknown=0)
