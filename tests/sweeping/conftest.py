"""Runs of our own, and ways to look into a sweep's folder."""

import hashlib
import sys
from collections import Counter
from pathlib import Path

import pytest

from rankscope.fingerprints import fingerprint
from rankscope.sweeping import Run

sys.path.insert(0, str(Path(__file__).parent))  # workers find works.py where this process does


@pytest.fixture
def make_runs():
    """``make_runs(5, seconds=0.1)``: runs along the axis ``index``, with these fields each."""

    def make(count, **fields):
        return [make_run(index, **fields) for index in range(count)]

    return make


def make_run(index, **fields):
    said = {"index": index, **fields}
    known = {name: value for name, value in said.items() if name != "log"}
    return Run(fingerprint(known), "numbers", {"index": index}, said)


def files_of(folder):
    """Every result by name, with a digest of its bytes."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted((Path(folder) / "results").iterdir())
    }


def begun(log):
    """How often each run was begun, from the log of ``works.numbers``."""
    return Counter(line.split()[0] for line in Path(log).read_text().splitlines())
