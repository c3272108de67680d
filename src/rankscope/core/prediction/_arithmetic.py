"""One layer in any arithmetic: steps of branches between norms, as in a block."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from rankscope.core.deep import (
    ScaledTensor,
    SplitState,
    add_states,
    apply_activation,
    apply_linear,
    apply_norm,
    mix_heads,
    multiply,
    split_attention,
)
from rankscope.core.metrics import attention_entropy
from rankscope.core.network import (
    Attention,
    LearnedSinks,
    MatrixName,
    NormRule,
    Spec,
    Stack,
    Visibility,
    activation,
    build_norm,
    norm_rule,
)
from rankscope.core.prediction._draws import (
    Coordinates,
    DrawnWeights,
    compress,
    compress_split,
    triangular,
)
from rankscope.core.shapes import PerSample
from rankscope.core.tracing import network_scores

State = TypeVar("State")


@dataclass(frozen=True)
class Arithmetic(ABC, Generic[State]):
    """The parts of a block on some kind of state; each sample has its own weights."""

    weights: DrawnWeights
    visibility: Visibility
    removed: frozenset[int]

    @property
    def spec(self) -> Spec:
        """The spec of the networks."""
        return self.weights.spec

    @abstractmethod
    def columns(self, state: State) -> int:
        """The number of coordinates of the stream so far."""

    @abstractmethod
    def norm(self, state: State) -> State: ...

    @abstractmethod
    def attention(self, state: State) -> tuple[State, PerSample]:
        """The concatenated heads, and the mean entropy of their weights."""

    @abstractmethod
    def hidden(self, state: State) -> State:
        """The MLP's hidden units."""

    @abstractmethod
    def into_stream(self, matrix: MatrixName, rows: State, known: int) -> State:
        """The output of heads or hidden units, in the known coordinates and new ones."""

    @abstractmethod
    def add(self, skip: float, state: State, branches: list[State]) -> State: ...

    @abstractmethod
    def compress(self, state: State) -> State: ...

    def layer(self, state: State) -> tuple[State, PerSample]:
        """The state after a layer, and the entropy of its attention."""
        spec = self.spec
        every = ("attention", "mlp") if spec.mlp_width else ("attention",)
        steps = [((part,), skip) for part, skip in zip(every, spec.skips, strict=False)]
        entropy: PerSample | None = None
        for parts, skip in [(every, spec.skips[0])] if spec.parallel else steps:
            known, branches = self.columns(state), []
            for part in parts:
                out = self.norm(state) if spec.norm_place in ("pre", "both") else state
                if part == "attention":
                    out, entropy = self.attention(out)
                elif spec.mlp_as == "mlp":
                    out = self.hidden(out)
                if part == "attention" or spec.mlp_as == "mlp":
                    leading_back: MatrixName = "output" if part == "attention" else "down"
                    out = self.into_stream(leading_back, out, known)
                    known = self.columns(out)
                branches.append(self.norm(out) if spec.norm_place in ("both", "output") else out)
            state = self.add(skip, state, branches)
            state = self.compress(self.norm(state) if spec.norm_place == "post" else state)
        assert entropy is not None  # every layer attends
        return state, entropy

    def heads(self, known: int) -> Attention:
        """Attention whose queries, keys and values are drawn in the known coordinates."""
        spec, weights = self.spec, self.weights
        inner, kv_inner = spec.heads * spec.head_width, spec.kv_heads * spec.head_width

        def drawn(matrix: MatrixName, outputs: int) -> Tensor:
            return weights.from_stream(matrix, known, outputs).mT

        query = drawn("query", inner)
        return Attention(
            query=Stack(query),
            key=Stack(drawn("key", kv_inner)),
            value=Stack(drawn("value", kv_inner)),
            # The output projection is drawn once its input is known.
            output=Stack(query.new_empty(len(query), 0, inner)),
            scores=spec.build_scores(weights.dtype, weights.streams.device),
            heads=spec.heads,
            kv_heads=spec.kv_heads,
            scale=spec.score_scale,
            removed=self.removed,
            centered=spec.centered,
        )

    def rule(self) -> NormRule | None:
        """The rule of the norms; gains are one and biases zero, as at initialisation."""
        norm = build_norm(self.spec.norm, 1, eps=self.spec.norm_eps, bias=False)
        return norm_rule(norm, torch.float64)

    def normalise(self, x: Coordinates) -> Coordinates:
        """Tokens in plain coordinates after a norm."""
        rule = self.rule()
        if rule is None:
            return x
        x = _without_ones(x) if rule.centers else x
        square = x.square().sum(-1, keepdim=True)
        if rule.square == "mean":
            square = square / self.spec.width
        # A token of zeros stays zero, with any norm, as does padding.
        empty = square + rule.eps == 0
        return x * torch.rsqrt(torch.where(empty, 1.0, square + rule.eps))


def _without_ones(x: Tensor) -> Tensor:
    """Set the first coordinate, the one along the row of ones, to zero."""
    return torch.cat((torch.zeros_like(x[..., :1]), x[..., 1:]), -1)


@dataclass(frozen=True)
class Plain(Arithmetic[Coordinates]):
    """Plain floats, for tokens that are neither nearly equal nor too large or too small."""

    token_mask: Tensor | None

    def columns(self, x: Coordinates) -> int:
        return x.shape[-1]

    def norm(self, x: Coordinates) -> Coordinates:
        return self.normalise(x)

    def attention(self, x: Coordinates) -> tuple[Coordinates, PerSample]:
        heads = self.heads(x.shape[-1])
        pattern = heads.pattern(x, self.visibility)
        if isinstance(heads.scores, LearnedSinks):  # the sink is one more outcome of each row
            scores = network_scores(heads, x, self.visibility, self.token_mask)
            entropy = attention_entropy(scores).mean(-1)
        else:
            entropy = attention_entropy(pattern.detach(), token_mask=self.token_mask).mean(-1)
        values = heads.split(heads.value(x), heads.kv_heads)
        return heads.join(heads.center(pattern, self.visibility) @ values), entropy

    def hidden(self, x: Coordinates) -> Coordinates:
        phi = activation(self.spec.activation).function
        units = self.spec.mlp_width
        up = x @ self.weights.from_stream("up", x.shape[-1], units)
        if not self.spec.gated:
            return phi(up)
        return phi(x @ self.weights.from_stream("gate", x.shape[-1], units)) * up

    def into_stream(self, matrix: MatrixName, rows: Coordinates, known: int) -> Coordinates:
        short = triangular(rows)
        inputs = rows.shape[-1]
        return short @ self.weights.into_stream(matrix, short.shape[-1], inputs, known)

    def add(self, skip: float, x: Coordinates, branches: list[Coordinates]) -> Coordinates:
        terms = [*branches, skip * x] if skip else branches
        widest = max(term.shape[-1] for term in terms)
        return torch.stack([pad(term, (0, widest - term.shape[-1])) for term in terms]).sum(0)

    def compress(self, x: Coordinates) -> Coordinates:
        return compress(x)


@dataclass(frozen=True)
class Scaled(Arithmetic[SplitState]):
    """Scaled arithmetic, for tokens that are nearly equal, too large or too small."""

    def columns(self, state: SplitState) -> int:
        return state.mantissa.shape[-1]

    def norm(self, state: SplitState) -> SplitState:
        """The norm of tokens of ``width`` features, in fewer coordinates."""
        rule, columns = self.rule(), self.columns(state)
        if rule is None:
            return state
        if rule.centers:
            common, deviation = (
                ScaledTensor.of(_without_ones(part.mantissa), part.log, lost=part.lost)
                for part in (state.common, state.deviation)
            )
            state = SplitState(common, deviation, state.token_mask)
        if rule.square == "sum":
            norm = build_norm(self.spec.norm, columns, eps=self.spec.norm_eps, bias=False)
            return apply_norm(norm.to(state.device, torch.float64), state)
        share = self.spec.width / columns
        rms = nn.RMSNorm(
            columns, eps=self.spec.norm_eps * share, dtype=torch.float64, device=state.device
        )
        nn.init.constant_(rms.weight, math.sqrt(share))
        return apply_norm(rms, state)

    def attention(self, state: SplitState) -> tuple[SplitState, PerSample]:
        heads = self.heads(self.columns(state))
        weights = split_attention(heads, state, self.visibility)
        pattern = weights.shared + weights.delta * weights.log.exp()[:, None, None, None]
        # The sum of the two parts may differ from one by rounding.
        pattern = pattern.clamp(min=0.0)
        pattern = pattern / pattern.sum(-1, keepdim=True)
        entropy = attention_entropy(pattern, token_mask=state.token_mask).mean(-1)
        return mix_heads(heads, state, weights, self.visibility).state(state.token_mask), entropy

    def hidden(self, state: SplitState) -> SplitState:
        def units(matrix: MatrixName) -> SplitState:
            drawn = self.weights.from_stream(matrix, self.columns(state), self.spec.mlp_width)
            return apply_linear(state, drawn.mT)

        up = units("up")
        if not self.spec.gated:
            return apply_activation(self.spec.activation, up)
        return multiply(apply_activation(self.spec.activation, units("gate")), up)

    def into_stream(self, matrix: MatrixName, rows: SplitState, known: int) -> SplitState:
        inputs = self.columns(rows)
        short = compress_split(rows, first=0)
        drawn = self.weights.into_stream(matrix, self.columns(short), inputs, known)
        return apply_linear(short, drawn.mT).recenter()

    def add(self, skip: float, state: SplitState, branches: list[SplitState]) -> SplitState:
        terms = [state.times(skip), *branches] if skip else branches
        widest = max(self.columns(term) for term in terms)
        return add_states(*(widen(term, widest) for term in terms))

    def compress(self, state: SplitState) -> SplitState:
        return compress_split(state)


def widen(state: SplitState, columns: int) -> SplitState:
    """Append coordinates of zeros."""
    more = (0, columns - state.mantissa.shape[-1])
    common, deviation = (
        ScaledTensor(pad(part.mantissa, more), part.log, part.lost)
        for part in (state.common, state.deviation)
    )
    return SplitState(common, deviation, state.token_mask)
