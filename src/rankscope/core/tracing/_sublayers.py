"""Where the sublayers of a block are, confirmed by the numbers of a recording.

``find_sublayers`` looks for module outputs that, added to the block's input one after another (with
norms after a sum), give the block's output to rounding. Nothing is assumed that the numbers do not
confirm.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from rankscope.core.tracing._recording import Recording

Part = Literal["attention", "mixer", "MLP", "norm"]
_PARTS: Final[Mapping[Part, re.Pattern[str]]] = {
    "attention": re.compile(
        r"attn|attention|qkv|(^|[._])(query|q_proj|q_lin\w*|w_?q|to_q)($|[._])", re.IGNORECASE
    ),
    "mixer": re.compile(
        r"mamba|ssm|mixer|conv|rnn|lstm|gru|rwkv|delta|recurrent|fourier|hyena|retention",
        re.IGNORECASE,
    ),
    "MLP": re.compile(r"mlp|ffn|feed|(^|[._])ff|(^|[._])fc|expert|moe|intermediate", re.IGNORECASE),
}
"""What sublayers are called; a mixer moves information between tokens without a softmax."""
_NORM: Final = re.compile(r"norm|(^|[._])ln", re.IGNORECASE)
_TOLERANCES: Final = {torch.float64: 1e-9, torch.float32: 1e-5, torch.float16: 2e-3}
"""Relative differences up to which two states are equal; bfloat16 rounds most."""
_ROUGH: Final = 8e-3
_TELLING: Final = 0.1
"""Part of a sublayer's output up to which the sum may miss the state, so that it tells whether the
output was added as it is, or scaled."""
_NUMBERS: Final = 4096
"""Numbers of a state by which sublayers are looked for; the whole state confirms them."""
_MOST_STEPS: Final = 6


class Sublayer(NamedTuple):
    """A module inside a block whose output is added to the state, or replaces it (a norm).

    ``call`` counts the calls of the module within one run of the block; ``members`` are the paths
    of all modules that ran for it.
    """

    part: Part
    path: str
    call: int = 0
    members: tuple[str, ...] = ()

    def has(self, path: str) -> int:
        """How closely a module belongs to it, by the length of the path they share; 0: not."""
        around = [m for m in self.members if path == m or path.startswith(f"{m}.")]
        return max((len(member) for member in around), default=0)


Sublayers = Mapping[tuple[Any, ...], tuple[Sublayer, ...]]
"""The sublayers of each kind of block (``kind_of``), in the order they act."""


def kind_of(block: nn.Module) -> tuple[Any, ...]:
    """What blocks with the same sublayers have in common: their class and children."""
    return (type(block), *((name, type(child)) for name, child in block.named_children()))


def few_numbers(tensor: Tensor) -> Tensor:
    """Numbers at fixed places of a tensor, by which two tensors of one shape are compared."""
    return tensor.flatten()[:: max(1, tensor.numel() // _NUMBERS)].double()


def is_close(x: Tensor, state: Tensor, mask: Tensor | None = None) -> bool:
    """Whether two states are equal up to rounding, on the tokens that count."""
    tolerance = _TOLERANCES.get(state.dtype, _ROUGH)
    apart, size = x.double() - state.double(), state.double()
    if mask is not None and mask.shape == state.shape[:2]:
        apart, size = (torch.where(mask.unsqueeze(-1), one, 0.0) for one in (apart, size))
    return bool(apart.norm() <= tolerance * size.norm())


def find_sublayers(recording: "Recording") -> Sublayers:
    """The sublayers of each kind of block: of the layers of a kind, the ones with the most.

    A sublayer that adds nothing cannot be found by its numbers, but the same one in other layers
    can; ``Recording.steps`` confirms each layer.
    """
    most: dict[tuple[Any, ...], tuple[Sublayer, ...]] = {}
    for layer, one in enumerate(recording.layers, start=1):
        steps = _Search(recording, layer).steps() or ()
        if len(steps) > len(most.get(kind_of(one.block), ())):
            most[kind_of(one.block)] = steps
    return most


class _Search:
    """The search for the steps from a block's input to its output."""

    def __init__(self, recording: "Recording", layer: int) -> None:
        before, after = recording.states[layer - 1], recording.states[layer]
        self._calls = recording.layers[layer - 1].calls
        self._dtype = after.dtype
        self._fits = before.shape == after.shape
        self._before, self._after = (
            few_numbers(state.transpose(0, 1) if recording.token_first else state)
            for state in (before, after)
        )

        def like_state(numbers: Tensor | None) -> Tensor | None:
            return None if numbers is None or len(numbers) != len(self._after) else numbers

        self._inputs = [like_state(call.x) for call in self._calls]
        self._outputs = [like_state(call.output) for call in self._calls]

    def steps(self) -> tuple[Sublayer, ...] | None:
        """The sublayers in order; None if the numbers show none."""
        found = self._follow(self._before, 0, ()) if self._fits else None
        return None if found is None else tuple(self._named(found))

    def _same(self, x: Tensor | None, y: Tensor) -> bool:
        tolerance = _TOLERANCES.get(self._dtype, _ROUGH)
        return x is not None and bool((x - y).norm() <= tolerance * y.norm())

    def _is_end(self, state: Tensor, steps: Sequence[tuple[int, bool]]) -> bool:
        """Whether a state is the block's output, closely enough to confirm every step to it."""
        missed = (self._after - state).norm()
        outputs = (self._outputs[at] for at, norm in steps if not norm)
        smallest = min((float(out.norm()) for out in outputs if out is not None), default=math.inf)
        return self._same(self._after, state) and bool(missed <= _TELLING * smallest)

    def _is_seen(self, state: Tensor, after: int) -> bool:
        """Whether a later module takes a state, or it is the block's output."""
        later = self._inputs[after + 1 :]
        return self._same(self._after, state) or any(self._same(x, state) for x in later)

    def _follow(
        self, state: Tensor, start: int, steps: tuple[tuple[int, bool], ...]
    ) -> tuple[tuple[int, bool], ...] | None:
        """Indices of calls, and whether each is a norm, that lead from a state to the output."""
        if steps and self._is_end(state, steps):
            return steps
        if len(steps) == _MOST_STEPS:
            return None
        for at in range(start, len(self._calls)):
            out = self._outputs[at]
            if out is None or self._same(state + out, state):
                continue
            options = [(state + out, False)]
            if _NORM.search(self._calls[at].path) and self._same(self._inputs[at], state):
                options.append((out, True))
            for after, norm in options:
                if self._is_seen(after, at):
                    found = self._follow(after, at + 1, (*steps, (at, norm)))
                    if found is not None:
                        return found
        return self._side_by_side(state, start, steps)

    def _side_by_side(
        self, state: Tensor, start: int, steps: tuple[tuple[int, bool], ...]
    ) -> tuple[tuple[int, bool], ...] | None:
        """Two branches of one state, whose sum is the output."""
        outputs = [
            (at, out) for at, out in enumerate(self._outputs) if at >= start and out is not None
        ]
        for at, first in outputs:
            for then, second in outputs:
                both = (*steps, (at, False), (then, False))
                if then > at and self._is_end(state + first + second, both):
                    return both
        return None

    def _named(self, steps: Sequence[tuple[int, bool]]) -> Iterable[Sublayer]:
        start = 0
        for at, norm in steps:
            path = self._calls[at].path
            earlier = [call.path for call in self._calls[:start]]
            # A module around an earlier sublayer ends late.
            members = tuple(
                call.path
                for call in self._calls[start : at + 1]
                if not any(one.startswith(f"{call.path}.") for one in earlier)
            )
            firsts = {one.partition(".")[0] for one in earlier}
            inside = [one for one in members if one.partition(".")[0] not in firsts]
            inside = [one for one in inside if not _NORM.search(one)]
            part: Part = "norm" if norm else part_of(path) or part_of(*inside) or "MLP"
            yield Sublayer(part, path, self._calls[at].call, members)
            start = at + 1


def part_of(*paths: str) -> Part | None:
    """What a branch is, by the names of the modules that ran in it; None if they do not say."""
    for part, names in _PARTS.items():
        if any(names.search(path) for path in paths):
            return part
    return None
