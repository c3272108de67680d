"""Many runs of experiments over a grid of settings; what is done is kept, whatever happens."""

from rankscope.sweeping._drive import OnOutcome, Progress, drive
from rankscope.sweeping._engine import Engine, Outcome
from rankscope.sweeping._estimate import Estimate, estimate
from rankscope.sweeping._execute import execute
from rankscope.sweeping._grid import Grid, read_grid
from rankscope.sweeping._inline import Inline
from rankscope.sweeping._lock import Holder
from rankscope.sweeping._plan import Plan, plan
from rankscope.sweeping._processes import Processes
from rankscope.sweeping._ray import RayEngine
from rankscope.sweeping._reading import table
from rankscope.sweeping._records import Failure
from rankscope.sweeping._run import Run, Setting, Work
from rankscope.sweeping._status import Status, status
from rankscope.sweeping._sweep import Sweep, make_engine, sweep, sweep_plan

__all__ = [
    "Engine",
    "Estimate",
    "Failure",
    "Grid",
    "Holder",
    "Inline",
    "OnOutcome",
    "Outcome",
    "Plan",
    "Processes",
    "Progress",
    "RayEngine",
    "Run",
    "Setting",
    "Status",
    "Sweep",
    "Work",
    "drive",
    "estimate",
    "execute",
    "make_engine",
    "plan",
    "read_grid",
    "status",
    "sweep",
    "sweep_plan",
    "table",
]
