"""Every bound of docs/theory.md, section 4, for a network and an input, with its conditions."""

import math
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from jaxtyping import Bool
from torch import Tensor

from rankscope.arguments import checked
from rankscope.core.deep import SplitState, deep_trace
from rankscope.core.masks import Full
from rankscope.core.network import MLP, Block, Network, score_entry
from rankscope.core.shapes import PerSample
from rankscope.core.theory.residual_bounds._depth import (
    CubicBound,
    chain_cubic_bounds,
    chain_data_bounds,
    chain_norm_bounds,
)
from rankscope.core.theory.residual_bounds._layer import (
    SCORE_LIMIT,
    BestCenter,
    HeadWeights,
    LogParts,
    a_priori_bound,
    data_bound,
    find_best_center,
    gamma,
    head_weights,
    log_beta,
    log_differences,
    log_paper_beta,
    output_center,
    sharp_bound,
)
from rankscope.core.theory.residual_bounds._lipschitz import gated_gain, row_gain
from rankscope.core.theory.residual_bounds._result import Bounds, LayerBounds
from rankscope.errors import InputError


@checked
def bounds(network: Network, x: Tensor, *, token_mask: Tensor | None = None) -> Bounds:
    """Bounds on the residual of every layer: those of Dong et al. 2021, and sharper ones.

    >>> from rankscope.core.network import Spec
    >>> net = Network.random(Spec(3, 1, 8, mlp_ratio=0, skip=False, norm="none", init=0.1))
    >>> bounds(net, torch.randn(1, 5, 8)).applies
    True

    Works for every network that ``deep_trace`` can follow; where skips, norms, masks or other
    scores take a layer out of the theory's scope, the result says so and gives no number. Residuals
    are those of ``deep_trace``, which may be in doubt; then the result says where.
    """
    centers: list[BestCenter] = []
    traced = deep_trace(
        network, x, token_mask=token_mask, on_state=lambda state: centers.append(_centered(state))
    )
    with torch.no_grad():
        layers = [
            _analyze_layer(network, layer, before, after)
            for layer, (before, after) in enumerate(pairwise(centers), start=1)
        ]
    return Bounds(_chain_layers(layers, centers[0]), traced)


def _centered(state: SplitState) -> BestCenter:
    """A layer's tokens about the best center, on the CPU."""
    valid = None if state.token_mask is None else state.token_mask.cpu()
    return find_best_center(state.x.cpu(), state.mantissa.cpu(), state.log_scale.cpu(), valid)


_OUT_OF_RANGE = "products of its weights are too large or too small for float64"


@dataclass(frozen=True)
class _LayerAnalysis:
    """One layer's own bounds, in natural logarithms, before the layers are chained."""

    layer: int
    why_not: str
    before: BestCenter
    after: BestCenter
    slack: PerSample
    weights: HeadWeights | None = None
    gain: Tensor | None = None  # of the MLP: one matrix, or, if it is gated, one per sample
    gated: bool = False
    logs: dict[str, Tensor] = field(default_factory=dict)

    @property
    def why_not_a_priori(self) -> str:
        if self.gated:
            return (
                "a gated MLP has no Lipschitz constant for all inputs; the data-dependent bounds "
                "use one for this input"
            )
        return self.why_not

    @property
    def input_residual(self) -> PerSample:
        return self.before.tokens.norms.composite

    def log(self, name: str) -> PerSample:
        """One of the logarithms for each sample; NaN if no bound applies."""
        absent = torch.full_like(self.input_residual, math.nan)
        return self.logs[name].expand_as(absent) if name in self.logs else absent

    @property
    def condition(self) -> Bool[Tensor, "batch"]:
        return self.log("difference") <= math.log(SCORE_LIMIT)

    @property
    def cubic(self) -> CubicBound:
        """This layer as a factor on the cube of the residual, the center's slack included."""
        factor = self.log("gamma") + self.log("beta") + self.log("lipschitz") + math.log(4)
        if self.weights is not None:
            scale = self.weights.scale
            factor = factor + (math.log(scale) if scale > 0 else -math.inf) + 3 * self.slack
        return CubicBound(factor, self.condition & (not self.why_not_a_priori))

    @property
    def data_gain(self) -> PerSample:
        residual = self.input_residual
        gain = torch.where(residual.isneginf(), -math.inf, self.log("data") - residual)
        return torch.where(self.condition, gain, math.nan)


def _analyze_layer(
    network: Network, layer: int, before: BestCenter, after: BestCenter
) -> _LayerAnalysis:
    """Every bound on this layer's output, given its true input."""
    block = network.blocks[layer - 1]
    assert isinstance(block, Block)
    slack = torch.zeros_like(before.slack) if layer == 1 else before.slack
    reason = _reason_out_of_scope(network, layer, block)
    if reason:
        return _LayerAnalysis(layer, reason, before, after, slack)
    weights, tokens, skip = head_weights(block.attention), before.tokens, network.spec.skips[1]
    differences = log_differences(weights, tokens)
    sharp = sharp_bound(weights, tokens, differences=differences)
    gain = row_gain(block.mlp, width=network.spec.width, skip=skip)
    gated = gain is None
    if gain is None:
        assert isinstance(block.mlp, MLP), "only a gated MLP has no gain for all inputs"
        center = output_center(weights, tokens)
        gain = gated_gain(block.mlp, center, sharp.inf.exp(), skip=skip)
    lipschitz = LogParts(torch.zeros(()), torch.zeros(())).times(gain).composite
    logs = {
        "difference": differences.amax((-2, -1)),
        "gamma": gamma(differences).amax(-1).log(),
        "beta": log_beta(weights),
        "paper_beta": log_paper_beta(weights),
        "lipschitz": lipschitz,
        "a_priori": a_priori_bound(weights, tokens, differences=differences) + lipschitz,
        "data": data_bound(weights, tokens, differences=differences).times(gain).composite,
        "sharp": sharp.times(gain).composite,
    }
    for name in ("a_priori", "data", "sharp"):
        bound = logs[name].expand_as(after.tokens.log_scale)
        lost = (bound.isneginf() & ~after.tokens.norms.composite.isneginf()) | bound.isnan()
        if bool((lost | bound.isposinf()).any()):
            return _LayerAnalysis(layer, _OUT_OF_RANGE, before, after, slack)
    return _LayerAnalysis(layer, "", before, after, slack, weights, gain, gated, logs)


def _reason_out_of_scope(network: Network, layer: int, block: Block) -> str:
    """Why no bound of section 4 covers this kind of layer; empty if they do."""
    spec, mask = network.spec, network.spec.masks[layer - 1]
    if spec.skips[0]:
        return "a skip carries the tokens past the attention"
    if spec.norm != "none":
        return f"a norm ({spec.norm}) rescales each token by its own size"
    if spec.parallel and block.mlp is not None:
        return "an MLP beside the attention carries the tokens past it"
    if not isinstance(mask, Full):
        return f"under the mask {mask} not all tokens attend to the same tokens"
    if block.attention.centered:
        return "centred attention takes away what the tokens have in common"
    entry = score_entry(block.attention.scores)
    if not entry.bounds:
        return f"its scores ({entry.words}) are not plain products of queries and keys"
    try:
        row_gain(block.mlp, width=spec.width)
    except InputError as error:
        return str(error).rstrip(".")
    return ""


def _chain_layers(layers: list[_LayerAnalysis], first: BestCenter) -> tuple[LayerBounds, ...]:
    """The layers' bounds, chained from the input on."""
    start, absent = first.tokens.norms, torch.full_like(first.slack, math.nan)
    theorem = chain_cubic_bounds([layer.cubic for layer in layers], start.composite)
    slacks = [layer.slack for layer in layers]
    data = chain_data_bounds([layer.data_gain for layer in layers], slacks, start.composite)
    covered = []
    for layer in layers:
        if layer.weights is None or layer.gain is None or layer.gated:
            break
        covered.append((layer.weights, layer.gain))
    by_norm = chain_norm_bounds(covered, start, first.tokens.counts)
    by_norm += [absent] * (len(layers) - len(by_norm))
    return tuple(
        _to_layer_bounds(layer, *depth)
        for layer, *depth in zip(layers, theorem, data, by_norm, strict=True)
    )


def _to_layer_bounds(
    layer: _LayerAnalysis, theorem: PerSample, data: PerSample, by_norm: PerSample
) -> LayerBounds:
    """One layer in decimal logarithms; no number where its condition is not met."""
    ten = math.log(10)

    def under_condition(log: PerSample) -> PerSample:
        return torch.where(layer.condition, log, math.nan) / ten

    residual = layer.input_residual
    a_priori = torch.full_like(residual, math.nan) if layer.gated else layer.log("a_priori")
    return LayerBounds(
        layer=layer.layer,
        why_not=layer.why_not,
        why_not_a_priori=layer.why_not_a_priori,
        condition=layer.condition,
        log10_input_residual=residual / ten,
        log10_residual=layer.after.tokens.norms.composite / ten,
        log10_score_difference=layer.log("difference") / ten,
        gamma=layer.log("gamma").exp(),
        beta=layer.log("beta").exp(),
        paper_beta=layer.log("paper_beta").exp(),
        lipschitz=layer.log("lipschitz").exp(),
        log10_a_priori_bound=under_condition(a_priori),
        log10_data_bound=under_condition(layer.log("data")),
        log10_sharp_bound=layer.log("sharp") / ten,
        log10_depth_bound=theorem / ten,
        log10_depth_data_bound=data / ten,
        log10_depth_input_bound=by_norm / ten,
    )
