"""Claim D2: pure attention contracts cubically by layer, hence doubly exponentially with depth."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import inf
from typing import Final, NamedTuple

import polars as pl
import torch

from rankscope import tables
from rankscope.core.network import Init, Network
from rankscope.core.theory import SCORE_LIMIT, Bounds, Law, bounds
from rankscope.errors import InputError
from rankscope.experiments import depths, kit
from rankscope.numerals import plural, power_of_ten

ENTRY = kit.claim(
    "D2",
    "Pure attention with one or many heads contracts the residual like its cube in every layer, "
    "so doubly exponentially with depth, and never above the theorems' bounds.",
    source="Dong et al. 2021, theorems 2.2 and 2.3",
    question="Is every layer below its bounds, and do the last steps grow threefold?",
    domain="pure attention that meets the condition of the theorems",
    beyond="the same networks where the weights are too large for the theorems",
    seconds=16,
)
PAPER: Final = {"width": 128, "tokens": 64, "samples": 8, "layers": 12}
_ROUNDING = 5e-5  # decades: the best center is known to a ten-thousandth
_FEWEST_LAYERS = 4  # without which no law can be seen
# Bounds given the true input of a layer, and those given that of the network.
_OWN_INPUT: Final = ("log10_a_priori_bound", "log10_data_bound", "log10_sharp_bound")
_FIRST_INPUT: Final = ("log10_depth_bound", "log10_depth_data_bound")
_DRAWN: Final = {
    "log10_residual": "measured",
    "log10_sharp_bound": "sharp bound of each layer",
    "log10_depth_data_bound": "data-dependent bounds, all layers",
    "log10_depth_bound": "theorem, all layers",
}
_PANEL: Final = ": one sample beside its bounds"


@dataclass(frozen=True)
class Config(depths.DeepConfig):
    """Networks of every number of heads with weights of every scale."""

    layers: int = 10
    heads: tuple[int, ...] = (1, 2, 4, 8)
    scales: tuple[float, ...] = (0.02, 0.125, 0.25, 0.35, 0.5, 1.0, 1.41, 2.0)
    """What weights of standard deviation ``1/√width`` (LeCun) are multiplied by; BERT has 0.55."""
    mask: str = "full"  # the theorems are about the full one


class Checked(NamedTuple):
    """The law of a network, and one sample of it held against the theory, layer by layer."""

    law: Law
    scale: float
    met: bool  # whether the theorems' own condition is met in every layer
    difference: float  # log10 of the largest range of a query's scores, of all layers
    above: int  # layers and bounds for which the residual is above the bound
    compared: int  # layers and bounds that say something: that the residual shrinks
    single: int = 0  # layers whose own bound, theorem 2.3 for one layer, is informative
    promised: int = 0  # layers in which theorem 2.3 over all layers so far is informative


Networks = Mapping[str, Checked]


def measure(config: Config, on_step: kit.OnStep) -> kit.Measured[Networks]:
    """Follow pure attention in scaled arithmetic, beside every bound of the theory."""
    if not config.heads or not config.scales:
        raise InputError("D2 needs at least one number of heads and one scale of the weights.")
    x, token_mask = config.texts()
    networks: dict[str, Network] = {}
    scales: dict[str, float] = {}
    for scale, heads in product(config.scales, config.heads):
        name = f"{plural(heads, 'head')}, LeCun × {scale:g}"
        networks[name] = config.pure_attention(heads, init=Init("lecun", scale), mask=config.mask)
        scales[name] = scale
    on_traces, on_bounds = kit.parts(on_step, 1, 3)  # as long as each takes
    compared = depths.compare(networks, x, token_mask, on_step=on_traces)
    laws = depths.laws(tables.summary(compared.table))
    # One sample is enough to hold against the bounds, whose centers take time to find.
    bounded = {
        name: bounds(network.double(), x[:1], token_mask=token_mask[:1])
        for (name, network), _ in kit.tracked(networks.items(), on_bounds)
    }
    checked = {name: check(scales[name], bounds, laws[name]) for name, bounds in bounded.items()}
    of_heads, of_scale = (pl.col("variant").str.split(", ").list.get(part) for part in (0, 1))
    by_scale = compared.table.with_columns(model=of_scale, variant=of_heads)
    # The network for which the theorem guarantees most is also shown beside its bounds.
    covered = [name for name, network in checked.items() if network.met] or list(checked)
    name = min(covered, key=lambda name: float(bounded[name].log10_depth_bound.min()))
    rows = bounded[name].table.filter(pl.col("metric").is_in(list(_DRAWN))).drop_nulls("value")
    beside = rows.with_columns(
        model=pl.lit(f"{name}{_PANEL}"),
        variant=pl.col("metric").replace(_DRAWN),
        metric=pl.lit("log10_residual"),
    )
    return kit.Measured(tables.stack([by_scale, beside]), compared.notes, checked)


def check(scale: float, promised: Bounds, law: Law) -> Checked:
    """Hold every layer of the first sample against every bound.

    A bound that does not guarantee a smaller residual than that of its input is vacuous, and not
    comparison; nor is a residual that is in doubt. Bounds are compared with the constant ``β_H`` of
    theory.md, and those of theorem 2.3 also with the paper's own ``βH``.
    """
    start = promised.layers[0].log10_input_residual
    above = compared = single = depth = 0
    factor = torch.full_like(start, -inf)  # theorem 2.3's, the largest of the layers so far
    for layer in promised.layers:
        if (layer.layer, 0) in promised.doubtful:
            break
        to_paper = (layer.paper_beta / layer.beta).log10()
        theorem = layer.log10_a_priori_bound + to_paper
        factor = torch.maximum(factor, theorem - 3 * layer.log10_input_residual)
        theorem_depth = factor * (3**layer.layer - 1) / 2 + start * 3**layer.layer
        own_input = [getattr(layer, name) for name in _OWN_INPUT] + [theorem]
        first_input = [getattr(layer, name) for name in _FIRST_INPUT] + [theorem_depth]
        for bound, residual in (
            *((bound, layer.log10_input_residual) for bound in own_input),
            *((bound, start) for bound in first_input),
        ):
            says = bound < residual  # one that does not apply is NaN, and not smaller
            compared += int(says.sum())
            above += int(((layer.log10_residual > bound + _ROUNDING) & says).sum())
        single += int((theorem < layer.log10_input_residual).all())
        depth += int((theorem_depth < start).all())
    difference = max(float(layer.log10_score_difference.max()) for layer in promised.layers)
    return Checked(law, scale, promised.applies, difference, above, compared, single, depth)


def judge(config: Config, measured: kit.Measured[Networks]) -> kit.Answer:
    """On networks that meet the theorems' condition in every layer, and on the others.

    The claim is supported for a network if in every layer its residual is below every informative
    bound, at least one bound is informative, and its last steps grow threefold, to within 0.1.
    """
    checked = measured.facts
    met, unmet = (
        {name: network for name, network in checked.items() if network.met is side}
        for side in (True, False)
    )
    missed = {network.scale for network in unmet.values()}
    covered = max({network.scale for network in met.values()} - missed, default=0.0)
    growths = [network.law.growth for network in met.values()]
    growth = {"smallest": min(growths), "largest": max(growths)} if growths else {}
    cubic = cubic_up_to(config, checked)
    deep = max((network.scale for network in met.values() if network.promised), default=0.0)
    reach = f"up to LeCun × {covered:g} for single layers and up to LeCun × {deep:g} over all "
    reach += "layers, above which that bound is vacuous"
    untested = "no network meets the theorems' condition; try smaller scales"
    if config.layers < _FEWEST_LAYERS:
        untested = f"{plural(config.layers, 'layer')} show no law; use {_FEWEST_LAYERS} or more"
        met, unmet = {}, {}
    panel = measured.table["model"][-1]  # the network that is shown beside its bounds comes last
    known = set(measured.table.filter(model=panel)["variant"])
    difference = power_of_ten(checked[panel.removesuffix(_PANEL)].difference)
    return kit.Answer(
        _sentences(config, checked, covered),
        stated={
            name: network.law.cubic and network.above == 0 and network.compared > 0
            for name, network in met.items()
        },
        on={"holds": reach if covered and deep else "", "not tried": untested},
        beyond={name: network.law.cubic for name, network in unmet.items()},
        on_beyond={"depends": f"every network is cubic up to LeCun × {cubic:g}"},
        key_figures={
            "largest scale at which every network is cubic": cubic,
            **{f"{which} growth of the last steps": value for which, value in growth.items()},
        },
        listings=(_informative(config, checked),),
        charts=(
            kit.Drawing(
                "by_depth",
                "A panel for each scale of the weights, a curve for each number of heads.",
                depths.RELATIVE,
                {"lowest": -60.0},
            ),
            kit.Drawing(
                "by_depth",
                f"Composite norm, best center. Scores of a query differ by at most {difference}.",
                "log10_residual",
                {"lowest": -200.0, "highest": 20.0},
                {"model": (panel,)},
                {name: "bound" for name in _DRAWN.values() if name != "measured" and name in known},
            ),
        ),
        shown=(depths.RELATIVE,),
    )


def cubic_up_to(config: Config, checked: Networks) -> float:
    """The largest scale up to which the last steps of every network grow threefold; 0 if none."""
    slow = {network.scale for network in checked.values() if not network.law.cubic}
    return max((scale for scale in config.scales if scale < min(slow, default=inf)), default=0.0)


def _sentences(config: Config, checked: Networks, covered: float) -> Iterator[str]:
    met = sum(network.met for network in checked.values())
    yield (
        f"The condition of the theorems, scores of a query within {SCORE_LIMIT:.3f}, is met in "
        f"every layer by {met} of {plural(len(checked), 'network')}"
        + (f"; by all of them up to LeCun × {covered:g}." if covered else ".")
    )
    above, compared = (
        sum(getattr(network, name) for network in checked.values())
        for name in ("above", "compared")
    )
    yield (
        f"Above a bound that guarantees a smaller residual: {above} of {compared} comparisons, in "
        "every layer of every network, in one sample, with β_H and with the paper's βH."
    )
    ends = sorted(checked, key=lambda name: checked[name].law.last)
    yield f"Fastest: {depths.ending(ends[0], checked[ends[0]].law, config.layers)}."
    slow = [name for name in ends if not checked[name].met]
    if slow:
        yield f"Slowest: {depths.ending(slow[-1], checked[slow[-1]].law, config.layers)}."


def _informative(config: Config, checked: Networks) -> kit.Listing:
    """At which scales theorem 2.3 guarantees a smaller residual, for one layer and for all."""
    rows = []
    for scale in config.scales:
        networks = [network for network in checked.values() if network.scale == scale]
        single, depth = (
            f"{sum(getattr(network, name) for network in networks)} of "
            f"{len(networks) * config.layers}"
            for name in ("single", "promised")
        )
        met = f"{sum(network.met for network in networks)} of {len(networks)}"
        rows.append((f"LeCun × {scale:g}", met, single, depth))
    return kit.Listing(
        "Where the theorem guarantees a smaller residual",
        ("weights", "networks that meet the condition", "single layers", "over all layers before"),
        tuple(rows),
        "Theorem 2.3 with the paper's own constant βH, in every layer of one sample. A bound above "
        "the residual of its input is vacuous.",
    )
