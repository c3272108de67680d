"""Every bound of docs/theory.md, section 4, for a network and an input, beside its residuals."""

import math
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Bool
from torch import Tensor

from rankscope.arguments import checked
from rankscope.core.deep import SplitState, deep_trace
from rankscope.core.masks import Full
from rankscope.core.network import MLP, Block, Network, activation, score_entry
from rankscope.core.shapes import PerSample
from rankscope.core.tabular import Tabular
from rankscope.core.theory import _layer_bounds as one_layer
from rankscope.core.theory._layer_bounds import (
    SCORE_LIMIT,
    BestCenter,
    CubicBound,
    HeadWeights,
    LogParts,
)
from rankscope.core.tracing import Trace

if TYPE_CHECKING:
    import polars

    from rankscope.results import Role
    from rankscope.show import figures

_SURE = ("beta", "paper_beta", "log10_depth_input_bound")
"""What follows from the weights and the network's input alone."""


@dataclass(frozen=True)
class Obstacle:
    """Why no bound covers a layer: a kind, and the norm, mask, score or activation it is about."""

    kind: Literal[
        "skip", "norm", "parallel", "mask", "centered", "scores", "activation", "range", "gated",
        "part",
    ]  # fmt: skip
    detail: str = ""

    def __str__(self) -> str:
        from rankscope.show import words

        return words.describe_obstacle(self)


@checked
@dataclass(frozen=True, repr=False)
class LayerBounds:
    """One layer: what was measured, and the bounds that follow; NaN where a bound does not apply.

    >>> import torch
    >>> from rankscope import Network, Spec, bounds
    >>> net = Network.random(Spec.pure_attention(2, 1, 8, init=0.1), seed=0)
    >>> layer = bounds(net, torch.eye(4, 8)[None]).layers[0]
    >>> bool((layer.log10_residual <= layer.log10_sharp_bound).all())
    True

    Residuals are in the composite norm at the best center, the only one these bounds are about
    (at the mean a residual may be ``2 − 2/n`` times as large). ``log10_a_priori_bound`` and
    ``log10_data_bound`` are those of Dong et al. 2021 for this layer's true input. They need the
    ``condition`` that all scores of a query differ by at most ``SCORE_LIMIT``.
    ``log10_sharp_bound`` is derived and needs no condition. The ``depth`` bounds are about all
    layers from the input to this one: the theorem of Dong et al. 2021, the chain of data bounds,
    and what follows from the norm of the input alone. ``beta`` replaces their βH, which
    is reported as ``paper_beta`` and false in general for several heads; ``lipschitz`` is λ.
    ``obstacle`` is why no bound applies, ``obstacle_a_priori`` why the bounds that need a λ for all
    inputs do not; both are None if they do.
    """

    layer: int
    obstacle: Obstacle | None
    obstacle_a_priori: Obstacle | None
    condition: Bool[Tensor, "batch"]
    log10_input_residual: PerSample
    log10_residual: PerSample
    log10_score_difference: PerSample
    gamma: PerSample
    beta: PerSample
    paper_beta: PerSample
    lipschitz: PerSample
    log10_a_priori_bound: PerSample
    log10_data_bound: PerSample
    log10_sharp_bound: PerSample
    log10_depth_bound: PerSample
    log10_depth_data_bound: PerSample
    log10_depth_input_bound: PerSample

    @property
    def why_not(self) -> str:
        """The obstacle in words; empty if there is none."""
        return "" if self.obstacle is None else str(self.obstacle)

    @property
    def why_not_a_priori(self) -> str:
        """The same for the bounds that need a λ for all inputs."""
        return "" if self.obstacle_a_priori is None else str(self.obstacle_a_priori)

    @property
    def applies(self) -> bool:
        """Whether the theory covers this kind of layer; ``condition`` is a separate question."""
        return self.obstacle is None

    @property
    def informative(self) -> Bool[Tensor, "batch"]:
        """Whether the a-priori bound guarantees a smaller residual: ``4γβλ·scale·‖res‖² < 1``."""
        return self.log10_a_priori_bound < self.log10_input_residual

    def __repr__(self) -> str:
        from rankscope.show import words

        return words.layer_bounds_line(self)


_NAMES = [column.name for column in fields(LayerBounds)]
_FIRST = _NAMES.index("log10_a_priori_bound")
MEASURED = tuple(_NAMES[_NAMES.index("log10_input_residual") : _FIRST])
BOUNDS = tuple(_NAMES[_FIRST:])


@checked
@dataclass(frozen=True, repr=False)
class Bounds(Tabular):
    """Bounds on the residual after each layer and over all layers, beside what was measured.

    >>> from rankscope import Network, Spec
    >>> found = bounds(Network.random(Spec.pure_attention(2, 1, 8)), torch.eye(4, 8)[None])
    >>> found.applies, len(found.layers)
    (True, 2)

    ``applies`` is about the theorem of Dong et al. 2021 for all layers and every sample; if it does
    not apply, ``why_not`` says why. ``traced`` is the run in scaled arithmetic the residuals are
    from, which says where they are in doubt.
    """

    layers: tuple[LayerBounds, ...]
    traced: Trace | None = None

    @property
    def applies(self) -> bool:
        """Whether the theorem of Dong et al. 2021 covers every layer and sample."""
        return all(
            layer.obstacle_a_priori is None and bool(layer.condition.all()) for layer in self.layers
        )

    @property
    def why_not(self) -> str:
        """The first reason why the theorem does not cover the last layer; empty if it does."""
        from rankscope.show import words

        return words.why_not(self, SCORE_LIMIT)

    @property
    def doubts(self) -> tuple[str, ...]:
        """What scaled arithmetic leaves uncertain, in clauses; nothing if all is sure."""
        notes = {} if self.traced is None else self.traced.provenance.notes
        return tuple(notes[kind] for kind in ("doubt", "beyond") if kind in notes)

    @property
    def doubtful(self) -> set[tuple[int, int]]:
        """The layers and samples whose residuals are in doubt."""
        known = {} if self.traced is None else self.traced.columns
        doubts = known.get("doubt", ())
        rows = zip(known["layer"], known["sample"], doubts, strict=True) if doubts else ()
        return {(layer, sample) for layer, sample, doubt in rows if doubt}

    @property
    def log10_depth_bound(self) -> PerSample:
        """The theorem of Dong et al. 2021 for the last layer; NaN where it does not apply."""
        return self.layers[-1].log10_depth_bound

    @property
    def table(self) -> "polars.DataFrame":
        """By layer, sample and metric; null where a bound does not apply.

        Where anything is in doubt there is a column that says so. What follows from a layer's input
        is in doubt where that is.
        """
        from rankscope import tables

        names, doubtful = ("layer", "sample", "metric", "value", "doubt"), self.doubtful
        rows: list[tuple[Any, ...]] = []
        for layer in self.layers:
            for metric in (*MEASURED, *BOUNDS, "condition"):
                values = getattr(layer, metric).double()
                if metric == "condition" and not layer.applies:
                    values = values * math.nan
                for sample, value in enumerate(values.tolist()):
                    source = layer.layer - (metric != "log10_residual")
                    doubt = metric not in _SURE and (source, sample) in doubtful
                    known = None if math.isnan(value) else value
                    rows.append((layer.layer, sample, metric, known, doubt))
        count = len(names) if doubtful else len(names) - 1
        return tables.from_rows(names[:count], (row[:count] for row in rows))

    def plot(self, metric: str | None = None) -> "figures.Figure":
        """The residual and every bound on it against depth, or one ``metric`` against the layer."""
        from rankscope import tables
        from rankscope.show import figures

        if metric is not None:
            known = self.table.filter(self.table["value"].is_not_null())
            return figures.by_layer(tables.summary(known), metrics=metric)
        rows = [
            (row["metric"], row["layer"], row["sample"], "log10_residual", row["value"])
            for row in self.table.iter_rows(named=True)
            if row["metric"] in ("log10_residual", *BOUNDS) and row["value"] is not None
        ]
        table = tables.from_rows(("variant", "layer", "sample", "metric", "value"), rows)
        drawn = set(table["variant"])
        roles: dict[str, Role] = {name: "bound" for name in BOUNDS if name in drawn}
        return figures.by_depth(tables.summary(table), metric="log10_residual", roles=roles)

    @property
    def sentences(self) -> tuple[str, ...]:
        """The same in plain words, for the sample each bound is worst for."""
        from rankscope.show import words

        return words.bounds_sentences(self, SCORE_LIMIT)

    def __repr__(self) -> str:
        from rankscope.show import words

        return words.bounds_line(self)

    def _repr_html_(self) -> str:
        from rankscope.show import words

        return words.bounds_html(self)


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

    def center(state: SplitState) -> None:
        valid = None if state.token_mask is None else state.token_mask.cpu()
        parts = (state.x.cpu(), state.mantissa.cpu(), state.log_scale.cpu())
        centers.append(one_layer.find_best_center(*parts, valid))

    traced = deep_trace(network, x, token_mask=token_mask, on_state=center)
    with torch.no_grad():
        layers = [
            _analyze_layer(network, layer, before, after)
            for layer, (before, after) in enumerate(pairwise(centers), start=1)
        ]
    return Bounds(_chain_layers(layers, centers[0]), traced)


@dataclass(frozen=True)
class _LayerAnalysis:
    """One layer's own bounds, in natural logarithms, before the layers are chained."""

    layer: int
    obstacle: Obstacle | None
    before: BestCenter
    after: BestCenter
    slack: PerSample
    weights: HeadWeights | None = None
    gain: Tensor | None = None  # of the MLP: one matrix, or, if it is gated, one per sample
    gated: bool = False
    logs: dict[str, Tensor] = field(default_factory=dict)

    @property
    def obstacle_a_priori(self) -> Obstacle | None:
        return Obstacle("gated") if self.gated else self.obstacle

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
        return CubicBound(factor, self.condition & (self.obstacle_a_priori is None))

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
    obstacle = _obstacle(network, layer, block)
    if obstacle is not None:
        return _LayerAnalysis(layer, obstacle, before, after, slack)
    weights, tokens = one_layer.head_weights(block.attention), before.tokens
    skip = network.spec.skips[1]
    differences = one_layer.log_differences(weights, tokens)
    data = one_layer.data_bound(weights, tokens, differences=differences)
    sharp = one_layer.sharp_bound(weights, tokens, differences=differences)
    gain = one_layer.row_gain(block.mlp, width=network.spec.width, skip=skip)
    gated = gain is None
    if gain is None:
        assert isinstance(block.mlp, MLP), "only a gated MLP has no gain for all inputs"
        center = one_layer.output_center(weights, tokens)
        gain = one_layer.gated_gain(block.mlp, center, sharp.inf.exp(), skip=skip)
    lipschitz = LogParts(torch.zeros(()), torch.zeros(())).times(gain).composite
    logs = {
        "difference": differences.amax((-2, -1)),
        "gamma": one_layer.gamma(differences).amax(-1).log(),
        "beta": one_layer.log_beta(weights),
        "paper_beta": one_layer.log_paper_beta(weights),
        "lipschitz": lipschitz,
        "a_priori": one_layer.a_priori_bound(weights, tokens, differences=differences) + lipschitz,
        "data": data.times(gain).composite,
        "sharp": sharp.times(gain).composite,
    }
    for name in ("a_priori", "data", "sharp"):
        bound = logs[name].expand_as(after.tokens.log_scale)
        lost = (bound.isneginf() & ~after.tokens.norms.composite.isneginf()) | bound.isnan()
        if bool((lost | bound.isposinf()).any()):
            return _LayerAnalysis(layer, Obstacle("range"), before, after, slack)
    return _LayerAnalysis(layer, None, before, after, slack, weights, gain, gated, logs)


def _obstacle(network: Network, layer: int, block: Block) -> Obstacle | None:
    """Why no bound of section 4 covers this kind of layer; None if they do."""
    spec, mask = network.spec, network.spec.masks[layer - 1]
    if spec.skips[0]:
        return Obstacle("skip")
    if spec.norm != "none":
        return Obstacle("norm", spec.norm)
    if spec.parallel and block.mlp is not None:
        return Obstacle("parallel")
    if not isinstance(mask, Full):
        return Obstacle("mask", str(mask))
    if block.attention.centered:
        return Obstacle("centered")
    if block.attention.gate is not None:
        return Obstacle("part", "gates on the output of attention")
    if block.attention.latent:
        return Obstacle("part", "norms inside its projections")
    if isinstance(block.mlp, MLP) and block.mlp.router is not None:
        return Obstacle("part", "a mixture of experts")
    score = score_entry(block.attention.scores)
    if not score.bounds:
        return Obstacle("scores", score.words)
    phi = None if block.mlp is None else block.mlp.activation
    if phi is not None and activation(phi).slopes is None:
        return Obstacle("activation", phi)
    return None


def _chain_layers(layers: list[_LayerAnalysis], first: BestCenter) -> tuple[LayerBounds, ...]:
    """The layers' bounds, chained from the input on."""
    start, absent = first.tokens.norms, torch.full_like(first.slack, math.nan)
    theorem = one_layer.chain_cubic_bounds([layer.cubic for layer in layers], start.composite)
    slacks = [layer.slack for layer in layers]
    data = one_layer.chain_data_bounds(
        [layer.data_gain for layer in layers], slacks, start.composite
    )
    covered = []
    for layer in layers:
        if layer.weights is None or layer.gain is None or layer.gated:
            break
        covered.append((layer.weights, layer.gain))
    by_norm = one_layer.chain_norm_bounds(covered, start, first.tokens.counts)
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
        obstacle=layer.obstacle,
        obstacle_a_priori=layer.obstacle_a_priori,
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
