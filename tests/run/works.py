"""What runs do in the tests; importable in every worker, and quick to import."""

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl

from rankscope import tables
from rankscope.errors import InputError

PATIENCE = 120
"""Seconds after which a process that should have done something never will."""


class UnpicklableError(Exception):
    def __init__(self, first, second):
        super().__init__(lambda: first + second)


class UnprintableError(Exception):
    def __str__(self):
        raise RuntimeError("no words")


def numbers(run):
    """A few rows that depend on the run alone; noted in a log, if one is named."""
    note(run)
    time.sleep(run.fields.get("seconds", 0))
    index = run.fields["index"]
    while index >= run.fields.get("held_from", math.inf) and held(run.fields["log"]).exists():
        time.sleep(0.01)
    rows = [(layer, "residual", index + layer / 7) for layer in range(run.fields.get("rows", 3))]
    return tables.from_rows(("layer", "metric", "value"), rows)


def numbers_of_two(run):
    """The same, once two processes are at work: the first is not to do everything alone."""
    found, until = numbers(run), time.monotonic() + 60
    while time.monotonic() < until:
        if len({line.split()[1] for line in Path(run.fields["log"]).read_text().splitlines()}) > 1:
            break
        time.sleep(0.01)
    return found


def held(log):
    """While this file is there, runs with the field ``held_from`` wait from that index on."""
    return Path(log).with_suffix(".held")


def note(run):
    """A line in the log: this run was begun in this process."""
    log = run.fields.get("log")
    if log:
        line = f"{run.key} {os.getpid()} {os.getppid()}\n".encode()
        descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, line)
        os.close(descriptor)


def acts(run):
    """Whatever the run is said to do, and else ``numbers``."""
    action = run.fields.get("action", "")
    if action:
        note(run)
    match action:
        case "raise":
            raise InputError("too wide.")
        case "foreign":
            raise ZeroDivisionError("by nothing")
        case "unpicklable":
            raise UnpicklableError(1, 2)
        case "unprintable":
            raise UnprintableError
        case "exit":
            sys.exit(3)
        case "leave":
            print("last words", file=sys.stderr, flush=True)
            os._exit(7)
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "none":
            return None
        case "objects":
            return pl.DataFrame({"metric": ["a"], "value": [object()]})
        case "columns":
            return pl.DataFrame({"metric": ["a"], "value": [1.0], "weather": ["fair"]})
        case "kinds":
            return pl.DataFrame({"metric": ["a"], "value": ["much"]})
        case "hang":
            for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(each, signal.SIG_IGN)
            os.kill(os.getpid(), signal.SIGSTOP)
        case "family":
            child = subprocess.Popen(["sleep", "600"])
            Path(run.fields["log"]).with_suffix(".child").write_text(str(child.pid))
            time.sleep(600)
        case "threads":
            import torch

            return tables.frame({"metric": ["threads"], "value": [torch.get_num_threads()]})
        case "flaky":  # dies the first time, and not the second
            if Path(run.fields["log"]).read_text().count(run.key) == 1:
                os.kill(os.getpid(), signal.SIGKILL)
    return numbers(run)
