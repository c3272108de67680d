"""Ctrl-C: one line, exit code 130, soon, and nothing half-written left behind."""

import signal
import subprocess
import sys
import time

import pytest

from rankscope.errors import InputError
from rankscope.process.files import discard_unfinished, write_file

BUSY = """
import os
import numpy as np
from rankscope.process.interruption import prompt_interruption
from rankscope.process.files import write_file
large = np.random.default_rng(0).standard_normal((4000, 4000))
write_file("kept.txt", b"whole")
def fsync(_):
    assert len(os.listdir()) == 2
    print("ready", flush=True)
    np.linalg.svd(large)
os.fsync = fsync
with prompt_interruption():
    write_file("half.txt", b"half")
"""
SPEAKING = BUSY.replace(
    "with prompt", "with on_forced_exit(lambda: '3 are kept.'), prompt"
).replace("import prompt_interruption", "import on_forced_exit, prompt_interruption")
IMPORTING = """
import sys, time
class Slow:
    def find_spec(self, name, *_):
        if name == "rankscope.cli":
            print("ready", flush=True)
            time.sleep(60)
sys.meta_path.insert(0, Slow())
from rankscope.__main__ import main
main()
"""


@pytest.mark.parametrize(
    ("program", "words"),
    [(BUSY, ""), (SPEAKING, "rankscope: 3 are kept.\n"), (IMPORTING, "")],
    ids=["one long computation", "with last words", "importing"],
)
def test_an_interruption_is_told_and_soon(program, words, tmp_path) -> None:
    ran = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert ran.stdout.readline() == "ready\n"
    time.sleep(0.2)
    asked = time.perf_counter()
    ran.send_signal(signal.SIGINT)
    _, printed = ran.communicate(timeout=120)
    assert time.perf_counter() - asked < 20  # two seconds, unless the machine is busy
    assert ran.returncode == 130
    assert printed == f"{words}rankscope: interrupted.\n"
    assert {path.name for path in tmp_path.iterdir()} <= {"kept.txt"}


def test_what_is_being_written_can_be_discarded(tmp_path, monkeypatch) -> None:
    def discard(_: int) -> None:
        assert len(list(tmp_path.iterdir())) == 1
        discard_unfinished()

    monkeypatch.setattr("os.fsync", discard)
    with pytest.raises(InputError, match="cannot be written"):
        write_file(tmp_path / "half.txt", b"half")
    assert not list(tmp_path.iterdir())
