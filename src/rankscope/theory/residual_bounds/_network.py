"""Every bound of theory section 4 for a network and an input, each with its conditions."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool
from torch import Tensor

from rankscope.deep import deep_states
from rankscope.errors import InputError
from rankscope.network import MLP, Block, Full, Network, Scores
from rankscope.shapes import PerSample
from rankscope.theory.residual_bounds._depth import Cubic, data_depth, theorem_depth, unseen_depth
from rankscope.theory.residual_bounds._layer import (
    SCORE_LIMIT,
    Centred,
    HeadWeights,
    LogParts,
    a_priori_bound,
    best_centred,
    data_bound,
    gamma,
    head_weights,
    log_beta,
    log_differences,
    output_center,
    sharp_bound,
)
from rankscope.theory.residual_bounds._lipschitz import gated_gain, row_gain
from rankscope.theory.residual_bounds._result import Bounds, LayerBounds


def bounds(network: Network, x: Tensor, *, token_mask: Tensor | None = None) -> Bounds:
    """What D's theorems, and sharper ones derived here, promise for this network and input.

    >>> net = Network.random(Spec(3, 1, 8, mlp_ratio=0, skip=False, norm="none", init=0.1))
    >>> bounds(net, torch.randn(1, 5, 8)).applies
    True

    Works for every network that can be followed in scaled arithmetic; where skips, norms, masks or
    other scores put a layer out of the theory's reach, the answer says so instead of a number.
    """
    states = _centred_states(network, x, token_mask)
    before = first = next(states)
    answers = []
    with torch.no_grad():
        for layer, after in enumerate(states, start=1):
            answers.append(_Answer.of(network, layer, before, after, first=layer == 1))
            before = after
    return Bounds(_with_depth(answers, first))


def _centred_states(network: Network, x: Tensor, token_mask: Tensor | None) -> Iterator[Centred]:
    """Every layer's tokens about the best center, from the input on, on the CPU."""
    for _, state in deep_states(network, x, token_mask):
        kept = None if state.token_mask is None else state.token_mask.cpu()
        yield best_centred(state.x.cpu(), state.mantissa.cpu(), state.log_scale.cpu(), kept)


_OUT_OF_RANGE = "products of its weights are too large or too small for float64"


@dataclass(frozen=True)
class _Answer:
    """One layer's own bounds, in natural logarithms, before the layers are chained."""

    layer: int
    why_not: str
    before: Centred
    after: Centred
    slack: PerSample
    weights: HeadWeights | None = None
    gain: Tensor | None = None  # of the MLP: one matrix, or, if it is gated, one per sample
    gated: bool = False
    logs: dict[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of(
        cls, network: Network, layer: int, before: Centred, after: Centred, *, first: bool
    ) -> "_Answer":
        """Every bound on this layer's output, given its true input."""
        block = network.blocks[layer - 1]
        assert isinstance(block, Block)
        slack = torch.zeros_like(before.slack) if first else before.slack
        reason = _why_not(network, layer, block)
        if reason:
            return cls(layer, reason, before, after, slack)
        weights, spread, skip = head_weights(block.attention), before.spread, network.spec.skips[1]
        differences = log_differences(weights, spread)
        sharp = sharp_bound(weights, spread, differences=differences)
        gain = row_gain(block.mlp, width=network.spec.width, skip=skip)
        gated = gain is None
        if gain is None:
            assert isinstance(block.mlp, MLP), "only a gated MLP has no gain for all inputs"
            center = output_center(weights, spread)
            gain = gated_gain(block.mlp, center, sharp.inf.exp(), skip=skip)
        stretch = LogParts(torch.zeros(()), torch.zeros(())).times(gain).composite
        logs = {
            "difference": differences.amax((-2, -1)),
            "gamma": gamma(differences).amax(-1).log(),
            "beta": log_beta(weights),
            "lipschitz": stretch,
            "a_priori": a_priori_bound(weights, spread, differences=differences) + stretch,
            "data": data_bound(weights, spread, differences=differences).times(gain).composite,
            "sharp": sharp.times(gain).composite,
        }
        for name in ("a_priori", "data", "sharp"):
            said = logs[name].expand_as(after.spread.log_scale)
            lost = (said.isneginf() & ~after.spread.norms.composite.isneginf()) | said.isnan()
            if bool((lost | said.isposinf()).any()):
                return cls(layer, _OUT_OF_RANGE, before, after, slack)
        return cls(layer, "", before, after, slack, weights, gain, gated, logs)

    @property
    def why_not_a_priori(self) -> str:
        if self.gated:
            return "a gated MLP has no Lipschitz constant; the data bounds use one for this input"
        return self.why_not

    @property
    def size(self) -> PerSample:
        return self.before.spread.norms.composite

    def log(self, name: str) -> PerSample:
        """One of the logarithms for each sample; NaN if no bound applies."""
        absent = torch.full_like(self.size, math.nan)
        return self.logs[name].expand_as(absent) if name in self.logs else absent

    @property
    def condition(self) -> Bool[Tensor, "batch"]:
        return self.log("difference") <= math.log(SCORE_LIMIT)

    @property
    def cubic(self) -> Cubic:
        """This layer as a factor on the cube of the residual, the center's slack included."""
        factor = self.log("gamma") + self.log("beta") + self.log("lipschitz") + math.log(4)
        if self.weights is not None:
            scale = self.weights.scale
            factor = factor + (math.log(scale) if scale > 0 else -math.inf) + 3 * self.slack
        return Cubic(factor, self.condition & (not self.why_not_a_priori))

    @property
    def data_gain(self) -> PerSample:
        gain = torch.where(self.size.isneginf(), -math.inf, self.log("data") - self.size)
        return torch.where(self.condition, gain, math.nan)


def _why_not(network: Network, layer: int, block: Block) -> str:
    """Why no bound of section 4 covers a layer of this make; empty if they do."""
    spec, mask = network.spec, network.spec.masks[layer - 1]
    if spec.skips[0]:
        return "a skip carries the tokens past the attention"
    if spec.norm != "none":
        return f"a norm ({spec.norm}) rescales each token by its own size"
    if spec.parallel and block.mlp is not None:
        return "an MLP beside the attention carries the tokens past it"
    if not isinstance(mask, Full):
        return f"under the mask {mask} the tokens do not all see the same"
    if type(block.attention.scores) is not Scores:
        name = type(block.attention.scores).__name__
        return f"its scores ({name}) are not plain products of queries and keys"
    try:
        row_gain(block.mlp, width=spec.width)
    except InputError as error:
        return str(error).rstrip(".")
    return ""


def _with_depth(answers: list[_Answer], first: Centred) -> tuple[LayerBounds, ...]:
    """The layers' answers chained from the input on."""
    start, absent = first.spread.norms, torch.full_like(first.slack, math.nan)
    theorem = theorem_depth([answer.cubic for answer in answers], start.composite)
    slacks = [answer.slack for answer in answers]
    data = data_depth([answer.data_gain for answer in answers], slacks, start.composite)
    seen = []
    for answer in answers:
        if answer.weights is None or answer.gain is None or answer.gated:
            break
        seen.append((answer.weights, answer.gain))
    unseen = unseen_depth(seen, start, first.spread.counts)
    unseen += [absent] * (len(answers) - len(unseen))
    return tuple(
        _finished(answer, *depth)
        for answer, *depth in zip(answers, theorem, data, unseen, strict=True)
    )


def _finished(
    answer: _Answer, theorem: PerSample, data: PerSample, unseen: PerSample
) -> LayerBounds:
    """One layer's answer in the units people read; no number without its condition."""
    ten = math.log(10)

    def if_it_holds(log: PerSample) -> PerSample:
        return torch.where(answer.condition, log, math.nan) / ten

    a_priori = torch.full_like(answer.size, math.nan) if answer.gated else answer.log("a_priori")
    return LayerBounds(
        layer=answer.layer,
        why_not=answer.why_not,
        why_not_a_priori=answer.why_not_a_priori,
        condition=answer.condition,
        log10_input_residual=answer.size / ten,
        log10_residual=answer.after.spread.norms.composite / ten,
        log10_score_difference=answer.log("difference") / ten,
        gamma=answer.log("gamma").exp(),
        beta=answer.log("beta").exp(),
        lipschitz=answer.log("lipschitz").exp(),
        log10_a_priori_bound=if_it_holds(a_priori),
        log10_data_bound=if_it_holds(answer.log("data")),
        log10_sharp_bound=answer.log("sharp") / ten,
        log10_depth_bound=theorem / ten,
        log10_depth_data_bound=data / ten,
        log10_depth_input_bound=unseen / ten,
    )
