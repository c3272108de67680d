"""Claim W1: masked attention with a center collapses exponentially; a larger radius is slower."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import polars as pl
import torch

from rankscope import tables
from rankscope.arguments import checked
from rankscope.core.masks import Mask, as_mask
from rankscope.core.network import Block, Network, Spec
from rankscope.experiments import depths, kit
from rankscope.experiments.claims import _masked
from rankscope.experiments.claims._masked import judge, promise_table
from rankscope.numerals import plural

ENTRY = kit.claim(
    "W1",
    "Masked attention collapses exponentially if its graph has a center, more slowly the larger "
    "the radius, and does not collapse to one point without a center.",
    source="Wu et al. 2024, masked attention",
    domain="one head, bounded products of values, weights of attention at least ε",
    seconds=25,
    metrics=(
        kit.Metric(
            "promised_dispersion",
            "Promised dispersion",
            "bound on μ(X)",
            "log",
            "The dispersion stays below it",
            "The bound on μ(X) that the graph of the masks, the smallest weight and the norms of "
            "the values promise (Wu et al. 2024).",
            "down",
        ),
    ),
)
PAPER = {"tokens": 64, "samples": 4, "layers": 256}


@checked
@dataclass(frozen=True)
class Values:
    """Values that are scaled, or not orthogonal; ``uniform`` attention does not follow the states.

    Hidden states that grow make ordinary attention one-hot, so that its weights have no bound
    either; uniform attention shows growing products alone. ``scores`` is by what logits are
    multiplied.
    """

    name: str
    factor: float = 1.0
    init: str = "orthogonal"
    uniform: bool = False
    scores: float = 1.0


@dataclass(frozen=True)
class Config(depths.DeepConfig):
    """One head; no norm, skips, MLPs or biases; masks by their names.

    Values are orthogonal, so that their products are bounded by 1, but in ``values``, under one
    mask. Layers of ``changing`` masks take them in turn. Under most masks ε is so small that the
    theorem's bound stays above the input's μ and says nothing; among ``few`` tokens (each mask with
    their number) whose logits are ``weak`` times as large it is close to what happens.
    """

    tokens: int = 48
    samples: int = 2
    layers: int = 96
    windows: tuple[str, ...] = ("window:16", "window:8", "window:4", "window:2", "window:1")
    others: tuple[str, ...] = ("causal", "causal-window:4", "star:1", "bigbird:2:1:2")
    without_center: tuple[str, ...] = ("block:16", "window:4 & block:24")
    few: tuple[tuple[str, int], ...] = (("causal", 2), ("star:1", 4))
    weak: float = 0.1
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

    def mask(self, name: str) -> Mask:
        """A mask by its name; random ones follow the seed."""
        return as_mask(name, seed=self.seed)

    def few_masks(self) -> list[tuple[Mask, int]]:
        """Those of the few tokens, with their number."""
        return [(self.mask(name), tokens) for name, tokens in self.few]

    def masks(self) -> dict[str, dict[str, tuple[Mask, ...]]]:
        """By panel and name the masks that layers take in turn, one or several."""
        single = {
            _masked.WINDOWS: self.windows,
            _masked.OTHERS: self.others,
            _masked.NO_CENTER: self.without_center,
        }
        changing = [tuple(map(self.mask, names)) for names in self.changing]
        return {
            **{
                panel: {str(m): (m,) for m in map(self.mask, each)}
                for panel, each in single.items()
            },
            _masked.CHANGING: {" then ".join(map(str, each)): each for each in changing},
        }

    def radii(self) -> dict[str, dict[str, float]]:
        """By panel and name, also of the few tokens."""
        found = {
            panel: {name: _masked.radius_of(each, self.tokens) for name, each in group.items()}
            for panel, group in self.masks().items()
        }
        found[_masked.FEW] = {
            _few_name(mask, tokens): _masked.radius_of((mask,), tokens)
            for mask, tokens in self.few_masks()
        }
        return found

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
            score_scale=0.0 if values.uniform else values.scores / math.sqrt(self.width),
        )
        network = Network.random(spec, seed=self.seed)
        with torch.no_grad():
            for block in network.blocks:
                cast(Block, block).attention.value.weight.mul_(values.factor)
        return network


def run(config: Config, on_step: kit.OnStep) -> kit.Result:
    """Attention under many masks, in scaled arithmetic, beside what the theorem promises."""
    parts: dict[str, list[pl.DataFrame]] = {}
    notes: dict[str, str] = {}
    for (panel, tokens, group), on_group in kit.tracked(_groups(config), on_step):
        found, noted = _measure(config, tokens, group, on_group)
        parts.setdefault(panel, []).append(found)
        notes |= noted
    table = tables.joined(
        {panel: tables.stack(each) for panel, each in parts.items()}, column="model"
    )
    judged = judge(ENTRY.domain, table, config.radii())
    return ENTRY.result(
        config,
        question="Does every mask with a center collapse at a steady rate below the theorem's "
        "bound, a larger radius more slowly, and no mask without one?",
        sentences=judged.sentences,
        table=table,
        listings=judged.listings,
        about={"dispersion": "Frobenius norm"},
        notes=notes,
        judgement=judged.judgement,
        beyond=judged.beyond,
        key_figures=judged.key_figures,
        drawings=(kit.Drawing("by_depth", "A curve for each mask.", depths.RELATIVE_DISPERSION),),
        shown=(depths.RELATIVE_DISPERSION,),
    )


def _groups(config: Config) -> list[tuple[str, int, dict[str, Network]]]:
    """Panel, number of tokens and networks by name, of all that read the same input."""
    found = [
        (panel, config.tokens, {name: config.network(masks) for name, masks in group.items()})
        for panel, group in config.masks().items()
    ]
    for mask, tokens in config.few_masks():
        network = config.network((mask,), Values("weak", scores=config.weak))
        found.append((_masked.FEW, tokens, {_few_name(mask, tokens): network}))
    single = (config.mask(config.values_mask),)
    others = {values.name: config.network(single, values) for values in config.values}
    return [group for group in (*found, (_masked.VALUES, config.tokens, others)) if group[-1]]


def _few_name(mask: Mask, tokens: int) -> str:
    return f"{mask} of {plural(tokens, 'token')}"


def _measure(
    config: Config, tokens: int, networks: Mapping[str, Network], on_step: kit.OnStep
) -> tuple[pl.DataFrame, Mapping[str, str]]:
    """μ, as it is and relative, of every layer, and the bound on μ, for the first tokens."""
    x, token_mask = (each[:, :tokens] for each in config.texts())
    compared = depths.compare(networks, x, token_mask, norm="fro", on_step=on_step)
    wanted = pl.col("metric").is_in(["log10_residual", depths.RELATIVE])
    measured = depths.dispersions(compared.table.filter(wanted))
    promised = {name: promise_table(each, x, token_mask) for name, each in networks.items()}
    return tables.stack([measured, tables.joined(promised)]), compared.notes
