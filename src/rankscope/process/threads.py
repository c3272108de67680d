"""How many threads PyTorch takes, and how they wait for each other. Imports no torch itself."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

_lock = Lock()
_inside = 0
_before = 1


def passive_wait() -> dict[str, str]:
    """Environment variables for a process we start, to be set before it imports torch.

    OpenMP's threads spin between two operations by default, which takes forty times as long on a
    machine with other work. The user's own setting wins.
    """
    return {"OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE")}


@contextmanager
def one_thread() -> Iterator[int]:
    """One thread for PyTorch inside, and as many as before afterwards, which it tells.

    Work on tensors of a few thousand numbers gains nothing from a second thread and loses much
    where another program wants that core: W6 took 17 s with one and 63 s with two. The number is
    noted by the first of several that are inside at once.
    """
    import torch

    global _inside, _before
    with _lock:
        if not _inside:
            _before = torch.get_num_threads()
        torch.set_num_threads(1)
        _inside += 1
    try:
        yield _before
    finally:
        with _lock:
            _inside -= 1
            torch.set_num_threads(_before)  # of this thread: each has a number of its own
