"""Many runs of experiments over a grid of settings; what is done is kept, whatever happens.

Names are loaded when first used: a status, a table, and the worker of a light run need no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rankscope.sweeping._check import done_in as done_in
    from rankscope.sweeping._drive import OnOutcome as OnOutcome
    from rankscope.sweeping._drive import Progress as Progress
    from rankscope.sweeping._drive import drive as drive
    from rankscope.sweeping._engine import Engine as Engine
    from rankscope.sweeping._engine import Outcome as Outcome
    from rankscope.sweeping._estimate import Estimate as Estimate
    from rankscope.sweeping._estimate import estimate as estimate
    from rankscope.sweeping._execute import execute as execute
    from rankscope.sweeping._grid import Grid as Grid
    from rankscope.sweeping._grid import read_grid as read_grid
    from rankscope.sweeping._inline import Inline as Inline
    from rankscope.sweeping._lock import Holder as Holder
    from rankscope.sweeping._lock import running_in as running_in
    from rankscope.sweeping._plan import Plan as Plan
    from rankscope.sweeping._plan import plan as plan
    from rankscope.sweeping._processes import Processes as Processes
    from rankscope.sweeping._ray import RayEngine as RayEngine
    from rankscope.sweeping._reading import table as table
    from rankscope.sweeping._records import Failure as Failure
    from rankscope.sweeping._run import Run as Run
    from rankscope.sweeping._run import Setting as Setting
    from rankscope.sweeping._run import Work as Work
    from rankscope.sweeping._status import Status as Status
    from rankscope.sweeping._status import status as status
    from rankscope.sweeping._sweep import Sweep as Sweep
    from rankscope.sweeping._sweep import make_engine as make_engine
    from rankscope.sweeping._sweep import sweep as sweep
    from rankscope.sweeping._sweep import sweep_plan as sweep_plan

_HOMES = {
    "Estimate": "_estimate",
    "Grid": "_grid",
    "Inline": "_inline",
    "Plan": "_plan",
    "Processes": "_processes",
    "RayEngine": "_ray",
    "Run": "_run",
    "Sweep": "_sweep",
    "drive": "_drive",
    "estimate": "_estimate",
    "execute": "_execute",
    "plan": "_plan",
    "read_grid": "_grid",
    "status": "_status",
    "sweep": "_sweep",
    "table": "_reading",
}
_INSIDE = {  # what others return or are given; users need not make them
    "Engine": "_engine",
    "Failure": "_records",
    "Holder": "_lock",
    "OnOutcome": "_drive",
    "Outcome": "_engine",
    "Progress": "_drive",
    "Setting": "_run",
    "Status": "_status",
    "Work": "_run",
    "done_in": "_check",
    "make_engine": "_sweep",
    "running_in": "_lock",
    "sweep_plan": "_sweep",
}

__all__ = [*_HOMES]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name) or _INSIDE.get(name)
    if home is None:
        raise AttributeError(f"module 'rankscope.sweeping' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"rankscope.sweeping.{home}"), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
