"""All lengths moved through a network together, in the place where they are (``_lengths.py``)."""

from typing import cast

from torch import Tensor

from rankscope.core.network import Attention, Block, Network
from rankscope.core.paths._chunks import chunk_size
from rankscope.core.paths._frozen import FrozenStep, Kind, Streams
from rankscope.core.shapes import Hidden


class Advance:
    """The sums over paths of each length, step by step; counted branches lead to the next length.

    One buffer holds every length there will be. Lengths are taken from the longest to the shortest,
    so that each is read before what comes from the one below it is added to it.
    """

    def __init__(
        self, network: Network, x: Hidden, counted: tuple[Kind, ...], max_length: int | None
    ) -> None:
        longest = _longest(network, counted)
        most = longest if max_length is None else min(longest, max_length)
        self._buffer: Tensor = x.new_empty((most + 1, *x.shape))
        self._buffer[0] = x
        self._count, self._counted = 1, counted
        self.cut = False
        """Whether paths were left out because they are too long."""

    @property
    def streams(self) -> Streams:
        """What there is now, by length; the next step overwrites it."""
        return self._buffer[: self._count]

    def through(self, step: FrozenStep) -> None:
        """One step for all lengths."""
        self._buffer = self._buffer.to(step.state.device)
        before = self._count
        grows = any(branch.kind in self._counted for branch in step.branches)
        if grows and before == len(self._buffer):
            self.cut = True
        elif grows:
            self._buffer[before].zero_()
            self._count += 1
        size = chunk_size(self.streams)
        done = self._count
        for first in reversed(range(0, before, size)):
            self._add_some(step, first, min(first + size, before))
            # What comes from the length below is still missing in the first of these.
            step.after.linear_(self._buffer[first + grows : done])
            done = first + grows
        step.after.linear_(self._buffer[:done])

    def _add_some(self, step: FrozenStep, first: int, end: int) -> None:
        """What a step makes of the lengths from ``first`` to before ``end``, norm apart."""
        here = self._buffer[first:end]
        begun = []
        for branch in step.branches:
            on = branch.kind in self._counted
            into = self._buffer[first + on : end + on]
            if len(into):
                begun.append((branch, branch.begin(here[: len(into)]), into))
        if step.skip != 1.0:
            here.mul_(step.skip)
        for branch, rows, into in begun:
            branch.finish(rows, into)


def _longest(network: Network, counted: tuple[Kind, ...]) -> int:
    """The length of the longest paths: how many steps have a branch that counts."""
    return sum(
        any(_kind(branch.part) in counted for branch in step.branches)
        for block in network.blocks
        for step in cast(Block, block).steps
    )


def _kind(part: object) -> Kind:
    return "attention" if isinstance(part, Attention) else "mlp"
