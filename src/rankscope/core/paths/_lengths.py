"""The exact contribution of all paths of each length, in polynomial time.

Derived (docs/theory.md, section 3): with everything frozen at this input, the sum ``X_k`` over all
paths of length k obeys one recursion per step:

    ``X_k ← skip · X_k + uncounted(X_k) + counted(X_{k−1})``.

That is L(L+1)/2 applications of a layer instead of ``(H+1)^L`` paths, and exact.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from rankscope.arguments import checked
from rankscope.core.checks import finite, measured_tokens, whole
from rankscope.core.network import Attention, Block, Network
from rankscope.core.paths import _frozen
from rankscope.core.paths._frozen import Check, FrozenStep, Kind, Streams, check_layer, frozen_steps
from rankscope.core.paths._shares import Columns, Shares, chunk_size, mean_shares
from rankscope.core.shapes import Hidden
from rankscope.core.tabular import Tabular, plot_along
from rankscope.errors import InputError, RankscopeError
from rankscope.numerals import short, some

if TYPE_CHECKING:
    import polars

    from rankscope.show import figures


Count = Literal["attention", "mlp", "both"]


@checked
@dataclass(frozen=True, repr=False)
class PathLengths(Tabular):
    """What paths of each length contribute to the last layer, and their shares in every layer.

    >>> import torch
    >>> from rankscope import Network, Spec, path_lengths
    >>> lengths = path_lengths(Network.random(Spec(2, 2, 8), seed=0), torch.eye(8)[None])
    >>> torch.allclose(lengths.contributions.sum(0) + lengths.bias, lengths.output, atol=1e-5)
    True

    ``contributions`` are ``(length, batch, token, feature)``; with ``bias``, the contribution of
    the biases, they sum to ``output``, the output of the network. ``sums`` are the sums over all
    lengths at every layer, without the biases. ``complete`` is False if long paths were omitted.
    """

    contributions: Float[Tensor, "length batch token feature"]
    bias: Hidden
    output: Hidden
    sums: tuple[Hidden, ...]
    complete: bool
    columns: Columns
    _errors: "_Question | tuple[float, ...]" = field(repr=False)
    """Those of ``errors``, or what they are computed from when they are first read."""

    def __repr__(self) -> str:
        lengths, samples, tokens, _ = self.contributions.shape
        shares = self._last_shares("residual_share")
        largest = max(range(lengths), key=lambda length: shares[length])
        return (
            f"PathLengths 0 to {lengths - 1}{'' if self.complete else ' (longer ones left out)'}, "
            f"{len(self.sums)} layers, {samples} samples of {tokens} tokens; largest mean residual "
            f"share in the last layer {short(shares[largest])}, of length {largest}"
        )

    def _repr_html_(self) -> str:
        """The mean shares in the last layer, by length."""
        from rankscope.show.display import card, table

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
        """Mean shares in the last layer by length; None stands for the biases."""
        shares = mean_shares(self.columns, "layer", "length", metric=name)
        return {length: share for (at, length), share in shares.items() if at == len(self.sums)}

    @cached_property
    def errors(self) -> tuple[float, ...]:
        """The relative error of the sum of lengths and biases in each layer.

        For this check the biases are propagated through the network, not computed as the
        difference, and the states are those of a plain forward pass.
        """
        question = self._errors
        if isinstance(question, tuple):
            return question
        if not self.complete:
            return (float("nan"),) * len(self.sums)
        arguments = question.network, question.x, question.token_mask
        with torch.no_grad():
            layers = zip(self.sums, _biases(*arguments), Network.states(*arguments), strict=True)
            return tuple(_error(total + bias, state, arguments[2]) for total, bias, state in layers)

    @property
    def reconstruction_error(self) -> float:
        """The largest relative error of any layer's sum; NaN if long paths were omitted."""
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

    def plot(self, metric: str | None = None) -> "figures.Figure":
        """Residual shares, or another ``metric``, at the last layer against the length."""
        from rankscope import tables
        from rankscope.show import figures

        if metric not in (None, "residual_share"):
            last = self.table.filter(self.table["layer"] == len(self.sums))
            return plot_along(last, "length", "path length", metric)
        return figures.by_length(tables.summary(self.table))

    def _kept(self) -> dict[str, Any]:
        return {**super()._kept(), "_errors": self.errors}  # the network is not saved


@checked
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
    measured = measured_tokens(measured, token_mask, tuple(x.shape[:-1]))
    question = _Question(network, x, token_mask, counted, max_length, measured)
    watch = _frozen.FinitenessCheck()
    with torch.no_grad():
        try:
            answer = _answer(question, watch.note)
        except RankscopeError:  # a value may not be finite: report that instead
            answer = None
        if answer is None or not watch.saw_only_numbers():
            answer = _answer(question, check_layer)
    return answer


@checked
def truncate(
    network: Network,
    x: Tensor,
    *,
    max_length: int,
    count: Count = "attention",
    token_mask: Tensor | None = None,
) -> Hidden:
    """The last hidden state made of paths up to ``max_length``, and of the biases.

    >>> from rankscope import Network, Spec
    >>> net, x = Network.random(Spec(2, 2, 8)), torch.eye(4, 8)[None]
    >>> bool((truncate(net, x, max_length=2) - net(x)).abs().max() < 1e-5)
    True

    At full length it is the network's own output. Through a model's own head it shows what short
    paths alone can do: ``loaded.finish(truncate(loaded.network, x, max_length=2), arguments)``.
    """
    return truncations(network, x, [max_length], count=count, token_mask=token_mask)[max_length]


@checked
def truncations(
    network: Network,
    x: Tensor,
    lengths: "list[int] | range",
    *,
    count: Count = "attention",
    token_mask: Tensor | None = None,
) -> Mapping[int, Hidden]:
    """``truncate`` at several lengths, for the price of the longest.

    >>> import torch
    >>> from rankscope import Network, Spec
    >>> from rankscope.core.paths import truncations
    >>> net = Network.random(Spec(2, 2, 8), seed=0)
    >>> outputs = truncations(net, torch.eye(8)[None], [1, 2])
    >>> {length: tuple(output.shape) for length, output in outputs.items()}
    {1: (1, 8, 8), 2: (1, 8, 8)}
    """
    if not lengths:
        raise InputError("max_length is empty; expected at least one length.")
    for length in lengths:
        whole("max_length", length, least=0)
    most = max(lengths)
    parts = path_lengths(network, x, count=count, max_length=most, token_mask=token_mask)
    sums: Any = parts.contributions.cumsum(0) + parts.bias
    return {length: sums[min(length, len(sums) - 1)] for length in lengths}


@dataclass(frozen=True)
class _Question:
    """The arguments of the call, kept so that the result can be checked."""

    network: Network
    x: Hidden
    token_mask: Tensor | None
    counted: tuple[Kind, ...]
    max_length: int | None
    measured: Tensor | None


def _answer(ask: _Question, check: Check) -> PathLengths:
    """Propagate all lengths through the network; ``check`` sees the values of every layer."""
    shares, sums = Shares(ask.measured), []
    biases = _biases(ask.network, ask.x, ask.token_mask, check)
    state, bias = ask.x, torch.zeros_like(ask.x)
    lengths = Advance(ask.network, ask.x, ask.counted, ask.max_length)
    shares.record(0, lengths.streams, bias, state)
    for step in frozen_steps(ask.network, ask.x, ask.token_mask, check=check):
        lengths.through(step)
        if step.closes:
            state = step.state
            check(ask.network, step.layer, lengths.streams, ask.token_mask)
            sums.append(lengths.streams.sum(0))
            # With all paths, the biases are the difference; otherwise they are propagated.
            bias = state - sums[-1] if ask.max_length is None else next(biases)
            shares.record(step.layer, lengths.streams, bias, state)
            if check is check_layer:
                shares.columns()  # raises if a share overflows, before a later layer does
    complete = not lengths.cut
    return PathLengths(lengths.streams, bias, state, tuple(sums), complete, shares.columns(), ask)


def _biases(
    network: Network, x: Hidden, token_mask: Tensor | None, check: Check = check_layer
) -> Iterator[Hidden]:
    """The contribution of the biases to each layer, everything else frozen at this input."""
    bias = torch.zeros_like(x)
    for step in frozen_steps(network, x, token_mask, check=check):
        bias = step(bias.to(step.state.device).unsqueeze(0), biased=True).squeeze(0)
        if step.closes:
            yield bias


def _error(summed: Hidden, state: Hidden, token_mask: Tensor | None) -> float:
    """The relative error of a sum of paths, on real tokens."""
    tokens = slice(None) if token_mask is None else token_mask.to(state.device)
    expected, difference = state[tokens].double(), (summed - state)[tokens].double()
    return float(
        torch.linalg.vector_norm(difference) / torch.linalg.vector_norm(expected).clamp(min=1e-300)
    )


class Advance:
    """The sums over paths of each length, step by step; counted branches lead to the next length.

    One buffer holds all lengths. Lengths are updated from the longest to the shortest, so that each
    is read before the contribution from the length below is added.
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
        """Whether paths were omitted because they are too long."""

    @property
    def streams(self) -> Streams:
        """The current sums by length; the next step overwrites them."""
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
            step.after.apply_(self._buffer[first + grows : done])
            done = first + grows
        step.after.apply_(self._buffer[:done])

    def _add_some(self, step: FrozenStep, first: int, end: int) -> None:
        """Apply a step, without its norm, to the lengths from ``first`` up to ``end``."""
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
    """The length of the longest path: the number of steps with a counted branch."""
    parts = [
        ["attention" if isinstance(branch.part, Attention) else "mlp" for branch in step.branches]
        for block in network.blocks
        for step in cast(Block, block).steps
    ]
    return sum(any(kind in counted for kind in kinds) for kinds in parts)
