"""Claim W1: masked attention with a center collapses exponentially; a larger radius is slower."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations

import polars as pl

from rankscope import tables
from rankscope.experiments import depths, kit
from rankscope.experiments.laws import Law
from rankscope.masks import Mask, as_mask
from rankscope.numerals import power_of_ten
from rankscope.theory import GraphFacts, graph_facts

ENTRY = kit.entry("W1")
_TWO_SIDED, _CENTERED = "two-sided windows", "all masks with a center"

_FAMILIES = "So the radius orders masks of one family, and not masks of different families."

Pair = tuple[str, str]
"""Two masks, the one of smaller radius first."""


@dataclass(frozen=True)
class Config(depths.DeepConfig):
    """One head with orthogonal values; no norm, skips, MLPs or biases; masks by their names."""

    tokens: int = 48
    samples: int = 2
    layers: int = 96
    windows: tuple[str, ...] = ("window:16", "window:8", "window:4", "window:2", "window:1")
    others: tuple[str, ...] = ("causal", "causal-window:4", "star:1", "bigbird:2:1:2")
    without_center: tuple[str, ...] = ("block:16", "window:4 & block:24")

    def groups(self) -> dict[str, dict[str, Mask]]:
        """The masks under their names, those beside each other that are drawn in one panel."""
        return {
            _TWO_SIDED: _by_name(self.windows),
            "other masks with a center": _by_name(self.others),
            "masks without a center": _by_name(self.without_center),
        }

    def masks(self) -> dict[str, Mask]:
        """All of them under their names."""
        return {name: mask for group in self.groups().values() for name, mask in group.items()}


def run(config: Config, on_step: kit.OnStep) -> kit.Result:
    """Attention with orthogonal values under many masks, in scaled arithmetic."""
    networks = {
        name: config.pure_attention(1, bias=False, init="orthogonal", mask=mask)
        for name, mask in config.masks().items()
    }
    compared = depths.compare(networks, *config.texts(), norm="fro", on_step=on_step)
    parts = {
        words: compared.table.filter(pl.col("variant").is_in(list(group)))
        for words, group in config.groups().items()
        if group
    }
    table = tables.joined(parts, column="model")
    judgement, sentences = judge(config, table)
    return ENTRY.result(
        config,
        question="Does every mask with a center collapse at a steady rate, a larger radius more "
        "slowly, and no mask without one?",
        sentences=sentences,
        table=table,
        about={"residuals": "Frobenius norm"},
        notes=compared.notes,
        judgement=judgement,
        drawings=(kit.Drawing("by_depth", "A curve for each mask.", depths.RELATIVE),),
        shown=(depths.RELATIVE,),
    )


def judge(config: Config, table: pl.DataFrame) -> tuple[kit.Judgement, tuple[str, ...]]:
    """The verdict, and what it rests on.

    A mask bears the claim out if it has a center and its residual ends by shrinking at a steady
    rate, or has none and does not shrink; one whose layers show no law does not. Radii are compared
    twice, among the two-sided windows and among all masks with a center, and bear the claim out if
    no mask shrinks faster than one of smaller radius.
    """
    found = depths.laws(tables.summary(table))
    facts = {name: graph_facts(mask, config.tokens) for name, mask in config.masks().items()}
    centered = [name for name, one in facts.items() if one.quasi_strongly_connected]
    borne_out = {
        name: found[name].kind == ("exponential" if name in centered else "none") for name in facts
    }
    collapsing = sum(borne_out[name] for name in centered)
    count = (
        f"{collapsing} of {len(centered)} masks with a center collapse exponentially; "
        f"{sum(borne_out.values()) - collapsing} of {len(borne_out) - len(centered)} without one "
        "do not collapse."
    )
    ordered = {_TWO_SIDED: list(config.groups()[_TWO_SIDED]), _CENTERED: centered}
    pairs = {words: _pairs(names, found, facts) for words, names in ordered.items()}
    borne_out |= {words: not _reversals(each, found) for words, each in pairs.items() if each}
    return kit.judged(ENTRY.domain, borne_out), (
        count,
        *(_order(words, each, found, facts) for words, each in pairs.items() if each),
        *([_FAMILIES] if borne_out.get(_TWO_SIDED) and not borne_out.get(_CENTERED, True) else []),
        *(
            f"{depths.ending(name, found[name], config.layers)}; {one}."
            for name, one in facts.items()
        ),
    )


def _by_name(names: Iterable[str]) -> dict[str, Mask]:
    return {str(mask): mask for mask in map(as_mask, names)}


def _pairs(
    names: Iterable[str], found: Mapping[str, Law], facts: Mapping[str, GraphFacts]
) -> list[Pair]:
    """Masks that shrink at a rate, two and two, as far as their radii differ."""
    steady = [name for name in names if found[name].kind == "exponential"]
    by_radius = sorted(steady, key=lambda name: facts[name].radius)
    return [(a, b) for a, b in combinations(by_radius, 2) if facts[a].radius < facts[b].radius]


def _reversals(pairs: Iterable[Pair], found: Mapping[str, Law]) -> list[Pair]:
    """The pairs in which the larger radius shrinks faster."""
    return [(a, b) for a, b in pairs if found[b].rate < found[a].rate]


def _order(
    words: str, pairs: list[Pair], found: Mapping[str, Law], facts: Mapping[str, GraphFacts]
) -> str:
    """How often a larger radius is slower, and where it is most clearly not."""
    against = _reversals(pairs, found)
    count = (
        f"Radius and rate, {words}: in {len(pairs) - len(against)} of {len(pairs)} pairs of "
        "different radius the larger one is slower"
    )
    if not against:
        return f"{count}."
    a, b = max(against, key=lambda pair: found[pair[0]].rate - found[pair[1]].rate)
    slow, fast = (
        f"{name}, radius {facts[name].radius:g}, × {power_of_ten(found[name].rate, digits=3)}"
        for name in (a, b)
    )
    return f"{count}; against it most clearly {fast} a layer, beside {slow}."
