"""An original observed while it runs on a probe, and questions about it settled by trial.

The calls inside every block are recorded once. A part can then be computed in each way it might
work from its recorded input; the way that gives the recorded output is the right one.
"""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from rankscope.core.masks import Mask
from rankscope.core.network import Visibility
from rankscope.core.tracing import ModuleCall, captured_calls
from rankscope.errors import RankscopeError, UnsupportedModelError
from rankscope.numerals import short

TOLERANCES = {torch.float64: 1e-8, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""Largest relative error allowed per dtype. Halves differ by their rounding, layer after layer; in
float64 rotary tables, which are float32 everywhere, differ by a rounding from device to device."""
_EXACT = {torch.float64: 1e-12, torch.float32: 3e-6, torch.float16: 5e-3, torch.bfloat16: 3e-2}
"""A reading this close is taken at once; otherwise the closest of all."""
RECOGNISED = TOLERANCES | {torch.float16: 5e-3, torch.bfloat16: 3e-2}
"""Largest relative error of a single part by the original's dtype. Halves are recognised in
float32; what remains is the rounding of stored tables of positions."""
_ROTARY = re.compile(r"rotary|rope", re.IGNORECASE)


class PathCall(NamedTuple):
    """A call inside a block, with the path of its module there."""

    path: str
    module: nn.Module
    x: Tensor
    output: Tensor


@dataclass(frozen=True)
class Observed:
    """One block on the probe: its input, its output, and the calls inside it in their order."""

    layer: int
    block: nn.Module
    x: Tensor
    output: Tensor
    calls: Sequence[PathCall]
    token_mask: Tensor | None
    rotations: Sequence[tuple[Tensor, ...]] = ()
    """Tables of cosines and sines that modules outside the blocks made on the way."""

    def error(self, mine: Tensor, theirs: Tensor) -> float:
        """The relative error on real tokens; infinite for another shape."""
        if mine.shape != theirs.shape:
            return math.inf
        by_token = mine.shape[:2] == self.x.shape[:2]
        return relative_error(mine, theirs, self.token_mask if by_token else None)

    def visibility(self, mask: Mask) -> Visibility:
        """What the tokens of the probe see under a mask."""
        return Visibility.of(mask, self.x.shape[1], self.token_mask, self.x.device)

    def refusal(self, part: str, why: str) -> UnsupportedModelError:
        """The error for a part that has no known form."""
        return UnsupportedModelError(
            f"layer {self.layer} ({type(self.block).__name__}): its {part} is not converted, "
            f"because {why}; rankscope.trace and rankscope.diagnose work on the model without "
            "conversion."
        )


def relative_error(mine: Tensor, theirs: Tensor, token_mask: Tensor | None = None) -> float:
    """The Frobenius norm of the difference, relative to that of the original, on real tokens."""
    mine, theirs = mine.double().cpu(), theirs.double().cpu()
    if token_mask is not None:
        mine, theirs = mine[token_mask.cpu()], theirs[token_mask.cpu()]
    size, error = torch.linalg.vector_norm(theirs), torch.linalg.vector_norm(mine - theirs)
    return float(error / size) if size > 0 else float(error)


def observe(
    body: nn.Module,
    blocks: Sequence[nn.Module],
    run: Callable[[], object],
    token_mask: Tensor | None,
    batch_first: Callable[[Tensor], Tensor],
) -> list[Observed]:
    """Run the original once and record what every block did; a shared block counts once."""
    layers: dict[nn.Module, int] = {}
    for layer, block in enumerate(blocks, start=1):
        layers.setdefault(block, layer)
    owners = {
        module: (block, path) for block in layers for path, module in block.named_modules() if path
    }
    turning = [
        module
        for module in body.modules()
        if module not in owners and _ROTARY.search(type(module).__name__)
    ]
    inside: dict[nn.Module, list[PathCall]] = {block: [] for block in layers}
    whole: dict[nn.Module, ModuleCall] = {}
    rotations = []
    for call in captured_calls([*layers, *owners, *turning], run):
        if call.module in layers:
            whole.setdefault(call.module, call)
        elif call.module not in owners:
            rotations.append(call.outputs)
        else:
            block, path = owners[call.module]
            if block not in whole:  # only the first run of a shared block
                inside[block].append(PathCall(path, call.module, call.x, call.output))
    observed = []
    for block, layer in layers.items():
        if block not in whole or whole[block].x.ndim != 3:
            raise UnsupportedModelError(
                f"layer {layer} ({type(block).__name__}) does not map hidden states (batch, token, "
                "feature) to others; rankscope.trace works on the model without conversion."
            )
        x, output = (batch_first(t) for t in (whole[block].x, whole[block].output))
        calls = [_by_token(call, x) for call in inside[block]]
        observed.append(Observed(layer, block, x, output, calls, token_mask, rotations))
    return observed


def _by_token(call: PathCall, state: Tensor) -> PathCall:
    """A call on the tokens of all samples in a row as one on ``(batch, token, feature)``."""
    tokens = state.shape[0] * state.shape[1]
    if call.x.ndim != 2 or len(call.x) != tokens or len(call.output) != tokens:
        return call
    x, output = (t.unflatten(0, state.shape[:2]) for t in (call.x, call.output))
    return call._replace(x=x, output=output)


Part = TypeVar("Part")


@dataclass(frozen=True)
class Reading(Generic[Part]):
    """One way to compute a part: its name, and what it builds."""

    label: str
    build: Callable[[], Part]


@dataclass
class Habits:
    """The readings that fitted earlier layers, which are tried first in the next."""

    tolerance: float
    """The largest error of a reading: that of rounding in the original."""
    chosen: dict[str, str] = field(default_factory=dict)

    def settle(
        self,
        question: str,
        readings: Iterable[Reading[Part]],
        output: Callable[[Part], Tensor],
        expected: Tensor,
        observed: Observed,
    ) -> Part:
        """The reading whose output is the recorded one; of several, the first."""
        usual = self.chosen.get(question)
        best: Part | None = None
        closest, least = "", math.inf
        for reading in sorted(readings, key=lambda reading: reading.label != usual):
            try:
                part = reading.build()
                error = observed.error(output(part), expected)
            except (RankscopeError, RuntimeError, ValueError):  # it has other shapes
                continue
            if error < least:
                best, closest, least = part, reading.label, error
            if error <= _EXACT[expected.dtype]:
                break
        if best is not None and least <= self.tolerance:
            self.chosen[question] = closest
            return best
        why = f"no known form gives its output (closest: {closest}, off by {short(least)})"
        raise observed.refusal(question, why if closest else "its parts have no known form")
