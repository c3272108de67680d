"""Many runs of experiments over a grid of settings; what is done is kept, whatever happens."""

from rankscope.sweeping._drive import OnOutcome as OnOutcome
from rankscope.sweeping._drive import Progress, drive
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
from rankscope.sweeping._run import Run
from rankscope.sweeping._run import Setting as Setting
from rankscope.sweeping._run import Work as Work
from rankscope.sweeping._status import Status, status
from rankscope.sweeping._sweep import Sweep, sweep
from rankscope.sweeping._sweep import make_engine as make_engine
from rankscope.sweeping._sweep import sweep_plan as sweep_plan

__all__ = [
    "Engine",
    "Estimate",
    "Failure",
    "Grid",
    "Holder",
    "Inline",
    "Outcome",
    "Plan",
    "Processes",
    "Progress",
    "RayEngine",
    "Run",
    "Status",
    "Sweep",
    "drive",
    "estimate",
    "execute",
    "plan",
    "read_grid",
    "status",
    "sweep",
    "table",
]
