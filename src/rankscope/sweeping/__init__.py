"""Many runs of experiments over a grid of settings; what is done is kept, whatever happens."""

from rankscope.sweeping._drive import OnOutcome, Progress, drive
from rankscope.sweeping._engine import Engine, Outcome
from rankscope.sweeping._inline import Inline
from rankscope.sweeping._lock import Holder
from rankscope.sweeping._processes import Processes
from rankscope.sweeping._ray import RayEngine
from rankscope.sweeping._reading import table
from rankscope.sweeping._records import Failure
from rankscope.sweeping._run import Run, Setting, Work
from rankscope.sweeping._status import Status, status

__all__ = [
    "Engine",
    "Failure",
    "Holder",
    "Inline",
    "OnOutcome",
    "Outcome",
    "Processes",
    "Progress",
    "RayEngine",
    "Run",
    "Setting",
    "Status",
    "Work",
    "drive",
    "status",
    "table",
]
