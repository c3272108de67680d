"""Which of the tensors a block takes and gives are the hidden states."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rankscope.errors import InputError

_USUAL_NAMES = ("hidden_states", "last_hidden_state", "x", "src", "input")

Output = int | str | Callable[[Any], Tensor]
"""Which tensor of a block's output: its number, its key, or a function of the output."""
Key = tuple[int | str, ...]
"""Where a tensor is in what a block gives: the numbers and names that lead to it."""


class Candidate(NamedTuple):
    """A real tensor inside what a block gives, and where it is."""

    key: Key
    tensor: Tensor

    @property
    def is_usual(self) -> bool:
        """Whether it stands where hidden states stand: first in a tuple, or under their name."""
        return all(step == 0 or step in _USUAL_NAMES for step in self.key)

    @property
    def is_named(self) -> bool:
        """Whether it has the name of hidden states."""
        return self.key[-1:] != () and self.key[-1] in _USUAL_NAMES

    @property
    def place(self) -> str:
        """Where it is, in words."""
        return "".join(f"[{step!r}]" for step in self.key) or "the output itself"


def candidates(value: Any, axes: int = 3) -> list[Candidate]:
    """The tensors that can be hidden states: with so many axes, else three, else any.

    Those with a usual name come first among what has names.
    """
    found = list(_real_tensors(value))
    for wanted in (axes, 3):
        fitting = [one for one in found if one.tensor.ndim == wanted]
        if fitting:
            return fitting
    return found


def real_tensors(value: Any) -> list[Tensor]:
    """Every real tensor a block takes or gives, of any shape."""
    return [one.tensor for one in _real_tensors(value)]


def first_tensor(value: Any) -> Tensor:
    """The hidden states among what a block takes or gives: a tensor, or the first one inside."""
    found = candidates(value)
    if not found:
        raise no_tensor(value)
    return found[0].tensor


def no_tensor(value: Any) -> InputError:
    """The error for what holds no hidden states."""
    return InputError(
        f"a block exchanged {type(value).__name__} with no real tensor in it; "
        "name blocks that take and give hidden states."
    )


def by_option(value: Any, output: Output) -> Tensor:
    """The tensor a user's ``output`` names."""
    try:
        found = output(value) if callable(output) else value[output]
    except (LookupError, TypeError) as error:
        raise InputError(
            f"output={output!r} is not in what a block gives, a {type(value).__name__} ({error})."
        ) from None
    if not isinstance(found, Tensor) or not found.is_floating_point():
        raise InputError(
            f"output={output!r} of what a block gives is a {type(found).__name__}, expected the "
            "real tensor of its hidden states."
        )
    return dense(found)


def at(value: Any, key: Key) -> Tensor | None:
    """The tensor at a place found before; None if this output has none there."""
    return next((one.tensor for one in _real_tensors(value) if one.key == key), None)


def is_same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are one: the same object, memory, or numbers."""
    if one is other:
        return True
    if one.is_nested or other.is_nested:
        return False
    if (one.shape, one.dtype, one.device) != (other.shape, other.dtype, other.device):
        return False
    same_place = one.data_ptr() == other.data_ptr() and one.stride() == other.stride()
    return same_place or bool(torch.equal(one, other))


def dense(tensor: Tensor) -> Tensor:
    """A nested tensor, which PyTorch's encoders make of padded batches, with its padding."""
    if not tensor.is_nested:
        return tensor
    padded: Tensor = torch.nested.to_padded_tensor(tensor, 0.0)
    return padded


def _real_tensors(value: Any, key: Key = ()) -> Iterator[Candidate]:
    if isinstance(value, Tensor):
        if value.is_floating_point():
            yield Candidate(key, dense(value))
        return
    for step, inner in _parts(value):
        yield from _real_tensors(inner, (*key, step))


def _parts(value: Any) -> Iterator[tuple[int | str, Any]]:
    """What is inside a container, with its number or name; usual names first."""
    if isinstance(value, Mapping):
        usual = [name for name in _USUAL_NAMES if name in value]
        yield from ((name, value[name]) for name in usual)
        yield from ((str(name), one) for name, one in value.items() if name not in usual)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        yield from enumerate(value)
