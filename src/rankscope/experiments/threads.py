"""How many threads an experiment takes."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread for PyTorch inside, and as many as before afterwards.

    Work on tensors of a few thousand numbers gains nothing from a second thread and loses much
    where another program wants that core: W6 took 17 s with one and 63 s with two.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
