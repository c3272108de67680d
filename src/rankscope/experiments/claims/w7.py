"""Claim W7: a smaller temperature of the softmax slows collapse, where attention is global most."""

import math
from dataclasses import dataclass
from itertools import pairwise, product
from statistics import fmean
from typing import Literal

import polars as pl

from rankscope import tables
from rankscope.core.deep import deep_trace
from rankscope.errors import InputError
from rankscope.experiments import depths, kit
from rankscope.experiments.norm_cases import NormSetting, random_network
from rankscope.numerals import plural, power_of_ten, short

ENTRY = kit.claim(
    "W7",
    "A smaller temperature of the softmax slows collapse, more so under global attention than "
    "under local masks, and in shallow layers more than in deep ones.",
    source="Wu et al. 2024, figure 3 (by its caption)",
    question="By how much do smaller temperatures slow collapse, under which masks, and where?",
    domain="random attention of one head, without skips, norms and MLPs",
    beyond="LayerNorm, and whether collapse stays slower up to the last layer",
    seconds=18,
)
CHARTS = (
    kit.Drawing(
        "by_depth",
        "A panel for each mask and norm, a curve for each temperature.",
        depths.RELATIVE_DISPERSION,
        {"lowest": -30.0},
    ),
)
FULL = "full"
_NOISE, _CLEAR = 2.0, 3.0  # standard errors of a difference over draws
_LESS = 0.9  # what the slowing in deep layers is of that in shallow ones, at the most, to be less
Norm = Literal["none", "layer"]
Losses = dict[float, list[list[float]]]
"""By temperature, layer and draw, log10 of what is left of the input's relative dispersion."""


@dataclass(frozen=True)
class Config(depths.DeepConfig):
    """Attention whose logits are divided by each temperature; the weights are the same for all."""

    layers: int = 12
    shallow: int = 4  # layers that count as shallow; those behind them are deep
    samples: int = 2
    draws: int = 5
    temperatures: tuple[float, ...] = (2.0, 1.0, 0.5, 0.25, 0.1)
    """From large to small; the effect of smaller ones is measured beside that of 1."""
    local: tuple[str, ...] = ("window:8", "window:2")
    others: tuple[str, ...] = ("causal",)

    @property
    def masks(self) -> tuple[str, ...]:
        """All of them, the full one first."""
        return (FULL, *self.others, *self.local)


def measure(config: Config, on_step: kit.OnStep) -> depths.Measured:
    """Relative dispersions in scaled arithmetic, without a norm and with LayerNorm."""
    smaller = [t for t in config.temperatures if t < 1]
    if not config.local or 1.0 not in config.temperatures or not smaller:
        raise InputError("W7 needs a local mask, the temperature 1 and smaller ones.")
    if not all(t > 0 for t in config.temperatures) or not config.shallow < config.layers:
        raise InputError("W7 needs positive temperatures, and layers behind the shallow ones.")
    x, token_mask = config.texts()
    norms: tuple[Norm, ...] = ("none", "layer")
    parts = []
    notes: dict[str, str] = {}
    for (norm, mask, temperature), on_case in kit.tracked(
        product(norms, config.masks, config.temperatures), on_step
    ):
        setting = NormSetting(mask, 1, config.width, 1 / temperature, norm=norm)
        for draw, _ in kit.tracked(range(config.draws), on_case):
            network = random_network(setting, config.layers, config.seed + draw)
            traced = deep_trace(network, x, norm="fro", token_mask=token_mask)
            rows = depths.dispersions(traced.table).filter(metric=depths.RELATIVE_DISPERSION)
            parts.append(
                rows.with_columns(
                    pl.col("sample") + draw * config.samples,
                    model=pl.lit(panel(mask, norm)),
                    variant=pl.lit(curve(temperature)),
                )
            )
            case = f"{panel(mask, norm)}, {curve(temperature)}, draw {draw + 1}"
            notes |= depths.doubts({case: traced})
    return depths.Measured(tables.stack(parts), notes, about={"dispersion": "Frobenius norm"})


def panel(mask: str, norm: Norm) -> str:
    """What is drawn in one panel."""
    return f"{mask} mask" if norm == "none" else f"{mask} mask, LayerNorm"


def curve(temperature: float) -> str:
    """What a curve is called."""
    return f"temperature {short(temperature)}"


def read(config: Config, table: pl.DataFrame, mask: str, norm: Norm) -> Losses:
    """Means over the samples of a draw, relative to the input."""
    means = (
        table.filter(metric=depths.RELATIVE_DISPERSION, model=panel(mask, norm))
        .group_by("variant", "layer", draw=pl.col("sample") // config.samples)
        .agg(pl.mean("value"))
        .sort("layer", "draw")
    )
    losses: Losses = {}
    for temperature in config.temperatures:
        rows = means.filter(variant=curve(temperature))
        by_layer = [rows.filter(layer=at)["value"].to_list() for at in range(config.layers + 1)]
        losses[temperature] = [
            [value - start for value, start in zip(values, by_layer[0], strict=True)]
            for values in by_layer
        ]
    return losses


def slower(losses: Losses, layer: int) -> bool:
    """Whether the smallest temperature has clearly more left than the largest, and no smaller one
    less than the next, beyond what draws differ by."""

    def gain(more: float, less: float) -> kit.Mean:
        pairs = zip(losses[less][layer], losses[more][layer], strict=True)
        return kit.Mean.of([a - b for a, b in pairs])

    ordered = sorted(losses, reverse=True)
    overall = gain(ordered[0], ordered[-1])
    steps = [gain(more, less) for more, less in pairwise(ordered)]
    return overall.value > _CLEAR * overall.error and all(
        step.value > -_NOISE * step.error for step in steps
    )


def effect(losses: Losses, first: int, last: int) -> float:
    """Of temperatures below 1: ln of the decades lost in some layers over those lost at 1.

    The mean over the temperatures; 0 is no effect, and below 0 collapse is slower.
    """
    lost = {t: fmean(values[first]) - fmean(values[last]) for t, values in losses.items()}
    ratios = [value / lost[1.0] for t, value in lost.items() if t < 1]
    return fmean(math.log(ratio) if ratio > 0 else -math.inf for ratio in ratios)


def judge(config: Config, measured: depths.Measured) -> kit.Answer:
    """Each mask by itself, each local one beside the full one; beyond with LayerNorm."""
    norms: tuple[Norm, ...] = ("none", "layer")
    of_norm = {
        norm: {mask: read(config, measured.table, mask, norm) for mask in config.masks}
        for norm in norms
    }
    plain, normed = (checks(config, losses) for losses in of_norm.values())
    by_panel = {
        panel(mask, norm): losses
        for norm, by_mask in of_norm.items()
        for mask, losses in by_mask.items()
    }
    to_the_end = {
        f"{name}: slower to the last layer": slower(losses, config.layers)
        for name, losses in by_panel.items()
    }
    shallow, deep = config.shallow, config.layers
    rows = tuple(
        (name, t, power_of_ten(fmean(losses[t][shallow])), power_of_ten(fmean(losses[t][deep])))
        for name, losses in by_panel.items()
        for t in config.temperatures
    )
    against = [check for check, holds in plain.items() if not holds]
    beyond = {f"LayerNorm, {check}": holds for check, holds in normed.items()} | to_the_end
    lost = [check for check, holds in beyond.items() if not holds]
    full = of_norm["none"][FULL]
    effects = {
        mask: (effect(losses, 0, config.shallow), effect(losses, config.shallow, config.layers))
        for mask, losses in of_norm["none"].items()
    }
    return kit.Answer(
        (
            "Decades lost at temperatures below 1 over those at 1, in shallow and in deep layers: "
            + "; ".join(
                f"{mask} {short(math.exp(near))} and {short(math.exp(far))}"
                for mask, (near, far) in effects.items()
            )
            + ".",
        ),
        stated=plain,
        on={"depends": f"supported except for: {'; '.join(against)}"},
        beyond=beyond,
        on_beyond={"depends": f"supported except for: {'; '.join(lost)}"},
        key_figures={
            f"full mask, decades kept after {plural(config.shallow, 'layer')} by the smallest "
            "temperature": gain(full, config.shallow)
        },
        listings=(
            kit.Listing(
                "Share of the input's relative dispersion that remains",
                ("mask", "temperature", f"after {config.shallow}", f"after {config.layers} layers"),
                rows,
                "Geometric means over samples and draws.",
            ),
        ),
    )


def gain(losses: Losses, layer: int) -> float:
    """Decades that the smallest temperature has more left than the largest after a layer."""
    return fmean(losses[min(losses)][layer]) - fmean(losses[max(losses)][layer])


def checks(config: Config, by_mask: dict[str, Losses]) -> dict[str, bool]:
    """Slower under each mask, by more decades under the full one, and most in shallow layers."""
    at = config.shallow
    near, far = (
        {mask: -effect(losses, *span) for mask, losses in by_mask.items()}
        for span in ((0, at), (at, config.layers))
    )
    gains = {mask: gain(losses, at) for mask, losses in by_mask.items()}
    return {
        **{f"{mask}: slower": slower(losses, at) for mask, losses in by_mask.items()},
        **{f"full: slowed by more than {mask}": gains[FULL] > gains[mask] for mask in config.local},
        **{f"{mask}: less in deep layers": far[mask] < _LESS * near[mask] for mask in by_mask},
    }
