"""Paths through the heads of a network: one choice per layer, a head or the skip."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from math import comb, exp, lgamma, log, log10
from typing import TYPE_CHECKING, cast

import torch
from jaxtyping import Float
from torch import Tensor

from rankscope.arguments import checked
from rankscope.core.checks import whole
from rankscope.core.network import Block, Network
from rankscope.core.paths._frozen import FrozenStep, Streams, check_layer, frozen_steps
from rankscope.core.shapes import Hidden
from rankscope.core.tabular import Tabular, plot_along
from rankscope.errors import InputError
from rankscope.numerals import plural, power_of_ten
from rankscope.streams import stream

if TYPE_CHECKING:
    import polars

    from rankscope.show import figures

_MOST = 10_000
"""The largest number of layers, and of heads, for which paths are counted."""
_MOST_DRAWN = 1_000_000


@checked
@dataclass(frozen=True)
class Path:
    """One choice per layer: a head, counted from 0, or None for the skip.

    >>> from rankscope import Path
    >>> print(Path((2, None, 0)))
    h2 → skip → h0
    >>> Path((2, None, 0)).length
    2
    """

    choices: tuple[int | None, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "choices", tuple(self.choices))
        for choice in self.choices:
            if choice is not None:
                whole("a head on a path", choice, least=0)

    @classmethod
    def of(cls, *choices: int | None) -> "Path":
        """``Path.of(2, None, 0)``."""
        return cls(tuple(choices))

    @property
    def length(self) -> int:
        """The number of layers that the path does not skip."""
        return sum(choice is not None for choice in self.choices)

    def __str__(self) -> str:
        return " → ".join("skip" if head is None else f"h{head}" for head in self.choices)

    def check(self, layers: int, heads: int) -> None:
        """Raise unless the path fits a network of this shape."""
        if len(self.choices) != layers:
            raise InputError(
                f"the path {self} has {len(self.choices)} choices, the network {layers} layers; "
                "give one choice for each."
            )
        wrong = [head for head in self.choices if head is not None and head >= heads]
        if wrong:
            raise InputError(f"the path {self} uses head {wrong[0]}, expected 0 to {heads - 1}.")


@checked
def enumerate_paths(layers: int, heads: int, *, length: int | None = None) -> Iterator[Path]:
    """All paths in order, or all of one length; there are ``(heads + 1) ** layers`` of them.

    >>> from rankscope import enumerate_paths
    >>> [str(path) for path in enumerate_paths(2, 1)]
    ['skip → skip', 'skip → h0', 'h0 → skip', 'h0 → h0']
    """
    _shape(layers, heads)
    if length is None:
        for choices in product((None, *range(heads)), repeat=layers):
            yield Path(choices)
        return
    whole("length", length, least=0, most=layers)
    for on_path in combinations(range(layers), length):
        for chosen in product(range(heads), repeat=length):
            picked = dict(zip(on_path, chosen, strict=True))
            yield Path(tuple(picked.get(layer) for layer in range(layers)))


@checked
def sample_paths(
    layers: int, heads: int, *, length: int, count: int, generator: torch.Generator | None = None
) -> list[Path]:
    """Paths of one length, drawn uniformly and independently.

    >>> [path.length for path in sample_paths(6, 2, length=3, count=4)]
    [3, 3, 3, 3]

    Figure 4 of Dong et al. 2021 draws paths like this. Without a ``generator`` that of seed 0 is
    used; no global random state is touched.
    """
    _shape(layers, heads)
    whole("length", length, least=0, most=layers)
    whole("count", count, least=0, most=_MOST_DRAWN)
    generator = generator or stream(0, "paths")
    drawn = []
    for _ in range(count):
        on_path = torch.randperm(layers, generator=generator)[:length].tolist()
        chosen = torch.randint(heads, (length,), generator=generator).tolist()
        picked = dict(zip(on_path, chosen, strict=True))
        drawn.append(Path(tuple(picked.get(layer) for layer in range(layers))))
    return drawn


@checked
@dataclass(frozen=True, repr=False)
class PathCounts(Tabular):
    """How many paths of each length there are, and what part of all they make.

    >>> from rankscope import count_paths
    >>> counts = count_paths(layers=12, heads=12)
    >>> counts.counts[:3], counts.total
    ((1, 144, 9504), 23298085122481)
    """

    layers: int
    heads: int

    def __post_init__(self) -> None:
        _shape(self.layers, self.heads)

    @property
    def counts(self) -> tuple[int, ...]:
        """``C(L, k) H^k`` for k = 0 … L, exactly."""
        return tuple(comb(self.layers, k) * self.heads**k for k in range(self.layers + 1))

    @property
    def total(self) -> int:
        """``(H + 1)^L``, exactly."""
        total: int = (self.heads + 1) ** self.layers
        return total

    @property
    def table(self) -> "polars.DataFrame":
        """By length: ``proportion`` of all paths, and ``log10_count``."""
        from rankscope import tables

        counts = [(k, "log10_count", log10(count)) for k, count in enumerate(self.counts)]
        shares = [(k, "proportion", share) for k, share in enumerate(self.proportions)]
        return tables.from_rows(("length", "metric", "value"), shares + counts)

    def plot(self, metric: str | None = None) -> "figures.Figure":
        """Proportions, or another ``metric``, against the length."""
        return plot_along(self.table, "length", "path length", metric)

    def __repr__(self) -> str:
        total = power_of_ten(self.layers * log10(self.heads + 1))
        return (
            f"PathCounts({plural(self.layers, 'layer')}, {plural(self.heads, 'head')}: "
            f"{total if self.total >= 10**6 else self.total} paths of length 0 to {self.layers})"
        )

    @property
    def proportions(self) -> tuple[float, ...]:
        """The proportion of each length, computed with logarithms to avoid overflow."""
        n = self.layers
        log_total = n * log(self.heads + 1)
        return tuple(
            exp(lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1) + k * log(self.heads) - log_total)
            for k in range(n + 1)
        )


@checked
def count_paths(layers: int, heads: int) -> PathCounts:
    """The number of paths of each length in a network.

    >>> from rankscope import count_paths
    >>> count_paths(2, 3).counts
    (1, 6, 9)
    """
    return PathCounts(layers, heads)


@checked
def path_output(
    network: Network, x: Tensor, path: Path, *, token_mask: Tensor | None = None
) -> Hidden:
    """What one path contributes: ``P_path X W_path`` (Dong et al. 2021, theorem 2.1).

    >>> from rankscope import Network, Spec
    >>> x = torch.eye(4, 8)[None]
    >>> net = Network.random(Spec(2, 2, 8, mlp_ratio=0, norm="none"))
    >>> around = Path((None, None))  # past both layers: the input itself
    >>> bool((path_output(net, x, around) == x).all())
    True

    Norms and MLPs on the way are frozen at this input, as in ``path_lengths``; an MLP's step is
    part of every path. Where a network has no skip, a path that wants one contributes nothing.
    """
    return path_outputs(network, x, [path], token_mask=token_mask)[0]


@checked
def path_outputs(
    network: Network, x: Tensor, paths: Sequence[Path], *, token_mask: Tensor | None = None
) -> Streams:
    """``path_output`` of several paths, in one pass through the network.

    >>> import torch
    >>> from rankscope import Network, Path, Spec
    >>> from rankscope.core.paths import path_outputs
    >>> net = Network.random(Spec(2, 2, 8), seed=0)
    >>> outputs = path_outputs(net, torch.eye(8)[None], [Path((0, None)), Path((0, 1))])
    >>> len(list(outputs))
    2

    Paths that begin alike are followed together until they part, unless there are MLPs, whose
    products round differently in stacks of different sizes.
    """
    for path in paths:
        path.check(network.spec.layers, network.spec.heads)
    x, token_mask = network.prepare(x, token_mask)
    apart = any(cast(Block, block).mlp is not None for block in network.blocks)
    streams = x.expand(len(paths) if apart else 1, *x.shape)
    stream_of = [*range(len(paths))] if apart else [0] * len(paths)
    with torch.no_grad():
        for step in frozen_steps(network, x, token_mask):
            choices = [path.choices[step.layer - 1] for path in paths]
            ways = list(zip(stream_of, choices, strict=True))
            numbers = {way: number for number, way in enumerate(dict.fromkeys(ways))}
            streams = _follow_ways(step, streams.to(step.state.device), list(numbers))
            stream_of = [numbers[way] for way in ways]
            check_layer(network, step.layer, streams, token_mask)
    return streams[stream_of]


@checked
def path_matrix(
    network: Network, x: Tensor, path: Path, *, token_mask: Tensor | None = None
) -> Float[Tensor, "batch query key"]:
    """``P_path = P^L_{h_L} … P^1_{h_1}`` alone: which input token reaches which output token.

    >>> from rankscope import Network, Spec
    >>> net, x = Network.random(Spec(2, 2, 8)), torch.eye(4, 8)[None]
    >>> rows = path_matrix(net, x, Path((0, 1))).sum(-1)  # a product of stochastic matrices
    >>> bool((rows - 1).abs().max() < 1e-6)
    True
    """
    *_, last = chained_matrices(network, x, path, token_mask=token_mask)
    return last


@checked
def chained_matrices(
    network: Network, x: Tensor, path: Path, *, token_mask: Tensor | None = None
) -> Iterator[Float[Tensor, "batch query key"]]:
    """The product of attention matrices along a path, after each layer.

    >>> import torch
    >>> from rankscope import Network, Path, Spec
    >>> from rankscope.core.paths import chained_matrices
    >>> net = Network.random(Spec(2, 2, 8), seed=0)
    >>> matrices = list(chained_matrices(net, torch.eye(8)[None], Path((0, 1))))
    >>> len(matrices), matrices[-1].sum(-1).round(decimals=3).unique().tolist()
    (2, [1.0])
    """
    path.check(network.spec.layers, network.spec.heads)
    x, token_mask = network.prepare(x, token_mask)
    tokens = x.shape[1]
    product = torch.eye(tokens, dtype=x.dtype, device=x.device).expand(len(x), tokens, tokens)
    with torch.no_grad():
        for step in frozen_steps(network, x, token_mask):
            choice = path.choices[step.layer - 1]
            if step.attention is not None and choice is not None:
                pattern = step.attention[1].pattern
                product = pattern[:, choice] @ product.to(pattern.device)
            if step.closes:
                yield product


def _follow_ways(
    step: FrozenStep, streams: Streams, ways: Sequence[tuple[int, int | None]]
) -> Float[Tensor, "way batch token feature"]:
    """One step of each path, from one of the streams, through the skip or a head."""
    past = step.skip * streams
    for branch in step.branches:
        if branch.kind == "mlp":
            past = past + branch(streams)
    total = past[[origin for origin, _ in ways]]
    if step.attention is not None:
        branch, part = step.attention
        normed = branch.before(streams)
        for origin in dict.fromkeys(origin for origin, head in ways if head is not None):
            heads = part.heads(normed[origin])
            for number, (other, head) in enumerate(ways):
                if other == origin and head is not None:
                    total[number] = branch.inside(heads[head].unsqueeze(0)).squeeze(0)
    return step.after(total)


def _shape(layers: int, heads: int) -> None:
    whole("layers", layers, least=1, most=_MOST)
    whole("heads", heads, least=1, most=_MOST)
