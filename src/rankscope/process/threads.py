"""How many threads PyTorch takes: one, where tensors are small or many run side by side."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

import torch

_lock = Lock()
_inside = 0
_before = 1


@contextmanager
def one_thread() -> Iterator[int]:
    """One thread for PyTorch inside, and as many as before afterwards, which it tells.

    Work on tensors of a few thousand numbers gains nothing from a second thread and loses much
    where another program wants that core: W6 took 17 s with one and 63 s with two. The number is
    noted by the first of several that are inside at once.
    """
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
