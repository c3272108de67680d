"""ALiBi: a penalty of distance, with a slope for each head."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from rankscope.arguments import Count, checked
from rankscope.core.checks import number
from rankscope.core.network._scores.base import Bias, Heads, Positions, Scores
from rankscope.errors import KindError, SpecError


@checked
@dataclass(frozen=True, kw_only=True)
class ALiBi:
    """A penalty of distance, ``−slope_h·|i − j|``, under whatever mask.

    >>> from rankscope import Spec
    >>> from rankscope.core.network import ALiBi
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
        slopes = alibi_slopes(heads) if self.slopes is None else self.slopes
        if len(slopes) != heads:
            raise SpecError(
                f"ALiBi has {len(slopes)} slopes for {heads} heads; give one for each head, or "
                "none for the published ones."
            )
        return ALiBiScores(slopes)

    def __str__(self) -> str:
        own = "" if self.slopes is None else ", ".join(f"{slope:g}" for slope in self.slopes)
        return f"alibi({own})" if own else "alibi"


class ALiBiScores(Scores):
    """A bias of distances, with a slope for each head."""

    def __init__(self, slopes: tuple[float, ...]) -> None:
        super().__init__()
        # Not a buffer: slopes are constants, and casting a network must not round them for good.
        self.slopes = slopes

    def bias(self, query: Heads, key: Heads, positions: Positions) -> Bias:
        del key
        apart = (positions[:, None, :, None] - positions[:, None, None, :]).abs()
        slopes = torch.tensor(self.slopes, dtype=query.dtype, device=query.device)
        return -slopes[:, None, None] * apart.to(query.dtype)


def alibi_slopes(heads: int) -> tuple[float, ...]:
    """The published slopes of ALiBi (Press et al. 2022, and their code where no power of two).

    >>> from rankscope.core.network import alibi_slopes
    >>> alibi_slopes(2)
    (0.0625, 0.00390625)
    """
    power = 2 ** (heads.bit_length() - 1)
    whole = [2 ** (-8 * head / power) for head in range(1, power + 1)]
    between = [2 ** (-8 * (head - 0.5) / power) for head in range(1, power + 1)]
    return tuple(whole + between[: heads - power])
