"""The same on states ``1xᵀ + eˢR``: collapse to 10^−1000 and sizes beyond all floats."""

import math
from dataclasses import dataclass

import torch
from torch import nn
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
from rankscope.core.network import Spec, Visibility, build_norm
from rankscope.core.prediction._coordinates import compress_split
from rankscope.core.prediction._plain import random_attention, rule_of
from rankscope.core.prediction._weights import Weights
from rankscope.core.shapes import PerSample


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
