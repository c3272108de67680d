"""Claim W1: masked attention with a center collapses exponentially; a larger radius is slower."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import polars as pl
import torch

from rankscope import tables
from rankscope.experiments import depths, kit
from rankscope.experiments.claims import _mask_curves as curves
from rankscope.experiments.claims._mask_theorem import promise_table
from rankscope.experiments.claims._mask_verdict import judge
from rankscope.masks import Mask, as_mask
from rankscope.network import Block, Network, Spec

ENTRY = kit.entry("W1")
PAPER = {"tokens": 64, "samples": 4, "layers": 256}


@dataclass(frozen=True)
class Values:
    """Values that are scaled, or not orthogonal; ``uniform`` attention does not follow the states.

    Hidden states that grow make ordinary attention one-hot, so that its weights have no bound
    either; uniform attention shows growing products alone.
    """

    name: str
    factor: float = 1.0
    init: str = "orthogonal"
    uniform: bool = False


@dataclass(frozen=True)
class Config(depths.DeepConfig):
    """One head; no norm, skips, MLPs or biases; masks by their names.

    Values are orthogonal, so that their products are bounded by 1, but in ``values``, under one
    mask. Layers of ``changing`` masks take them in turn.
    """

    tokens: int = 48
    samples: int = 2
    layers: int = 96
    windows: tuple[str, ...] = ("window:16", "window:8", "window:4", "window:2", "window:1")
    others: tuple[str, ...] = ("causal", "causal-window:4", "star:1", "bigbird:2:1:2")
    without_center: tuple[str, ...] = ("block:16", "window:4 & block:24")
    values: tuple[Values, ...] = (
        Values("values × 0.5", 0.5),
        Values("values × 1.1", 1.1),
        Values("values × 1.1 under uniform attention", 1.1, uniform=True),
        Values("random values", init="lecun"),
    )
    values_mask: str = "window:8"
    changing: tuple[tuple[str, ...], ...] = (
        ("block:16", "block:24"),
        ("block:8", "dilated:16:8"),
        ("block:16", "block:8"),
    )

    def masks(self) -> dict[str, dict[str, tuple[Mask, ...]]]:
        """By panel and name the masks that layers take in turn, one or several."""
        single = {
            curves.WINDOWS: self.windows,
            curves.OTHERS: self.others,
            curves.NO_CENTER: self.without_center,
        }
        changing = [tuple(map(as_mask, names)) for names in self.changing]
        return {
            **{panel: {str(m): (m,) for m in map(as_mask, each)} for panel, each in single.items()},
            curves.CHANGING: {" then ".join(map(str, each)): each for each in changing},
        }

    def network(self, masks: tuple[Mask, ...], values: Values | None = None) -> Network:
        """One head whose layers take these masks in turn."""
        values = values or Values("orthogonal")
        spec = Spec.pure_attention(
            self.layers,
            1,
            self.width,
            bias=False,
            init=values.init,
            layer_masks=[masks[layer % len(masks)] for layer in range(self.layers)],
            score_scale=0.0 if values.uniform else None,
        )
        network = Network.random(spec, seed=self.seed)
        with torch.no_grad():
            for block in network.blocks:
                cast(Block, block).attention.value.weight.mul_(values.factor)
        return network


def run(config: Config, on_step: kit.OnStep) -> kit.Result:
    """Attention under many masks, in scaled arithmetic, beside what the theorem promises."""
    networks = {
        panel: {name: config.network(masks) for name, masks in group.items()}
        for panel, group in config.masks().items()
    }
    networks[curves.VALUES] = {
        values.name: config.network((as_mask(config.values_mask),), values)
        for values in config.values
    }
    parts: dict[str, pl.DataFrame] = {}
    notes: dict[str, str] = {}
    given = {panel: group for panel, group in networks.items() if group}
    for (panel, group), on_panel in kit.tracked(given.items(), on_step):
        parts[panel], noted = _measure(config, group, on_panel)
        notes |= noted
    table = tables.joined(parts, column="model")
    judged = judge(ENTRY.domain, table, config.masks(), config.tokens)
    return ENTRY.result(
        config,
        question="Does every mask with a center collapse at a steady rate below the theorem's "
        "bound, a larger radius more slowly, and no mask without one?",
        sentences=judged.sentences,
        table=table,
        about={"residuals": "Frobenius norm"},
        notes=notes,
        judgement=judged.judgement,
        beyond=judged.beyond,
        key_figures=judged.key_figures,
        drawings=(kit.Drawing("by_depth", "A curve for each mask.", depths.RELATIVE),),
        shown=(depths.RELATIVE,),
    )


def _measure(
    config: Config, networks: Mapping[str, Network], on_step: kit.OnStep
) -> tuple[pl.DataFrame, Mapping[str, str]]:
    """Relative residual and μ of every layer, and the bound on μ."""
    x, token_mask = config.texts()
    compared = depths.compare(networks, x, token_mask, norm="fro", on_step=on_step)
    wanted = pl.col("metric").is_in(["log10_residual", depths.RELATIVE])
    measured = depths.dispersions(compared.table.filter(wanted))
    promised = {name: promise_table(each, x, token_mask) for name, each in networks.items()}
    return tables.stack([measured, tables.joined(promised)]), compared.notes
