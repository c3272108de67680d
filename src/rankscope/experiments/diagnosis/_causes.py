"""Why: what is unusual about a model's weights, beside other layers and the untrained twin.

Every weight of a block (a matrix, its bias, a norm's gain) is told by a few figures, which the same
weight has in the other layers and in a freshly drawn model. One that differs from both is a
suspect; whether it is to blame is found by mending it (``_repairs``).
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn

from rankscope.core.network import Block, Network, View
from rankscope.core.theory import thresholds
from rankscope.experiments import kit
from rankscope.numerals import short
from rankscope.streams import stream

Figure = Literal["size", "directions", "dead rows", "dead columns", "bias", "gain", "equal rows"]
"""Of a matrix its root mean square, the share of directions it uses, and of rows and columns that
are zero; of a bias its size beside what the matrix gives for inputs of size one; of a norm its
median gain; of an embedding table also how far its rows lie apart."""
EMBEDDINGS: Final = "embeddings"
_EXACT: Final = 128
"""Rows or columns up to which directions are counted exactly; beyond, by random vectors."""
_PROBES: Final = 32
_USUAL_BIAS: Final = 0.3
"""Biases of this size, beside what their matrix gives, are common in trained models."""
_NOTICED: Final = math.log(2.0)
"""Logarithm of the factor from which a difference to other layers and to the twin is a suspicion.
"""
_NOTICED_EMBEDDINGS: Final = math.log(3.0)
"""The same for embeddings, which have no other layer to be held against."""
_DEAD_SHARE: Final = 0.05
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


class Suspect(NamedTuple):
    """A weight with an unusual figure: that in the other layers, and in the untrained twin.

    ``score`` is the logarithm of the factor by which it differs from what is nearest to it. Where
    a model has no other layer, ``usual`` is the twin's.
    """

    weight: Weight
    figure: Figure
    value: float
    usual: float
    fresh: float
    score: float


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
    for place, module in attention.scores.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
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


def embedding_weights(model: nn.Module, network: Network) -> list[Weight]:
    """What a model has before its blocks: tables, projections and norms of the embeddings."""
    inside = {id(parameter) for parameter in network.parameters()}
    weights, seen = [], set(inside)
    body = getattr(model, "base_model", model)
    for place, module in body.named_modules():
        embeds = isinstance(module, nn.Embedding) or "embed" in place
        for name, parameter in module.named_parameters(recurse=False):
            if embeds and id(parameter) not in seen and parameter.ndim <= 2:
                seen.add(id(parameter))
                weights.append(Weight(0, EMBEDDINGS, f"{place}.{name}", module, name, _same))
                if name == "bias" and weights[-2:-1] and weights[-2].module is module:
                    weights[-1] = replace(weights[-1], matrix=weights[-2])
    return weights


def names_of(model: nn.Module, network: Network) -> dict[int, str]:
    """By the identity of a parameter, its name in the model, or else in our network."""
    names = {id(each): name for name, each in network.named_parameters()}
    return names | {id(each): name for name, each in model.named_parameters()}


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
        return {"gain": float(value.abs().median())}
    if weight.layer == 0:
        apart = value - value.mean(0)
        spread = float(apart.norm() / value.norm().clamp_min(1e-300))
        # A table of one row, or of two, is no vocabulary.
        return {**({"equal rows": spread} if len(value) > 2 else {}), "size": _rms(value)}
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


def suspects(subject: kit.Subject, twin: kit.Subject | None) -> list[Suspect]:
    """Weights with an unusual figure, the most unusual first."""
    weights = weights_of(subject.network)
    fresh = [] if twin is None else weights_of(twin.network)
    found = _of_blocks(weights, fresh)
    if subject.origin is not None and twin is not None and twin.origin is not None:
        found += _of_embeddings(
            embedding_weights(subject.origin.model, subject.network),
            embedding_weights(twin.origin.model, twin.network),
        )
    return sorted(found, key=lambda each: -each.score)


def _of_blocks(weights: Sequence[Weight], fresh: Sequence[Weight]) -> list[Suspect]:
    drawn = {(each.layer, each.role): figures_of(each) for each in fresh}
    sizes = usual_sizes(weights)
    by_role: dict[str, list[tuple[Weight, dict[Figure, float]]]] = {}
    for weight in weights:
        by_role.setdefault(weight.role, []).append((weight, figures_of(weight, sizes)))
    found = []
    for told in by_role.values():
        for weight, figures in told:
            noticed: list[Suspect] = []
            for name, value in figures.items():
                rest = [each[name] for other, each in told if other is not weight and name in each]
                twins = drawn.get((weight.layer, weight.role), {}).get(name)
                usual = _median(rest) if rest else twins
                if usual is None:
                    continue
                spread = _median([abs(_log(each, usual)) for each in rest]) if rest else 0.0
                base = usual if twins is None else twins
                score = _score(name, value, usual, base) - 2 * min(spread, 1.0)
                if score >= _NOTICED:
                    noticed.append(Suspect(weight, name, value, usual, base, score))
            # One figure is enough: a matrix with dead rows is also smaller than others.
            found += sorted(noticed, key=lambda each: _ORDER.index(each.figure))[:1]
    return found


def usual_sizes(weights: Sequence[Weight]) -> dict[str, float]:
    """By role, the median over the layers of the root mean square."""
    sizes: dict[str, list[float]] = {}
    for weight in weights:
        if weight.matrix is None:
            sizes.setdefault(weight.role, []).append(_rms(weight.value.double()))
    return {role: _median(some) for role, some in sizes.items()}


def _of_embeddings(weights: Sequence[Weight], fresh: Sequence[Weight]) -> list[Suspect]:
    drawn = {each.role: figures_of(each) for each in fresh}
    found = []
    for weight in weights:
        for name, value in figures_of(weight).items():
            base = drawn.get(weight.role, {}).get(name)
            if base is None:
                continue
            score = _score(name, value, base, base)
            if name == "equal rows":
                score = _MOST if value < thresholds.EQUAL_ROWS <= base else 0.0
            if score >= _NOTICED_EMBEDDINGS:
                found.append(Suspect(weight, name, value, base, base, score))
                break
    return found


def _score(name: Figure, value: float, usual: float, fresh: float) -> float:
    """The logarithm of the factor by which a figure differs from both, if to the same side."""
    if name in ("dead rows", "dead columns"):
        excess = value - max(usual, fresh)
        return _NOTICED * (1.0 + 10 * excess) if excess >= _DEAD_SHARE else 0.0
    if name == "bias":
        return _log(value, max(usual, fresh, _USUAL_BIAS))
    others = [_log(value, each) for each in (usual, fresh)]
    if name == "directions":
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


def groups(found: Sequence[Suspect]) -> list[Group]:
    """Suspects by layer and part, the most unusual group first."""

    def key(suspect: Suspect) -> tuple[int, str]:
        return suspect.weight.layer, suspect.weight.part

    gathered = [tuple(some) for _, some in groupby(sorted(found, key=key), key)]
    gathered = [tuple(sorted(some, key=lambda each: -each.score)) for some in gathered]
    return sorted(gathered, key=lambda some: -some[0].score)


WORDS: Final[dict[Figure, str]] = {
    "size": "root mean square",
    "directions": "directions (participation ratio)",
    "dead rows": "share of rows that are zero",
    "dead columns": "share of columns that are zero",
    "bias": "size beside what its matrix gives",
    "gain": "median gain",
    "equal rows": "relative dispersion of its rows",
}


def describe(suspect: Suspect, path: str) -> str:
    """What is unusual about a weight, in words that go on with a module's path."""
    weight, figure, value, usual, fresh, _ = suspect
    if figure == "equal rows":
        return (
            f"`{path}`: all rows are equal (relative dispersion {short(value, digits=2)}, "
            f"untrained {short(fresh, digits=2)}), so that every word has the same embedding"
        )
    what = "norm bias beside its gain" if weight.role.endswith("norm bias") else WORDS[figure]
    beside = f"untrained {short(fresh, digits=2)}"
    if weight.layer:
        beside = f"elsewhere {short(usual, digits=2)}, {beside}"
    return f"`{path}`: {what} {short(value, digits=2)}, {beside}"
