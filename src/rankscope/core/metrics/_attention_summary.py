"""What one pass over attention weights tells of every head, some queries at a time."""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from rankscope.core.metrics._kernels import can_fuse
from rankscope.core.shapes import PerHead

_KERNEL = "rankscope.core.metrics._attention_kernel"
MOST_STRAY = 2e-2
"""The weight that half precision may leave on padding; more, and the token mask is wrong."""


class Weights(NamedTuple):
    """The weights of some queries: ``p`` over the keys in ``keys``, all others being zero."""

    queries: slice
    keys: slice
    p: Tensor  # batch head query key
    sink: Tensor | None  # batch head query: what the learned sink takes
    shifted: Tensor  # the scores less the largest of their row; minus infinity where unseen
    log_total: Tensor  # batch head query: of the shifted scores, log Σ exp
    sink_shifted: Tensor | None
    counted: Tensor  # batch head query: real queries that see a key


class Chunked(Protocol):
    """Attention whose weights come some queries at a time."""

    @property
    def query(self) -> Tensor: ...

    @property
    def shape(self) -> tuple[int, int, int, int]: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def chunks(self) -> Iterator[Weights]: ...

    def first_keys(self, count: int) -> Tensor: ...

    def padding_keys(self) -> Tensor | None: ...

    def real_queries(self) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class AttentionSummary:
    """Means over the queries that count, of each head; a learned sink is one more outcome.

    ``first`` is the weight on the first real key, ``sink`` that on the learned sink. Each is NaN
    where real queries attend to padding.
    """

    entropy: PerHead
    renyi: PerHead
    largest: PerHead
    first: PerHead
    sink: PerHead


def summarise(attention: Chunked) -> AttentionSummary:
    """One pass over the weights."""
    if fused_here(attention):
        rows, sees = import_module(_KERNEL).row_figures(attention)
        counted = sees & attention.real_queries().unsqueeze(1)
    else:
        rows, counted = row_figures(attention)
    rows = torch.where(counted, rows, 0.0)
    sound = rows[-1].amax(-1) <= MOST_STRAY
    means = rows[:-1].sum(-1) / counted.sum(-1)
    return AttentionSummary(*torch.where(sound, means, torch.nan))


def fused_here(attention: Chunked) -> bool:
    """Whether the pass can be one kernel, which computes in float32."""
    fits = attention.dtype == torch.float32 and attention.query.shape[3] in range(1, 257)
    return fits and can_fuse(attention.query)


def row_figures(attention: Chunked) -> tuple[Tensor, Tensor]:
    """Figures of each query, ``(figure, batch, head, query)``, and which queries count."""
    looked_for, where = _columns(attention), attention.query.device
    rows = torch.empty(6, *attention.shape[:3], dtype=attention.dtype, device=where)
    counted = torch.empty(attention.shape[:3], dtype=torch.bool, device=where)
    for part in attention.chunks():
        rows[..., part.queries] = _figures(part, looked_for[..., part.keys, :])
        counted[..., part.queries] = part.counted
        del part  # before the next is made
    return rows, counted


def _columns(attention: Chunked) -> Tensor:
    """Which keys are first, and which are padding, as two columns to multiply weights by."""
    first, padding = attention.first_keys(1), attention.padding_keys()
    padding = torch.zeros_like(first) if padding is None else padding
    return torch.stack((first, padding), -1).unsqueeze(1)


def _figures(part: Weights, looked_for: Tensor) -> Tensor:
    """Of each query: entropy, Rényi entropy, largest, first, sink, weight on padding."""
    p = part.p
    seen = part.shifted.masked_fill(part.p == 0, 0.0)
    entropy = part.log_total - (p * seen).sum(-1)
    squares = p.square().sum(-1)
    sink = torch.zeros_like(squares)
    if part.sink is not None and part.sink_shifted is not None:
        sink = part.sink
        entropy = entropy - torch.where(sink == 0, 0.0, sink * part.sink_shifted)
        squares = squares + sink.square()
    first, stray = (p @ looked_for.to(p.dtype)).unbind(-1)
    return torch.stack((entropy, -squares.log(), p.amax(-1), first, sink, stray))


def first_weight(attention: Chunked, count: int) -> PerHead:
    """The mean over the queries that count of the weight on the first real keys, ``count`` many."""
    first = attention.first_keys(count)[:, None, :, None]
    total: Tensor | float = 0.0
    counted: Tensor | float = 0.0
    for part in attention.chunks():
        on_first = (part.p @ first[..., part.keys, :].to(part.p.dtype)).squeeze(-1)
        total = total + torch.where(part.counted, on_first, 0.0).sum(-1)
        counted = counted + part.counted.sum(-1)
        del part
    return torch.as_tensor(total / counted)


def shared_weight(attention: Chunked) -> PerHead:
    """The sum, over keys and sink, of the least weight that each gets from any query."""
    least: Tensor | None = None
    for part in attention.chunks():
        if least is None:
            least = part.p.new_full((*attention.shape[:2], attention.shape[3] + 1), 1.0)
        _lower(least, part)
    assert least is not None
    return least.sum(-1)


def _lower(least: Tensor, part: Weights) -> None:
    """Lower, in place, the least weight of each key, and of the sink at the end."""
    p = part.p.masked_fill(~part.counted.unsqueeze(-1), 1.0).amin(-2)
    unseen = torch.where(part.counted.any(-1), 0.0, 1.0).to(p.dtype).unsqueeze(-1)
    inside = least[..., part.keys]
    torch.minimum(inside, p, out=inside)
    for outside in (least[..., : part.keys.start], least[..., part.keys.stop : -1]):
        torch.minimum(outside, unseen.expand_as(outside), out=outside)
    last = least[..., -1:]
    sink = unseen if part.sink is None else part.sink.masked_fill(~part.counted, 1.0).amin(-1, True)
    torch.minimum(last, sink, out=last)
