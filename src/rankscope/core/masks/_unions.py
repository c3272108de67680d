"""Unions with a name of their own: the Sparse Transformer's fixed pattern and BigBird."""

from abc import abstractmethod
from dataclasses import dataclass

from jaxtyping import Bool, Int
from torch import Tensor

from rankscope.arguments import checked
from rankscope.core.checks import whole
from rankscope.core.masks._codes import Codes
from rankscope.core.masks._intervals import BlockLocal, window
from rankscope.core.masks._mask import LengthMask, Mask, Union, count
from rankscope.core.masks._random import Random
from rankscope.core.masks._sparse import Columns, Star
from rankscope.errors import SpecError


class _Together(LengthMask):
    """A named union."""

    @property
    @abstractmethod
    def parts(self) -> tuple[Mask, ...]: ...

    def allows_in(
        self, query: Int[Tensor, "..."], key: Int[Tensor, "..."], tokens: Int[Tensor, "..."]
    ) -> Bool[Tensor, "..."]:
        return Union(self.parts).allows_in(query, key, tokens)

    def most_edges(self, tokens: int) -> int:
        return Union(self.parts).most_edges(tokens)

    def codes(self, tokens: int) -> Codes:
        return Union(self.parts).codes(tokens)


@checked
@dataclass(frozen=True)
class Fixed(_Together):
    """A token's own block of ``stride`` tokens, and the last token of every block.

    The fixed pattern of the Sparse Transformer (Child et al. 2019) with its two heads in one;
    theirs is ``Fixed(stride) & Causal()``.
    """

    stride: int

    def __post_init__(self) -> None:
        count("Fixed stride", self.stride, least=1)

    @property
    def parts(self) -> tuple[Mask, ...]:
        return (BlockLocal(self.stride), Columns(self.stride))

    def __str__(self) -> str:
        return f"fixed({self.stride})"


@checked
@dataclass(frozen=True)
class BigBird(_Together):
    """Window, global tokens and random keys (Zaheer et al. 2020), all by tokens, not by blocks.

    Every token sees ``window`` tokens to either side and ``random`` keys drawn as ``Random`` draws
    them; the first ``hubs`` tokens see all and are seen by all. 0 leaves hubs or draws out.
    """

    window: int
    hubs: int
    random: int
    seed: int = 0

    def __post_init__(self) -> None:
        whole("BigBird seed", self.seed, least=0, error=SpecError)
        for name in ("window", "hubs", "random"):
            count(f"BigBird {name}", getattr(self, name), least=0)

    @property
    def parts(self) -> tuple[Mask, ...]:
        hubs = (Star(self.hubs),) if self.hubs else ()
        draws = (Random(self.random, self.seed),) if self.random else ()
        return (window(self.window), *hubs, *draws)

    def __str__(self) -> str:
        return (
            f"bigbird(window {self.window}, hubs {self.hubs}, "
            f"random {self.random}, seed {self.seed})"
        )
