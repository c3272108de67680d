"""What a model is trained for: examples, a loss, and a score to tell how well it is learnt."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cross_entropy

from rankscope.arguments import checked
from rankscope.core.checks import real, usable_device, whole_numbers
from rankscope.errors import InputError, ShapeError

IGNORED = -100
"""The label of a token that nothing is asked of: padding, or one that is only read."""


@checked
@dataclass(frozen=True, eq=False)
class Examples:
    """Inputs and targets, one row an example; ``token_mask`` is False at padding.

    Stacked, all have an axis of seeds before the examples.
    """

    inputs: Tensor
    targets: Tensor
    token_mask: Tensor | None = None
    seeds: int = 0

    @classmethod
    def stack(cls, each: Sequence["Examples"]) -> "Examples":
        """The examples of several seeds, as many for each, end to end."""
        if not each:
            raise InputError("there are no examples to train on; give at least one set.")
        if len({one.inputs.shape for one in each}) > 1:
            raise InputError("examples that are trained on together must have the same shape.")
        masks = [one.token_mask for one in each if one.token_mask is not None]
        return cls(
            torch.cat([one.inputs for one in each]),
            torch.cat([one.targets for one in each]),
            torch.cat(masks) if masks else None,
            len(each),
        )

    @property
    def count(self) -> int:
        """How many examples there are, of each seed."""
        return len(self.inputs) // max(1, self.seeds)

    def to(self, device: str) -> "Examples":
        """The same on another device."""
        usable_device("device", device)
        mask = None if self.token_mask is None else self.token_mask.to(device)
        return Examples(self.inputs.to(device), self.targets.to(device), mask, self.seeds)

    def pick(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """The examples of rows ``(seed, batch)``: inputs and mask end to end, targets by seed."""
        whole_numbers("rows", rows, least=0, most=self.count - 1)
        if rows.ndim != 2 or len(rows) != self.seeds:
            raise ShapeError(
                f"rows has shape {tuple(rows.shape)}, expected ({self.seeds} seeds, batch)."
            )
        first = torch.arange(self.seeds, device=rows.device).mul(self.count).unsqueeze(1)
        at = (rows + first).flatten()
        mask = None if self.token_mask is None else self.token_mask[at]
        return self.inputs[at], self.targets[at].unflatten(0, rows.shape), mask


@runtime_checkable
class Task(Protocol):
    """How outputs ``(seed, batch, token, output)`` are held against targets, seed by seed."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Float[Tensor, "seed"]: ...

    def score(
        self, outputs: Tensor, targets: Tensor
    ) -> tuple[Float[Tensor, "seed"], Float[Tensor, "seed"]]:
        """A sum over tokens, and what to divide it by; the more, the better learnt."""
        ...


@checked
@dataclass(frozen=True)
class Classify:
    """A class for every token that has a label; the score is the share of right ones."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Float[Tensor, "seed"]:
        _check_labels(outputs, targets)
        each = cross_entropy(
            outputs.flatten(0, -2), targets.flatten(), ignore_index=IGNORED, reduction="none"
        )
        counted = (targets != IGNORED).flatten(1).sum(1)
        return each.view(len(targets), -1).sum(1) / counted

    def score(
        self, outputs: Tensor, targets: Tensor
    ) -> tuple[Float[Tensor, "seed"], Float[Tensor, "seed"]]:
        _check_labels(outputs, targets)
        right = (outputs.argmax(-1) == targets).flatten(1).sum(1).float()
        return right, (targets != IGNORED).flatten(1).sum(1).float()


@checked
@dataclass(frozen=True)
class Approach:
    """A point for every token; the score is minus the mean square of the distance."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Float[Tensor, "seed"]:
        _check_alike(outputs, targets)
        return (outputs - targets).square().flatten(1).mean(1)

    def score(
        self, outputs: Tensor, targets: Tensor
    ) -> tuple[Float[Tensor, "seed"], Float[Tensor, "seed"]]:
        _check_alike(outputs, targets)
        missed = (outputs - targets).square().sum(-1).flatten(1)
        return -missed.sum(1), torch.full_like(missed[:, 0], missed.shape[1])


def _check_labels(outputs: Tensor, targets: Tensor) -> None:
    real(outputs, name="outputs", axes="(seed, batch, token, output)", least=4)
    if outputs.shape[:-1] != targets.shape:
        raise ShapeError(
            f"targets have shape {tuple(targets.shape)}, expected {tuple(outputs.shape[:-1])}: a "
            "label for every token."
        )
    asked = targets[targets != IGNORED]
    whole_numbers(
        "targets",
        asked.long() if asked.numel() == 0 else asked,
        least=0,
        most=outputs.shape[-1] - 1,
    )


def _check_alike(outputs: Tensor, targets: Tensor) -> None:
    for name, each in {"outputs": outputs, "targets": targets}.items():
        real(each, name=name, axes="(seed, batch, token, output)", least=4)
    if outputs.shape != targets.shape:
        raise ShapeError(
            f"targets have shape {tuple(targets.shape)}, outputs {tuple(outputs.shape)}; "
            "give a point for every token."
        )
