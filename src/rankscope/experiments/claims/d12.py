"""Claim D12: corollary 3.2's inequality with the MLPs' Lipschitz constant, and what λ costs.

The corollary bounds the residual of attention followed by λ-Lipschitz MLPs by
``(4βHλ/√d_qk)^((3^L − 1)/2) ‖res(X)‖^(3^L)``. λ is that of the composite norm, for which the MLP's
row gain of docs/theory.md, section 4, is a bound. The constant is the paper's own, βH and no γ.

What a perturbation of the input becomes is read off the Jacobian of the whole network: its largest
singular value is the worst perturbation's, its root mean square that of a random one.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean, linear_regression
from typing import Final, NamedTuple, cast

import polars as pl
import torch
from torch import Tensor, nn

from rankscope import tables
from rankscope.core.network import MLP, Attention, Init, Network, Spec
from rankscope.core.theory import Bounds, bounds
from rankscope.errors import InputError
from rankscope.experiments import depths, kit
from rankscope.numerals import plural, short

ENTRY = kit.claim(
    "D12",
    "With MLPs of Lipschitz constant λ the residual stays below the doubly exponential bound of "
    "4βHλ/√d_qk, in every layer and over depth; a larger λ costs robustness.",
    source="Dong et al. 2021, corollary 3.2 and section 3 (as summarised)",
    question="Where is the bound with λ informative, does it hold, and does a steeper MLP amplify "
    "perturbations more?",
    domain="attention and MLPs without skips and norms; perturbations in absolute size",
    beyond="perturbations relative to the hidden states, and the same factor without an MLP",
    seconds=20,
    metrics=(
        kit.Metric(
            "perturbation_gain",
            "Amplification of a perturbation",
            "‖change of output‖ / ‖of input‖",
            "log",
            "1 = as large as it was",
            "What the largest singular value of the network's Jacobian makes of the worst small "
            "perturbation of its input, in the Frobenius norm; relative: over the size of the "
            "output, times that of the input.",
            includes=(1.0,),
        ),
    ),
)
GAIN, RESIDUAL = "perturbation_gain", "log10_residual"
WORST, TYPICAL = "worst", "random"
ABSOLUTE, RELATIVE = "absolute", "relative"
NO_MLP: Final = "no MLP"
FACTOR: Final = "factor on the last weights"
_RISES = 0.1  # the least power of λ with which a perturbation is amplified more
_STEP = 1e-5  # of central differences, in root mean squares of the tokens
_ROUNDING = 5e-5  # decades: the best center is known to a ten-thousandth
MEASURED, LAYER, DEPTH = "measured", "corollary, single layers", "corollary, all layers"
CHARTS = (
    kit.Drawing("by_setting", "λ is proportional to the factor; medians over draws.", GAIN),
    kit.Drawing(
        "by_depth",
        "Composite norm, best center; the first draw.",
        RESIDUAL,
        {"lowest": -200.0, "highest": 20.0},
        roles={LAYER: "bound", DEPTH: "bound"},
    ),
)


@dataclass(frozen=True)
class Config(depths.DeepConfig):
    """Attention with MLPs and nothing else: weights of every scale, MLPs of every slope."""

    layers: int = 6
    heads: int = 2
    width: int = 32
    tokens: int = 12
    samples: int = 1
    mlp_ratio: float = 2.0
    activations: tuple[str, ...] = ("relu", "gelu")
    scales: tuple[float, ...] = (0.02, 0.05, 0.125, 0.25, 0.5, 1.0)
    """What LeCun's weights are multiplied by, all of them: where bounds are compared."""
    gains: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0, 8.0)
    """What the MLPs' last weights, hence λ, are multiplied by where perturbations are measured."""
    draws: int = 3

    def network(self, kind: str, draw: int, scale: float = 1.0, gain: float = 1.0) -> Network:
        """Attention and MLPs; without an MLP the gain is that of attention's output weights."""
        spec = Spec(
            self.layers,
            self.heads,
            self.width,
            mlp_ratio=self.mlp_ratio,
            activation="gelu" if kind == NO_MLP else kind,
            norm="none",
            skip=False,
            init=Init("lecun", scale),
        )
        network = Network.random(spec, seed=self.seed + draw, dtype=torch.float64)
        if kind == NO_MLP:
            network = network.without("mlp")
        for module in network.modules():
            if isinstance(module, Attention if kind == NO_MLP else MLP):
                last = module.output if isinstance(module, Attention) else module.down
                cast(nn.Linear, last).weight.data.mul_(gain)
        return network


class Held(NamedTuple):
    """A network held against the corollary; counts are of layers."""

    scale: float
    covered: int  # in which the condition of the theorem is met, in all layers before, too
    above_layer: int
    above_depth: int
    single: int  # in which the bound for one layer guarantees a smaller residual
    depth: int  # to which the bound over all layers does
    lipschitz: float


def measure(config: Config, on_step: kit.OnStep) -> kit.Measured[Sequence[Held]]:
    """Bounds at every scale of the weights, Jacobians at every slope of the MLPs."""
    if not (config.scales and config.activations and len(config.gains) > 1):
        raise InputError("D12 needs an activation, a scale and at least two gains to try.")
    x, token_mask = config.texts()
    on_bounds, on_gains = kit.parts(on_step, 2, 1)
    checked: list[Held] = []
    rows: list[tuple[str | float | None, ...]] = []
    cases = list(product(config.activations, config.scales, range(config.draws)))
    for (kind, scale, draw), _ in kit.tracked(cases, on_bounds):
        promised = bounds(config.network(kind, draw, scale), x[:1], token_mask=token_mask[:1])
        curves, record = hold(scale, promised)
        checked.append(record)
        if draw == 0 and kind == config.activations[0]:
            rows += [
                (f"{kind}, LeCun × {scale:g}", name, layer, draw, None, None, RESIDUAL, value)
                for name, values in curves.items()
                for layer, value in values.items()
            ]
    steep = list(product((*config.activations, NO_MLP), config.gains, range(config.draws)))
    tokens = x[0][token_mask[0]]
    for (kind, gain, draw), _ in kit.tracked(steep, on_gains):
        network = config.network(kind, draw, gain=gain)
        rows += [
            (kind, name, None, draw, FACTOR, gain, GAIN, value)
            for name, value in amplification(network, tokens).items()
        ]
    names = ("model", "variant", "layer", "sample", "parameter", "setting", "metric", "value")
    return kit.Measured(tables.from_rows(names, rows), facts=checked)


def hold(scale: float, promised: Bounds) -> tuple[dict[str, dict[int, float]], Held]:
    """A sample against the corollary, up to the first layer whose condition is not met.

    Logarithms to base 10, with the paper's βH in the place of ``β_H`` and without γ.
    """
    start = float(promised.layers[0].log10_input_residual)
    factor, counts, steepest, met = -math.inf, [0, 0, 0, 0, 0], 0.0, True
    curves: dict[str, dict[int, float]] = {MEASURED: {0: start}, LAYER: {}, DEPTH: {}}
    for layer in promised.layers:
        before, after = float(layer.log10_input_residual), float(layer.log10_residual)
        curves[MEASURED][layer.layer] = after
        steepest = max(steepest, float(layer.lipschitz))
        met = met and bool(layer.condition) and (layer.layer, 0) not in promised.doubtful
        if not met:
            continue
        paper = float(layer.paper_beta / layer.beta / layer.gamma)
        constant = float(layer.log10_a_priori_bound) - 3 * before + math.log10(paper)
        factor = max(factor, constant)
        single = constant + 3 * before
        depth = factor * (3**layer.layer - 1) / 2 + start * 3**layer.layer
        curves[LAYER][layer.layer], curves[DEPTH][layer.layer] = single, depth
        above = (after > single + _ROUNDING, after > depth + _ROUNDING)
        said = (True, *above, single < before, depth < start)
        counts = [count + yes for count, yes in zip(counts, said, strict=True)]
    covered, above_layer, above_depth, informative, deep = counts
    return curves, Held(scale, covered, above_layer, above_depth, informative, deep, steepest)


def amplification(network: Network, tokens: Tensor) -> dict[str, float]:
    """What small perturbations of the tokens become, the worst one and random ones.

    The Jacobian is that of central differences, all entries of the input in one batch.
    """
    entries, step = tokens.numel(), _STEP * float(tokens.square().mean().sqrt())
    shifts = step * torch.eye(entries, dtype=tokens.dtype).reshape(entries, *tokens.shape)
    with torch.no_grad():
        after, before = (network(tokens + sign * shifts) for sign in (1, -1))
        ratio = float(tokens.norm() / network(tokens.unsqueeze(0)).norm())
    jacobian = ((after - before) / (2 * step)).reshape(entries, entries)
    worst = float(torch.linalg.matrix_norm(jacobian, 2))
    typical = float(jacobian.norm()) / math.sqrt(tokens.numel())
    return {
        f"{size}, {ABSOLUTE if factor == 1.0 else RELATIVE}": gain * factor
        for (size, gain), factor in product(((WORST, worst), (TYPICAL, typical)), (1.0, ratio))
    }


def judge(config: Config, measured: kit.Measured[Sequence[Held]]) -> kit.Answer:
    """The bound in every layer where its condition is met, and the power of λ in amplifications.

    As stated: no residual above the bound, for single layers and over all layers, and the worst
    perturbation is amplified, in absolute size, with at least the power 0.1 of λ in every draw.
    Ours, beyond: the same relative to the hidden states, which grow with λ too, worst and random;
    and that the same factor amplifies less where attention's weights have it and there is no MLP.
    """
    checked = measured.facts
    powers = {
        (kind, name): _powers(measured.table, kind, name)
        for kind in (*config.activations, NO_MLP)
        for name in _names()
    }
    covered = sum(network.covered for network in checked)
    stated: dict[str, bool] = {}
    if covered:
        stated["the bound in single layers"] = not any(record.above_layer for record in checked)
        stated["the bound over all layers"] = not any(record.above_depth for record in checked)
    worst, relative = f"{WORST}, {ABSOLUTE}", f"{WORST}, {RELATIVE}"
    beyond: dict[str, bool] = {}
    for kind in config.activations:
        stated[f"{kind}: perturbations grow with λ"] = min(powers[kind, worst]) >= _RISES
        for size in (WORST, TYPICAL):
            name = f"{size}, {RELATIVE}"
            beyond[f"{kind}: {name}, perturbations grow with λ"] = min(powers[kind, name]) >= _RISES
        beyond[f"{kind}: more than the same factor without an MLP"] = fmean(
            powers[kind, relative]
        ) > fmean(powers[NO_MLP, relative])
    deep, single = (
        max((record.scale for record in checked if getattr(record, name)), default=0.0)
        for name in ("depth", "single")
    )
    figures = ", ".join(
        f"{kind} λ^{short(fmean(powers[kind, worst]), digits=2)}" for kind in config.activations
    )
    reach = (
        f"up to LeCun × {single:g} in single layers and × {deep:g} over all layers, above which "
        f"the bound is vacuous; the worst perturbation grows as {figures} (mean of "
        f"{plural(config.draws, 'draw')})"
    )
    against = "; ".join(name for name, holds in beyond.items() if not holds)
    return kit.Answer(
        _sentences(config, checked, powers),
        stated=stated,
        on={"holds": reach, "depends": f"{_unsupported(stated)}; {reach}"},
        beyond=beyond,
        on_beyond={"depends": f"supported except for: {against}"},
        key_figures={
            "largest scale at which the bound over all layers is informative": deep,
            "largest scale at which the bound of a layer is informative": single,
            **{
                f"power of λ, {kind}, {name}": fmean(values)
                for (kind, name), values in powers.items()
                if kind != NO_MLP
            },
        },
        listings=(_listing(config, checked),),
        shown=(GAIN, RESIDUAL),
    )


def _unsupported(stated: Mapping[str, bool]) -> str:
    return "supported except for: " + ", ".join(name for name, holds in stated.items() if not holds)


def _names() -> Iterator[str]:
    return (f"{size}, {of}" for size in (WORST, TYPICAL) for of in (ABSOLUTE, RELATIVE))


def _powers(table: pl.DataFrame, kind: str, name: str) -> list[float]:
    """By draw, the power of the factor, hence of λ, with which perturbations grow."""
    rows = table.filter(model=kind, variant=name, metric=GAIN)
    powers = []
    for _, part in sorted(rows.group_by("sample"), key=lambda item: cast(int, item[0][0])):
        logs = [[math.log10(value) for value in part[column]] for column in ("setting", "value")]
        powers.append(linear_regression(*logs).slope)
    return powers


def _sentences(
    config: Config, checked: Sequence[Held], powers: Mapping[tuple[str, str], Sequence[float]]
) -> Iterator[str]:
    above = sum(record.above_layer + record.above_depth for record in checked)
    covered = sum(record.covered for record in checked)
    yield (
        f"Above the corollary's bound: {above} of {2 * covered} comparisons, in {covered} of "
        f"{len(checked) * config.layers} layers, those in which its condition is met."
    )
    for of in (ABSOLUTE, RELATIVE):
        listed = ", ".join(
            f"{kind} {short(fmean(powers[kind, f'{WORST}, {of}']), digits=2)}"
            for kind in (*config.activations, NO_MLP)
        )
        yield (
            f"Powers of λ in the amplification of the worst perturbation, {of}: {listed} (without "
            "an MLP: of the same factor on attention's output weights)."
        )


def _listing(config: Config, checked: Sequence[Held]) -> kit.Listing:
    """At which scales the corollary is informative."""
    rows: list[tuple[str | float, ...]] = []
    for scale in config.scales:
        networks = [record for record in checked if record.scale == scale]
        total = len(networks) * config.layers
        counts = (
            f"{sum(getattr(record, name) for record in networks)} of {total}"
            for name in ("covered", "single", "depth")
        )
        rows.append((f"LeCun × {scale:g}", fmean(record.lipschitz for record in networks), *counts))
    return kit.Listing(
        "Where the corollary guarantees a smaller residual",
        ("weights", "λ", "layers that meet the condition", "single layers", "over all layers"),
        tuple(rows),
        "λ: the largest of the layers' MLPs, mean over networks. A bound above the residual of its "
        "input is vacuous.",
    )
