"""A process that writes a run and is killed: see test_history.py.

``everywhere`` forks a child for every file operation and kills it there; ``forever`` appends until
it is killed, and continues a run that is there; ``restless`` also goes back and begins anew.
"""

import itertools
import os
import signal
import sys
from pathlib import Path

from rankscope import tables
from rankscope.monitor import _history
from rankscope.monitor._history import Alarm, History, RunFile, StepRecord, read_run

_history._MERGED_AFTER = 3  # merges are what is hard
_history._MERGED_SHARE = 0.0
RECORDS = 7


def add(history, run):
    """Add a record that depends on all before it, and an alarm with every fifth."""
    number = len(history.records)
    before = history.records[-1].get("chain") if history.records else 0.0
    chain = (before * 31 + run * 7 + number) % 1_000_003
    history.add(StepRecord(number, {("run", None): float(run), ("chain", None): chain}))
    if number % 5 == 4:
        history.alarms.append(Alarm("rule", number, None, chain, ""))


def resume(folder):
    file = RunFile(folder)
    return file, read_run(folder) if file.exists() else History({"layers": 1})


def write(folder, records, descriptor):
    """Append records up to a number, and write how many there are after each."""
    file, history = resume(folder)
    while len(history.records) < records:
        add(history, run=1)
        file.append(history)
        os.write(descriptor, f"{len(history.records)}\n".encode())


def die_at(operation, folder):
    """Kill this process at its n-th operation on files: opening, writing through, renaming."""
    counted = itertools.count()
    fsync = os.fsync

    def count(event, arguments):
        ours = event in ("open", "os.rename", "os.remove") and str(folder) in str(arguments[0])
        if ours and next(counted) == operation:
            os.kill(os.getpid(), signal.SIGKILL)

    def counted_fsync(descriptor):
        count("open", (folder,))
        fsync(descriptor)
        count("open", (folder,))

    sys.addaudithook(count)
    os.fsync = counted_fsync


def everywhere(folder):
    assert tables  # loaded once, not in every child
    for operation in itertools.count():
        name = folder / f"run-{operation}"
        for attempt in ("killed", "resumed"):
            reading, writing = os.pipe()
            child = os.fork()
            if not child:
                if attempt == "killed":
                    die_at(operation, folder)
                more = attempt == "resumed"  # at least one record
                write(name, RECORDS + more, writing)
                os._exit(0)
            os.close(writing)
            acknowledged = os.fdopen(reading).read().split()
            _, status = os.waitpid(child, 0)
            ending = "killed" if os.WIFSIGNALED(status) else "done" if status == 0 else "failed"
            os.write(1, f"{name.name} {max(map(int, acknowledged), default=0)} {ending}\n".encode())
            os.read(0, 1)  # until the run was looked at
            if ending != "killed":
                break
        if attempt == "killed":  # it lived to the end: there are no more operations
            return


def forever(folder):
    write(folder, 10**9, 1)


def restless(folder):
    file = RunFile(folder)
    for run in itertools.count(1):
        history = History({"layers": 1})
        for _ in range(2):  # once from the start, and once more from a step in the middle
            while len(history.records) < 7 + run % 11:
                add(history, run)
                file.append(history)
                os.write(1, b".\n")
            history.rewind(4)


if __name__ == "__main__":
    where, how = sys.argv[1:]
    {"everywhere": everywhere, "forever": forever, "restless": restless}[how](Path(where))
