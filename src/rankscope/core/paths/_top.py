"""The paths with the largest contributions: exact if there are few, else a bounded search."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from rankscope.arguments import checked
from rankscope.core.checks import whole
from rankscope.core.metrics import dispersion
from rankscope.core.network import Latent, Network
from rankscope.core.paths import _frozen
from rankscope.core.paths._frozen import FrozenAttention, FrozenBranch, FrozenStep, Longer, Streams
from rankscope.core.paths._path import Path
from rankscope.core.tabular import Tabular, plot_along
from rankscope.errors import InputError
from rankscope.numerals import MOST_ROWS, cut, short

if TYPE_CHECKING:
    import polars

    from rankscope.show import figures

_MOST_BYTES = 2**30
"""Bytes that all continued prefixes of a layer may take."""
_AT_ONCE = 2**28
"""Bytes processed at a time: some prefixes, continued through one layer."""

Choices = tuple[int | None, ...]
"""The first layers of a path."""


@checked
@dataclass(frozen=True, repr=False)
class TopPaths(Tabular):
    """Paths by their residual contribution, largest first.

    >>> import torch
    >>> from rankscope import Network, Spec, top_paths
    >>> top = top_paths(Network.random(Spec(2, 2, 8), seed=0), torch.eye(8)[None], count=3)
    >>> len(top.paths), top.proven, top.values[0] >= top.values[1]
    (3, True, True)

    ``values`` are ``‖res(P_path X W_path)‖_F`` over the whole batch. If ``proven``, no omitted path
    carries more than these; otherwise ``missed_at_most`` is an upper bound on the contribution of
    any of them, and the values are lower bounds on the true ones.
    """

    paths: tuple[Path, ...]
    values: tuple[float, ...]
    proven: bool
    missed_at_most: float

    @property
    def table(self) -> "polars.DataFrame":
        """One row per path, the largest first: path, length, index, metric, value."""
        from rankscope import tables

        rows = [
            (str(path), path.length, index, "residual_contribution", value)
            for index, (path, value) in enumerate(zip(self.paths, self.values, strict=True), 1)
        ]
        names = ("variant", "length", "index", "metric", "value")
        return tables.from_rows(names, rows).rename({"variant": "path"})

    def plot(self, metric: str | None = None) -> "figures.Figure":
        """Residual contributions, the largest first."""
        return plot_along(self.table, "index", "path, the largest first", metric)

    def __repr__(self) -> str:
        verdict = "proven" if self.proven else f"up to {short(self.missed_at_most)} missed"
        first = cut(f"{short(self.values[0], digits=4)}: {self.paths[0]}", 400)
        return f"TopPaths, {len(self.paths)} of them, {verdict}; the largest {first}"

    def __str__(self) -> str:
        rows = [
            f"{short(value, digits=4):>10}  {path}"
            for path, value in zip(self.paths, self.values, strict=True)
        ]
        return "\n".join([*rows, self._verdict()])

    def _repr_html_(self) -> str:
        """The largest paths, and what is known about the omitted ones."""
        from rankscope.show.display import card, paragraph, table

        pairs = list(zip(self.paths, self.values, strict=True))[:MOST_ROWS]
        rows = [(cut(str(path)), short(value, digits=4)) for path, value in pairs]
        more = f"the largest {len(rows)} of {len(self.paths)}; " * (len(rows) < len(self.paths))
        return card(
            "Paths by residual contribution",
            table(["path", "residual contribution"], rows),
            paragraph(f"{more}{self._verdict()}"),
        )

    def _verdict(self) -> str:
        if self.proven:
            return "proven"
        return f"not proven: up to {short(self.missed_at_most)} missed"


@checked
def top_paths(
    network: Network,
    x: Tensor,
    *,
    count: int = 10,
    budget: int = 4096,
    token_mask: Tensor | None = None,
) -> TopPaths:
    """The paths with the largest residual contribution.

    >>> import torch
    >>> from rankscope import Network, Spec, top_paths
    >>> net = Network.random(Spec(2, 2, 8), seed=0)
    >>> top_paths(net, torch.randn(1, 5, 8), count=1).proven
    True

    At most ``budget`` prefixes are kept after each layer, the largest first, and fewer where their
    continuations through every head would take more than a gigabyte; what is dropped is bounded by
    operator norms of the layers still to come. With no more than ``budget`` paths in all, nothing
    is dropped and the answer is exact.
    """
    whole("count", count, least=1)
    whole("budget", budget, least=1)
    if budget < count:
        raise InputError(f"count={count}, budget={budget}: expected 1 <= count <= budget.")
    x, token_mask = network.prepare(x, token_mask)
    every_choice = x.numel() * x.element_size() * (network.spec.heads + 1)
    budget = min(budget, max(count, _MOST_BYTES // every_choice))
    with torch.no_grad():
        steps = list(_frozen.frozen_steps(network, x, token_mask))
        to_come, size = _norms_to_come(steps), _at_once(network, x)
        beam, missed = _Largest(1, token_mask), 0.0
        beam.add(x.unsqueeze(0), [()])
        for layer, group in groupby(steps, key=lambda step: step.layer):
            block = list(group)
            longer = _Largest(budget, token_mask)
            for first in range(0, len(beam.prefixes), size):
                some = slice(first, first + size)
                longer.add(*_continue(block, beam.streams[some], beam.prefixes[some]))
            missed = max(missed, longer.lost * to_come[layer])
            beam = longer
        streams = beam.streams
        if token_mask is not None:
            token_mask = token_mask.to(streams.device).expand(streams.shape[:-1])
        values = torch.linalg.vector_norm(dispersion(streams, token_mask=token_mask), dim=-1)
    order = values.argsort(descending=True)[:count].tolist()
    largest = tuple(float(values[index]) for index in order)
    proven = missed == 0.0 or (len(largest) == count and missed <= largest[-1])
    return TopPaths(tuple(Path(beam.prefixes[index]) for index in order), largest, proven, missed)


def _at_once(network: Network, x: Tensor) -> int:
    """The number of prefixes continued at a time: all of them in small networks."""
    spec = network.spec
    widest = 4 * spec.width + 2 * spec.mlp_width  # what a step makes of one token on the way
    bytes_each = (spec.heads + 1) * x.shape[0] * x.shape[1] * widest * x.element_size()
    return max(1, _AT_ONCE // bytes_each)


@dataclass
class _Largest:
    """The largest of many streams, which are never all in memory."""

    budget: int
    token_mask: Tensor | None
    prefixes: list[Choices] = field(default_factory=list)
    lost: float = 0.0
    """The norm of the largest stream that was dropped."""
    streams: Tensor = field(init=False)
    sizes: Tensor = field(init=False)

    def add(self, streams: Longer, prefixes: list[Choices]) -> None:
        """Keep the streams that are among the largest so far."""
        real = streams
        if self.token_mask is not None:
            real = torch.where(self.token_mask.to(streams.device)[..., None], streams, 0.0)
        sizes = torch.linalg.vector_norm(real.flatten(1), dim=1)
        if self.prefixes:
            streams = torch.cat([self.streams, streams.to(self.streams.device)])
            sizes = torch.cat([self.sizes, sizes.to(self.sizes.device)])
        every = [*self.prefixes, *prefixes]
        if len(every) <= self.budget:
            self.streams, self.sizes, self.prefixes = streams, sizes, every
            return
        order = sizes.argsort(descending=True).tolist()
        chosen = order[: self.budget]
        self.lost = max(self.lost, float(sizes[order[self.budget]]))
        self.streams, self.sizes = streams[chosen], sizes[chosen]
        self.prefixes = [every[index] for index in chosen]


def _continue(
    block: Iterable[FrozenStep], streams: Streams, prefixes: list[Choices]
) -> tuple[Longer, list[Choices]]:
    """Every prefix continued through all steps of a layer."""
    for step in block:
        streams = streams.to(step.state.device)
        if step.attention is None:
            streams = step(streams)
        else:
            streams, prefixes = _expand(step, *step.attention, streams, prefixes)
    return streams, prefixes


def _expand(
    step: FrozenStep,
    branch: FrozenBranch,
    part: FrozenAttention,
    streams: Streams,
    prefixes: list[Choices],
) -> tuple[Longer, list[Choices]]:
    """Every prefix continued through the skip and through every head."""
    around = step.skip * streams
    for other in step.branches:
        if other is not branch:
            around = around + other(streams)
    normed = branch.before(streams)
    silent = part.attention.removed
    heads = [head for head in range(part.attention.heads) if head not in silent]
    every = torch.stack([part.heads(stream)[heads] for stream in normed], dim=1)
    through = branch.inside(every.flatten(0, 1))
    longer = [(*prefix, choice) for choice in (None, *heads) for prefix in prefixes]
    return step.after(torch.cat([around, through])), longer


def _norms_to_come(steps: list[FrozenStep]) -> list[float]:
    """For each layer, the largest factor of the later layers on the Frobenius norm of a stream."""
    layers = steps[-1].layer
    gains = [1.0] * (layers + 1)
    for step in steps:
        gains[step.layer] *= _gain(step)
    after = [1.0] * (layers + 1)
    for layer in range(layers - 1, -1, -1):
        after[layer] = after[layer + 1] * gains[layer + 1]
    return after


def _gain(step: FrozenStep) -> float:
    """The largest operator norm of any choice in this step."""
    around = step.skip + sum(
        _branch_gain(branch) for branch in step.branches if branch.kind == "mlp"
    )
    through = [_branch_gain(branch) for branch in step.branches if branch.kind == "attention"]
    return _norm_gain(step.after) * max([around, *through])


def _branch_gain(branch: FrozenBranch) -> float:
    gain = _norm_gain(branch.before) * _norm_gain(branch.inside)
    if isinstance(branch.part, FrozenAttention):
        return gain * _largest_head(branch.part)
    if branch.part is None:
        return gain
    up, down = branch.part.mlp.up.weight, branch.part.mlp.down.weight
    largest = float(branch.part.gate.abs().max())
    return gain * float(_spectral(up)) * float(_spectral(down)) * largest


def _largest_head(part: FrozenAttention) -> float:
    """``max_h ‖P_h‖₂ ‖W_V,h‖₂ ‖W_O,h‖₂``, where ``‖P‖₂² ≤ ‖P‖₁ ‖P‖∞``.

    Gates are at most one, so they only make it smaller.
    """
    module, size = part.attention, part.pattern.abs()
    mixing = (size.sum(-2).amax((0, -1)) * size.sum(-1).amax((0, -1))).sqrt()
    value = _value_gains(part)
    value = value.repeat_interleave(module.heads // module.kv_heads)
    output = _spectral(module.output.weight.unflatten(1, (module.heads, -1)).transpose(0, 1))
    return float((mixing * value * output).max())


def _value_gains(part: FrozenAttention) -> Float[Tensor, "head"]:
    """``‖W_V,h‖₂`` at most: for values with a norm inside, the product of their parts' norms."""
    value, groups = part.attention.value, part.attention.kv_heads
    if not isinstance(value, Latent):
        return _spectral(value.weight.unflatten(0, (groups, -1)))
    assert part.latent_norm is not None
    inner = _spectral(value.down.weight) * _norm_gain(part.latent_norm)
    return _spectral(value.up.weight.unflatten(0, (groups, -1))) * inner


def _norm_gain(norm: _frozen.FrozenNorm) -> float:
    """Centering is a projection, so only the factor can increase the norm."""
    return 1.0 if norm.factor is None else float(norm.factor.abs().max())


def _spectral(weights: Float[Tensor, "*matrix rows columns"]) -> Float[Tensor, "*matrix"]:
    norms: Tensor = torch.linalg.matrix_norm(weights, ord=2)
    return norms
