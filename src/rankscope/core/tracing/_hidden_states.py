"""Which of the tensors that a block takes and returns are its hidden states."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import (
    TorchFunctionMode,
    _get_current_function_mode,
    _get_current_function_mode_stack,
    _pop_mode,
    _push_mode,
)
from torch.utils.weak import WeakIdKeyDictionary

from rankscope.core.tracing._described import function_name
from rankscope.errors import InputError

_USUAL_NAMES = ("hidden_states", "last_hidden_state", "x", "src", "input")

Output = int | str | Callable[[Any], Tensor]
"""Which tensor of a block's output: its number, its key, or a function of the output."""
Key = tuple[int | str, ...]
"""The path of a tensor in the output of a block: indices and names."""


class Candidate(NamedTuple):
    """A floating-point tensor in the input or output of a block, and its path."""

    key: Key
    raw: Tensor
    """As the block uses it: PyTorch's encoders exchange nested tensors."""

    @property
    def tensor(self) -> Tensor:
        """The same tensor, dense."""
        return dense(self.raw)

    @property
    def is_usual(self) -> bool:
        """Whether it is where hidden states usually are: first in a tuple, or under their name."""
        return all(step == 0 or step in _USUAL_NAMES for step in self.key)

    @property
    def path(self) -> str:
        """Its path, as an expression."""
        return "".join(f"[{step!r}]" for step in self.key) or "the output itself"


def candidates(value: Any, axes: int = 3) -> list[Candidate]:
    """The tensors that can be hidden states: those with ``axes`` axes, else three, else all.

    In a mapping, usual names come first.
    """
    tensors = list(_real_tensors(value))
    if not tensors:
        raise InputError(
            f"a block exchanged {type(value).__name__} without a floating-point tensor; "
            "name blocks that take and return hidden states."
        )
    for wanted in (axes, 3):
        fitting = [state for state in tensors if state.raw.ndim == wanted]
        if fitting:
            return fitting
    return tensors


def first_tensor(value: Any) -> Tensor:
    """The hidden states in the input or output of a block: a tensor, or the first one inside."""
    return candidates(value)[0].tensor


def by_option(value: Any, output: Output) -> Tensor:
    """The tensor that the option ``output`` names."""
    try:
        tensor = output(value) if callable(output) else value[output]
    except (LookupError, TypeError) as error:
        raise InputError(
            f"output={output!r} is not in a block's output, a {type(value).__name__} ({error})."
        ) from None
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
        raise InputError(
            f"output={output!r} selects a {type(tensor).__name__} from the output of a block, "
            "expected the floating-point tensor of its hidden states."
        )
    return dense(tensor)


def is_same(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors are the same: the same object, memory, or values."""
    if first is second:
        return True
    if first.is_nested or second.is_nested:
        return False
    if (first.shape, first.dtype, first.device) != (second.shape, second.dtype, second.device):
        return False
    same_place = first.data_ptr() == second.data_ptr() and first.stride() == second.stride()
    return same_place or bool(torch.equal(first, second))


def dense(tensor: Tensor) -> Tensor:
    """The padded form of a nested tensor, which PyTorch's encoders make of padded batches."""
    if not tensor.is_nested:
        return tensor
    padded: Tensor = torch.nested.to_padded_tensor(tensor, 0.0)
    return padded


def _real_tensors(value: Any, key: Key = ()) -> Iterator[Candidate]:
    if isinstance(value, Tensor):
        if value.is_floating_point():
            yield Candidate(key, value)
        return
    for step, inner in _parts(value):
        yield from _real_tensors(inner, (*key, step))


def _parts(value: Any) -> Iterator[tuple[int | str, Any]]:
    """The items of a container with their indices or names; usual names first."""
    if isinstance(value, Mapping):
        usual = [name for name in _USUAL_NAMES if name in value]
        yield from ((name, value[name]) for name in usual)
        yield from ((str(name), item) for name, item in value.items() if name not in usual)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        yield from enumerate(value)


class OutputChoice:
    """Chooses the hidden states at the first block that returns several tensors.

    The best evidence is what the next block takes. Otherwise it is the only tensor shaped like the
    input of the block, and then the one where hidden states usually are.
    """

    def __init__(self, option: Output | None) -> None:
        self._option = option
        self._key: Key | None = None
        self.words = "the only tensor that a block returns"
        if option is not None:
            named = f"({function_name(option)})" if callable(option) else repr(option)
            self.words = f"output={named}, as specified"

    def immediate(self, output: Any) -> Candidate | None:
        """The hidden states if there is nothing to decide, or it has been decided; else None."""
        if self._option is not None:
            return Candidate((), by_option(output, self._option))
        for state in _real_tensors(output) if self._key is not None else ():
            if state.key == self._key:
                return state
        tensors = candidates(output)
        return tensors[0] if len(tensors) == 1 else None

    def going_on(self, output: Any, chosen: Candidate) -> list[Tensor]:
        """The tensors from which the next block's input must be computed; with a function, all."""
        every = [state.raw for state in _real_tensors(output)] if callable(self._option) else []
        return [chosen.raw, *every]

    def among(
        self, open_: "OpenChoice", taken: Sequence[Tensor] | None, first_shape: torch.Size
    ) -> Candidate:
        """Decide among several, from the input of the next block, if there is one, and the shape of
        layer 0. A block that takes all of them is no evidence, one that takes none is little.
        """
        every = open_.candidates
        used = [state for state in every if any(is_same(state.tensor, x) for x in taken or ())]
        if not used:
            if len(open_.like) == 1:
                return self._decided(open_.like[0], "the only one shaped like the block's input")
            rivals = open_.like or every
            if taken is None and (usual := [state for state in rivals if state.is_usual]):
                return self._decided(usual[0], "where hidden states usually are")
            raise _several(rivals)
        if all(is_same(used[0].tensor, state.tensor) for state in used[1:]):
            return self._decided(used[0], "what the next block takes")
        like = [state for state in used if state.tensor.shape == first_shape]
        if len(like) == 1:
            return self._decided(like[0], "the one that the next block takes, like layer 0")
        named = [state for state in like if state.key and state.key[-1] in _USUAL_NAMES]
        if len(named) == 1:
            return self._decided(named[0], "the one that the next block takes under the usual name")
        raise _several(like or used)

    def _decided(self, state: Candidate, why: str) -> Candidate:
        self._key, self.words = state.key, f"{state.path}: {why}"
        return state


def _several(rivals: Sequence[Candidate]) -> InputError:
    places = ", ".join(f"{rival.path} {tuple(rival.tensor.shape)}" for rival in rivals)
    return InputError(
        f"a block returns several tensors that can be its hidden states: {places}; choose one: "
        f"output={rivals[-1].key[0]!r}, or a function of the output."
    )


class OpenChoice:
    """Several tensors of a block's output, among which the next block's input will decide.

    It holds copies, because the model may work in place before the next block runs.
    """

    def __init__(self, output: Any, input_shape: torch.Size) -> None:
        self.candidates = candidates(output, len(input_shape))
        self.like = [state for state in self.candidates if state.tensor.shape == input_shape]
        self._copies = {state.key: state.tensor.clone() for state in self.candidates}

    def as_made(self, state: Candidate) -> Tensor:
        """A copy of what the block returned."""
        return self._copies[state.key]


class OperationWatch(TorchFunctionMode):
    """Observes the operations of this thread between ``begin`` and ``end``.

    It is below all modes that the model enters, because their exit would otherwise end it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._aside: list[TorchFunctionMode] = []  # other modes, while this one is moved below them

    def begin(self) -> None:
        """Start watching."""
        while (top := _get_current_function_mode()) is not None:
            self._aside.append(top)
            _pop_mode()
        _push_mode(self)
        self._put_back()

    def end(self) -> None:
        """Stop watching; safe if nothing was watched or an interrupt came before."""
        while any(mode is self for mode in _get_current_function_mode_stack()):
            if (top := _get_current_function_mode()) is not self:
                self._aside.append(top)
            _pop_mode()
        self._put_back()

    def _put_back(self) -> None:
        while self._aside:
            _push_mode(self._aside[-1])
            self._aside.pop()


class Flow(OperationWatch):
    """Follows a block's hidden states to the next block: marks tensors computed from them."""

    def __init__(self) -> None:
        super().__init__()
        self._marked = WeakIdKeyDictionary()

    def follow(self, tensors: Iterable[Tensor]) -> None:
        """Follow these tensors and forget the previous ones."""
        self._marked = WeakIdKeyDictionary()
        self._mark(tensors)
        self.begin()

    def reaches(self, tensor: Tensor) -> bool:
        """Whether a tensor is followed, or was computed from one that is."""
        return tensor in self._marked

    def _mark(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            self._marked[tensor] = True

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if any(map(self.reaches, tensors_in((args, kwargs)))):
            self._mark(tensors_in(args[:1] if result is None else result))  # None: x[...] = y
        return result


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Every tensor inside, of any dtype."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list | dict):  # called for every operation, so it must be fast
        for inner in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(inner)


class BlockArguments:
    """The arguments of a block by the index of its parameters, positional or keyword."""

    def __init__(self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            call = inspect.signature(block.forward).bind(*args, **kwargs)
            self._names = list(call.signature.parameters)
            values = [call.arguments.get(name) for name in self._names]
        except (TypeError, ValueError):
            self._names, values = [], [*args, kwargs]
        tensors = candidates(values, 0)
        every = list(_real_tensors(values))
        self.tensors = [state for state in every if state.raw.ndim in (2, 3)] or tensors

    def name(self, key: Key) -> int | str:
        """The name of an argument, or its index."""
        step = key[1] if len(key) > 1 and isinstance(key[1], str) else key[0]
        return self._names[step] if isinstance(step, int) and step < len(self._names) else step

    def at(self, key: Key) -> Candidate | None:
        """The tensor with this path."""
        return next((state for state in self.tensors if state.key == key), None)

    def named(self, name: int | str) -> list[Candidate]:
        """The tensors with a name or an index."""
        return [state for state in self.tensors if name in (self.name(state.key), *state.key[:2])]


Stream = int | str
"""An argument of a block: its index or its name."""


class StreamChoice:
    """Chooses the argument with the hidden states: it is computed from the previous block's output.

    The first block alone does not determine it, unless it takes only one tensor, uses the name of
    Transformers for its hidden states, or is a class of PyTorch. ``key`` is None until decided.
    """

    def __init__(self, option: Stream | None) -> None:
        self._option = option
        self.key: Key | None = None
        self._first: BlockArguments | None = None
        self.words = "" if option is None else f"stream={option!r}, as specified"

    def begin(self, block: nn.Module, taken: BlockArguments) -> list[Candidate]:
        """The arguments of the first block that may be its hidden states."""
        named = taken.named("hidden_states") or taken.named("hidden")
        if self._option is not None:
            named = taken.named(self._option)
        elif isinstance(block, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
            named = taken.tensors[:1]
        if self._option is not None and len(named) != 1:
            names = ", ".join(repr(taken.name(state.key)) for state in taken.tensors)
            raise InputError(
                f"stream={self._option!r} matches {len(named)} of the tensors that the first block "
                f"takes ({names}); pass the name or the index of one."
            )
        rivals = named if len(named) == 1 else _distinct(taken.tensors)
        if len(rivals) == 1:
            self.key = rivals[0].key
        else:
            self._first = taken
        return rivals

    def go_on(self, taken: BlockArguments, previous: Candidate, flow: Flow) -> Candidate | None:
        """The hidden states among the arguments of a later block; they also decide layer 0.

        None if no argument was computed from the ``previous`` output.
        """
        reached = [state for state in taken.tensors if flow.reaches(state.raw)]
        if not reached:
            return None
        same = [state for state in reached if state.raw is previous.raw]
        if self.key is not None:
            mine = [state for state in reached if state.key == self.key]
            if len(self.key) == 1:  # the whole output may be passed on in place of one tensor
                mine += [state for state in same if state.key[:1] == self.key]
            if not mine:
                raise self._unknown(reached, taken)
            return mine[0]
        like = [state for state in reached if state.tensor.shape == previous.tensor.shape]
        rivals = same or like or reached
        self._decide([state.key for state in rivals])
        return rivals[0]

    def end(self, shape: torch.Size) -> None:
        """Decide if there is only one block, whose output has this shape."""
        assert self._first is not None
        like = [state.key for state in self._first.tensors if state.tensor.shape == shape]
        self._decide(like or [state.key for state in self._first.tensors])

    def _decide(self, keys: Sequence[Key]) -> None:
        assert self._first is not None
        firsts = [state for key in keys if (state := self._first.at(key)) is not None]
        if len(_distinct(firsts)) != 1:
            raise self._unknown(firsts or self._first.tensors, self._first)
        self.key, name = firsts[0].key, self._first.name(firsts[0].key)
        self.words, self._first = f"argument {name!r}: passed from block to block", None

    def _unknown(self, rivals: Sequence[Candidate], taken: BlockArguments) -> InputError:
        names = [repr(taken.name(state.key)) for state in rivals]
        return InputError(
            "a block takes several tensors that can be its hidden states, and it is unclear which "
            f"of them is layer 0: {', '.join(names)}; choose one: stream={names[-1]}."
        )


def _distinct(tensors: Sequence[Candidate]) -> list[Candidate]:
    """Without repetitions of the same tensor."""
    return list({id(state.raw): state for state in reversed(tensors)}.values())[::-1]
