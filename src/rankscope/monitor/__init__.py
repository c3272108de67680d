"""Watch a training run: what is measured, kept and judged."""

from rankscope.monitor._evidence import RULES as RULES
from rankscope.monitor._history import Alarm, History, read_run
from rankscope.monitor._live import LiveWatch as LiveWatch
from rankscope.monitor._monitor import Monitor
from rankscope.monitor._names import MONITORED as MONITORED

__all__ = ["Alarm", "History", "Monitor", "read_run"]
