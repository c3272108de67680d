"""Which tensor of a block is its hidden states, and which of its axes is the batch."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from rankscope.core.network import Network
from rankscope.core.tracing._described import function_name
from rankscope.core.tracing._inputs import Ids
from rankscope.errors import InputError, ShapeError

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
    def place(self) -> str:
        """Where it is, in words."""
        return "".join(f"[{step!r}]" for step in self.key) or "the output itself"


def candidates(value: Any, axes: int = 3) -> list[Candidate]:
    """The tensors that can be hidden states: with so many axes, else three, else any.

    Those with a usual name come first among what has names.
    """
    tensors = list(_real_tensors(value))
    if not tensors:
        raise InputError(
            f"a block exchanged {type(value).__name__} with no real tensor in it; "
            "name blocks that take and give hidden states."
        )
    for wanted in (axes, 3):
        fitting = [one for one in tensors if one.tensor.ndim == wanted]
        if fitting:
            return fitting
    return tensors


def real_tensors(value: Any) -> list[Tensor]:
    """Every real tensor a block takes or gives, of any shape."""
    return [one.tensor for one in _real_tensors(value)]


def first_tensor(value: Any) -> Tensor:
    """The hidden states among what a block takes or gives: a tensor, or the first one inside."""
    return candidates(value)[0].tensor


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
        for one in _real_tensors(output) if self._key is not None else ():
            if one.key == self._key:
                return one.tensor
        tensors = candidates(output)
        return tensors[0].tensor if len(tensors) == 1 else None

    def among(
        self, open_: "OpenChoice", taken: Sequence[Tensor] | None, first_shape: torch.Size
    ) -> Tensor:
        """Decide among several, given what the next block takes, if there is one, and the shape of
        layer 0. A block that takes all of them proves nothing, one that takes none of them little.
        """
        used = [
            one for one in open_.found if any(is_same(one.tensor, each) for each in taken or ())
        ]
        if not used:
            if len(open_.like) == 1:
                return self._decided(open_.like[0], "the only one shaped like the block's input")
            rivals = open_.like or open_.found
            if taken is None and (usual := [one for one in rivals if one.is_usual]):
                return self._decided(usual[0], "where hidden states usually are")
            raise _several(rivals)
        if all(is_same(used[0].tensor, one.tensor) for one in used[1:]):
            return self._decided(used[0], "what the next block takes")
        like = [one for one in used if one.tensor.shape == first_shape]
        if len(like) == 1:
            return self._decided(like[0], "of what the next block takes, shaped like layer 0")
        named = [one for one in like if one.key and one.key[-1] in _USUAL_NAMES]
        if len(named) == 1:
            return self._decided(named[0], "of what the next block takes, under the usual name")
        raise _several(like or used)

    def _decided(self, one: Candidate, why: str) -> Tensor:
        self._key, self.words = one.key, f"{one.place}: {why}"
        return one.tensor


def _several(rivals: Sequence[Candidate]) -> InputError:
    places = ", ".join(f"{one.place} {tuple(one.tensor.shape)}" for one in rivals)
    return InputError(
        f"a block gives several tensors that can be its hidden states: {places}; say which: "
        f"output={rivals[-1].key[0]!r}, or a function of what the block gives."
    )


class OpenChoice:
    """Several tensors of one block's output, among which the next block's input will decide."""

    def __init__(self, output: Any, input_shape: torch.Size) -> None:
        self.found = candidates(output, len(input_shape))
        self.like = [one for one in self.found if one.tensor.shape == input_shape]


Layout = Literal["batch token feature", "token batch feature"]
BATCH_FIRST, TOKEN_FIRST = get_args(Layout)
_SETTLE = f"say which: layout={BATCH_FIRST!r} or layout={TOKEN_FIRST!r}."
_OWN_LAYERS = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)


class LayoutChoice:
    """The order of the first two axes: as told, as known of the model, or as its parts show it.

    ``words`` is what was decided and why, once it is.
    """

    def __init__(
        self,
        model: nn.Module,
        stack: Sequence[nn.Module],
        option: Layout | None,
        model_type: str | None,
        ids: Ids | None,
    ) -> None:
        self._option, self._model_type, self._ids = option, model_type, ids
        self._own, self._first = isinstance(model, Network), stack[0]
        self.token_first: bool | None = None
        self.words = ""
        if option is not None:
            self._decide(token_first=option == TOKEN_FIRST, why="as told")
        elif self._own:
            self._decide(token_first=False, why="our own network")
        elif type(self._first) in _OWN_LAYERS:
            attention: Any = self._first.self_attn
            self._decide(token_first=not attention.batch_first, why="PyTorch's own layer")
        elif model_type == "xlnet":
            self._decide(token_first=True, why="XLNet")

    @property
    def attentions(self) -> list[nn.MultiheadAttention]:
        """PyTorch's own attention inside the first block, whose input shows the layout."""
        if self.token_first is not None:
            return []
        return [m for m in self._first.modules() if isinstance(m, nn.MultiheadAttention)]

    def look_at_state(self, hidden: Tensor) -> None:
        """Decide by the shape of the first block's input, unless its parts are to be asked."""
        ids = self._ids
        if hidden.ndim == 2:
            if ids is not None and ids.are_ids and ids.batch > 1 and self._option is None:
                raise ShapeError(
                    f"the blocks are given {tuple(hidden.shape)}, without a batch axis, though "
                    f"{ids.name} has {ids.batch} samples: they seem to be laid end to end. "
                    "Trace one sample at a time, or switch that off (attn_implementation='sdpa')."
                )
            self._decide(token_first=False, why="a single sequence")
        if self._option is None and not self._own and hidden.ndim == 3:
            self._look_at_shape(hidden)
        if self.token_first is None and not self.attentions:
            if ids is not None and ids.are_ids and ids.batch == ids.tokens > 1:
                raise InputError(
                    f"{ids.name} has as many samples as tokens, {ids.batch}, so which axis of the "
                    f"hidden states is the batch cannot be seen; {_SETTLE}"
                )
            self._decide(token_first=False, why="the usual order")

    def look_at_query(self, attention: nn.MultiheadAttention, query: Any, hidden: Tensor) -> None:
        """Decide by what PyTorch's attention is given, whose own layout is known."""
        if self.token_first is not None or not isinstance(query, Tensor) or query.ndim != 3:
            return
        a, b = hidden.shape[:2]
        if query.shape[:2] == (a, b) == (b, a):
            turned = self._turned_square(attention, query, hidden)
        elif query.shape[:2] in ((a, b), (b, a)):
            turned = query.shape[:2] == (b, a)
        else:
            return
        self._decide(
            token_first=attention.batch_first == turned,
            why="the axes of what PyTorch's attention in the first block is given",
        )

    def settle(self) -> None:
        """The first block ran and its attention was never called, or not on sequences."""
        if self.token_first is None:
            inside = self.attentions
            if not all(each.batch_first for each in inside):
                raise InputError(
                    "PyTorch's attention in the first block wants the tokens first, but it was not "
                    f"called on the block's tokens, so the block's own layout is not known; "
                    f"{_SETTLE}"
                )
            self._decide(token_first=False, why="the usual order")

    def _look_at_shape(self, hidden: Tensor) -> None:
        """Compare the first block's input with the token ids."""
        if self._ids is None:
            return
        batch, tokens = self._ids.batch, self._ids.tokens
        a, b = hidden.shape[:2]
        if self.token_first is not None:
            found = b if self.token_first else a
            certain = self._ids.are_ids and type(self._first) not in _OWN_LAYERS
            if found != batch and certain:
                raise self._unlike(hidden)
        elif (a, b) == (tokens, batch) != (batch, tokens) and not self.attentions:
            if self._model_type is None:
                raise InputError(
                    f"the blocks are given {tuple(hidden.shape)} where {self._ids.name} is "
                    f"{(batch, tokens)}: either may have the batch first; {_SETTLE}"
                )
            self._decide(token_first=True, why=f"{self._ids.name} has these axes turned around")
        elif a == batch and self._model_type is not None:
            self._decide(token_first=False, why=f"the axes of {self._ids.name}")
        elif self._ids.are_ids and a != batch and b != batch:
            raise self._unlike(hidden)

    def _unlike(self, hidden: Tensor) -> ShapeError:
        assert self._ids is not None
        return ShapeError(
            f"the blocks are given {tuple(hidden.shape)}, but {self._ids.name} has "
            f"{self._ids.batch} samples of {self._ids.tokens} tokens, so which axis is the batch "
            f"is not known; {_SETTLE}"
        )

    def _turned_square(
        self, attention: nn.MultiheadAttention, query: Tensor, hidden: Tensor
    ) -> bool:
        """As many samples as tokens: only equal numbers show whether the axes were turned."""
        straight, turned = torch.equal(query, hidden), torch.equal(query, hidden.transpose(0, 1))
        if straight != turned:
            return turned
        if attention.batch_first or hidden.shape[0] == 1:
            return False
        raise InputError(
            f"the blocks are given {tuple(hidden.shape)}, as many samples as tokens, and PyTorch's "
            "attention inside wants the tokens first, which the block may or may not see to "
            f"itself; {_SETTLE}"
        )

    def _decide(self, *, token_first: bool, why: str) -> None:
        if self.token_first is None:
            self.token_first = token_first
            self.words = f"{TOKEN_FIRST if token_first else BATCH_FIRST}: {why}"
