"""Attention masks as values: who may attend to whom, as a function of positions.

A mask is asked with positions, not with tensor indices, and positions count real tokens only. So a
sequence is masked in the same way whatever padding surrounds it.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from rankscope.errors import KindError, ShapeError, SpecError


class Mask(ABC):
    """Which keys each query may attend to; frozen, hashable, independent of any network."""

    @abstractmethod
    def allows(self, query: Int[Tensor, "..."], key: Int[Tensor, "..."]) -> Bool[Tensor, "..."]:
        """True where the token at position ``query`` may attend to the one at ``key``."""

    def matrix(self, tokens: int) -> Bool[Tensor, "query key"]:
        """The mask of a sequence without padding.

        >>> Causal().matrix(2)
        tensor([[ True, False],
                [ True,  True]])
        """
        position = torch.arange(tokens)
        return self.allows(position[:, None], position[None, :])


@dataclass(frozen=True)
class Full(Mask):
    """Every token attends to every token."""

    def allows(self, query: Int[Tensor, "..."], key: Int[Tensor, "..."]) -> Bool[Tensor, "..."]:
        return torch.ones_like(query + key, dtype=torch.bool)

    def __str__(self) -> str:
        return "full"


@dataclass(frozen=True)
class Causal(Mask):
    """Every token attends to itself and to what came before."""

    def allows(self, query: Int[Tensor, "..."], key: Int[Tensor, "..."]) -> Bool[Tensor, "..."]:
        return key <= query

    def __str__(self) -> str:
        return "causal"


@dataclass(frozen=True)
class Window(Mask):
    """Every token attends to ``before`` tokens on its left, itself, and ``after`` on its right."""

    before: int
    after: int

    def __post_init__(self) -> None:
        for name, reach in {"before": self.before, "after": self.after}.items():
            if isinstance(reach, bool) or not isinstance(reach, int):
                raise KindError(
                    f"Window {name}={reach!r} is a {type(reach).__name__}, expected a whole number."
                )
        if self.before < 0 or self.after < 0:
            raise SpecError(
                f"Window(before={self.before}, after={self.after}) reaches a negative number of "
                "tokens; both must be 0 or more."
            )

    def allows(self, query: Int[Tensor, "..."], key: Int[Tensor, "..."]) -> Bool[Tensor, "..."]:
        return (key >= query - self.before) & (key <= query + self.after)

    def __str__(self) -> str:
        return f"window(-{self.before}, +{self.after})"


@dataclass(frozen=True)
class Explicit(Mask):
    """Any mask, for sequences of one length, as a boolean matrix: ``Explicit.of(matrix)``."""

    tokens: int
    bits: bytes

    @classmethod
    def of(cls, matrix: Tensor) -> "Explicit":
        """Take a boolean ``(query, key)`` matrix; True where the query may attend to the key."""
        if not isinstance(matrix, Tensor) or matrix.dtype != torch.bool:
            is_tensor = isinstance(matrix, Tensor)
            got = f"dtype {matrix.dtype}" if is_tensor else type(matrix).__name__
            raise KindError(
                f"a mask is a boolean matrix, got {got}; convert: torch.as_tensor(mask).bool()."
            )
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.shape[0] == 0:
            raise ShapeError(f"a mask is (query, key) and square, got shape {tuple(matrix.shape)}.")
        blind = ~matrix.any(-1)
        if bool(blind.any()):
            raise SpecError(
                f"token {int(blind.nonzero()[0])} may attend to nothing; give every row of the "
                "mask at least one True (usually the diagonal)."
            )
        return cls(matrix.shape[0], np.packbits(matrix.cpu().numpy()).tobytes())

    def allows(self, query: Int[Tensor, "..."], key: Int[Tensor, "..."]) -> Bool[Tensor, "..."]:
        longest = int(torch.maximum(query.max(), key.max())) + 1
        if longest != self.tokens:
            raise ShapeError(
                f"the mask is for {self.tokens} tokens, the sequence has {longest}; "
                "cut the sequence or make the mask for its length."
            )
        flat = np.unpackbits(np.frombuffer(self.bits, dtype=np.uint8), count=self.tokens**2)
        matrix = torch.from_numpy(flat).bool().view(self.tokens, self.tokens).to(query.device)
        # Padding has position -1 on the left; its rows and columns are dropped by the caller.
        return matrix[query.clamp(min=0), key.clamp(min=0)]

    def __str__(self) -> str:
        return f"explicit({self.tokens} tokens)"


def as_mask(mask: "str | Mask | Tensor") -> Mask:
    """A mask from its name (``"full"``, ``"causal"``), a boolean matrix, or itself."""
    if isinstance(mask, Mask):
        return mask
    if isinstance(mask, Tensor):
        return Explicit.of(mask)
    named: dict[str, Mask] = {"full": Full(), "causal": Causal()}
    if not isinstance(mask, str):
        raise KindError(
            f"mask is a {type(mask).__name__}, expected a name, a Mask, or a boolean tensor: "
            "torch.as_tensor(mask)."
        )
    if mask not in named:
        raise SpecError(
            f"mask={mask!r} is unknown; expected {' or '.join(map(repr, named))}, a Mask such as "
            "Window(before=2, after=2), or a boolean (query, key) matrix."
        )
    return named[mask]
