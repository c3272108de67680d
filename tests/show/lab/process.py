"""The lab as users start it: a process of its own on a free port."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

import rankscope

SOURCE = Path(rankscope.__file__).parents[1]


@dataclass(frozen=True)
class Reply:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)


@dataclass(frozen=True)
class Lab:
    """A lab that runs, its process, and how long it took until it said where it is."""

    port: int
    process: subprocess.Popen
    seconds: float

    @property
    def address(self):
        return f"http://127.0.0.1:{self.port}/"

    def get(self, path, *, method="GET", headers=None, body=None):
        """One request; ``headers`` replace the usual ones, a Host among them."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        given = {"Host": f"127.0.0.1:{self.port}", **(headers or {})}
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in given.items():
            for one in value if isinstance(value, list) else [value]:
                connection.putheader(name, one)
        connection.endheaders(body)
        answer = connection.getresponse()
        found = {name.lower(): value for name, value in answer.getheaders()}
        reply = Reply(answer.status, found, answer.read())
        connection.close()
        return reply


@contextmanager
def running_lab():
    """Start the command, wait for its address, and interrupt it at the end.

    Whatever it is asked meanwhile, its terminal shows no traceback.
    """
    command = [sys.executable, "-m", "rankscope", "lab", "--no-browser", "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    began = time.monotonic()
    terminal = tempfile.TemporaryFile("w+")  # noqa: SIM115  # read and closed at the end
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=terminal, text=True, env=environment
    )
    try:
        line = process.stdout.readline()
        seconds = time.monotonic() - began
        found = re.fullmatch(
            r"The lab is running at http://127\.0\.0\.1:(\d+)/ \(stop it with Ctrl-C\)\.\n", line
        )
        assert found, line
        yield Lab(int(found[1]), process, seconds)
        children = psutil.Process(process.pid).children(recursive=True)
        for _ in range(5):  # as who is impatient does
            process.send_signal(signal.SIGINT)
            time.sleep(0.002)
        assert process.wait(10) == 0, f"an interruption is no error: {process.returncode}"
        assert psutil.wait_procs(children, timeout=10)[1] == [], "no process is left behind"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        terminal.seek(0)
        shown = terminal.read()
        terminal.close()
        print(shown)
    assert not re.search("Traceback|never retrieved", shown), shown
