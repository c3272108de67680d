"""The attention of one layer without its matrix: queries, keys, biases and masks.

The weights are the softmax over keys of ``cap(scale · qᵢ·kⱼ) + biasᵢⱼ``, minus infinity where j is
hidden from i. They are computed for some queries at a time, so that memory grows linearly with the
number of keys, in float32 at least. Results of each chunk go into a tensor allocated before the
first: small tensors kept between large ones would fragment memory on a CPU.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from rankscope.arguments import Count, Finite, Positive, checked
from rankscope.core.metrics._fused import can_fuse
from rankscope.core.shapes import PerHead
from rankscope.errors import InputError, KindError, ShapeError

_CHUNK_BYTES = {"cpu": 16 << 20, "cuda": 256 << 20}
"""The largest size of the weights of one chunk: in cache on a CPU, enough to fill a GPU."""
_MATRIX_BYTES = 2 << 30
"""The largest size of the matrices of a layer, for metrics that need them."""
MOST_STRAY = 2e-2
"""The weight that half precision may leave on padding; more, and the token mask is wrong."""
Kept = TypeVar("Kept")


class WeightChunk(NamedTuple):
    """The weights of some queries: ``p`` over the keys in ``keys``, all others being zero."""

    queries: slice
    keys: slice
    p: Tensor  # batch head query key
    sink: Tensor | None  # batch head query: what the learned sink takes
    shifted: Tensor  # the scores less the largest of their row; minus infinity where unseen
    log_total: Tensor  # batch head query: of the shifted scores, log Σ exp
    sink_shifted: Tensor | None
    counted: Tensor  # batch head query: real queries that see a key


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


@checked
@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class AttentionScores:
    """The attention of one layer, given by queries, keys, biases and masks.

    >>> from rankscope.core.metrics import attention_entropy
    >>> q, k = torch.zeros(1, 2, 4, 8), torch.zeros(1, 1, 4, 8)
    >>> attention_entropy(AttentionScores(query=q, key=k, scale=0.5))
    tensor([[1.3863, 1.3863]])

    ``query`` is ``(batch, head, query, width)``, ``key`` ``(batch, group, key, width)`` with
    as many groups as heads or a divisor: consecutive heads share a group. The queries are the last
    of the keys, as they are where earlier keys come from a cache.

    ``bias`` is added to the scores, ``mask`` is true where a query may look; both are broadcast to
    ``(batch, head, query, key)``. A bias of minus infinity, or in the lower half of what its number
    format holds, hides a key. ``causal`` hides later keys, ``window`` those at this distance or
    farther, and ``softcap`` bends scores to ``c·tanh(s/c)`` before the bias. ``sinks`` are one more
    logit for each head, which takes weight and has no value. ``token_mask``, ``(batch, key)``, says
    which keys are real tokens. Padding queries are ignored; if real queries give padding more than
    2 % of their weight, the mask is wrong, and every metric of that sample is NaN. A query that
    sees no key counts as padding.
    """

    query: Tensor
    key: Tensor
    scale: Finite
    bias: Tensor | None = None
    mask: Tensor | None = None
    causal: bool = False
    window: Count | None = None
    softcap: Positive | None = None
    sinks: Tensor | None = None
    token_mask: Tensor | None = None

    def __post_init__(self) -> None:
        q, k = self.query, self.key
        fits = q.ndim == k.ndim == 4 and q.shape[0] == k.shape[0] and q.shape[3] == k.shape[3]
        if not fits or 0 in (*q.shape[:3], *k.shape[:3]) or q.shape[1] % k.shape[1]:
            raise ShapeError(
                f"query has shape {tuple(q.shape)} and key {tuple(k.shape)}, expected (batch, "
                "head, query, width) and (batch, group, key, width) where the number of "
                "groups divides the number of heads, and no axis is empty."
            )
        if q.shape[2] > k.shape[2]:
            raise ShapeError(
                f"got {q.shape[2]} queries for {k.shape[2]} keys; self-attention has at most as "
                "many queries as keys."
            )
        shape = self.shape
        for name in ("query", "key", "bias", "sinks"):
            part = getattr(self, name)
            if part is not None and (not part.is_floating_point() or part.dtype.itemsize == 1):
                raise KindError(
                    f"{name} is {part.dtype}, expected real numbers of 16 bits or more; cast them: "
                    f"{name}.float()."
                )
            # Metrics keep no autograd graph.
            object.__setattr__(self, name, None if part is None else part.detach())
        expected_shapes = {"bias": shape, "mask": shape, "token_mask": (shape[0], shape[3])}
        for name, expected in expected_shapes.items():
            part = getattr(self, name)
            if part is None:
                continue
            if name != "bias" and part.dtype != torch.bool:
                raise KindError(f"{name} is {part.dtype}, expected torch.bool.")
            axes = zip(part.shape, expected, strict=False)
            fits = part.ndim == len(expected) and all(have in (1, want) for have, want in axes)
            if not fits or (name == "token_mask" and part.shape[1] != shape[3]):
                raise ShapeError(
                    f"{name} has shape {tuple(part.shape)}, which does not broadcast to {expected}."
                )
        if self.sinks is not None and self.sinks.shape != shape[1:2]:
            raise ShapeError(
                f"sinks have shape {tuple(self.sinks.shape)}, expected one for each of "
                f"{shape[1]} heads."
            )

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Of the matrices there would be: ``(batch, head, query, key)``."""
        return *self.query.shape[:3], self.key.shape[2]

    @cached_property
    def summary(self) -> AttentionSummary:
        """The metrics of one pass over the weights, computed once."""
        if fused_here(self):
            rows, sees = fused_row_figures(self)
            counted = sees & self.real_queries().unsqueeze(1)
        else:
            rows, counted = row_figures(self, self)
        rows = torch.where(counted, rows, 0.0)
        sound = rows[-1].amax(-1) <= MOST_STRAY
        means = rows[:-1].sum(-1) / counted.sum(-1)
        return AttentionSummary(*torch.where(sound, means, torch.nan))

    @cached_property
    def _kept(self) -> dict[str, Any]:
        return {}

    def once(self, name: str, compute: Callable[[], Kept]) -> Kept:
        """A metric that needs further passes, computed on first use."""
        if name not in self._kept:
            self._kept[name] = compute()
        value: Kept = self._kept[name]
        return value

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in which metrics are computed."""
        return torch.promote_types(self.query.dtype, torch.float32)

    @property
    def is_matrix(self) -> bool:
        """Whether there are no products, only the logarithms of weights, as a bias."""
        return self.query.shape[3] == 0

    def __repr__(self) -> str:
        batch, heads, queries, keys = self.shape
        return f"AttentionScores: {heads} heads, {queries} queries of {keys} keys, batch {batch}"

    def matrix(self, *, sink: bool = False) -> Tensor:
        """The matrices, zero in rows of queries that do not count; ``sink`` as the last column."""
        batch, heads, queries, keys = self.shape
        wide = sink and self.sinks is not None
        p = self.zeros(batch, heads, queries, keys + wide)
        for part in self.chunks():
            p[:, :, part.queries, part.keys] = part.p * part.counted.unsqueeze(-1)
            if wide and part.sink is not None:
                p[:, :, part.queries, -1] = part.sink * part.counted
        return p

    def sound(self, values: Tensor) -> Tensor:
        """NaN where the token mask is not the one attention was computed with."""
        if self.token_mask is None:
            return values
        return torch.where(self.summary.entropy.isnan(), torch.nan, values)

    def zeros(self, *shape: int) -> Tensor:
        """Zeros in the dtype and on the device of the metrics."""
        return torch.zeros(shape, dtype=self.dtype, device=self.query.device)

    def chunks(self) -> Iterator[WeightChunk]:
        """The weights of all queries, some at a time."""
        batch, heads, queries, keys = self.shape
        most = _CHUNK_BYTES.get(self.query.device.type, _CHUNK_BYTES["cpu"])
        size = max(1, most // (batch * heads * keys * self.dtype.itemsize))
        for start in range(0, queries, size):
            yield self.weights(slice(start, min(start + size, queries)))

    def weights(self, queries: slice) -> WeightChunk:
        """The weights of some queries, a slice of all."""
        keys = self.span(queries)
        scores = self.product(self.query[:, :, queries], keys)
        bias = self.bias_of(queries, keys)
        if bias is not None:
            scores = scores + bias
        seen = self.seen(queries, keys)
        if seen is not None:
            scores = scores.masked_fill(~seen, -math.inf)
        top = scores.amax(-1, keepdim=True)
        blind = top.isneginf()
        sink = None
        if self.sinks is not None:
            sink = self.sinks.to(scores.dtype)[None, :, None, None]
            top = torch.maximum(top, sink)
        top = top.masked_fill(top.isneginf(), 0.0)  # where nothing is seen
        scores = scores - top
        total = scores.logsumexp(-1)
        if sink is not None:
            sink = (sink - top).squeeze(-1)
            total = torch.logaddexp(total, sink)
        total = total.masked_fill(total.isneginf(), 0.0)
        p = (scores - total.unsqueeze(-1)).exp()
        taken = None if sink is None else (sink - total).exp()
        counted = ~blind.squeeze(-1)
        if self.token_mask is not None:
            counted = counted & self.real_queries()[:, None, queries]
        return WeightChunk(queries, keys, p, taken, scores, total, sink, counted)

    def product(self, query: Tensor, keys: slice) -> Tensor:
        """``cap(scale · q·k)`` of some queries; heads that share keys are multiplied together."""
        key = self.key[:, :, keys].to(self.dtype)
        batch, heads, rows, width = query.shape
        groups = key.shape[1]
        asking = query.to(self.dtype) * self.scale
        grouped = asking.reshape(batch, groups, heads // groups * rows, width)
        scores = (grouped @ key.mT).view(batch, heads, rows, key.shape[2])
        return scores if self.softcap is None else self.softcap * torch.tanh(scores / self.softcap)

    def bias_of(self, queries: slice, keys: slice) -> Tensor | None:
        """The additive bias there, minus infinity where it hides a key."""
        if self.bias is None:
            return None
        bias = _broadcast_part(self.bias, queries, keys)
        hidden = bias < torch.finfo(bias.dtype).min / 2
        return bias.to(self.dtype).masked_fill(hidden, -math.inf)

    def seen(self, queries: slice, keys: slice) -> Tensor | None:
        """The keys visible to each query, ignoring the bias; None if all are."""
        seen = None if self.mask is None else _broadcast_part(self.mask, queries, keys)
        if self.causal or self.window is not None:
            device, first = self.query.device, self.shape[3] - self.shape[2]
            step = queries.step or 1
            asking = first + torch.arange(queries.start, queries.stop, step, device=device)
            ahead = torch.arange(keys.start, keys.stop, device=device) - asking.unsqueeze(-1)
            near = ahead <= 0 if self.causal else torch.ones_like(ahead, dtype=torch.bool)
            if self.window is not None:
                near &= ahead.abs() < self.window
            seen = near if seen is None else seen & near
        return seen

    def span(self, queries: slice) -> slice:
        """The range of keys that these queries may see."""
        first, keys = self.shape[3] - self.shape[2], self.shape[3]
        start, stop = 0, keys
        if self.window is not None:
            start = max(0, queries.start + first - self.window + 1)
            stop = min(keys, queries.stop + first + self.window - 1)
        return slice(start, min(stop, queries.stop + first) if self.causal else stop)

    def first_keys(self, count: int) -> Tensor:
        """True for the first real keys, as many as ``count``; ``(batch or 1, key)``."""
        mask = self.token_mask
        if mask is None:
            return torch.arange(self.shape[3], device=self.query.device).unsqueeze(0) < count
        return mask & (mask.cumsum(-1) <= count)

    def real_queries(self) -> Tensor:
        """True for the queries that are real tokens; ``(batch or 1, query)``."""
        _, _, queries, keys = self.shape
        if self.token_mask is None:
            return torch.ones(1, queries, dtype=torch.bool, device=self.query.device)
        return self.token_mask[:, keys - queries :]


def from_matrix(p: Tensor, token_mask: Tensor | None = None) -> AttentionScores:
    """Attention of which the matrices are known, ``(batch, head, query, key)``: a bias of log P."""
    nothing = p.new_zeros(*p.shape[:2], p.shape[2], 0)
    key = p.new_zeros(p.shape[0], 1, p.shape[3], 0)
    return AttentionScores(query=nothing, key=key, scale=1.0, bias=p.log(), token_mask=token_mask)


def refuse_long(attention: AttentionScores, name: str, instead: str) -> None:
    """Raise if the matrices are too large for a metric that needs them."""
    size = math.prod(attention.shape) * attention.dtype.itemsize
    if size > _MATRIX_BYTES:
        raise InputError(
            f"{name} needs the attention matrices, here {size / 2**30:.1f} GiB for "
            f"{attention.shape[3]} keys and {attention.shape[1]} heads; use {instead}."
        )


def _broadcast_part(tensor: Tensor, queries: slice, keys: slice) -> Tensor:
    rows = queries if tensor.shape[-2] > 1 else slice(None)
    return tensor[..., rows, keys if tensor.shape[-1] > 1 else slice(None)]


def fused_here(attention: AttentionScores) -> bool:
    """Whether the pass can be one kernel, which computes in float32."""
    fits = attention.dtype == torch.float32 and attention.query.shape[3] in range(1, 257)
    return fits and can_fuse(attention.query)


def fused_row_figures(attention: AttentionScores) -> tuple[Tensor, Tensor]:
    """Figures of each query by one kernel, and which queries see a key."""
    kernels = import_module("rankscope.core.metrics._attention_kernel")  # it loads Triton
    figures, sees = kernels.row_figures(attention)
    return figures, sees


def row_figures(attention: AttentionScores, whole: AttentionScores) -> tuple[Tensor, Tensor]:
    """Figures of each query, ``(figure, batch, head, query)``, and which queries count.

    ``whole`` says which keys are real: the same scores, or those from which queries were selected.
    """
    # Which keys are first, and which are padding, as two columns to multiply weights by.
    first, mask = whole.first_keys(1), whole.token_mask
    padding = torch.zeros_like(first) if mask is None else ~mask
    looked_for = torch.stack((first, padding), -1).unsqueeze(1)
    rows = torch.empty(6, *attention.shape[:3], dtype=attention.dtype, device=first.device)
    counted = torch.empty(attention.shape[:3], dtype=torch.bool, device=first.device)
    for part in attention.chunks():
        rows[..., part.queries] = _chunk_figures(part, looked_for[..., part.keys, :])
        counted[..., part.queries] = part.counted
        del part  # before the next is made
    return rows, counted


def _chunk_figures(part: WeightChunk, looked_for: Tensor) -> Tensor:
    """Of each query: entropy, Rényi entropy, largest, first, sink, weight on padding."""
    p = part.p
    entropy = part.log_total - (p * part.shifted.masked_fill(p == 0, 0.0)).sum(-1)
    squares = p.square().sum(-1)
    sink = torch.zeros_like(squares)
    if part.sink is not None and part.sink_shifted is not None:
        sink = part.sink
        entropy = entropy - torch.where(sink == 0, 0.0, sink * part.sink_shifted)
        squares = squares + sink.square()
    first, stray = (p @ looked_for.to(p.dtype)).unbind(-1)
    return torch.stack((entropy, -squares.log(), p.amax(-1), first, sink, stray))
