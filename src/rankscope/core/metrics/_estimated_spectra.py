"""Estimated spectra of many hidden states from matrix products, without GPU synchronisation.

Ranks are values with error bounds.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rankscope.arguments import Range, Seed, checked
from rankscope.core.checks import check_real, mask_like, measurable
from rankscope.core.metrics import _lanczos_quadrature as lanczos
from rankscope.core.metrics import _mean_split as split
from rankscope.core.metrics._lanczos_quadrature import Array, Bidiagonal, SpectralEvidence, Starts
from rankscope.core.metrics._mean_split import MeanSplit, Moved, PerMatrix, Rows, in_pieces
from rankscope.core.shapes import Hidden, PerSample, TokenMask
from rankscope.errors import ShapeError
from rankscope.numerals import span

_ROUNDING = 1e-5  # of all that is summed up in float32 or by the trapezoidal rule
_PART = 1e-6  # of a start, squared, that a vector must contain to count as reached from it
_CLEAR = 2.0**10  # times the noise: the direction of such a step is still accurate
_SKEW = 1.4
_NORMAL = 2.576  # 99 % of a normal distribution lie within this many standard deviations
_SEEKERS = 15
_MOST_STATES = 64

Probes = Annotated[int, Range(4, 1024)]
Steps = Annotated[int, Range(2, 256)]
Bytes = Annotated[int, Range(1, 2**48)]


class RankEstimate(NamedTuple):
    """A value and its error bound, which holds in at least 95 of 100 draws.

    >>> import torch
    >>> from rankscope.core.metrics import estimated_spectra
    >>> value, error = estimated_spectra(torch.eye(8)[None]).effective_rank()
    >>> bool(((value - 8).abs() <= error + 1e-6).all())
    True
    """

    value: PerSample
    error: PerSample


@checked
@dataclass(frozen=True, repr=False)
class EstimatedSpectra:
    """Estimates of the singular values of a batch of token matrices, from matrix products.

    >>> import torch
    >>> from rankscope.core.metrics import estimated_spectra
    >>> found = estimated_spectra(torch.eye(8)[None])
    >>> found.stable_rank().value
    tensor([8.0000], dtype=torch.float64)

    Every method returns a ``RankEstimate``: a value and its error, on the CPU in float64. ``shape``
    are the leading axes; ``probes`` is zero if the result is deterministic.
    """

    evidence: SpectralEvidence
    shape: tuple[int, ...]
    probes: int

    def __repr__(self) -> str:
        sizes = span(self.effective_rank().value.flatten().tolist())
        return f"EstimatedSpectra: {self.evidence.energy.numel()} matrices, effective ranks {sizes}"

    def effective_rank(self) -> RankEstimate:
        """``exp H(σ/Σσ)``, by stochastic Lanczos quadrature."""
        known = self.evidence
        around: Tensor | float = 0.0
        if self.probes:
            # Student's 99 % quantile, by the first terms of its expansion around the normal one.
            z, n = _NORMAL, self.probes - 1
            quantile = z + (z**3 + z) / (4 * n) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
            around = quantile * known.spread
        least, most = (known.least - around).exp(), (known.most + around).exp()
        value = (least + most) / 2
        # Probes rarely overlap with an isolated direction, so sums are skewed: upwards, normal
        # error bounds would be too small.
        above = (known.most + _SKEW * around).exp() - value
        error = torch.maximum(torch.as_tensor(above), value - least)
        return self._shaped(value, error + _rounding(known) * most)

    def stable_rank(self) -> RankEstimate:
        """``‖X‖_F² / σ₁²``."""
        energy = self.evidence.energy
        value, error = _largest_square(self.evidence, complete=self.probes == 0)
        least, most = (energy / _positive(value + sign * error) for sign in (1, -1))
        return self._shaped((least + most) / 2, (most - least) / 2)

    def participation_ratio(self) -> RankEstimate:
        """``(Σσ²)² / Σσ⁴``, with no error but rounding; NaN if fourth powers were left out."""
        known = self.evidence
        value = known.energy.square() / torch.where(known.fourth > 0, known.fourth, 1.0)
        value = torch.where(known.fourth.isnan(), torch.nan, value)
        return self._shaped(value, value * _rounding(known))

    def _shaped(self, value: Tensor, error: Tensor) -> RankEstimate:
        """Zero matrices have ranks of zero, exactly; those that are not finite have none."""
        energy = self.evidence.energy
        blank = torch.where(energy == 0, 0.0, torch.nan)
        known = energy.isfinite() & (energy > 0)
        parts = (torch.where(known, part, blank).reshape(self.shape) for part in (value, error))
        return RankEstimate(*parts)


def _positive(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, 1.0)


def _rounding(known: SpectralEvidence) -> PerMatrix:
    """The relative rounding error of sums and products of numbers of one sign."""
    return _ROUNDING + 64 * known.noise / _positive(known.energy.sqrt())


def _largest_square(known: SpectralEvidence, *, complete: bool) -> tuple[PerMatrix, PerMatrix]:
    """``σ₁²``, the largest value in any of the Krylov spaces, and its possible error.

    A space's values lie below the matrix's (Cauchy's interlacing), and each within its residual of
    one of them. The space of the leading starts has no residual, but may have a larger value;
    with ``complete`` it is all of the matrix.
    """
    known = SpectralEvidence(*(part.nan_to_num() for part in known))  # NumPy decomposes no NaN
    first = np.linalg.eigvalsh(known.overlap.numpy())[:, -1].clip(min=0)
    off = np.zeros_like(first)
    if not complete:
        noise = known.noise.numpy()[:, None, None]
        values, slack = _ritz(known.alpha.numpy(), known.beta.numpy(), noise)
        best = values.argmax(-1, keepdims=True)
        lanczos, error = (np.take_along_axis(part, best, -1)[:, 0] for part in (values, slack))
        first = np.maximum(lanczos, first)
        off = first - lanczos + error
    square = torch.from_numpy(first)
    rounding = 2 * square.sqrt() * known.noise + known.noise.square() + _rounding(known) * square
    return square, torch.from_numpy(off) + rounding


def _ritz(alpha: Array, beta: Array, noise: Array) -> tuple[Array, Array]:
    """Eigenvalues of ``BᵀB`` of all starts of a matrix, and twice the residuals of their vectors.

    A start's matrix ends where a step was divided by little more than noise. Vectors that are
    nearly orthogonal to the start are left out: they are copies of earlier ones, which arise
    because Lanczos vectors do not stay orthogonal (Cullum and Willoughby 1985).
    """
    count = alpha.shape[-1]
    steps = np.arange(count)
    ends = beta <= _CLEAR * noise
    last = np.where(ends.any(-1), ends.argmax(-1), count - 1)[..., None]
    b = np.zeros((*alpha.shape, count))
    b[..., steps, steps] = np.where(steps <= last, alpha, 0.0)
    b[..., steps[:-1], steps[1:]] = np.where(steps < last, beta, 0.0)[..., :-1]
    values, vectors = np.linalg.eigh(np.swapaxes(b, -1, -2) @ b)
    left = np.take_along_axis(alpha * beta, last, -1)
    residual = 2 * left * np.abs(np.take_along_axis(vectors, last[..., None], -2)[..., 0, :])
    values = np.where(vectors[..., 0, :] ** 2 > _PART, values.clip(min=0), 0.0)
    return values.reshape(len(values), -1), residual.reshape(len(values), -1)


@checked
def estimated_spectra(
    x: Tensor,
    *,
    token_mask: Tensor | None = None,
    probes: Probes = 16,
    steps: Steps = 12,
    seed: Seed = 0,
) -> EstimatedSpectra:
    """Estimate ranks of each sample's token matrix from products; they are methods of the result.

    >>> estimated_spectra(torch.eye(3)).effective_rank().value.round(decimals=3)
    tensor(3., dtype=torch.float64)

    For matrices too large to decompose, on a GPU above all. Each rank has an error
    bound, which holds in at least 95 of 100 draws. It is below one per cent for a
    matrix of 2,048 × 4,096 whose singular values are of one size. Where they span many orders of
    magnitude and none of them dominates, it is 10 to 70 % of the effective rank.
    More ``steps`` narrow it there, more ``probes`` where few directions hold most of the sum;
    ``spectra`` is exact. There is no spectral ratio here: products from a few starts cannot tell a
    second value that is close to the first from the first seen twice.
    """
    measurable(x, token_mask)
    probe = SpectrumProbe(probes=probes, steps=steps, seed=seed, bytes_held=1)
    probe.feed(x, token_mask=token_mask)
    return probe.finish()[0]


@checked
class SpectrumProbe:
    """Takes hidden states one at a time and estimates the spectra of all of them at the end.

    >>> probe = SpectrumProbe()
    >>> for layer in range(3):
    ...     probe.feed(torch.eye(4)[: layer + 2])
    >>> [round(layer.effective_rank().value.item(), 3) for layer in probe.finish()]
    [2.0, 3.0, 4.0]

    ``feed`` does not synchronise with the GPU: a state is copied, states of one shape are processed
    together when ``bytes_held`` are full (eight of 2,048 × 4,096 in bfloat16), and only ``finish``
    transfers results to the host. States must be finite (except padding), which is not checked; a
    matrix that is not finite, or that has no tokens, gives NaN.
    Matrices of one size share their probes, so that the errors of a model's layers are alike: they
    do not average out over layers. ``fourth_powers`` are needed only for the participation ratio
    and cost a product of every state with itself.
    """

    def __init__(
        self,
        *,
        probes: Probes = 16,
        steps: Steps = 12,
        seed: Seed = 0,
        fourth_powers: bool = True,
        bytes_held: Bytes = 2**27,
    ) -> None:
        self._probes, self._steps, self._seed = probes, steps, seed
        self._fourth_powers = fourth_powers
        self._limit = bytes_held
        self._starts: dict[object, Starts] = {}
        self._waiting: dict[object, _Stack] = {}
        self._done: list[_Batch] = []
        self._fed = 0

    def feed(
        self, x: Tensor, *, token_mask: Tensor | None = None, center: Tensor | None = None
    ) -> None:
        """Take the token matrices ``(..., token, feature)`` of one layer.

        ``center`` ``(..., feature)`` is the mean of the tokens, if known; an approximation is
        enough, because its error is measured.
        """
        # Only dtypes and shapes are checked, so there is no GPU synchronisation.
        check_real(x, name="x", axes="(..., token, feature)", least=2)
        *batch, tokens, features = x.shape
        if not x.numel():
            raise ShapeError(f"x has shape {tuple(x.shape)}, expected at least one sample.")
        flat = x.detach().reshape(-1, tokens, features)
        mask = rows = None
        if token_mask is not None:
            mask = mask_like(token_mask, x.shape[:-1]).reshape(-1, tokens).to(x.device)
        if center is not None:
            check_real(center, name="center", axes="(..., feature)", least=1)
            if center.shape != (*batch, features):
                raise ShapeError(
                    f"center has shape {tuple(center.shape)}, expected {(*batch, features)}: "
                    "one row for every sample, the mean of its tokens."
                )
            rows = center.detach().reshape(-1, features).to(x.device)
        key = (flat.shape, flat.dtype, flat.device)
        if key not in self._waiting:
            self._waiting[key] = _Stack(flat, self._limit)
        stack = self._waiting[key]
        stack.add(_FedState(self._fed, tuple(batch), len(flat)), flat, mask, rows)
        self._fed += 1
        if stack.is_full:
            self._run(stack)

    def finish(self) -> list[EstimatedSpectra]:
        """The spectra of all states in order; the only GPU synchronisation."""
        for stack in self._waiting.values():
            if stack.states:
                self._run(stack)
        self._waiting.clear()
        spectra = _weigh_together(self._done)
        return [spectra[number] for number in range(self._fed)]

    def _run(self, stack: "_Stack") -> None:
        states, matrix = stack.empty()
        key = (min(matrix.terms[0].shape[-2:]), matrix.s.device, matrix.s.dtype)
        if key not in self._starts:
            self._starts[key] = lanczos.draw_starts(*key, _SEEKERS, self._probes, self._seed)
        starts = self._starts[key]
        fourth = matrix.energy.new_full((), torch.nan).expand_as(matrix.energy)
        if self._fourth_powers:
            fourth = split.sum_of_fourth_powers(matrix)
        diagonals = lanczos.bidiagonalise(matrix, starts, self._steps, fourth)
        self._done.append(_Batch(states, starts, diagonals))


class _FedState(NamedTuple):
    """One state among those fed: its number, its leading axes, how many samples it has."""

    number: int
    shape: tuple[int, ...]
    samples: int


@dataclass
class _Batch:
    """Results of several states, on their device until they are transferred to the host."""

    states: list[_FedState]
    starts: Starts
    matrices: Bidiagonal


class _Stack:
    """States of one shape, dtype and device, in buffers for as many as fit into some bytes."""

    def __init__(self, like: Hidden, limit: int) -> None:
        pieced = in_pieces(like)
        terms = split.allocate_terms(like[:0], 1, pieced=pieced)
        size = sum(term.element_size() for term in terms) * like.numel()
        self._most = max(1, min(_MOST_STATES, limit // max(size, 1)))
        self._terms = split.allocate_terms(like, self._most, pieced=pieced)
        self.states: list[_FedState] = []
        self._moved: list[Moved] = []

    @property
    def is_full(self) -> bool:
        """Whether no other state fits."""
        return len(self.states) >= self._most

    def add(self, state: _FedState, x: Hidden, mask: TokenMask | None, center: Rows | None) -> None:
        """Copy a state in, without its mean."""
        at = len(self.states) * state.samples
        into = tuple(term[at : at + state.samples] for term in self._terms)
        self._moved.append(split.move_mean(x, mask, center, into))
        self.states.append(state)

    def empty(self) -> tuple[list[_FedState], MeanSplit]:
        """All states in the stack as one batch, which the next states overwrite."""
        states, moved = self.states, Moved(*map(torch.cat, zip(*self._moved, strict=True)))
        count = sum(state.samples for state in states)
        self.states, self._moved = [], []
        return states, split.assemble(tuple(term[:count] for term in self._terms), moved)


def _weigh_together(batches: list[_Batch]) -> dict[int, EstimatedSpectra]:
    """The spectra of all states, brought to the host in one piece for each device and weighed."""
    for alike in _grouped(batches, lambda batch: batch.matrices.alpha.device):
        tensors = [tensor for batch in alike for tensor in batch.matrices]
        flat = torch.cat([tensor.flatten() for tensor in tensors]).cpu().double()
        pieces = flat.split([tensor.numel() for tensor in tensors])
        host = (piece.reshape(x.shape) for piece, x in zip(pieces, tensors, strict=True))
        for batch in alike:
            batch.matrices = Bidiagonal(*islice(host, len(Bidiagonal._fields)))
    spectra = {}
    for alike in _grouped(batches, lambda batch: id(batch.starts)):
        starts, states = alike[0].starts, [state for batch in alike for state in batch.states]
        chance = starts.probes.shape[0] if starts.by_chance else 0
        matrices = zip(*(batch.matrices for batch in alike), strict=True)
        known = lanczos.weigh(Bidiagonal(*map(torch.cat, matrices)), chance)
        parts = zip(
            *(part.split([state.samples for state in states]) for part in known), strict=True
        )
        for state, part in zip(states, parts, strict=True):
            spectra[state.number] = EstimatedSpectra(SpectralEvidence(*part), state.shape, chance)
    return spectra


def _grouped(batches: list[_Batch], key: Callable[[_Batch], object]) -> Iterable[list[_Batch]]:
    groups: dict[object, list[_Batch]] = {}
    for batch in batches:
        groups.setdefault(key(batch), []).append(batch)
    return groups.values()
