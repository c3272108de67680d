"""Runs of our own, ways to look into a sweep's folder, and a sweep as a program of its own."""

import hashlib
import json
import os
import re
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path

import psutil
import pytest

from rankscope.process.fingerprints import fingerprint
from rankscope.run import Run, _store

HERE = Path(__file__).parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))  # workers find works.py where this process does


def make_run(index, **fields):
    """A run along the axis ``index``; where it keeps a log is no part of what it computes."""
    said = {"index": index, **{name: value for name, value in fields.items() if name != "log"}}
    key = fingerprint(said)
    log = {"log": str(fields["log"])} if "log" in fields else {}
    return Run(key, "numbers", {"index": index}, {**said, **log})


@pytest.fixture(name="make_run")
def _make_run():
    return make_run


@pytest.fixture
def make_runs():
    """``make_runs(5, seconds=0.1)``: runs along the axis ``index``, with these fields each."""

    def make(count, **fields):
        return [make_run(index, **fields) for index in range(count)]

    return make


@pytest.fixture
def sql():
    """``sql(folder, "SELECT …")``: what a folder's database says, or whatever is done to it.

    Its digest is made to fit, as somebody who wants to do harm would, unless not ``sealed``.
    """

    def run(folder, query, *values, sealed=True):
        with closing(sqlite3.connect(Path(folder) / "runs.sqlite")) as database, database:
            rows = database.execute(query, values).fetchall()
            with suppress(sqlite3.Error):
                seal = sum(
                    _store._number(table, row)
                    for table, where in _store._SEALED.items()
                    for row in database.execute(f"SELECT * FROM {table} WHERE {where}")
                )
                if sealed:
                    database.execute("UPDATE meta SET value = ? WHERE name = 'seal'", (str(seal),))
            return rows

    return run


@pytest.fixture
def digests():
    """``digests(folder)``: every single result by name, with a digest of its bytes."""

    def read(folder):
        return {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted((Path(folder) / "results").iterdir())
        }

    return read


@pytest.fixture
def begun():
    """``begun(log)``: how often each run was begun, from the log of ``works.numbers``."""

    def read(log):
        return Counter(line.split()[0] for line in Path(log).read_text().splitlines())

    return read


@pytest.fixture
def until():
    """``until(condition)``: wait for it, also on a busy machine, and fail if it never comes."""

    from works import PATIENCE

    def wait(condition):
        end = time.monotonic() + PATIENCE
        while not (found := condition()):
            assert time.monotonic() < end, "it did not come about"
            time.sleep(0.01)
        return found

    return wait


@pytest.fixture
def driver():
    """``driver(folder, count, …)``: a sweep that was started as a program; ended with the test."""
    started = []

    def start(folder, count, *, fields=None, engine="Processes", options=None, **more):
        asked = {
            "folder": str(folder), "count": count, "fields": fields or {},
            "engine": engine, "options": options or {}, **more,
        }  # fmt: skip
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        program = subprocess.Popen(
            [sys.executable, str(HERE / "driver.py"), json.dumps(asked)],
            env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        started.append(program)
        return program

    yield start
    for program in started:
        if program.poll() is None:
            program.kill()
        program.communicate()


@pytest.fixture
def hear():
    """``hear(program, 3)``: wait for the keys of so many runs; Ray may print other lines."""

    def read(program, count):
        heard = []
        while len(heard) < count:
            line = program.stdout.readline()
            assert line, "it has ended"
            heard += re.findall(r"^[0-9a-f]{12}$", line.strip())
        return heard

    return read


@pytest.fixture
def workers_of():
    """``workers_of(program)``: the processes it has started."""

    def find(program):
        return psutil.Process(program.pid).children(recursive=True)

    return find
