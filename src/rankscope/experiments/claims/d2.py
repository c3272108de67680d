"""Claim D2: pure attention contracts cubically by layer, hence doubly exponentially with depth."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import polars as pl

from rankscope import tables
from rankscope.core.network import Init, Network
from rankscope.core.theory import Bounds, bounds
from rankscope.core.theory.residual_bounds import SCORE_LIMIT
from rankscope.errors import InputError
from rankscope.experiments import depths, kit
from rankscope.experiments.laws import Law
from rankscope.numerals import plural, power_of_ten

ENTRY = kit.entry("D2")
_BEYOND = "the same networks where the weights are too large for the theorems"
_ROUNDING = 5e-5
"""Decades: the best center is known to a ten-thousandth."""
_FEWEST_LAYERS = 4
"""Without which no law can be seen."""
_OWN_INPUT: Final = ("log10_a_priori_bound", "log10_data_bound", "log10_sharp_bound")
"""Bounds given the true input of a layer; the others are given that of the network."""
_DRAWN: Final = {
    "log10_residual": "measured",
    "log10_sharp_bound": "sharp bound of each layer",
    "log10_depth_data_bound": "data-dependent bounds, all layers",
    "log10_depth_bound": "theorem, all layers",
}


@dataclass(frozen=True)
class Config(depths.DeepConfig):
    """Networks of every number of heads with weights of every scale."""

    layers: int = 10
    heads: tuple[int, ...] = (1, 2, 4, 8)
    scales: tuple[float, ...] = (0.02, 0.125, 0.25, 0.35, 0.5, 1.0, 1.41, 2.0)
    """What weights of standard deviation ``1/√width`` (LeCun) are multiplied by; BERT has 0.55."""
    mask: str = "full"
    """The theorems are about the full one."""

    def networks(self) -> dict[str, tuple[float, Network]]:
        """By name, the scale of a network's weights and the network."""
        return {
            f"{plural(heads, 'head')}, LeCun × {scale:g}": (
                scale,
                self.pure_attention(heads, init=Init("lecun", scale), mask=self.mask),
            )
            for scale in self.scales
            for heads in self.heads
        }


class Checked(NamedTuple):
    """A network held against the bounds of the theory, layer by layer, in one sample."""

    scale: float
    met: bool
    """Whether the theorems' own condition is met in every layer."""
    difference: float
    """The decimal logarithm of the largest range of a query's scores, of all layers."""
    above: int
    """Layers and bounds for which the residual is above the bound."""
    compared: int
    """Layers and bounds that say something: that the residual shrinks."""
    promised: bool = False
    """Whether the theorem over all layers says something about the last one."""


_SCALES: Final = kit.Drawing(
    "by_depth",
    "A panel for each scale of the weights, a curve for each number of heads.",
    depths.RELATIVE,
    {"lowest": -60.0},
)
PAPER: Final = {"width": 128, "tokens": 64, "samples": 8, "layers": 12}


def run(config: Config, on_step: kit.OnStep) -> kit.Result:
    """Follow pure attention in scaled arithmetic, beside every bound of the theory.

    A network bears the claim out if in every layer its residual is below every bound that says
    something there, of which there must be some, and its last steps grow threefold, to within 0.1.
    """
    if not config.heads or not config.scales:
        raise InputError("D2 needs at least one number of heads and one scale of the weights.")
    x, token_mask = config.texts()
    networks = config.networks()
    on_traces, on_bounds = kit.parts(on_step, 1, 3)  # as long as each takes
    compared = depths.compare(
        {name: network for name, (_, network) in networks.items()}, x, token_mask, on_step=on_traces
    )
    # One sample is enough to hold against the bounds, whose centers take time to find.
    bounded = {
        name: bounds(network.double(), x[:1], token_mask=token_mask[:1])
        for (name, (_, network)), _ in kit.tracked(networks.items(), on_bounds)
    }
    checked = {name: check(networks[name][0], found) for name, found in bounded.items()}
    laws = depths.laws(tables.summary(compared.table))
    judgement, beyond, sentences = judge(config, checked, laws)
    shown = _with_bounds(bounded, checked)
    return ENTRY.result(
        config,
        question="Is every layer below its bounds, and do the last steps grow threefold?",
        sentences=sentences,
        table=tables.stack([_by_scale(compared.table), shown.table]),
        notes=compared.notes,
        judgement=judgement,
        beyond=beyond,
        key_figures={
            "largest scale at which every network is cubic": cubic_up_to(config, checked, laws),
            **_growths(checked, laws),
        },
        drawings=(_SCALES, *shown.drawings),
        shown=(depths.RELATIVE,),
    )


def check(scale: float, found: Bounds) -> Checked:
    """Hold every layer of the first sample against every bound.

    A bound that does not promise a smaller residual than that of its input says nothing, and is no
    comparison; nor is a residual that is in doubt.
    """
    start = found.layers[0].log10_input_residual
    above = compared = 0
    for layer in found.layers:
        if (layer.layer, 0) in found.doubtful:
            break
        for name in (*_OWN_INPUT, "log10_depth_bound", "log10_depth_data_bound"):
            bound = getattr(layer, name)
            says = bound < (layer.log10_input_residual if name in _OWN_INPUT else start)
            compared += int(says.sum())  # one that does not apply is NaN, and not smaller
            above += int(((layer.log10_residual > bound + _ROUNDING) & says).sum())
    differences = [float(layer.log10_score_difference.max()) for layer in found.layers]
    promised = bool((found.log10_depth_bound < start).all())
    return Checked(scale, found.applies, max(differences), above, compared, promised)


def judge(
    config: Config, checked: Mapping[str, Checked], laws: Mapping[str, Law]
) -> tuple[kit.Judgement, kit.Judgement, list[str]]:
    """On networks that meet the theorems' condition in every layer, on others, and in words."""
    inside = [name for name, one in checked.items() if one.met]
    outside = [name for name, one in checked.items() if not one.met]
    decided = config.layers >= _FEWEST_LAYERS
    within = {name: bears_out(laws[name], checked[name]) for name in inside if decided}
    cubic = {name: laws[name].cubic for name in outside if decided}
    covered = _covered(checked)
    largest = cubic_up_to(config, checked, laws)
    upto = f"the weights' scale: every network is cubic up to LeCun × {largest:g}"
    if not decided:
        why = f"{plural(config.layers, 'layer')} show no law; use {_FEWEST_LAYERS} or more"
    else:
        why = "no network meets the theorems' condition; try smaller scales"
    on = f"up to LeCun × {covered:g}" if covered and within and all(within.values()) else ""
    return (
        kit.judged(ENTRY.domain, within, on if within else why),
        kit.judged(_BEYOND, cubic, upto if 0 < sum(cubic.values()) < len(cubic) else ""),
        [*_counts(checked, inside, covered), *_slowest(config, laws, outside)],
    )


def bears_out(law: Law, checked: Checked) -> bool:
    """Cubic in the end, and in every layer below every bound that says something; some must."""
    return law.cubic and checked.above == 0 and checked.compared > 0


def cubic_up_to(config: Config, checked: Mapping[str, Checked], laws: Mapping[str, Law]) -> float:
    """The largest scale up to which the last steps of every network grow threefold; 0 if none."""
    best = 0.0
    for scale in sorted(config.scales):
        if not all(laws[name].cubic for name, one in checked.items() if one.scale == scale):
            break
        best = scale
    return best


def _growths(checked: Mapping[str, Checked], laws: Mapping[str, Law]) -> dict[str, float]:
    """By how much the last steps grow where the theorems apply; nothing if they do so nowhere."""
    found = [law.growth for name, law in laws.items() if checked[name].met]
    if not found:
        return {}
    ends = {"smallest": min(found), "largest": max(found)}
    return {f"{which} growth of the last steps": growth for which, growth in ends.items()}


def _covered(checked: Mapping[str, Checked]) -> float:
    """The largest scale at which every network meets the theorems' condition; 0 if none does."""
    missed = {one.scale for one in checked.values() if not one.met}
    return max((one.scale for one in checked.values() if one.scale not in missed), default=0.0)


def _counts(checked: Mapping[str, Checked], inside: Sequence[str], covered: float) -> list[str]:
    """How many comparisons there were, and how many networks the theorems are about."""
    above, compared = (
        sum(getattr(one, part) for one in checked.values()) for part in ("above", "compared")
    )
    met = (
        f"The condition of the theorems, scores of a query within {SCORE_LIMIT:.3f}, is met in "
        f"every layer by {len(inside)} of {plural(len(checked), 'network')}"
    )
    told = [one.scale for one in checked.values() if one.promised]
    promised = f"up to LeCun × {max(told):g}" if told else "for none of them"
    return [
        f"{met}; by all of them up to LeCun × {covered:g}." if covered else f"{met}.",
        f"The theorem over all layers promises a smaller residual {promised}.",
        f"Above a bound that promises a smaller residual: {above} of {compared} comparisons, in "
        "every layer of every network, in one sample.",
    ]


def _slowest(config: Config, laws: Mapping[str, Law], outside: Sequence[str]) -> list[str]:
    """Where the two sides end: the fastest network of all, and the slowest beyond the condition."""
    ends = sorted(laws, key=lambda name: laws[name].last)
    told = [f"Fastest: {depths.ending(ends[0], laws[ends[0]], config.layers)}."]
    slow = [name for name in ends if name in outside]
    if slow:
        told.append(f"Slowest: {depths.ending(slow[-1], laws[slow[-1]], config.layers)}.")
    return told


class _Shown(NamedTuple):
    table: pl.DataFrame
    drawings: tuple[kit.Drawing, ...]


def _by_scale(table: pl.DataFrame) -> pl.DataFrame:
    """The curves under the scale of their weights and their heads, apart."""
    heads, scale = (pl.col("variant").str.split(", ").list.get(part) for part in (0, 1))
    return table.with_columns(scale.alias("model"), heads.alias("variant"))


def _with_bounds(bounded: Mapping[str, Bounds], checked: Mapping[str, Checked]) -> _Shown:
    """The network for which the theorem promises most, beside its bounds."""
    covered = [name for name, one in checked.items() if one.met] or list(checked)
    name = min(covered, key=lambda each: float(bounded[each].log10_depth_bound.min()))
    rows = bounded[name].table.filter(pl.col("metric").is_in(list(_DRAWN)))
    panel = f"{name}: one sample beside its bounds"
    table = rows.with_columns(
        pl.lit(panel).alias("model"),
        pl.col("metric").replace(_DRAWN).alias("variant"),
        pl.lit("log10_residual").alias("metric"),
    ).drop_nulls("value")
    known = set(table["variant"])
    drawing = kit.Drawing(
        "by_depth",
        f"Composite norm, best center. Scores of a query differ by at most "
        f"{power_of_ten(checked[name].difference)}.",
        "log10_residual",
        {"lowest": -200.0, "highest": 20.0},
        {"model": (panel,)},
        {each: "bound" for each in _DRAWN.values() if each != "measured" and each in known},
    )
    return _Shown(table, (drawing,))
