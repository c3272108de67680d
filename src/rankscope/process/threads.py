"""The number of PyTorch threads, and how they wait for each other. Does not import torch."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

_lock = Lock()
_inside = 0
_before = 1


def passive_wait() -> dict[str, str]:
    """Environment variables to set before a new process imports torch.

    By default, OpenMP threads spin between operations, which is forty times slower on a busy
    machine. These wait passively, after a few microseconds of spinning: with none, a diagnosis took
    2 s more. A setting of the user takes precedence.
    """
    usual = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "3000"}
    if "OMP_WAIT_POLICY" in os.environ:
        usual = {"OMP_WAIT_POLICY": os.environ["OMP_WAIT_POLICY"]}
    return {name: os.environ.get(name, value) for name, value in usual.items()}


@contextmanager
def one_thread() -> Iterator[int]:
    """Use one PyTorch thread in this context; yields the previous number, which is restored.

    A second thread does not speed up work on tensors of a few thousand numbers, and slows it down
    on a busy machine: W6 took 17 s with one and 63 s with two. If contexts overlap, the first one
    determines the number to restore.
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
            torch.set_num_threads(_before)  # for this thread: each has its own number
