"""Scores without positions: Gaussian and linear kernels, Linformer, sparsemax."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from rankscope.arguments import Count, checked
from rankscope.core.checks import number, whole
from rankscope.core.network._scores import Heads, Pairs, Positions, ScoreEntry, Scores
from rankscope.core.network._visibility import Visibility
from rankscope.errors import SpecError

Wider = Float[Tensor, "batch head token wider"]


@checked
@dataclass(frozen=True, kw_only=True)
class GaussianKernel:
    """Softmax of ``−scale·‖qᵢ − kⱼ‖²/(2·bandwidth²)``: keys attract by nearness, not by length.

    >>> from rankscope.core.network import GaussianKernel, Spec
    >>> spec = Spec(2, 2, 8, scores=GaussianKernel(bandwidth=2.0))

    Chen et al. 2021 (Skyformer), with rows normalised. ``scale`` is the spec's ``score_scale``, by
    default ``1/√head_width`` as there; so bandwidth 1 is dot-product attention less half the
    squared length of each key, and ``score_scale=1`` gives a bandwidth in the units of the queries.
    """

    bandwidth: float = 1.0

    def __post_init__(self) -> None:
        bandwidth = number("GaussianKernel bandwidth", self.bandwidth, error=SpecError)
        if bandwidth <= 0:
            raise SpecError(f"GaussianKernel bandwidth={bandwidth:g} must be greater than zero.")
        object.__setattr__(self, "bandwidth", bandwidth)

    def build(self, heads: Count, head_width: Count) -> Scores:
        del heads, head_width
        return GaussianKernelScores(self.bandwidth)

    def __str__(self) -> str:
        return f"gaussian kernel(bandwidth {self.bandwidth:g})"


class GaussianKernelScores(Scores):
    """Queries and keys with one more coordinate, so that products become distances."""

    def __init__(self, bandwidth: float) -> None:
        super().__init__()
        self.bandwidth = bandwidth

    def prepare(self, query: Heads, key: Heads, positions: Positions) -> tuple[Wider, Wider]:
        """Derived: ``−‖q − k‖²/2 = (q, 1)·(k, −‖k‖²/2) − ‖q‖²/2``; the softmax drops the last.

        The bias of a key rides in the product, so that the scale applies to it too.
        """
        del positions
        query, key = query / self.bandwidth, key / self.bandwidth
        one = torch.ones_like(query[..., :1])
        half_length = key.square().sum(-1, keepdim=True) / 2
        return torch.cat((query, one), -1), torch.cat((key, -half_length), -1)


@checked
@dataclass(frozen=True)
class LinearKernel:
    """Linear attention: ``P_ij = φ(qᵢ)·φ(kⱼ) / Σ_l φ(qᵢ)·φ(k_l)`` with ``φ = elu + 1``.

    >>> from rankscope.core.network import LinearKernel, Spec
    >>> spec = Spec(2, 2, 8, scores=LinearKernel())

    Katharopoulos et al. 2020, eq. 4 and 7. The score scale cancels.
    """

    def build(self, heads: Count, head_width: Count) -> Scores:
        del heads, head_width
        return LinearKernelScores()

    def __str__(self) -> str:
        return "linear kernel"


class LinearKernelScores(Scores):
    """Products of positive features, divided by their sum."""

    def prepare(self, query: Heads, key: Heads, positions: Positions) -> tuple[Heads, Heads]:
        del positions
        # A factor of the query cancels, so the features of a query need not underflow.
        logs = log_positive_feature(query)
        return (logs - logs.amax(-1, keepdim=True)).exp(), positive_feature(key)

    def weights(self, logits: Pairs, visibility: Visibility) -> Pairs:
        products = visibility.hide(logits).clamp(min=0)  # hidden pairs: from −∞ to zero
        # If every product underflows, or the scale is zero, all keys have equal weight.
        vanished = products.sum(-1, keepdim=True) == 0
        alike = visibility.hide(torch.ones_like(logits)).clamp(min=0)
        products = torch.where(vanished, alike, products)
        return products / products.sum(-1, keepdim=True)


def positive_feature(x: Heads) -> Heads:
    """``elu(x) + 1``, computed so that ``e^x`` keeps its digits if it is small."""
    return x.clamp(max=0).exp() + x.relu()


def log_positive_feature(x: Heads) -> Heads:
    """The logarithm of ``positive_feature``, which does not underflow."""
    return torch.where(x > 0, x.relu().log1p(), x)


@checked
@dataclass(frozen=True, kw_only=True)
class Linformer:
    """Attention to ``segments`` averages of neighbouring keys and values instead of all of them.

    >>> from rankscope.core.network import Linformer, Spec
    >>> spec = Spec(2, 2, 8, scores=Linformer(segments=4))

    Wang et al. 2020, section 4, with mean pooling for the projection: token p of n real ones falls
    into segment ``⌊p·segments/n⌋``. A sequence of n ≤ ``segments`` tokens has a segment for each,
    and this is plain attention. An average mixes what came before a token with what comes after, so
    only the full mask makes sense.
    """

    segments: int

    def __post_init__(self) -> None:
        whole("Linformer segments", self.segments, least=1, error=SpecError)

    def build(self, heads: Count, head_width: Count) -> Scores:
        del heads, head_width
        return LinformerScores(self.segments)

    def __str__(self) -> str:
        return f"linformer({self.segments} segments)"


class LinformerScores(Scores):
    """A softmax over segments, spread evenly over the tokens of each."""

    def __init__(self, segments: int) -> None:
        super().__init__()
        self.segments = segments

    def weights(self, logits: Pairs, visibility: Visibility) -> Pairs:
        """``softmax(logits Fᵀ) F``: derived, as ``q·(Σ_j F_sj k_j) = Σ_j F_sj (q·k_j)``."""
        self.refuse_masks(visibility)
        pool = self.pooling(visibility, logits.dtype)
        empty = pool.sum(-1) == 0  # rows 1 segment
        pooled = (logits @ pool.mT).masked_fill(empty.unsqueeze(-2), -math.inf)
        return pooled.softmax(-1) @ pool

    def pooling(
        self, visibility: Visibility, dtype: torch.dtype
    ) -> Float[Tensor, "rows 1 segment token"]:
        """The projection F: each row the mean over a segment's real tokens, or zero if none."""
        positions = visibility.positions[:, None, None, :]
        real = positions >= 0 if visibility.allowed is None else visibility.allowed
        count = real.sum(-1, keepdim=True)
        segment = torch.arange(self.segments, device=positions.device)[:, None]
        inside = (positions * self.segments // count == segment) & real
        return inside.to(dtype) / inside.sum(-1, keepdim=True).clamp(min=1)

    def refuse_masks(self, visibility: Visibility) -> None:
        """Raise if a mask hides tokens."""
        if visibility.allowed is not None and visibility.allowed.shape[-2] != 1:
            raise SpecError(
                "Linformer pools the keys of a whole sequence, so every token must see every other "
                "one, but this mask hides some; use mask='full' (network.with_mask('full'))."
            )


@checked
@dataclass(frozen=True)
class Sparsemax:
    """The nearest point of the simplex to the logits instead of their softmax: many exact zeros.

    >>> from rankscope.core.network import Sparsemax, Spec
    >>> spec = Spec(2, 2, 8, scores=Sparsemax())

    Martins and Astudillo 2016.
    """

    def build(self, heads: Count, head_width: Count) -> Scores:
        del heads, head_width
        return SparsemaxScores()

    def __str__(self) -> str:
        return "sparsemax"


class SparsemaxScores(Scores):
    """Sparsemax weights of the usual logits."""

    sparse = True

    def weights(self, logits: Pairs, visibility: Visibility) -> Pairs:
        return sparsemax(visibility.hide(logits))


def sparsemax(logits: Pairs) -> Pairs:
    """``argmin_p ‖p − z‖²`` over probability vectors p, row by row; minus infinity stays at zero.

    Martins and Astudillo 2016, algorithm 1: ``p = max(z − τ, 0)`` where the k largest entries are
    the support, k being the last with ``1 + k z_(k) > Σ_{i≤k} z_(i)``, and τ makes them sum to one.
    """
    # Half precision is too short for sums; a shift changes nothing and keeps them near zero.
    z = logits.to(torch.promote_types(logits.dtype, torch.float32))
    z = z - z.detach().amax(-1, keepdim=True)
    largest = z.sort(-1, descending=True).values
    sums = largest.cumsum(-1)
    rank = torch.arange(1, z.shape[-1] + 1, device=z.device)
    size = (1 + rank * largest > sums).sum(-1, keepdim=True).clamp(min=1)  # for NaN: no support
    threshold = (sums.gather(-1, size - 1) - 1) / size
    return (z - threshold).clamp(min=0).to(logits.dtype)


CONTENT_SCORES = (
    ScoreEntry(
        "Gaussian kernel", GaussianKernelScores, "gaussian", GaussianKernel(), rule="gaussian"
    ),
    ScoreEntry("linear kernel", LinearKernelScores, "linear", LinearKernel(), rule="linear kernel"),
    ScoreEntry("Linformer", LinformerScores, "linformer", Linformer(segments=4), rule="linformer"),
    ScoreEntry("sparsemax", SparsemaxScores, "sparsemax", Sparsemax(), rule="sparsemax"),
)
