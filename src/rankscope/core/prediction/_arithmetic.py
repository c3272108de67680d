"""What a layer does, for any arithmetic: steps of branches between norms, as in a block."""

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

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
    Weights,
    compress,
    compress_split,
    triangular,
)
from rankscope.core.shapes import PerSample

State = TypeVar("State")


class Arithmetic(Protocol[State]):
    """Parts of a block on states of some kind, each sample with weights of its own."""

    def columns(self, state: State) -> int:
        """The coordinates the stream is known in."""
        ...

    def norm(self, state: State) -> State: ...

    def attention(self, state: State) -> tuple[State, PerSample]:
        """The heads side by side, and the mean entropy of their weights."""
        ...

    def hidden(self, state: State) -> State:
        """The MLP's hidden units."""
        ...

    def into_stream(self, rows: State, known: int, *, value: bool) -> State:
        """What leaves the heads or hidden units, in the known coordinates and new ones."""
        ...

    def add(self, skip: float, state: State, branches: list[State]) -> State: ...

    def compress(self, state: State) -> State: ...


class Layer(NamedTuple):
    """What the steps of a layer are made of."""

    steps: tuple[tuple[tuple[str, ...], float], ...]
    before: bool
    inside: bool
    after: bool
    identity: bool

    @classmethod
    def of(cls, spec: Spec) -> "Layer":
        parts = ("attention", "mlp") if spec.mlp_width else ("attention",)
        alone = tuple(((part,), skip) for part, skip in zip(parts, spec.skips, strict=False))
        return cls(
            steps=((parts, spec.skips[0]),) if spec.parallel else alone,
            before=spec.norm_place in ("pre", "both"),
            inside=spec.norm_place in ("both", "output"),
            after=spec.norm_place == "post",
            identity=spec.mlp_identity,
        )

    def apply(self, arithmetic: Arithmetic[State], state: State) -> tuple[State, PerSample]:
        """The state after the layer, and the entropy of its attention."""
        entropy: PerSample | None = None
        for parts, skip in self.steps:
            known, branches = arithmetic.columns(state), []
            for part in parts:
                out = arithmetic.norm(state) if self.before else state
                if part == "attention":
                    out, entropy = arithmetic.attention(out)
                elif not self.identity:
                    out = arithmetic.hidden(out)
                if part == "attention" or not self.identity:
                    out = arithmetic.into_stream(out, known, value=part == "attention")
                    known = arithmetic.columns(out)
                branches.append(arithmetic.norm(out) if self.inside else out)
            state = arithmetic.add(skip, state, branches)
            state = arithmetic.compress(arithmetic.norm(state) if self.after else state)
        assert entropy is not None  # every layer attends
        return state, entropy


@dataclass(frozen=True)
class Plain:
    """Floats, as long as tokens are neither nearly alike nor beyond all measure."""

    weights: Weights
    visibility: Visibility
    token_mask: Tensor | None
    removed: frozenset[int]

    @property
    def spec(self) -> Spec:
        """What the networks are made of."""
        return self.weights.spec

    def columns(self, x: Coordinates) -> int:
        return x.shape[-1]

    def norm(self, x: Coordinates) -> Coordinates:
        rule = rule_of(self.spec)
        return x if rule is None else apply_rule(rule, x, self.spec.width)

    def attention(self, x: Coordinates) -> tuple[Coordinates, PerSample]:
        heads = random_attention(self.weights, x.shape[-1], self.removed)
        pattern = heads.pattern(x, self.visibility)
        entropy = attention_entropy(pattern.detach(), token_mask=self.token_mask).mean(-1)
        values = heads.split(heads.value(x), heads.kv_heads)
        return heads.join(heads.center(pattern, self.visibility) @ values), entropy

    def hidden(self, x: Coordinates) -> Coordinates:
        phi = activation(self.spec.activation).function
        units = self.spec.mlp_width
        up = x @ self.weights.from_stream(x.shape[-1], units)
        if not self.spec.gated:
            return phi(up)
        return phi(x @ self.weights.from_stream(x.shape[-1], units)) * up

    def into_stream(self, rows: Coordinates, known: int, *, value: bool) -> Coordinates:
        short = triangular(rows)
        inputs = rows.shape[-1]
        return short @ self.weights.into_stream(short.shape[-1], inputs, known, value=value)

    def add(self, skip: float, x: Coordinates, branches: list[Coordinates]) -> Coordinates:
        terms = [*branches, skip * x] if skip else branches
        widest = max(term.shape[-1] for term in terms)
        return torch.stack([pad(term, (0, widest - term.shape[-1])) for term in terms]).sum(0)

    def compress(self, x: Coordinates) -> Coordinates:
        return compress(x)


def random_attention(weights: Weights, known: int, removed: frozenset[int]) -> Attention:
    """Attention whose queries, keys and values are drawn in the known coordinates."""
    spec = weights.spec
    inner, kv_inner = spec.heads * spec.head_width, spec.kv_heads * spec.head_width

    def drawn(outputs: int, *, value: bool = False) -> Stack:
        return Stack(weights.from_stream(known, outputs, value=value).mT)

    return Attention(
        query=drawn(inner),
        key=drawn(kv_inner),
        value=drawn(kv_inner, value=True),
        # What leaves the heads is drawn when it is known.
        output=Stack(torch.empty(len(weights.streams), 0, inner, dtype=weights.dtype)),
        scores=spec.build_scores(weights.dtype),
        heads=spec.heads,
        kv_heads=spec.kv_heads,
        scale=spec.score_scale,
        removed=removed,
        centered=spec.centered,
    )


def rule_of(spec: Spec) -> NormRule | None:
    """What the norms of a spec do; gains are one and biases zero, as they start."""
    norm = build_norm(spec.norm, 1, eps=spec.norm_eps, bias=False)
    return norm_rule(norm, torch.float64)


def apply_rule(rule: NormRule, x: Coordinates, width: int) -> Coordinates:
    """A norm in coordinates, of tokens that have ``width`` features."""
    if rule.centers:
        x = torch.cat((torch.zeros_like(x[..., :1]), x[..., 1:]), -1)
    square = x.square().sum(-1, keepdim=True)
    if rule.square == "mean":
        square = square / width
    # A token of zeros stays zero, whether the norm says so or the token is padding.
    empty = square + rule.eps == 0
    return x * torch.rsqrt(torch.where(empty, 1.0, square + rule.eps))


@dataclass(frozen=True)
class Scaled:
    """Scaled arithmetic, for networks whose tokens are nearly alike, or too large or too small."""

    weights: Weights
    visibility: Visibility
    removed: frozenset[int]

    @property
    def spec(self) -> Spec:
        """What the networks are made of."""
        return self.weights.spec

    def columns(self, state: SplitState) -> int:
        return state.mantissa.shape[-1]

    def norm(self, state: SplitState) -> SplitState:
        rule = rule_of(self.spec)
        if rule is None:
            return state
        if rule.centers:
            state = _without_ones(state)
        return apply_norm(_in_coordinates(self.spec, self.columns(state)), state)

    def attention(self, state: SplitState) -> tuple[SplitState, PerSample]:
        heads = random_attention(self.weights, self.columns(state), self.removed)
        weights = split_attention(heads, state, self.visibility)
        pattern = weights.shared + weights.own * weights.log.exp()[:, None, None, None]
        # Rounding of a sum of two parts, which need not add up to one in the last digit.
        pattern = pattern.clamp(min=0.0)
        pattern = pattern / pattern.sum(-1, keepdim=True)
        entropy = attention_entropy(pattern, token_mask=state.token_mask).mean(-1)
        return mix_heads(heads, state, weights, self.visibility).state(state.token_mask), entropy

    def hidden(self, state: SplitState) -> SplitState:
        units = self.spec.mlp_width
        up = self._units(state, units)
        if not self.spec.gated:
            return apply_activation(self.spec.activation, up)
        gate = self._units(state, units)
        return multiply(apply_activation(self.spec.activation, gate), up)

    def into_stream(self, rows: SplitState, known: int, *, value: bool) -> SplitState:
        inputs = self.columns(rows)
        short = compress_split(rows, first=0)
        drawn = self.weights.into_stream(self.columns(short), inputs, known, value=value)
        return apply_linear(short, drawn.mT).recenter()

    def add(self, skip: float, state: SplitState, branches: list[SplitState]) -> SplitState:
        terms = [state.times(skip), *branches] if skip else branches
        widest = max(self.columns(term) for term in terms)
        return add_states(*(widen(term, widest) for term in terms))

    def compress(self, state: SplitState) -> SplitState:
        return compress_split(state)

    def _units(self, state: SplitState, units: int) -> SplitState:
        return apply_linear(state, self.weights.from_stream(self.columns(state), units).mT)


def _in_coordinates(spec: Spec, columns: int) -> nn.Module:
    """A norm of ``width`` features for tokens in fewer coordinates, the ones taken out already."""
    rule = rule_of(spec)
    if rule is None or rule.square == "sum":
        return build_norm(spec.norm, columns, eps=spec.norm_eps, bias=False).double()
    share = spec.width / columns
    norm = nn.RMSNorm(columns, eps=spec.norm_eps * share, dtype=torch.float64)
    nn.init.constant_(norm.weight, math.sqrt(share))
    return norm


def _without_ones(state: SplitState) -> SplitState:
    """A state without its first coordinate, that along the row of ones."""
    common, own = (
        ScaledTensor.of(
            torch.cat((torch.zeros_like(part.mantissa[..., :1]), part.mantissa[..., 1:]), -1),
            part.log,
            lost=part.lost,
        )
        for part in (state.common, state.deviation)
    )
    return SplitState(common, own, state.token_mask)


def widen(state: SplitState, columns: int) -> SplitState:
    """Zeros in coordinates a state does not have."""
    more = (0, columns - state.mantissa.shape[-1])
    common, own = (
        ScaledTensor(pad(part.mantissa, more), part.log, part.lost)
        for part in (state.common, state.deviation)
    )
    return SplitState(common, own, state.token_mask)
