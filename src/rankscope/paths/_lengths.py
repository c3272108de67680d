"""The exact contribution of all paths of each length, in polynomial time.

Derived (docs/theory.md, section 3): with everything frozen at this input, the sum ``X_k`` over all
paths of length k obeys one recursion per step:

    ``X_k ← skip · X_k + uncounted(X_k) + counted(X_{k−1})``.

That is L(L+1)/2 applications of a layer instead of ``(H+1)^L`` paths, and exact.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from rankscope.checks import finite, measured_tokens, whole
from rankscope.display import card, some, table
from rankscope.errors import InputError
from rankscope.network import Network
from rankscope.numerals import short
from rankscope.paths._frozen import (
    FrozenStep,
    Kind,
    Longer,
    Streams,
    check_layer,
    frozen_steps,
)
from rankscope.paths._shares import Columns, Shares, mean_shares
from rankscope.shapes import Hidden

if TYPE_CHECKING:
    import polars

    from rankscope import figures

Count = Literal["attention", "mlp", "both"]
_CHUNK = {"cpu": 2**20}
_LARGE_CHUNK = 2**26
"""Numbers of a stream a branch works on at once. On a CPU, what an MLP makes of more would leave
the cache; elsewhere larger products pay. Either way memory does not grow with the lengths times
the MLP's width."""


@dataclass(frozen=True, repr=False)
class PathLengths:
    """What paths of each length contribute to the last layer, and their shares in every layer.

    ``contributions`` are ``(length, batch, token, feature)``; with ``bias``, what flows from the
    biases, they sum to ``output``, the network's own. ``sums`` are the sums over all lengths at
    every layer, without the biases. If long paths were left out they are not ``complete``.
    """

    contributions: Float[Tensor, "length batch token feature"]
    bias: Hidden
    output: Hidden
    sums: tuple[Hidden, ...]
    complete: bool
    columns: Columns
    _question: "_Question" = field(repr=False)

    def __repr__(self) -> str:
        lengths, samples, tokens, _ = self.contributions.shape
        shares = self._last_shares("residual_share")
        longest = max(
            (length for length in shares if length is not None), key=lambda length: shares[length]
        )
        return (
            f"PathLengths 0 to {lengths - 1}{'' if self.complete else ' (longer ones left out)'}, "
            f"{len(self.sums)} layers, {samples} samples of {tokens} tokens; largest mean residual "
            f"share in the last layer {short(shares[longest])}, of length {longest}"
        )

    def _repr_html_(self) -> str:
        """The mean shares in the last layer, length by length."""
        names = ("residual_share", "norm_share", "projection")
        shares = {name: self._last_shares(name) for name in names}
        shown: list[int | None] = [*some(range(len(self.contributions))), None]
        rows = [
            ["biases" if length is None else str(length)]
            + [short(shares[name][length]) for name in names]
            for length in shown
        ]
        header = ["length", *(name.replace("_", " ") for name in names)]
        return card("Paths by length, last layer", table(header, rows))

    def _last_shares(self, name: str) -> dict[int | None, float]:
        """Mean shares by length, None being the biases, in the last layer."""
        last = len(self.sums)
        return {
            length: share
            for (layer, length), share in mean_shares(
                self.columns, "layer", "length", metric=name
            ).items()
            if layer == last
        }

    @cached_property
    def errors(self) -> tuple[float, ...]:
        """How far lengths and biases are from summing to each layer's state, relative.

        The biases are followed through the network on their own for this, not taken as what is
        missing, and the states are those of a plain forward pass.
        """
        if not self.complete:
            return (float("nan"),) * len(self.sums)
        ask = self._question
        with torch.no_grad():
            return tuple(
                _error(total + bias, state, ask.token_mask)
                for total, bias, state in zip(
                    self.sums,
                    _biases(ask.network, ask.x, ask.token_mask),
                    ask.network.states(ask.x, ask.token_mask),
                    strict=True,
                )
            )

    @property
    def reconstruction_error(self) -> float:
        """The largest relative error of any layer's sum; NaN if long paths were left out."""
        return max(self.errors)

    @property
    def table(self) -> "polars.DataFrame":
        """Shares by layer, length and sample; the bias stream has no length.

        ``residual_share`` is ``‖res(X_k)‖/‖res(X)‖`` in the composite norm at the mean,
        ``norm_share`` the ratio of Frobenius norms, ``projection`` is ``⟨X_k, X⟩/⟨X, X⟩``, which
        sums to one over the lengths and the biases.
        """
        from rankscope import tables

        return tables.frame(self.columns)

    def plot(self) -> "figures.Figure":
        """The shares at the last layer against the length."""
        from rankscope import figures, tables

        return figures.by_length(tables.summary(self.table))


def path_lengths(
    network: Network,
    x: Tensor,
    *,
    count: Count = "attention",
    max_length: int | None = None,
    token_mask: Tensor | None = None,
    measured: Tensor | None = None,
) -> PathLengths:
    """Split every layer's hidden state into what paths of each length contribute, exactly.

    >>> import torch
    >>> from rankscope import Network, Spec, path_lengths
    >>> net = Network.random(Spec(2, 2, 8), seed=0).double()
    >>> path_lengths(net, torch.randn(1, 5, 8).double()).reconstruction_error < 1e-12
    True

    ``count`` says what makes a path longer: an attention head, an MLP, or both. ``max_length``
    leaves longer paths out. ``measured`` says which tokens count in the shares (default: all), so
    that CLS and the like can be left out of them while the network still sees them. With all paths
    at hand the bias stream is what is left of the state, so in float32 it contains the rounding,
    too, about 1e-6. Works for every network: all norms, masks, blocks, families, ablations.
    """
    if count not in get_args(Count):
        raise InputError(f"count={count!r} is unknown; choose one of {', '.join(get_args(Count))}.")
    if max_length is not None:
        whole("max_length", max_length, least=0)
    x, token_mask = network.prepare(x, token_mask)
    finite(x, name="x")
    counted: tuple[Kind, ...] = ("attention", "mlp") if count == "both" else (count,)
    streams, state = x.unsqueeze(0), x
    shares = Shares(measured_tokens(measured, token_mask, tuple(x.shape[:-1])))
    sums, cut = [], False
    biases = _biases(network, x, token_mask)
    with torch.no_grad():
        bias = torch.zeros_like(x)
        shares.record(0, streams, bias, x)
        for step in frozen_steps(network, x, token_mask):
            streams = _advance(step, streams.to(step.state.device), counted)
            if max_length is not None and len(streams) > max_length + 1:
                streams, cut = streams[: max_length + 1], True
            if step.closes:
                state = step.state
                check_layer(network, step.layer, streams, token_mask)
                sums.append(streams.sum(0))
                # With all paths at hand, the biases are what is left; else they are followed.
                bias = state - sums[-1] if max_length is None else next(biases)
                shares.record(step.layer, streams, bias, state)
    question = _Question(network, x, token_mask)
    return PathLengths(streams, bias, state, tuple(sums), not cut, shares.columns, question)


@dataclass(frozen=True)
class _Question:
    """What was asked, kept so that the answer can be checked."""

    network: Network
    x: Hidden
    token_mask: Tensor | None


def _biases(network: Network, x: Hidden, token_mask: Tensor | None) -> Iterator[Hidden]:
    """What the biases alone contribute to each layer, everything else frozen at this input."""
    bias = torch.zeros_like(x)
    for step in frozen_steps(network, x, token_mask):
        bias = step.affine(bias.to(step.state.device).unsqueeze(0)).squeeze(0)
        if step.closes:
            yield bias


def _advance(step: FrozenStep, streams: Streams, counted: tuple[Kind, ...]) -> Longer:
    """One step for all lengths: counted branches move a stream on to the next length."""
    grows = any(branch.kind in counted for branch in step.branches)
    total = streams.new_empty((len(streams) + grows, *streams.shape[1:]))
    torch.mul(streams, step.skip, out=total[: len(streams)])
    if grows:
        total[-1].zero_()
    chunk = _CHUNK.get(streams.device.type, _LARGE_CHUNK)
    size = max(1, chunk // streams[0].numel())
    for start in range(0, len(streams), size):
        part = streams[start : start + size]
        for branch in step.branches:
            first = start + (branch.kind in counted)
            total[first : first + len(part)] += branch.linear(part)
    return step.after.linear(total)


def _error(summed: Hidden, state: Hidden, token_mask: Tensor | None) -> float:
    """How far a sum of paths is from the state it should be, relative, on real tokens."""
    kept = slice(None) if token_mask is None else token_mask.to(state.device)
    whole, rest = state[kept].double(), (summed - state)[kept].double()
    return float(torch.linalg.vector_norm(rest) / torch.linalg.vector_norm(whole).clamp(min=1e-300))
