"""Figures of tensors that pass while a model runs, with a single GPU synchronisation.

Of hidden states: what residuals and mean cosine are made of. Of queries and keys: their largest
entries. Of weights: some of their words.
"""

import math
from dataclasses import MISSING, dataclass, fields
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rankscope.arguments import checked
from rankscope.core.checks import measurable, real_dtype, upcast
from rankscope.core.metrics import _fused as kernels
from rankscope.core.metrics._centers import mean_center
from rankscope.core.metrics._fused import Again, FusedStatistics, Transfer, can_fuse, start
from rankscope.core.metrics._residual import cosine_of_pairs, ratio, subtract, unit_rows
from rankscope.core.shapes import Hidden, PerSample
from rankscope.errors import InputError
from rankscope.numerals import short

_QUERIES = 32
_CALLS = 64
"""Attention layers whose peaks share one tensor."""


@checked
@dataclass(frozen=True, repr=False)
class StateStatistics:
    """Statistics of hidden states X and of R = X − 1x̄ᵀ; each has one entry per sample.

    >>> import torch
    >>> from rankscope.core.metrics import state_statistics
    >>> found = state_statistics(torch.eye(3)[None])
    >>> found.fro, found.broken
    (tensor([1.7321], dtype=torch.float64), tensor([-1.], dtype=torch.float64))

    ``one``, ``inf`` and ``fro`` are norms of X, ``rest_one`` and so on those of R, ``unit_square``
    is ``‖Σ x/‖x‖‖²``, ``tokens`` and ``nonzero`` count tokens. ``broken`` is the first token with
    an entry, or a sum of entries, that is not finite; −1 if there is none, −2 if the range of
    float32 was too small for the sums of squares in the kernels.

    ``center`` is the mean of the tokens, ``lengths`` theirs, ``unit_sum`` the sum of the tokens
    divided by their lengths; a trace, which would keep them of every layer, leaves them out.
    """

    tokens: PerSample
    one: PerSample
    inf: PerSample
    fro: PerSample
    rest_one: PerSample
    rest_inf: PerSample
    rest_fro: PerSample
    unit_square: PerSample
    nonzero: PerSample
    broken: PerSample
    center: Float[Tensor, "*batch feature"] | None = None
    lengths: Float[Tensor, "*batch token"] | None = None
    unit_sum: Float[Tensor, "*batch feature"] | None = None

    def __repr__(self) -> str:
        return f"StateStatistics of {tuple(self.one.shape)} samples"

    def residual(self) -> PerSample:
        """As ``residual(x)``."""
        return self.rest_one.sqrt() * self.rest_inf.sqrt()

    def relative_residual(self) -> PerSample:
        """As ``residual(x, relative=True)``."""
        return ratio(self.residual(), self.one.sqrt() * self.inf.sqrt())

    def dispersion(self) -> PerSample:
        """As ``dispersion(x)``."""
        return self.rest_fro

    def relative_dispersion(self) -> PerSample:
        """As ``residual(x, norm="fro", relative=True)``."""
        return ratio(self.rest_fro, self.fro)

    def mean_cosine(self) -> PerSample:
        """As ``mean_cosine(x)``."""
        return cosine_of_pairs(self.unit_square, self.nonzero, self.tokens)

    def token_norm(self) -> PerSample:
        """As ``token_norm(x)``."""
        return self.fro / self.tokens.sqrt()

    def only(self, state: int) -> "StateStatistics":
        """The statistics of one of several states."""
        states = self.fro.shape[0] if self.fro.ndim else 0
        if not -states <= state < states:
            raise InputError(f"state={state} is out of range; expected 0 to {states - 1}.")
        return StateStatistics(*(getattr(self, name)[state] for name in _NAMES))

    def fault(self, dtype: torch.dtype) -> str:
        """Why the statistics are invalid: an entry that is not finite, or a norm that overflows
        ``dtype``; empty if they are valid."""
        if bool((self.broken >= 0).any()):
            where = (self.broken >= 0).nonzero()[0].tolist()
            token = int(self.broken[tuple(where)])
            return (
                f"x is not finite at {[*where, token]} (sample, token), or the sum of its "
                "entries overflows; find the layer that overflows, or compute in a wider dtype."
            )
        if bool((self.broken == kernels.IN_DOUBT).any()):
            return (
                "token norms differ by more than 15 orders of magnitude, or tokens differ by less "
                "than float32 resolves on a GPU; measure in float64."
            )
        real_dtype("dtype", dtype)
        norms = (self.one, self.inf, self.fro, self.rest_one, self.rest_inf, self.rest_fro)
        if all(bool((norm <= torch.finfo(dtype).max).all()) for norm in norms):
            return ""
        largest = short(float(self.inf.max()), digits=2)
        return (
            f"the norm of x overflows {dtype}: the entries of a token sum to {largest}; "
            "scale x down, or compute in a wider dtype."
        )


@checked
def state_statistics(x: Tensor, *, token_mask: Tensor | None = None) -> StateStatistics:
    """The ingredients of the residuals at the mean, the token norm and the mean cosine.

    >>> state_statistics(torch.tensor([[3.0, 4.0], [0.0, 5.0]])).token_norm()
    tensor(5.0000, dtype=torch.float64)

    On a GPU two kernels read ``x`` once each, and sums are float32; elsewhere sums have the dtype
    of ``x``, float32 at least. The result is always float64.
    """
    x, mask = measurable(x, token_mask)
    rows = None if mask is None else mask.reshape(-1, x.shape[-2])
    gathered = GatheredStatistics(1)
    gathered.add(x.reshape(-1, *x.shape[-2:]), rows)
    states = gathered.finish()
    statistics = StateStatistics(
        *(getattr(states, name)[0].reshape(x.shape[:-2]) for name in _NAMES),
        *(side.double().reshape(*x.shape[:-2], -1) for side in gathered.sides()),
    )
    if fault := statistics.fault(x.dtype):
        raise InputError(fault)
    return statistics


class GatheredStatistics:
    """Statistics of a sequence of states.

    There is no GPU synchronisation before ``finish``, which returns all statistics
    ``(state, sample)`` on the host.
    """

    def __init__(self, expected: int) -> None:
        self._fused = FusedStatistics(expected)
        self._plain: list[Float[Tensor, "figure batch"] | None] = []  # None where kernels did it
        self._sides: tuple[Tensor, ...] = ()
        self._work: dict[tuple[Any, ...], Tensor] = {}

    def add(self, x: Hidden, mask: Bool[Tensor, "batch token"] | None) -> Tensor | None:
        """Start on a state; returns its mean row if kernels compute it, until the next state."""
        x = x.detach()  # figures have no gradient
        if kernels.has_kernels_for(x):
            self._plain.append(None)
            self._sides = ()
            return self._fused.add(x, mask)
        wide = upcast(x)
        key = (wide.shape, wide.dtype, wide.device)
        if key not in self._work:
            self._work[key] = torch.empty_like(wide, memory_format=torch.contiguous_format)
        figures, *sides = _figures(wide, mask, self._work[key])
        self._plain.append(figures)
        self._sides = tuple(sides)
        return None

    def sides(self) -> tuple[Tensor, ...]:
        """Center, lengths and sum of unit rows of the last state."""
        return self._sides or self._fused.sides()

    def send(self) -> None:
        """Start the transfer of the statistics to the host, without waiting."""
        self._fused.send()

    def finish(self) -> StateStatistics:
        """The statistics of all states, in order."""
        fused = iter(self._fused.figures())
        states = [next(fused) if figures is None else figures.cpu() for figures in self._plain]
        return StateStatistics(*torch.stack(states, dim=1).unbind())


def _figures(
    x: Hidden, mask: Bool[Tensor, "batch token"] | None, work: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The figures by PyTorch alone, for any device and dtype, and center, lengths, unit sum."""
    if mask is not None:
        x = torch.where(mask.unsqueeze(-1), x, x.new_zeros(()))
    # One buffer for all that is as large as x: allocation takes longer than filling it.
    units = unit_rows(x, mask, work=work)
    size = torch.abs(x, out=work)
    rows, one = size.sum(-1), size.sum(-2).amax(-1)
    center = mean_center(x, mask, work=work)
    rest_size = subtract(x, center, mask, work=work).abs_()
    rest_inf, rest_one = rest_size.sum(-1).amax(-1), rest_size.sum(-2).amax(-1)
    broken = ~rows.isfinite()
    figures = (
        units.tokens,
        one,
        rows.amax(-1),
        _length(units.lengths.clone(), units.lengths.amax(-1)),
        rest_one,
        rest_inf,
        _length(rest_size.flatten(-2), rest_inf),
        units.total.square().sum(-1),
        units.nonzero,
        torch.where(broken.any(-1), broken.to(torch.uint8).argmax(-1), -1),
    )
    together = torch.stack([figure.double() for figure in figures])
    return together, center, units.lengths, units.total


def _length(numbers: Float[Tensor, "batch entry"], unit: PerSample) -> PerSample:
    """A Euclidean length, in units near the largest entry: its square may overflow.

    The numbers are overwritten.
    """
    unit = torch.where(unit > 0, unit, torch.ones_like(unit))
    size: PerSample = torch.linalg.vector_norm(numbers.div_(unit.unsqueeze(-1)), dim=-1)
    return size.double() * unit.double()


_NAMES = [field.name for field in fields(StateStatistics) if field.default is MISSING]


class GatheredPeaks:
    """The largest absolute entries of queries and keys of each layer; NaN counts as infinity.

    There is no GPU synchronisation before ``finish``.
    """

    def __init__(self) -> None:
        self._blocks: dict[torch.device, list[_PeakBlock]] = {}
        self._order: list[tuple[_PeakBlock, int] | Tensor] = []
        self._sent: Transfer | None = None

    def add(self, query: Tensor, key: Tensor) -> None:
        """Add the queries and the keys of one attention layer."""
        if not (_is_fit(query) and _is_fit(key) and query.dtype == key.dtype):
            self._order.append(torch.stack([_peak(query), _peak(key)]))
            return
        blocks = self._blocks.setdefault(query.device, [])
        if not blocks or blocks[-1].used == _CALLS:
            blocks.append(_PeakBlock(query.new_zeros((_CALLS, 2), dtype=torch.int32)))
        with kernels.on(query.device):
            self._order.append((blocks[-1], blocks[-1].look(query, key)))

    def send(self) -> None:
        """Start the transfer of the results to the host, without waiting."""
        plain = [peaks for peaks in self._order if isinstance(peaks, Tensor)]
        self._sent = Transfer([*(block.peaks for block in self._all_blocks()), *plain])

    def finish(self) -> list[list[float]]:
        """For each attention layer, the peak of its queries and that of its keys."""
        if self._sent is None:
            self.send()
        assert self._sent is not None
        host = iter(self._sent.wait())
        by_block = {
            id(block): next(host).view(torch.float32).tolist() for block in self._all_blocks()
        }
        return [
            next(host).tolist() if isinstance(peaks, Tensor) else by_block[id(peaks[0])][peaks[1]]
            for peaks in self._order
        ]

    def _all_blocks(self) -> list["_PeakBlock"]:
        return [block for blocks in self._blocks.values() for block in blocks]


class _PeakBlock:
    """Peaks of up to ``_CALLS`` attention layers on one GPU, and how to launch the kernel again."""

    def __init__(self, peaks: Tensor) -> None:
        self.peaks, self.used = peaks, 0
        self._address = peaks.data_ptr()
        self._known: dict[tuple[Any, ...], Again | None] = {}

    def look(self, query: Tensor, key: Tensor) -> int:
        """Start the kernel; returns the row of ``peaks`` that it writes."""
        slot, self.used = self.used, self.used + 1
        sizes: list[int] = []
        programs = []
        for x in (query, key):
            samples, heads, tokens, _ = x.shape
            rows = samples * heads * tokens
            programs.append(math.ceil(rows / _QUERIES))
            sizes += (rows, heads, tokens, *x.stride()[:3])
        width = query.shape[-1]
        numbers = (programs[0], width, *sizes)
        options = (_QUERIES, kernels.power_of_two(width))
        form = (query.dtype, sum(programs), numbers, query.data_ptr() % 16, key.data_ptr() % 16)
        if again := self._known.get(form):
            again(query.data_ptr(), key.data_ptr(), self._address, slot, *numbers, *options)
        else:
            self._known[form] = start(
                "_fused_kernels.largest_entries", (sum(programs),), (query, key, self.peaks),
                numbers, options, free=(slot,), warps=4,
            )  # fmt: skip
        return slot


def _is_fit(x: Tensor) -> bool:
    return can_fuse(x) and x.ndim == 4 and x.stride(3) == 1 and x.dtype in kernels.FUSED_DTYPES


def _peak(x: Tensor) -> Tensor:
    least, most = torch.aminmax(x)  # a norm takes PyTorch twenty times as long
    return torch.maximum(most, -least).double()
