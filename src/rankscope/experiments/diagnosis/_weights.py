"""What a model's weights look like: every matrix, bias, gain and table, by a few figures."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn

from rankscope.ask import Traced
from rankscope.core.network import Block, Joined, Latent, Network, OffsetNorm, PartlyShared, View
from rankscope.core.tracing import Sublayer, kind_of, part_of
from rankscope.experiments import kit
from rankscope.streams import stream

Figure = Literal["size", "directions", "dead rows", "dead columns", "bias", "gain", "equal rows"]
"""Of a matrix its root mean square, the directions it uses, and the share of its rows and columns
that are zero; of a bias its size beside what the matrix gives for inputs of size one; of a norm its
median gain and how many features it lets through; of an embedding table also how far its rows lie
apart."""
EMBEDDINGS: Final = "embeddings"
BLOCK: Final = "block"
"""The part of a layer whose sublayers are not known: all of the block."""
_NOT_PASSED: Final = re.compile(
    r"(^|[._])(q|k|qk|query|key|q_proj|k_proj|q_a|q_b|router|gate|rel|pos|bias)([._]|$)|norm|conv"
)
"""Weights that choose among tokens or experts, or scale features: outputs do not pass them."""
FINAL_NORM: Final = "final norm"
OUTPUT_ROLES: Final = ("value", "output", "up", "gate", "down")
"""Matrices that the output of attention or of an MLP passes through."""
_EXACT: Final = 128
"""Rows or columns up to which directions are counted exactly; beyond, by random vectors."""
_PROBES: Final = 32


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
    passes: bool = False
    """Whether the output of its part passes through it."""
    offset: float = 0.0
    """What is added to the numbers that are stored: gains may be kept as w of 1 + w."""

    @property
    def stored(self) -> nn.Parameter:
        """The parameter, of which this may be a slice."""
        return cast(nn.Parameter, getattr(self.module, self.name))

    @property
    def value(self) -> Tensor:
        """The numbers themselves."""
        return self.pick(self.stored.detach()) + self.offset

    def written(self, value: Tensor, into: Tensor) -> Tensor:
        """What is stored, with other numbers in this weight's place."""
        value = value - self.offset
        if self.pick is _same:
            return value.to(into)
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


def weights_of(network: Network) -> list[Weight]:
    """Every weight of the blocks; a block that several layers share is listed in its first."""
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
    if attention.gate is not None:
        projections.append(("attention", "attention gate", attention.gate))
    for part, whole, joined in projections:
        for role, projection in _stored_apart(whole, joined):
            view = isinstance(projection, View)
            module = projection.source if view else projection
            name = projection.name if view else "weight"
            pick = projection.pick if view else _Whole()
            passes = whole in OUTPUT_ROLES
            matrix = Weight(layer, part, role, module, name, pick.weight, passes=passes)
            yield matrix
            if projection.bias is not None:
                bias = projection.bias_name if view else "bias"
                yield Weight(layer, part, f"{role} bias", module, bias, pick.bias, matrix)
            if view and isinstance(projection.scale, nn.Parameter):
                yield Weight(layer, part, f"{role} scale", projection, "scale", _same)
    for key, norm in block.norms.items():
        branch = "attention" if key.startswith("attention") else "MLP"
        after = norm_place == "post" and not key.endswith("_inside")
        gain = _gain(layer, "norm" if after else branch, f"{key} gain", norm)
        if gain is None:
            continue
        yield gain
        if getattr(norm, "bias", None) is not None:
            yield Weight(layer, gain.part, f"{key} norm bias", norm, "bias", _same, gain)
    others = {id(parameter) for norm in block.norms.values() for parameter in norm.parameters()}
    for path, module in attention.scores.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) in others:
                continue
            if layer == 1 or parameter.ndim == 1:  # one table may serve all layers
                role = f"score {path}.{name}" if path else f"score {name}"
                offset = float(isinstance(module, OffsetNorm) and name == "offset")
                yield Weight(layer, "attention", role, module, name, _same, offset=offset)


def _stored_apart(role: str, projection: Any) -> Iterator[tuple[str, Any]]:
    """The matrices that make up a projection: itself, its experts, or what latent features take."""
    if isinstance(projection, Joined):
        for number, part in enumerate(projection.parts):
            yield from _stored_apart(f"{role} (shared)" if number else role, part)
    elif isinstance(projection, Latent):
        yield f"{role} (latent)", projection.down
        yield role, projection.up
    elif isinstance(projection, PartlyShared):
        yield from _stored_apart(role, projection.own)
        yield f"{role} (shared)", projection.shared
    elif projection is not None:
        yield role, projection


def _gain(layer: int, part: str, role: str, norm: nn.Module) -> Weight | None:
    """The gain of a norm, which may be stored as its difference from one; None without one."""
    if isinstance(norm, OffsetNorm):
        return Weight(layer, part, role, norm, "offset", _same, offset=1.0)
    stored = getattr(norm, "weight", None)
    return None if stored is None else Weight(layer, part, role, norm, "weight", _same)


def recorded_weights(traced: Traced) -> list[Weight]:
    """Every parameter of the blocks of a model that is not converted, by its path in a block.

    A block that several layers share is listed in its first.
    """
    weights: list[Weight] = []
    seen: set[int] = set()
    for layer, block in enumerate(traced.stack, start=1):
        for path, module in block.named_modules():
            mine: dict[str, Weight] = {}
            for name, parameter in module.named_parameters(recurse=False):
                if id(parameter) in seen:
                    continue
                seen.add(id(parameter))
                role = f"{path}.{name}" if path else name
                matrix = mine.get("weight") if name == "bias" else None
                pick = _same if parameter.ndim in (1, 2) else _by_rows
                passes = parameter.ndim >= 2 and not _NOT_PASSED.search(role)
                part = _part_named(path, traced.sublayers.get(kind_of(block), ()))
                mine[name] = Weight(layer, part, role, module, name, pick, matrix, passes)
                weights.append(mine[name])
    return weights


def _part_named(path: str, sublayers: Sequence[Sublayer]) -> str:
    """The part of a block that a module belongs to: the sublayer for which it ran, else by name."""
    nearest = max(sublayers, key=lambda sublayer: sublayer.has(path), default=None)
    if nearest is not None and nearest.has(path):
        return nearest.part
    return part_of(path) or BLOCK


def _by_rows(stored: Tensor) -> Tensor:
    """A single number as a vector; what has more than two axes, such as experts, as a matrix."""
    return stored.reshape(1) if stored.ndim == 0 else stored.flatten(0, -2)


class _Whole:
    """A ``Pick`` of all that is stored."""

    def weight(self, stored: Tensor) -> Tensor:
        return stored

    def bias(self, stored: Tensor) -> Tensor:
        return stored


def _same(stored: Tensor) -> Tensor:
    return stored


def _as_matrix(stored: Tensor) -> Tensor:
    """A convolution's kernels as rows; a table with an axis for the batch without it."""
    if stored.ndim == 0:
        return stored.reshape(1)
    return stored.flatten(1) if len(stored) > 1 else stored.flatten(0, -2)


def outer_weights(model: nn.Module, network: Network | Traced) -> list[Weight]:
    """What a model has around its blocks: tables, projections and norms of the embeddings, and
    the norm after the last block."""
    weights: list[Weight] = []
    blocks = list(network.stack) if isinstance(network, Traced) else list(network.blocks)
    seen = {id(parameter) for block in blocks for parameter in block.parameters()}
    body = getattr(model, "base_model", model)
    for path, module in body.named_modules():
        embeds = isinstance(module, nn.Embedding) or "embed" in path
        norm = "norm" in type(module).__name__.lower() or path.split(".")[-1].startswith("ln")
        inside = any(step.isdigit() for step in path.split("."))  # of a stack that is not measured
        for name, parameter in module.named_parameters(recurse=False):
            if not (embeds or (norm and not inside)) or id(parameter) in seen:
                continue
            seen.add(id(parameter))
            part = EMBEDDINGS if embeds else FINAL_NORM
            layer = 0 if embeds else len(blocks)
            gain = weights[-1] if weights and weights[-1].module is module else None
            matrix = gain if name == "bias" else None
            pick = _same if parameter.ndim in (1, 2) else _as_matrix
            weights.append(Weight(layer, part, f"{path}.{name}", module, name, pick, matrix))
    return weights


def read_weights(subject: kit.Subject, known: Sequence[Reading] = ()) -> tuple[Reading, ...]:
    """The figures of every weight; one that is stored as when it was ``known`` is not read anew."""
    traced, names = subject.traced, {}
    weights = weights_of(subject.network) if traced is None else recorded_weights(traced)
    if subject.origin is not None:
        body = subject.origin.model if traced is None else traced.model
        weights += outer_weights(body, subject.network if traced is None else traced)
        names = {id(parameter): path for path, parameter in subject.origin.model.named_parameters()}
    names = {id(parameter): path for path, parameter in subject.network.named_parameters()} | names
    before = {(reading.weight.layer, reading.weight.role): reading for reading in known}

    def read(weight: Weight, sizes: Mapping[str, float]) -> Reading:
        stored, same = weight.stored, before.get((weight.layer, weight.role))
        if same is not None and same.stored is stored and weight.matrix is None:
            return same
        path = same.path if same is not None else names[id(stored)]
        return Reading(weight, path, stored, figures_of(weight, sizes))

    matrices = {id(weight): read(weight, {}) for weight in weights if weight.matrix is None}
    sizes = usual_sizes(tuple(matrices.values()))
    return tuple(matrices.get(id(weight)) or read(weight, sizes) for weight in weights)


def is_passed_through(weight: Weight) -> bool:
    """Whether the output of a part, or the input of the first block, passes through a matrix."""
    return weight.passes or (weight.layer == 0 and weight.value.ndim == 2)


def figures_of(weight: Weight, sizes: Mapping[str, float] | None = None) -> dict[Figure, float]:
    """The figures that describe a weight; see ``Figure``.

    ``sizes`` are the usual ones of matrices, by role: one that is broken is no measure of its bias.
    """
    if weight.matrix is not None:
        shape = weight.matrix.value.shape
        size = (sizes or {}).get(weight.matrix.role) or _rms(weight.matrix.value.double())
        root = math.sqrt(shape[1]) if len(shape) == 2 else 1.0
        return {"bias": _rms(weight.value.double()) / max(size * root, 1e-12)}
    value = weight.value.double()
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
    # Estimates may fall below 1, which no matrix has.
    return max(1.0, float(narrow.square().sum().square() / square.clamp_min(1e-300)))


def usual_sizes(matrices: Sequence[Reading]) -> dict[str, float]:
    """By role, the median over the layers of the root mean square, or of a norm's gain."""
    sizes: dict[str, list[float]] = {}
    for reading in matrices:
        size = reading.figures.get("size", reading.figures.get("gain", 0.0))
        sizes.setdefault(reading.weight.role, []).append(size)
    return {role: median(some) for role, some in sizes.items()}


def median(values: Sequence[float]) -> float:
    """The middle of some numbers."""
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
