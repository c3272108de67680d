"""How many streams are worked on at once."""

from collections.abc import Iterator

from torch import Tensor

from rankscope.core.paths._frozen import Streams

_CPU_CHUNK = 2**20
_LARGE_CHUNK = 2**26
"""Numbers of streams that are worked on at once. On a CPU, what an MLP makes of more would leave
the cache; elsewhere larger products pay. Either way memory does not grow with the lengths times
the MLP's width."""


def chunk_size(streams: Streams) -> int:
    """How many of these streams to work on at once, at least one."""
    most = _CPU_CHUNK if streams.device.type == "cpu" else _LARGE_CHUNK
    return max(1, most // streams[0].numel())


def in_chunks(streams: Streams) -> Iterator[Tensor]:
    """The streams, some at a time."""
    yield from streams.split(chunk_size(streams))
