"""Scores that depend on positions: rotary embeddings, relative biases, ALiBi, sinks.

Those that depend on the pair of positions (all but sinks, and XLNet's) turn the doubly exponential
collapse of plain attention into an exponential one (docs/theory.md, section 5).
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from rankscope.arguments import Count, checked
from rankscope.core.checks import number, whole
from rankscope.core.network._scores import Heads, Positions, ScoreEntry, Scores
from rankscope.core.network._visibility import Bias
from rankscope.errors import InputError, KindError, SpecError
from rankscope.streams import stream


@checked
@dataclass(frozen=True, kw_only=True)
class Rotary:
    """Rotary embeddings with the usual frequencies, ``base^(−2i/head_width)`` for pair i.

    >>> from rankscope.core.network import Rotary, Spec
    >>> spec = Spec(2, 2, 8, scores=Rotary(base=10000.0))

    Su et al. 2021 (RoFormer), with the coordinates paired as in GPT-NeoX and Llama: i with
    i + head_width/2.
    """

    base: float = 10000.0

    def __post_init__(self) -> None:
        base = number("Rotary base", self.base, error=SpecError)
        if base <= 0:
            raise SpecError(f"Rotary base={base:g} must be greater than zero.")
        object.__setattr__(self, "base", base)

    def build(self, heads: Count, head_width: Count) -> Scores:
        del heads
        if head_width % 2:
            raise SpecError(
                f"Rotary rotates coordinates in pairs, but head_width={head_width} is odd; use an "
                "even one."
            )
        return RotaryScores(self.base ** -(torch.arange(0, head_width, 2) / head_width))

    def __str__(self) -> str:
        return "rotary" if self.base == 10000.0 else f"rotary(base {self.base:g})"


class RotaryScores(Scores):
    """Rotary embeddings: pairs of coordinates of queries and keys are rotated by the position.

    ``2·len(frequencies)`` coordinates are rotated, those from ``start`` on. A pair is coordinates
    i and i + len(frequencies) of them (Llama), or, if ``interleaved``, 2i and 2i + 1 (GPT-J).
    Angles are computed in float32, as in every published model, so that they are the same in every
    dtype.
    """

    def __init__(
        self,
        frequencies: Float[Tensor, "pair"],
        *,
        scaling: float = 1.0,
        interleaved: bool = False,
        start: int = 0,
    ) -> None:
        super().__init__()
        # Not a buffer: casting a network to half precision must not round the angles.
        self.frequencies = frequencies.detach().float().clone()
        self.scaling, self.interleaved, self.start = scaling, interleaved, start

    def frequencies_at(self, positions: Positions) -> Float[Tensor, "pair"]:
        """The frequencies for sequences of this length."""
        del positions
        return self.frequencies

    def prepare(self, query: Heads, key: Heads, positions: Positions) -> tuple[Heads, Heads]:
        frequencies = self.frequencies_at(positions).to(query.device)
        angles = positions[:, None, :, None].float() * frequencies
        cos = (angles.cos() * self.scaling).to(query.dtype)
        sin = (angles.sin() * self.scaling).to(query.dtype)
        turn = partial(_turn, cos=cos, sin=sin, interleaved=self.interleaved, start=self.start)
        return turn(query), turn(key)


class ChangingRotary(RotaryScores):
    """Rotary embeddings whose frequencies change with the length (dynamic NTK, LongRoPE).

    ``longer`` gives those of sequences of more than ``limit`` tokens, by their number. The longest
    sequence of a batch decides for all of it, as in the originals.
    """

    def __init__(
        self,
        frequencies: Float[Tensor, "pair"],
        *,
        limit: int,
        longer: Callable[[int], Float[Tensor, "pair"]],
        scaling: float = 1.0,
        interleaved: bool = False,
        start: int = 0,
    ) -> None:
        super().__init__(frequencies, scaling=scaling, interleaved=interleaved, start=start)
        self.limit, self.longer = limit, longer

    def frequencies_at(self, positions: Positions) -> Float[Tensor, "pair"]:
        tokens = int(positions.max()) + 1
        return self.frequencies if tokens <= self.limit else self.longer(tokens).float()


class RotaryTable(Scores):
    """Rotations given for each position, as those of a grid of image patches (DINOv3).

    ``cos`` and ``sin`` are for the last positions; those before them, such as a class token and
    registers, are not rotated.
    """

    def __init__(self, cos: Float[Tensor, "token pair"], sin: Float[Tensor, "token pair"]) -> None:
        super().__init__()
        self.cos, self.sin = cos.detach().clone(), sin.detach().clone()

    def prepare(self, query: Heads, key: Heads, positions: Positions) -> tuple[Heads, Heads]:
        tokens = positions[:, -1:] + 1  # the last position counts the real tokens
        fewest = int(tokens.min())
        if fewest < len(self.cos):
            raise InputError(
                f"the rotations are for {len(self.cos)} tokens, got {fewest}; images have one "
                "size here."
            )
        cos, sin = self.cos.to(query), self.sin.to(query)
        cos, sin = torch.cat((torch.ones_like(cos[:1]), cos)), torch.cat((0 * sin[:1], sin))
        index = (positions - tokens + len(cos)).clamp(min=0)  # row 0 does not rotate
        turn = partial(_turn, cos=cos[index].unsqueeze(1), sin=sin[index].unsqueeze(1))
        return turn(query), turn(key)


def _turn(
    x: Heads, *, cos: Tensor, sin: Tensor, interleaved: bool = False, start: int = 0
) -> Heads:
    """Rotate pairs of coordinates, from ``start`` on."""
    stop = start + 2 * cos.shape[-1]
    before, turning, after = x[..., :start], x[..., start:stop], x[..., stop:]
    if interleaved:
        first, second = turning[..., ::2], turning[..., 1::2]
    else:
        first, second = turning.chunk(2, dim=-1)
    pair = first * cos - second * sin, second * cos + first * sin
    turned = torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)
    return torch.cat((before, turned, after), dim=-1) if turned.shape != x.shape else turned


@checked
@dataclass(frozen=True, kw_only=True)
class RelativeBias:
    """A bias for each head and bucket of distances, as T5's, drawn from a standard normal.

    >>> from rankscope.core.network import RelativeBias, Spec
    >>> spec = Spec(2, 2, 8, scores=RelativeBias(buckets=32, farthest=128, seed=0))

    Raffel et al. 2020. Half of the ``buckets`` are for keys before the query, half for keys after
    it; of each half, half for single distances and half for geometric ranges up to ``farthest``.
    As in T5 all layers have the same biases.
    """

    buckets: int = 32
    farthest: int = 128
    seed: int = 0

    def __post_init__(self) -> None:
        whole("RelativeBias buckets", self.buckets, least=4, error=SpecError)
        if self.buckets % 2:
            raise SpecError(f"RelativeBias buckets={self.buckets} is odd; both sides need as many.")
        whole("RelativeBias farthest", self.farthest, least=self.buckets // 4 + 1, error=SpecError)
        whole("RelativeBias seed", self.seed, least=0, error=SpecError)

    def build(self, heads: Count, head_width: Count) -> Scores:
        del head_width
        generator = stream(self.seed, "relative bias")
        drawn = torch.randn(self.buckets, heads, generator=generator)
        table = nn.Embedding.from_pretrained(drawn, freeze=False)
        return BucketedBiasScores(table, farthest=self.farthest)

    def __str__(self) -> str:
        return f"relative bias({self.buckets} buckets to {self.farthest}, seed {self.seed})"


class BucketedBiasScores(Scores):
    """T5's learned bias for each bucket of distances: exact when near, logarithmic when far."""

    def __init__(self, table: nn.Embedding, *, farthest: int, two_sided: bool = True) -> None:
        super().__init__()
        self.table = table
        self.farthest, self.two_sided = farthest, two_sided

    def bias(self, query: Heads, key: Heads, positions: Positions) -> Bias:
        del query, key
        ahead = positions[:, None, :] - positions[:, :, None]
        biases: Tensor = self.table(self._bucket(ahead).to(self.table.weight.device))
        return biases.permute(0, 3, 1, 2).to(positions.device)

    def _bucket(self, ahead: Int[Tensor, "rows query key"]) -> Int[Tensor, "rows query key"]:
        """Half of the buckets for single distances, half for geometric ranges of them."""
        buckets, first = self.table.num_embeddings, torch.zeros_like(ahead)
        if self.two_sided:
            buckets //= 2
            first = torch.where(ahead > 0, buckets, 0)
            distance = ahead.abs()
        else:
            distance = (-ahead).clamp(min=0)
        exact = buckets // 2
        scale = (buckets - exact) / math.log(self.farthest / exact)
        far = exact + (torch.log(distance.float() / exact) * scale).long()
        return first + torch.where(distance < exact, distance, far.clamp(max=buckets - 1))


@checked
@dataclass(frozen=True, kw_only=True)
class ALiBi:
    """A distance penalty, ``−slope_h·|i − j|``, under any mask.

    >>> from rankscope.core.network import ALiBi, Spec
    >>> spec = Spec(2, 8, 64, scores=ALiBi(), mask="causal")

    Press et al. 2022: without ``slopes``, head h of H (from 1) has ``2^(−8h/H)`` if H is a power of
    two. Otherwise, as in their code and in BLOOM: the slopes of the next smaller power of two, then
    every other slope of the next greater one.
    """

    slopes: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.slopes is None:
            return
        if not isinstance(self.slopes, Iterable) or isinstance(self.slopes, str):
            raise KindError(f"ALiBi slopes={self.slopes!r}: expected a number for each head.")
        slopes = tuple(number("ALiBi slope", slope, error=SpecError) for slope in self.slopes)
        object.__setattr__(self, "slopes", slopes)

    def build(self, heads: Count, head_width: Count) -> Scores:
        del head_width
        slopes = _published_slopes(heads) if self.slopes is None else self.slopes
        if len(slopes) != heads:
            raise SpecError(
                f"ALiBi has {len(slopes)} slopes for {heads} heads; give one for each head, or "
                "none for the published ones."
            )
        return ALiBiScores(slopes)

    def __str__(self) -> str:
        if not self.slopes:
            return "alibi"
        return f"alibi({', '.join(f'{slope:g}' for slope in self.slopes)})"


class ALiBiScores(Scores):
    """A bias of distances, with a slope for each head."""

    def __init__(self, slopes: tuple[float, ...]) -> None:
        super().__init__()
        # Not a buffer: slopes are constants, and casting a network must not round them.
        self.slopes = slopes

    def bias(self, query: Heads, key: Heads, positions: Positions) -> Bias:
        del key
        apart = (positions[:, None, :, None] - positions[:, None, None, :]).abs()
        slopes = torch.tensor(self.slopes, dtype=query.dtype, device=query.device)
        return -slopes[:, None, None] * apart.to(query.dtype)


def _published_slopes(heads: int) -> tuple[float, ...]:
    """The slopes of Press et al. 2022, and of their code if ``heads`` is not a power of two."""
    power = 2 ** (heads.bit_length() - 1)
    whole = [2 ** (-8 * head / power) for head in range(1, power + 1)]
    between = [2 ** (-8 * (head - 0.5) / power) for head in range(1, power + 1)]
    return tuple(whole + between[: heads - power])


@checked
@dataclass(frozen=True, kw_only=True)
class Sink:
    """Attention sinks: logits to the first ``tokens`` tokens are raised by ``strength``.

    >>> from rankscope.core.network import Sink, Spec
    >>> spec = Spec(2, 2, 8, scores=Sink(tokens=1, strength=4.0), mask="causal")

    After Xiao et al. 2024, who find such tokens in trained models. A bias of keys alone: once the
    tokens agree, so do the rows of P.
    """

    tokens: int = 1
    strength: float = 4.0

    def __post_init__(self) -> None:
        whole("Sink tokens", self.tokens, least=1, error=SpecError)
        strength = number("Sink strength", self.strength, error=SpecError)
        object.__setattr__(self, "strength", strength)

    def build(self, heads: Count, head_width: Count) -> Scores:
        del heads, head_width
        return SinkScores(self.tokens, self.strength)

    def __str__(self) -> str:
        return f"sink(first {self.tokens}, {self.strength:+g})"


class SinkScores(Scores):
    """A bias of the first keys."""

    def __init__(self, tokens: int, strength: float) -> None:
        super().__init__()
        self.tokens, self.strength = tokens, strength

    def bias(self, query: Heads, key: Heads, positions: Positions) -> Bias:
        del key
        first = positions < self.tokens
        return (first.to(query.dtype) * self.strength)[:, None, None, :]


POSITION_SCORES = (
    ScoreEntry("rotary", RotaryScores, "rotary", Rotary(), rule="turn"),
    ScoreEntry("rotary, by length", ChangingRotary, rule="turn"),
    ScoreEntry("rotations of a grid", RotaryTable, rule="turn"),
    ScoreEntry("relative bias", BucketedBiasScores, "relative", RelativeBias(), rule="bias"),
    ScoreEntry("ALiBi", ALiBiScores, "alibi", ALiBi(), rule="bias"),
    ScoreEntry("sink", SinkScores, "sink", Sink(), rule="bias"),
)
