"""Where an original keeps a matrix: ways to read queries, keys and values out of its parameters."""

from dataclasses import dataclass, replace

from torch import Tensor, nn

from rankscope.core.network import Projection, View


@dataclass(frozen=True)
class Slots:
    """Some of the outputs of a stored matrix, or all of them.

    The outputs are ``groups`` groups of ``slots`` equal parts; parts ``start:stop`` of each group
    are taken. One group of three is queries, keys and values one after another; a group for each
    head, of three parts each, is how GPT-NeoX stores them. A ``transposed`` matrix is stored as
    ``(input, output)``, as GPT-2 does.
    """

    groups: int = 1
    slots: int = 1
    start: int = 0
    stop: int = 1
    transposed: bool = False

    def turned(self, transposed: bool) -> "Slots":
        """The same of a matrix that is stored in this orientation."""
        return replace(self, transposed=transposed)

    def weight(self, stored: Tensor) -> Tensor:
        return self.bias(stored.T if self.transposed else stored)

    def bias(self, stored: Tensor) -> Tensor:
        if self.stop - self.start == self.slots:
            return stored
        parts: Tensor = stored.unflatten(0, (self.groups, self.slots, -1))
        return parts[:, self.start : self.stop].flatten(0, 2)


@dataclass(frozen=True)
class HeadAxis:
    """A tensor ``(feature, head, head_width)`` as a map into heads or out of them, as in XLNet."""

    out_of_heads: bool = False

    def weight(self, stored: Tensor) -> Tensor:
        return stored.flatten(1) if self.out_of_heads else stored.flatten(1).T

    def bias(self, stored: Tensor) -> Tensor:
        return stored


def plain(module: nn.Module) -> nn.Linear | View:
    """A whole projection as it is stored, through a view if it is transposed."""
    return module if isinstance(module, nn.Linear) else View(module, Slots(transposed=True))


def scaled(projection: Projection, scale: float | nn.Parameter) -> Projection:
    """A projection whose outputs are multiplied by a number, or feature by feature."""
    if isinstance(scale, float) and scale == 1.0:
        return projection
    if isinstance(projection, View):
        names = {"weight": projection.name, "bias": projection.bias_name}
        return View(projection.source, projection.pick, **names, scale=scale)
    return View(projection, Slots(), scale=scale)
