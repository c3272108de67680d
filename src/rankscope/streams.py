"""Random numbers: every purpose has its own stream, derived from the seed and its name.

Two generators that start at the same seed draw the same numbers. With one seed for everything, the
first weights of a network would therefore be equal to the numbers of its input, and not independent
of them. So no generator is seeded directly: ``stream(seed, "weights", 3, "query")`` is independent
of every other stream, of this seed or another, and does not change when another purpose draws more
or fewer numbers.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from rankscope.arguments import python_number
from rankscope.errors import InputError, KindError


def stream(seed: int, *purpose: str | int, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator for one purpose under one seed.

    >>> from rankscope.streams import stream
    >>> import torch
    >>> a, b = stream(0, "weights", 0, "query"), stream(0, "embedding", "tokens")
    >>> bool(torch.equal(torch.randn(8, generator=a), torch.randn(8, generator=b)))
    False

    On a ``device`` other than the CPU the numbers are others: PyTorch has another generator there.
    """
    return torch.Generator(device).manual_seed(stream_seed(seed, *purpose))


def stream_seed(seed: int, *purpose: str | int) -> int:
    """The seed of a purpose's generator: 63 bits of a hash of seed and purpose.

    PyTorch's CPU generator uses 32 of them, so that two of a thousand streams are equal with a
    probability of about 1 in 10,000.
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
    """Use PyTorch's global generators as a stream, and restore their states afterwards.

    For external code that draws from the global state: models that initialise themselves.
    """
    started = torch.cuda.is_available() and torch.cuda.is_initialized()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if started else []):
        # Not torch.manual_seed, which would also seed a GPU that is used later.
        torch.default_generator.manual_seed(stream_seed(seed, *purpose))
        if started:
            torch.cuda.manual_seed_all(stream_seed(seed, *purpose))
        yield
