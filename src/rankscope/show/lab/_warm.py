"""Imported by the process that workers are forked from: everything loaded and run once.

First calls look up kernels and import what is imported late; a worker forked after them answers
its first request as fast as its hundredth. One thread alone, for a fork keeps no other.
"""

from rankscope.show.lab._tasks import run_task

for _part in ("first", "second"):
    run_task(_part, "")
