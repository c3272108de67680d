"""Random numbers: every use has a stream of its own, derived from a seed and what it is for.

Two generators that start at the same seed draw the same numbers. With one seed for everything, a
network's first weights would therefore be the very numbers its input is made of, and its figures
those of no independent draw. So nothing here starts a generator at a bare seed: it asks for
``stream(seed, "weights", 3, "query")``, which has nothing in common with any other stream, of this
seed or of another, and does not move when something else draws more or fewer numbers.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from rankscope.arguments import python_number
from rankscope.errors import InputError, KindError


def stream(seed: int, *purpose: str | int) -> torch.Generator:
    """A generator for one purpose under one seed.

    >>> from rankscope.streams import stream
    >>> import torch
    >>> a, b = stream(0, "weights", 0, "query"), stream(0, "embedding", "tokens")
    >>> bool(torch.equal(torch.randn(8, generator=a), torch.randn(8, generator=b)))
    False
    """
    return torch.Generator().manual_seed(stream_seed(seed, *purpose))


def stream_seed(seed: int, *purpose: str | int) -> int:
    """The number a purpose's generator starts at: 63 bits of a hash of both.

    PyTorch's generator on the CPU takes 32 of them, so that two of a thousand streams coincide with
    a probability of about one in ten thousand.
    """
    seed, *purpose_of = map(python_number, (seed, *purpose))
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise KindError(f"seed={seed!r} is a {type(seed).__name__}, expected a whole number.")
    if seed < 0:
        raise InputError(f"seed={seed} is out of range; expected 0 or more.")
    digest = hashlib.sha256(repr((seed, *purpose_of)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


@contextmanager
def global_stream(seed: int, *purpose: str | int) -> Iterator[None]:
    """PyTorch's global generator as one purpose's stream, and afterwards as it was.

    For code that is not ours and draws from the global state: models that initialise themselves.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(seed, *purpose))
        yield
