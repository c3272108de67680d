"""Deciding which tensor of a block's output is its hidden states, from what can be seen."""

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from rankscope.core.tracing._digest import function_name
from rankscope.core.tracing._tensors import (
    Candidate,
    Key,
    Output,
    at,
    by_option,
    candidates,
    is_same,
    no_tensor,
)
from rankscope.errors import InputError


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
            named = f"({function_name(option)})" if callable(option) else repr(option)
            self.words = f"output={named}, as told"

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

    def with_next(
        self, open_: "OpenChoice", taken: Sequence[Tensor], first_shape: torch.Size
    ) -> Tensor:
        """Decide among several, given what the next block takes and the shape of layer 0.

        A block that takes all of them proves nothing, one that takes none of them little.
        """
        used = [one for one in open_.found if any(is_same(one.tensor, each) for each in taken)]
        if not used:
            found = self._by_shape(open_)
            return self._unclear(open_.like or open_.found) if found is None else found
        if all(is_same(used[0].tensor, one.tensor) for one in used[1:]):
            return self._decided(used[0], "what the next block takes")
        like = [one for one in used if one.tensor.shape == first_shape]
        if len(like) == 1:
            return self._decided(like[0], "of what the next block takes, shaped like layer 0")
        named = [one for one in like if one.is_named]
        if len(named) == 1:
            return self._decided(named[0], "of what the next block takes, under the usual name")
        return self._unclear(like or used)

    def alone(self, open_: "OpenChoice") -> Tensor:
        """Decide among several where no block follows."""
        found = self._by_shape(open_)
        if found is not None:
            return found
        rivals = open_.like or open_.found
        usual = [one for one in rivals if one.is_usual]
        if usual:
            return self._decided(usual[0], "where hidden states usually are")
        return self._unclear(rivals)

    def _by_shape(self, open_: "OpenChoice") -> Tensor | None:
        if len(open_.like) != 1:
            return None
        return self._decided(open_.like[0], "the only one shaped like the block's input")

    def _unclear(self, rivals: Sequence[Candidate]) -> NoReturn:
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
        self.like = [one for one in self.found if one.tensor.shape == input_shape]
