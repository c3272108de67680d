"""Deciding which tensor of a block's output is its hidden states, from what can be seen."""

from typing import Any

import torch
from torch import Tensor

from rankscope.errors import InputError
from rankscope.tracing._tensors import (
    Candidate,
    Key,
    Output,
    at,
    by_option,
    candidates,
    is_same,
    no_tensor,
)


class OutputChoice:
    """Which of several tensors is meant; decided once, at the first block that gives several.

    Best evidence is what the next block takes: that is the hidden state. Without it, the only
    tensor shaped like the block's input; then the one that stands where hidden states usually do.
    """

    def __init__(self, option: Output | None) -> None:
        self._option = option
        self._key: Key | None = None
        self.words = "the only one a block gives"
        if option is not None:
            self.words = f"output={getattr(option, '__name__', repr(option))}, as told"

    def immediate(self, output: Any) -> Tensor | None:
        """The hidden states where there is nothing to decide, or it was decided; else None."""
        if self._option is not None:
            return by_option(output, self._option)
        if self._key is not None and (tensor := at(output, self._key)) is not None:
            return tensor
        found = candidates(output)
        if not found:
            raise no_tensor(output)
        return found[0].tensor if len(found) == 1 else None

    def with_next(self, open_: "OpenChoice", following: Tensor) -> Tensor:
        """Decide among several, given what the next block takes."""
        taken = [one for one in open_.found if is_same(one.tensor, following)]
        if len({id(one.tensor) for one in taken}) == 1:
            return self._decided(taken[0], "what the next block takes")
        return self.alone(open_)

    def alone(self, open_: "OpenChoice") -> Tensor:
        """Decide among several without a next block to look at."""
        like = [one for one in open_.found if one.tensor.shape == open_.input_shape]
        if len(like) == 1:
            return self._decided(like[0], "the only one shaped like the block's input")
        rivals = like or open_.found
        usual = [one for one in rivals if one.is_usual]
        if usual:
            return self._decided(usual[0], "where hidden states usually are")
        places = ", ".join(f"{one.place} {tuple(one.tensor.shape)}" for one in rivals)
        raise InputError(
            f"a block gives several tensors that can be its hidden states: {places}; say which: "
            f"output={rivals[-1].key[0]!r}, or a function of what the block gives."
        )

    def _decided(self, one: Candidate, why: str) -> Tensor:
        self._key, self.words = one.key, f"{one.place}: {why}"
        return one.tensor


class OpenChoice:
    """Several tensors of one block's output, among which the next block's input will decide."""

    def __init__(self, output: Any, input_shape: torch.Size) -> None:
        self.found = candidates(output, len(input_shape))
        self.input_shape = input_shape
