"""What each token can see in one forward pass: positions and allowed pairs, worked out once."""

import math
from dataclasses import dataclass
from typing import Self

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rankscope.arguments import checked
from rankscope.core.masks import Full, Mask, dense, token_count
from rankscope.errors import InputError, ShapeError

Bias = Float[Tensor, "#batch #head #query key"]


@checked
@dataclass(frozen=True)
class Visibility:
    """The mask of a batch, padding taken into account.

    >>> import torch
    >>> from rankscope.core.masks import Causal
    >>> from rankscope.core.network import Visibility
    >>> Visibility.of(Causal(), 2, None, torch.device("cpu")).allowed[0, 0].tolist()
    [[True, False], [True, True]]

    ``allowed`` is broadcast over heads; None means that every token sees every token.
    """

    positions: Int[Tensor, "rows token"]
    allowed: Bool[Tensor, "rows 1 #query key"] | None

    @classmethod
    def of(
        cls,
        mask: Mask,
        tokens: int,
        token_mask: Bool[Tensor, "batch token"] | None,
        device: torch.device,
    ) -> Self:
        """Apply a mask to sequences of ``tokens`` tokens, some of which may be padding.

        Positions count the real tokens of each sequence, so left and right padding change nothing.
        """
        if token_mask is not None:
            if token_mask.ndim != 2 or token_mask.shape[1] != tokens:
                raise ShapeError(
                    f"token_mask has shape {tuple(token_mask.shape)}, expected (batch, {tokens})."
                )
            token_mask = token_mask.to(device)
        token_count(tokens)
        if not isinstance(mask, Full):
            dense(tokens, 1 if token_mask is None else len(token_mask))
        if token_mask is None:
            positions = torch.arange(tokens, device=device).unsqueeze(0)
            if isinstance(mask, Full):
                return cls(positions, None)
            allowed = mask.allows(positions[:, :, None], positions[:, None, :])
        else:
            positions = token_mask.cumsum(-1) - 1
            keys = token_mask[:, None, :]
            if isinstance(mask, Full):
                return cls(positions, keys.unsqueeze(1))
            allowed = mask.allows(positions[:, :, None], positions[:, None, :]) & keys
            # A padding query looks at itself: its output is never used, but must not be NaN.
            itself = torch.eye(tokens, dtype=torch.bool, device=device)
            allowed = torch.where(token_mask.unsqueeze(-1), allowed, itself)
        blind = ~allowed.any(-1)
        if bool(blind.any()):
            sample, token = blind.nonzero()[0].tolist()
            raise InputError(
                f"under the mask {mask} token {token} of sample {sample} has no key to attend to; "
                "every token needs at least one key that is not padding."
            )
        return cls(positions, allowed.unsqueeze(1))

    def uniform(self, dtype: torch.dtype) -> Float[Tensor, "rows 1 #query key"]:
        """The same weight for every key that a query sees."""
        allowed = self.allowed
        if allowed is None:
            allowed = torch.ones_like(self.positions, dtype=torch.bool)[:, None, None, :]
        return allowed.to(dtype) / allowed.sum(-1, keepdim=True)

    def hide(self, logits: Bias) -> Bias:
        """Logits with minus infinity for every pair that may not attend."""
        if self.allowed is None:
            return logits
        return torch.where(self.allowed, logits, logits.new_full((), -math.inf))

    def select(self, samples: Bool[Tensor, "batch"]) -> Self:
        """What the tokens of some of the samples can see."""
        positions = self.positions if len(self.positions) == 1 else self.positions[samples]
        allowed = self.allowed
        if allowed is not None and len(allowed) > 1:
            allowed = allowed[samples]
        return type(self)(positions, allowed)
