"""Many runs of experiments over a grid of settings; what is done is kept, whatever happens."""

from rankscope.sweeping._estimate import Estimate, estimate
from rankscope.sweeping._execute import execute
from rankscope.sweeping._grid import Grid, read_grid
from rankscope.sweeping._plan import Plan, plan
from rankscope.sweeping._run import Run
from rankscope.sweeping._run import Setting as Setting
from rankscope.sweeping._run import Work as Work

__all__ = [
    "Estimate",
    "Grid",
    "Plan",
    "Run",
    "estimate",
    "execute",
    "plan",
    "read_grid",
]
