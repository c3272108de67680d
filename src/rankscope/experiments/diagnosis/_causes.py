"""Why: what is unusual about a model's weights, beside other layers and the untrained twin.

Every weight (a matrix, its bias, a norm's gain, an embedding table) is described by a few figures,
which the same weight has in the other layers and in a freshly drawn model. One that differs from
both is a suspect; whether it is to blame shows when it is mended (``_repairs``).
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn

from rankscope.core.network import Block, Network, View
from rankscope.core.theory import thresholds
from rankscope.experiments import kit
from rankscope.numerals import short
from rankscope.streams import stream

Figure = Literal["size", "directions", "dead rows", "dead columns", "bias", "gain", "equal rows"]
"""Of a matrix its root mean square, the directions it uses, and the share of its rows and columns
that are zero; of a bias its size beside what the matrix gives for inputs of size one; of a norm its
median gain and how many features it lets through; of an embedding table also how far its rows lie
apart."""
EMBEDDINGS: Final = "embeddings"
FINAL_NORM: Final = "final norm"
OUTPUT_ROLES: Final = ("value", "output", "up", "gate", "down")
"""Matrices that the output of attention or of an MLP passes through."""
_EXACT: Final = 128
"""Rows or columns up to which directions are counted exactly; beyond, by random vectors."""
_PROBES: Final = 32
_USUAL_BIAS: Final = 0.3
"""Biases of this size, beside what their matrix gives, are common in trained models."""
_NOTICED: Final = math.log(2.0)
"""Logarithm of the factor from which a difference to other layers and to the twin is a suspicion.
"""
_NOTICED_ALONE: Final = math.log(3.0)
"""The same for embeddings and shared blocks, which have no other layer beside them."""
_DEAD_SHARE: Final = 0.05
_EVERYWHERE: Final = math.log(10.0)
"""Logarithm of the factor between all layers and the twin from which all of them are suspects: what
training alone does is less."""
_AS_DRAWN: Final = 0.1
"""Logarithm of the factor up to which a matrix has the size of an untrained one."""
_ORDER: Final[tuple[Figure, ...]] = (
    *("equal rows", "dead rows", "dead columns", "directions", "size", "gain", "bias"),
)
"""Which figure tells most about a weight, where several are unusual."""
_MOST: Final = math.log(1e6)


@dataclass(frozen=True, eq=False)
class Weight:
    """One matrix, bias or gain as a block sees it, wherever it is stored.

    ``pick`` reads it out of what ``module`` stores as ``name``; ``matrix`` is what a bias goes
    with. Layers count from 1; 0 are the embeddings.
    """

    layer: int
    part: str
    role: str
    module: nn.Module
    name: str
    pick: Callable[[Tensor], Tensor]
    matrix: "Weight | None" = None

    @property
    def stored(self) -> nn.Parameter:
        """The parameter, of which this may be a slice."""
        return cast(nn.Parameter, getattr(self.module, self.name))

    @property
    def value(self) -> Tensor:
        """The numbers themselves."""
        return self.pick(self.stored.detach())

    def written(self, value: Tensor, into: Tensor) -> Tensor:
        """What is stored, with other numbers in this weight's place."""
        places = torch.arange(into.numel(), device=into.device).view_as(into)
        changed = into.detach().clone().flatten()
        changed[self.pick(places).flatten()] = value.to(changed).flatten()
        return changed.view_as(into)


class Reading(NamedTuple):
    """A weight, its path in the original model, what was stored when it was read, its figures."""

    weight: Weight
    path: str
    stored: nn.Parameter
    figures: Mapping[Figure, float]


class Suspect(NamedTuple):
    """A weight with an unusual figure: that in the other layers, and in the untrained twin.

    ``score`` is the logarithm of the factor by which it differs from what is nearest to it.
    ``elsewhere`` is None where no other layer has such a weight, or where all layers differ from
    the twin alike (``everywhere``).
    """

    weight: Weight
    path: str
    figure: Figure
    value: float
    elsewhere: float | None
    fresh: float
    score: float
    everywhere: bool = False

    @property
    def usual(self) -> float:
        """What the figure should be."""
        return self.fresh if self.elsewhere is None else self.elsewhere

    @property
    def place(self) -> tuple[int, str]:
        """Layer and part, by which suspects are mended together; layer −1 stands for all."""
        return -1 if self.everywhere else self.weight.layer, self.weight.part

    @property
    def is_unusual(self) -> bool:
        """Whether it is worth a finding of its own, whatever it does to the tokens."""
        plain = self.figure not in ("gain", "bias") and self.elsewhere is not None
        factor = thresholds.UNUSUAL_WEIGHT if plain else thresholds.UNUSUAL_ALONE
        return self.score >= math.log(factor)


def weights_of(network: Network) -> list[Weight]:
    """Every weight of the blocks; a block that stands in several layers is told in its first."""
    weights: list[Weight] = []
    seen: set[int] = set()
    for layer, block in enumerate(cast(list[Block], list(network.blocks)), start=1):
        if id(block) not in seen:
            seen.add(id(block))
            weights += _weights_of_block(layer, block, network.spec.norm_place)
    return weights


def _weights_of_block(layer: int, block: Block, norm_place: str) -> Iterator[Weight]:
    attention = block.attention
    roles: tuple[str, ...] = ("query", "key", "value", "output")
    projections: list[tuple[str, str, Any]] = [
        ("attention", role, getattr(attention, role)) for role in roles
    ]
    if block.mlp is not None:
        roles = ("up", "gate", "down")
        projections += [("MLP", role, getattr(block.mlp, role, None)) for role in roles]
    for part, role, projection in projections:
        if projection is None:
            continue
        view = isinstance(projection, View)
        module = projection.source if view else projection
        name = projection.name if view else "weight"
        pick = projection.pick if view else _Whole()
        matrix = Weight(layer, part, role, module, name, pick.weight)
        yield matrix
        if projection.bias is not None:
            yield Weight(layer, part, f"{role} bias", module, "bias", pick.bias, matrix)
    for key, norm in block.norms.items():
        branch = "attention" if key.startswith("attention") else "MLP"
        after = norm_place == "post" and not key.endswith("_inside")
        gain = getattr(norm, "weight", None)
        if gain is None:
            continue
        scale = Weight(layer, "norm" if after else branch, f"{key} gain", norm, "weight", _same)
        yield scale
        if getattr(norm, "bias", None) is not None:
            yield Weight(layer, scale.part, f"{key} norm bias", norm, "bias", _same, scale)
    others = {id(each) for norm in block.norms.values() for each in norm.parameters()}
    for place, module in attention.scores.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) in others:
                continue
            if layer == 1 or parameter.ndim == 1:  # one table may serve all layers
                role = f"score {place}.{name}" if place else f"score {name}"
                yield Weight(layer, "attention", role, module, name, _same)


class _Whole:
    """A ``Pick`` of all that is stored."""

    def weight(self, stored: Tensor) -> Tensor:
        return stored

    def bias(self, stored: Tensor) -> Tensor:
        return stored


def _same(stored: Tensor) -> Tensor:
    return stored


def outer_weights(model: nn.Module, network: Network) -> list[Weight]:
    """What a model has around its blocks: tables, projections and norms of the embeddings, and
    the norm after the last block."""
    weights: list[Weight] = []
    seen = {id(parameter) for parameter in network.parameters()}
    body = getattr(model, "base_model", model)
    for path, module in body.named_modules():
        embeds = isinstance(module, nn.Embedding) or "embed" in path
        norm = "norm" in type(module).__name__.lower() or path.split(".")[-1].startswith("ln")
        for name, parameter in module.named_parameters(recurse=False):
            if not (embeds or norm) or id(parameter) in seen or parameter.ndim > 2:
                continue
            seen.add(id(parameter))
            part = EMBEDDINGS if embeds else FINAL_NORM
            layer = 0 if embeds else network.spec.layers
            gain = weights[-1] if weights and weights[-1].module is module else None
            matrix = gain if name == "bias" else None
            weights.append(Weight(layer, part, f"{path}.{name}", module, name, _same, matrix))
    return weights


def read_weights(subject: kit.Subject, known: Sequence[Reading] = ()) -> tuple[Reading, ...]:
    """The figures of every weight; one that is stored as when it was ``known`` is not read anew."""
    weights, names = weights_of(subject.network), {}
    if subject.origin is not None:
        weights += outer_weights(subject.origin.model, subject.network)
        names = {id(each): path for path, each in subject.origin.model.named_parameters()}
    names = {id(each): path for path, each in subject.network.named_parameters()} | names
    sizes = usual_sizes(weights)
    before = {(each.weight.layer, each.weight.role): each for each in known}
    readings = []
    for weight in weights:
        stored, same = weight.stored, before.get((weight.layer, weight.role))
        path = same.path if same is not None else names[id(stored)]
        if same is None or same.stored is not stored or weight.matrix is not None:
            same = Reading(weight, path, stored, figures_of(weight, sizes))
        readings.append(same)
    return tuple(readings)


def is_passed_through(weight: Weight) -> bool:
    """Whether the output of a part, or the input of the first block, passes through a matrix."""
    return weight.role in OUTPUT_ROLES or (weight.layer == 0 and weight.value.ndim == 2)


def figures_of(weight: Weight, sizes: Mapping[str, float] | None = None) -> dict[Figure, float]:
    """What a weight is told by; see ``Figure``.

    ``sizes`` are the usual ones of matrices, by role: one that is broken is no measure of its bias.
    """
    value = weight.value.double()
    if weight.matrix is not None:
        matrix = weight.matrix.value.double()
        size = (sizes or {}).get(weight.matrix.role) or _rms(matrix)
        root = math.sqrt(matrix.shape[1]) if matrix.ndim == 2 else 1.0
        return {"bias": _rms(value) / max(size * root, 1e-12)}
    if value.ndim == 1:
        gains: dict[Figure, float] = {"gain": float(value.abs().median())}
        squares = value.square()
        if bool(squares.any()):
            gains["directions"] = float(squares.sum().square() / squares.square().sum())
        return gains
    if weight.layer == 0:
        table: dict[Figure, float] = {"size": _rms(value), "directions": directions(value)}
        apart = value - value.mean(0)
        # A table of one row, or of two, is no vocabulary.
        if len(value) > 2:
            table["equal rows"] = float(apart.norm() / value.norm().clamp_min(1e-300))
        return table
    figures: dict[Figure, float] = {"size": _rms(value)}
    if figures["size"] == 0.0:  # it has no directions, and that is all there is to say
        return figures
    figures["directions"] = directions(value)
    rows, columns = value.norm(dim=1), value.norm(dim=0)
    for name, lengths in (("dead rows", rows), ("dead columns", columns)):
        dead = lengths <= 1e-3 * float(lengths.max())
        figures[cast(Figure, name)] = float(dead.double().mean())
    return figures


def _rms(value: Tensor) -> float:
    return float(value.square().mean().sqrt())


def directions(matrix: Tensor) -> float:
    """The participation ratio of the squared singular values, ``‖W‖⁴/‖WᵀW‖²``: 1 for rank one.

    >>> directions(torch.eye(4)), directions(torch.ones(4, 3))
    (4.0, 1.0)
    """
    narrow = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.mT
    if narrow.shape[0] <= _EXACT:
        square = (narrow @ narrow.mT).square().sum()
    else:
        probes = torch.randn(
            narrow.shape[0], _PROBES, generator=stream(0, "directions"), dtype=torch.float64
        ).to(narrow)
        square = (narrow @ (narrow.mT @ probes)).square().sum() / _PROBES
    return float(narrow.square().sum().square() / square.clamp_min(1e-300))


def suspects(readings: Sequence[Reading], fresh: Sequence[Reading]) -> list[Suspect]:
    """Weights with an unusual figure, the most unusual first; ``fresh`` are the twin's."""
    drawn = {(each.weight.layer, each.weight.role): each.figures for each in fresh}
    by_role: dict[str, list[Reading]] = {}
    for reading in readings:
        by_role.setdefault(reading.weight.role, []).append(reading)
    suspected = []
    for same_role in by_role.values():
        for reading in same_role:
            others = [each.figures for each in same_role if each is not reading]
            twin = drawn.get((reading.weight.layer, reading.weight.role), {})
            noticed = [
                suspect
                for name, value in reading.figures.items()
                if (
                    suspect := _suspect(
                        reading,
                        name,
                        value,
                        [figures[name] for figures in others if name in figures],
                        twin.get(name),
                    )
                )
            ]
            # One figure is enough: a matrix with dead rows is also smaller than others. Trained
            # tables have fewer directions than fresh ones, so that there the size may say more.
            noticed.sort(key=lambda suspect: _ORDER.index(suspect.figure))
            if reading.weight.layer == 0 and noticed and noticed[0].figure == "directions":
                noticed.sort(key=lambda suspect: -suspect.score)
            suspected += noticed[:1]
    return sorted(suspected, key=lambda suspect: -suspect.score)


def _suspect(
    reading: Reading, name: Figure, value: float, others: Sequence[float], twin: float | None
) -> Suspect | None:
    """A suspect, if a figure differs from the median of the others and from the twin's."""
    if not others and twin is None:
        return None
    elsewhere = _median(others) if others else None
    fresh = cast(float, elsewhere if twin is None else twin)
    usual = fresh if elsewhere is None else elsewhere
    spread = _median([abs(_log(each, usual)) for each in others]) if others else 0.0
    score = _score(name, value, usual, fresh)
    if others and name == "size" and abs(_log(value, fresh)) < _AS_DRAWN:
        score = abs(_log(value, usual))  # as large as an untrained one, and the others are not
    score -= 2 * min(spread, 1.0)
    # A twin that starts from zero says nothing about the size of what is learned.
    if score >= (_NOTICED if others else _NOTICED_ALONE) and (others or fresh > 0):
        return Suspect(reading.weight, reading.path, name, value, elsewhere, fresh, score)
    shared = _score(name, value, fresh, fresh)
    if fresh > 0 and min(shared, _score(name, usual, fresh, fresh)) >= _EVERYWHERE:
        return Suspect(reading.weight, reading.path, name, value, None, fresh, shared, True)
    return None


def usual_sizes(weights: Sequence[Weight]) -> dict[str, float]:
    """By role, the median over the layers of the root mean square."""
    sizes: dict[str, list[float]] = {}
    for weight in weights:
        if weight.matrix is None:
            sizes.setdefault(weight.role, []).append(_rms(weight.value.double()))
    return {role: _median(some) for role, some in sizes.items()}


def _score(name: Figure, value: float, usual: float, fresh: float) -> float:
    """The logarithm of the factor by which a figure differs from both, if to the same side."""
    if name in ("dead rows", "dead columns"):
        excess = value - max(usual, fresh)
        return _NOTICED * (1.0 + 10 * excess) if excess >= _DEAD_SHARE else 0.0
    if name == "bias":
        return _log(value, max(usual, fresh, _USUAL_BIAS))
    others = [_log(value, each) for each in (usual, fresh)]
    if name in ("directions", "equal rows"):
        return max(0.0, -max(others))
    return 0.0 if others[0] * others[1] < 0 else min(map(abs, others))


def _log(value: float, usual: float) -> float:
    """The logarithm of a ratio, of zeros too."""
    if value <= 0 and usual <= 0:
        return 0.0
    if value <= 0 or usual <= 0:
        return math.copysign(_MOST, value - usual)
    return max(-_MOST, min(_MOST, math.log(value / usual)))


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


class Product(NamedTuple):
    """The maps of a layer's attention, heads side by side: their sizes and directions, the mean.

    Sizes are root mean squares of ``W_Q W_Kᵀ`` and ``W_V W_O``, of which every head has one.
    """

    query_key: float
    query_key_directions: float
    value_output: float
    value_output_directions: float


def products(network: Network) -> tuple[Product, ...]:
    """Of every layer, from 1."""
    return tuple(_product(block) for block in cast(list[Block], list(network.blocks)))


def _product(block: Block) -> Product:
    attention = block.attention
    heads, groups = attention.heads, attention.kv_heads

    def by_head(projection: Any, count: int) -> Tensor:
        matrix: Tensor = projection.weight.detach().double()
        split: Tensor = matrix.unflatten(0, (count, -1))
        return split.repeat_interleave(heads // count, 0)

    query, key = by_head(attention.query, heads), by_head(attention.key, groups)
    value = by_head(attention.value, groups)
    output = attention.output.weight.detach().double().mT.unflatten(0, (heads, -1))
    figures = []
    for left, right in ((query, key), (value, output)):
        # Through the small matrices: a product of a large model would be width by width.
        first, second = left @ left.mT, right @ right.mT  # head, head width, head width
        inner = first @ second
        square = inner.diagonal(dim1=-2, dim2=-1).sum(-1)  # of the Frobenius norm
        fourth = (inner @ inner).diagonal(dim1=-2, dim2=-1).sum(-1)
        size = (square / left.shape[-1] ** 2).clamp_min(0).sqrt().mean()
        figures += [float(size), float((square.square() / fourth.clamp_min(1e-300)).mean())]
    return Product(*figures)


Group = tuple[Suspect, ...]
"""Suspects of one part of one layer, the most unusual first."""


def groups(suspected: Sequence[Suspect]) -> list[Group]:
    """Suspects by layer and part, the most unusual group first."""
    by_place: dict[tuple[int, str], list[Suspect]] = {}
    for suspect in suspected:
        by_place.setdefault(suspect.place, []).append(suspect)
    gathered = [
        tuple(sorted(group, key=lambda suspect: -suspect.score)) for group in by_place.values()
    ]
    return sorted(gathered, key=lambda group: -group[0].score)


WORDS: Final[dict[Figure, str]] = {
    "size": "root mean square",
    "directions": "directions (participation ratio)",
    "dead rows": "share of rows that are zero",
    "dead columns": "share of columns that are zero",
    "bias": "size beside what its matrix gives",
    "gain": "median gain",
    "equal rows": "relative dispersion of its rows",
}


def describe(suspect: Suspect) -> str:
    """What is unusual about a weight, after its path."""
    figure, value = suspect.figure, short(suspect.value, digits=2)
    beside = f"untrained {short(suspect.fresh, digits=2)}"
    if suspect.elsewhere is not None:
        beside = f"elsewhere {short(suspect.elsewhere, digits=2)}, {beside}"
    if figure == "equal rows" and suspect.value < thresholds.EQUAL_ROWS:
        return (
            f"`{suspect.path}`: all rows are equal (relative dispersion {value}, {beside}), so "
            "that every word has the same embedding"
        )
    what = WORDS[figure]
    if suspect.weight.role.endswith("norm bias"):
        what = "norm bias beside its gain"
    elif figure == "directions" and suspect.weight.value.ndim == 1:
        what = "features it lets through (participation ratio)"
    return f"`{suspect.path}`: {what} {value}, {beside}"
