"""How the work of the kernels on hidden states is shared out, and the room they need for it."""

import math
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from rankscope.core.metrics._kernels import power_of_two
from rankscope.core.metrics._transfer import Transfer
from rankscope.core.shapes import Hidden

_LINE_BYTES = 512
"""What a warp reads at once: 16 bytes for each of its threads; so much of a row has a program."""
_ROWS, STAGES = 8, 3
_MANY_TOKENS = 1024
"""From so many on, twice as many rows at once are quicker."""
_PROGRAMS = 2**9
"""How many programs there should be: some for each processor of a large GPU."""
_SHORTEST_CHUNK, _LONGEST_CHUNK = 32, 128
CHUNKS_AT_ONCE = 4
FIGURES = 8


class Plan(NamedTuple):
    """How the work on states of one shape is shared out: columns in groups, rows in chunks."""

    groups: int
    columns: int
    chunks: int
    chunk_rows: int
    rows: int


@cache
def plan_for(samples: int, tokens: int, features: int, entry: int) -> Plan:
    """As many columns as a warp reads at once, and chunks so short that all processors work."""
    columns = min(_LINE_BYTES // entry, power_of_two(features))
    groups = math.ceil(features / columns)
    wanted = power_of_two(math.ceil(samples * tokens * groups / _PROGRAMS))
    shortest = min(_SHORTEST_CHUNK, max(_ROWS, power_of_two(tokens)))
    chunk_rows = max(shortest, min(wanted, _LONGEST_CHUNK))
    rows = _ROWS if tokens < _MANY_TOKENS else 2 * _ROWS
    return Plan(groups, columns, math.ceil(tokens / chunk_rows), chunk_rows, rows)


@dataclass
class Buffers:
    """What the kernels write for states of one shape, on one device; all but the figures is for
    one state at a time."""

    plan: Plan
    tokens: int
    figures: Float[Tensor, "layer batch part figure"]
    """First of each chunk of rows: the largest sum of a row's sizes, the sum of squares, whether a
    length is in doubt (-1), how many rows are not zero, the first that is no number, the largest
    sum of what is left. Then of each group of columns: the largest sum of a column's sizes, that
    of what is left, the square of the sum of unit rows, that of what is left, and its unit."""
    center: Float[Tensor, "batch feature"]
    weights: Float[Tensor, "batch token"]
    lengths: Float[Tensor, "batch token"]
    row_parts: Float[Tensor, "2 batch token group"]
    mean_parts: Float[Tensor, "batch chunk feature"]
    rest_parts: Float[Tensor, "batch token group"]
    column_parts: Float[Tensor, "3 batch chunk feature"]
    energies: Float[Tensor, "batch group chunk"]
    arrived: Tensor
    """How many programs are done with a group of columns, then with a chunk of rows; zero before
    and after a kernel."""
    counts: list[Tensor | None] = field(default_factory=list)
    """Of each state the tokens of the samples; None where all count."""
    _sent: tuple[int, Transfer] | None = None

    def __post_init__(self) -> None:
        self.row_apart = self.row_parts[0].numel()
        self.column_apart = self.column_parts[0].numel()
        rooms = (self.row_parts, self.mean_parts, self.arrived, self.figures)
        self.of_means = (self.center, self.weights, self.lengths, *rooms)
        rooms = (self.column_parts, self.energies, self.arrived, self.figures)
        self.of_rests = (self.center, self.weights, self.rest_parts, *rooms)

    @classmethod
    def like(cls, x: Hidden, layers: int) -> "Buffers":
        """For so many states such as this one."""
        samples, tokens, features = x.shape
        plan = plan_for(samples, tokens, features, x.element_size())
        some = x.new_empty(0, dtype=torch.float32)
        shape = (layers, samples, plan.chunks + plan.groups, FIGURES)
        return cls(
            plan,
            tokens,
            some.new_empty(shape, dtype=torch.float64),
            some.new_empty((samples, features)),
            some.new_empty((samples, tokens)),
            some.new_empty((samples, tokens)),
            some.new_empty((2, samples, tokens, plan.groups)),
            some.new_empty((samples, plan.chunks, features)),
            some.new_empty((samples, tokens, plan.groups)),
            some.new_empty((3, samples, plan.chunks, features)),
            some.new_empty((samples, plan.groups, plan.chunks)),
            some.new_zeros(samples * (plan.groups + plan.chunks), dtype=torch.int32),
        )

    @property
    def used(self) -> int:
        """How many states it has figures of."""
        return len(self.counts)

    @property
    def is_full(self) -> bool:
        """Whether there is room for no other."""
        return self.used == len(self.figures)

    def send(self) -> None:
        """Let what was found come to the host, unless it is under way or there already."""
        if self._sent is None or self._sent[0] != self.used:
            self._sent = self.used, Transfer([self.figures[: self.used], *self._masked().values()])

    def wait(self) -> tuple[Tensor, Float[Tensor, "layer batch"]]:
        """The figures, and how many tokens count in each state, on the host."""
        assert self._sent is not None
        figures, *counted = self._sent[1].wait()
        every = torch.full(figures.shape[1:2], float(self.tokens), dtype=torch.float64)
        known = dict(zip(self._masked(), counted, strict=True))
        counts = [every if each is None else known[id(each)].double() for each in self.counts]
        return figures, torch.stack(counts)

    def _masked(self) -> dict[int, Tensor]:
        """Counts of tokens under a mask, which many states share."""
        return {id(each): each for each in self.counts if each is not None}
