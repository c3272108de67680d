"""The program of a worker process: one run after the other, from a pipe and back into it."""

import os
import pickle
import signal
import sys
import threading
from multiprocessing.connection import Connection
from pathlib import Path

from rankscope.run._engine import READY, carry_out, packed


def main(descriptor: int) -> None:
    """Say that it is ready, then carry out whatever run comes, until none does."""
    _end_with_the_driver()
    with Connection(descriptor) as pipe:
        work = pickle.loads(pipe.recv_bytes())
        pipe.send(READY)
        name = f"process {os.getpid()}"
        try:
            while True:
                pipe.send_bytes(packed(carry_out(pipe.recv(), work, name)))
        except (EOFError, OSError):  # the driver has hung up
            return


def _end_with_the_driver() -> None:
    """End as soon as standard input is closed, in the midst of a run too.

    The driver holds the other end, so that however it ends, no worker is left behind.
    """
    lifeline = os.dup(0)
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)  # a run that reads standard input must not take the line

    def wait() -> None:
        while os.read(lifeline, 1):
            pass
        os.killpg(os.getpid(), signal.SIGKILL)  # and whatever a run has started

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    main(int(sys.argv[1]))
