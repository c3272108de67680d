"""What residuals and mean cosine are made of, found together and waited for once."""

from dataclasses import MISSING, dataclass, fields
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rankscope.arguments import checked
from rankscope.core.checks import measurable, upcast
from rankscope.core.metrics._centers import mean_center
from rankscope.core.metrics._fused import IN_DOUBT, FusedStatistics, has_kernels_for
from rankscope.core.metrics._residual import ratio, subtract
from rankscope.core.metrics._similarity import cosine_of_pairs, unit_rows
from rankscope.core.shapes import Hidden, PerSample
from rankscope.errors import InputError
from rankscope.numerals import short


@checked
@dataclass(frozen=True, repr=False)
class StateStatistics:
    """Figures of hidden states X and of the rest R = X − 1x̄ᵀ; each has one entry per sample.

    ``one``, ``inf`` and ``fro`` are norms of X, ``rest_one`` and so on those of R, ``unit_square``
    is ``‖Σ x/‖x‖‖²``, ``tokens`` and ``nonzero`` count tokens. ``broken`` is the first token that
    has an entry which is no finite number, or whose entries' sum is none; −1 if there is none, −2
    if float32 was too narrow for the kernels' sums of squares.

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
        """Those of one of several states."""
        states = self.fro.shape[0] if self.fro.ndim else 0
        if not -states <= state < states:
            raise InputError(f"state={state} is not there; there are {states}, counted from 0.")
        return StateStatistics(*(getattr(self, name)[state] for name in _NAMES))

    def fault(self, dtype: torch.dtype) -> str:
        """What keeps the figures from meaning anything, if something does: an entry that is no
        finite number, or a norm that does not fit into ``dtype``."""
        if bool((self.broken >= 0).any()):
            where = (self.broken >= 0).nonzero()[0].tolist()
            token = int(self.broken[tuple(where)])
            return (
                f"x is not finite at {[*where, token]} (sample, token), or its entries are too "
                "large to be added up; find the layer that overflows, or compute in a wider dtype."
            )
        if bool((self.broken == IN_DOUBT).any()):
            return (
                "tokens differ in size by more than 15 orders of magnitude, or by less than that "
                "part of their size, which is too much for float32 on a GPU; measure in float64."
            )
        norms = (self.one, self.inf, self.fro, self.rest_one, self.rest_inf, self.rest_fro)
        if all(bool((norm <= torch.finfo(dtype).max).all()) for norm in norms):
            return ""
        largest = short(float(self.inf.max()), digits=2)
        return (
            f"the norm of x does not fit into {dtype}: a token's entries add up to {largest}; "
            "scale x down, or compute in a wider dtype."
        )


@checked
def state_statistics(x: Tensor, *, token_mask: Tensor | None = None) -> StateStatistics:
    """Everything that the residuals at the mean, the tokens' size and their cosine are made of.

    >>> import torch
    >>> from rankscope.core.metrics import state_statistics
    >>> state_statistics(torch.tensor([[3.0, 4.0], [0.0, 5.0]])).token_norm()
    tensor(5.0000, dtype=torch.float64)

    On a GPU it takes two kernels that read ``x`` once each, and sums are float32; elsewhere they
    are in what ``x`` is in, float32 at least. The answer is in float64 whatever ``x`` is in.
    """
    x, mask = measurable(x, token_mask)
    flat = x.reshape(-1, *x.shape[-2:])
    rows = None if mask is None else mask.expand(x.shape[:-1]).reshape(-1, x.shape[-2])
    gathered = GatheredStatistics(1)
    gathered.add(flat, rows)
    found = gathered.finish()
    sides = gathered.sides()
    statistics = StateStatistics(
        *(getattr(found, name)[0].reshape(x.shape[:-2]) for name in _NAMES),
        *(side.double().reshape(*x.shape[:-2], -1) for side in sides),
    )
    if fault := statistics.fault(x.dtype):
        raise InputError(fault)
    return statistics


class GatheredStatistics:
    """Statistics of states as they come by, one after another.

    Nothing is waited for before ``finish``, which gives those of all, ``(state, sample)``, on the
    host.
    """

    def __init__(self, expected: int) -> None:
        self._fused = FusedStatistics(expected)
        self._fused_at: list[int] = []
        self._plain: dict[int, Float[Tensor, "figure batch"]] = {}
        self._count = 0
        self._sides: tuple[Tensor, ...] = ()
        self._work: dict[tuple[Any, ...], Tensor] = {}

    def add(self, x: Hidden, mask: Bool[Tensor, "batch token"] | None) -> Tensor | None:
        """Begin on a state; its mean row, if the kernels find it, until the next state comes."""
        x = x.detach()  # figures have no gradient
        place, self._count = self._count, self._count + 1
        if has_kernels_for(x):
            self._fused_at.append(place)
            self._sides = ()
            return self._fused.add(x, mask)
        wide = upcast(x)
        key = (wide.shape, wide.dtype, wide.device)
        if key not in self._work:
            self._work[key] = torch.empty_like(wide, memory_format=torch.contiguous_format)
        self._plain[place], *sides = _figures(wide, mask, self._work[key])
        self._sides = tuple(sides)
        return None

    def sides(self) -> tuple[Tensor, ...]:
        """Center, lengths and sum of unit rows of the last state."""
        return self._sides or self._fused.sides()

    def send(self) -> None:
        """Let the figures come to the host, while other things are done."""
        self._fused.send()

    def finish(self) -> StateStatistics:
        """All of them, in their order."""
        found = dict(zip(self._fused_at, self._fused.figures(), strict=True))
        found |= {place: figures.cpu() for place, figures in self._plain.items()}
        every = torch.stack([found[place] for place in range(self._count)], dim=1)
        return StateStatistics(*every.unbind())


def _figures(
    x: Hidden, mask: Bool[Tensor, "batch token"] | None, work: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The figures by PyTorch alone, for any device and dtype, and center, lengths, unit sum."""
    if mask is not None:
        x = torch.where(mask.unsqueeze(-1), x, x.new_zeros(()))
    # One room for all that is as large as x: asking for memory takes longer than filling it.
    units = unit_rows(x, mask, work=work)
    size = torch.abs(x, out=work)
    rows, one = size.sum(-1), size.sum(-2).amax(-1)
    center = mean_center(x, mask, work=work)
    rest_size = subtract(x, center, mask, work=work).abs_()
    rest_inf, rest_one = rest_size.sum(-1).amax(-1), rest_size.sum(-2).amax(-1)
    broken = ~rows.isfinite()
    found = (
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
    figures = torch.stack([each.double() for each in found])
    return figures, center, units.lengths, units.total


def _length(numbers: Float[Tensor, "batch entry"], unit: PerSample) -> PerSample:
    """A Euclidean length, in units near the largest entry: its square may be beyond all floats.

    The numbers are overwritten.
    """
    unit = torch.where(unit > 0, unit, torch.ones_like(unit))
    size: PerSample = torch.linalg.vector_norm(numbers.div_(unit.unsqueeze(-1)), dim=-1)
    return size.double() * unit.double()


_NAMES = [each.name for each in fields(StateStatistics) if each.default is MISSING]
