"""Claim D10: LayerNorm plays no role in the rank collapse of attention."""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import polars as pl
from torch import Tensor

from rankscope import tables
from rankscope.core.network import Init
from rankscope.core.theory import UNEVEN, Law, law
from rankscope.experiments import depths, kit
from rankscope.experiments.claims._norm_starts import ABOVE, Dynamics, Plan, follow
from rankscope.experiments.depths import medians
from rankscope.experiments.norm_cases import Setting, Settings, random_network
from rankscope.numerals import plural, power_of_ten, sentence_case

ENTRY = kit.claim(
    "D10",
    "LayerNorm plays no role in the rank collapse of attention.",
    source="Dong et al. 2021, remark on LayerNorm",
    question="Is anything about the collapse different with LayerNorm?",
    domain="random attention under the full mask and LayerNorm, without skips and MLPs",
    beyond="masks, and values that keep some sequences above rank one",
    seconds=32,
)
BARE, NORMED = "attention", "attention and LayerNorm"
CHARTS = (
    kit.Drawing(
        "by_depth",
        "A panel for each setting, with and without LayerNorm.",
        depths.RELATIVE_DISPERSION,
        {"lowest": -40.0},
    ),
)


def _scaled(scale: float) -> Setting:
    return Setting(init=Init("lecun", scale))


@dataclass(frozen=True)
class Config(depths.DeepConfig):
    """Random attention with and without a LayerNorm after it; the weights of a pair are the same.

    ``random`` are under the full mask, ``masked`` beyond the claim, as are ``designed`` values,
    each followed from ``designed_starts`` starts.
    """

    layers: int = 20
    draws: int = 3
    """How many random weights each setting is tried with."""
    masked_layers: int = 64
    random: Settings = (
        ("4 heads", Setting()),
        ("1 head", Setting(heads=1)),
        ("16 heads", Setting(heads=16)),
        ("BERT's weights", Setting(init="bert")),
        ("weights × 0.5", _scaled(0.5)),
        ("weights × 1.4", _scaled(1.4)),
        ("weights × 2", _scaled(2.0)),
        ("biases of 1", Setting(biases=1.0)),
    )
    masked: Settings = (
        ("causal mask", Setting(mask="causal")),
        ("window of 4", Setting(mask="window:4")),
        ("causal mask, one layer repeated", Setting(mask="causal", shared=True)),
    )
    designed: tuple[Dynamics, ...] = (
        Dynamics("diagonal values", tokens=16, width=4, norm="layer", strength=4.0),
        Dynamics("diagonal values on the sphere", tokens=16, width=4),
    )
    designed_starts: int = 100
    designed_layers: int = 25
    """A quarter of those that are run."""
    reached: float = -6.0
    """The power of ten of the relative dispersion until which layers are counted."""
    near: float = 0.2
    """Speeds are the same within one layer, or within this part of each other."""


def measure(config: Config, on_step: kit.OnStep) -> kit.Measured[list[str]]:
    """Trace each pair in scaled arithmetic, and follow designed values with and without a norm.

    What a verdict needs beside the table are the names of what is in doubt.
    """
    on_random, on_designed = kit.parts(on_step, 0.5, 0.5)
    x, token_mask = config.texts()
    cases = {
        name: _traced(config, setting, x, token_mask, on_setting)
        for (name, setting), on_setting in kit.tracked((*config.random, *config.masked), on_random)
    } | {
        case.name: _designed(config, case, on_case)
        for case, on_case in kit.tracked(config.designed, on_designed)
    }
    return kit.Measured(
        tables.joined({name: case.table for name, case in cases.items()}, column="model"),
        {
            f"{name}, {who}": note
            for name, case in cases.items()
            for who, note in case.notes.items()
        },
        [name for name, case in cases.items() if case.notes],
        {"dispersion": "Frobenius norm"},
    )


def _traced(
    config: Config, setting: Setting, x: Tensor, token_mask: Tensor, on_step: kit.OnStep
) -> depths.Measured:
    """Relative dispersions without and with the norm; the samples of all draws are numbered on."""
    depth = config.layers if setting.mask == "full" else config.masked_layers
    parts = []
    notes: dict[str, str] = {}
    for draw, on_draw in kit.tracked(range(config.draws), on_step):
        network = random_network(replace(setting, width=config.width), depth, config.seed + draw)
        pair = {BARE: network.without("norm"), NORMED: network}
        compared = depths.compare(pair, x, token_mask, norm="fro", on_step=on_draw)
        rows = depths.dispersions(compared.table.filter(metric=depths.RELATIVE))
        parts.append(rows.with_columns(pl.col("sample") + draw * config.samples))
        notes |= {f"{case}, draw {draw + 1}": note for case, note in compared.notes.items()}
    return depths.Measured(tables.stack(parts), notes)


def _designed(config: Config, case: Dynamics, on_step: kit.OnStep) -> depths.Measured:
    """The shares of starts above rank one, layer by layer, without and with the norm."""
    plan = Plan(config.seed, config.designed_starts, config.designed_layers)
    rows = []
    notes: dict[str, str] = {}
    variants = (replace(case, name=BARE, norm="none"), replace(case, name=NORMED))
    for variant, on_part in kit.tracked(variants, on_step):
        followed, doubts = follow(plan, variant, on_part)
        rows += [row for row in followed if row[2] == ABOVE]
        notes |= doubts
    return depths.Measured(tables.from_rows(("variant", "layer", "metric", "value"), rows), notes)


class Pair(NamedTuple):
    """How one setting ends without and with LayerNorm."""

    laws: tuple[Law, Law]
    reached: tuple[int | None, int | None]
    """The layers at which the relative dispersion is small."""

    def same(self, config: Config) -> dict[str, bool]:
        """Whether LayerNorm leaves the fate, the law and the speed as they are."""
        without, normed = self.laws
        return {
            "fate": without.collapses == normed.collapses,
            "law": without.kind == normed.kind,
            "speed": self._same_speed(config),
        }

    def _same_speed(self, config: Config) -> bool:
        without, normed = self.reached
        if without is not None and normed is not None:
            return abs(without - normed) <= max(1.0, config.near * max(without, normed))
        neither = without is None and normed is None
        a, b = (law.last if neither else law.rate for law in self.laws)
        return math.isfinite(a - b) and abs(a - b) <= config.near * max(abs(a), abs(b))

    @property
    def decided(self) -> bool:
        """Whether both networks show a law."""
        return all(law.decided for law in self.laws)


def judge(config: Config, measured: kit.Measured[list[str]]) -> kit.Answer:
    """Fate, law and speed of every pair, each a check of its own.

    A setting collapses if the later layers show a law by which it does. A designed one has the same
    fate if sequences stay above rank one in both networks, or in neither. What shows no law, or is
    in doubt, is undecided and left out.
    """
    table, doubted = measured.table, measured.facts
    every = [pairs(config, table, settings) for settings in (config.random, config.masked)]
    random, masked = (
        {name: pair for name, pair in group.items() if pair.decided and name not in doubted}
        for group in every
    )
    lawless = [name for group in every for name, pair in group.items() if not pair.decided]
    kept = {
        case.name: shares_above(config, table, case.name)
        for case in config.designed
        if case.name not in doubted
    }
    designed = {name: (without > 0) == (normed > 0) for name, (without, normed) in kept.items()}
    beyond = _checks(config, masked) | {f"fate, {name}": same for name, same in designed.items()}
    changed = sum(not same for same in designed.values())
    others = f"{changed} of {plural(len(designed), 'design')} with another fate"
    if masked:
        others += f"; masks with random weights, {_counts(config, masked)}"
    fates = [pair.same(config)["fate"] for pair in random.values()]
    return kit.Answer(
        (
            f"Full mask, random weights: {_counts(config, random)}.",
            *_left_out(doubted, lawless),
            *_differences(config, random),
            *([f"Masks, random weights: {_counts(config, masked)}."] if masked else []),
            *_differences(config, masked),
            *(
                f"{sentence_case(name)}: {without:.0%} of the starts stay above rank one without "
                f"the norm, {normed:.0%} with it."
                for name, (without, normed) in kept.items()
            ),
        ),
        stated=_checks(config, random),
        on=_phrase("what is asked", _counts(config, random)),
        beyond=beyond or None,
        on_beyond=_phrase("the values", others),
        key_figures={
            "settings with the same fate, share": sum(fates) / len(fates) if fates else math.nan
        },
        shown=(depths.RELATIVE_DISPERSION, ABOVE),
    )


def pairs(config: Config, table: pl.DataFrame, settings: Settings) -> dict[str, Pair]:
    """By setting, from the medians over the samples."""
    summary = tables.summary(table)
    by_setting = {}
    for name, _ in settings:
        bare, normed = (
            medians(summary, depths.RELATIVE_DISPERSION, model=name, variant=variant)
            for variant in (BARE, NORMED)
        )
        reached = [
            next((layer for layer, value in enumerate(curve) if value < config.reached), None)
            for curve in (bare, normed)
        ]
        by_setting[name] = Pair((law(bare, UNEVEN), law(normed, UNEVEN)), (reached[0], reached[1]))
    return by_setting


def shares_above(config: Config, table: pl.DataFrame, name: str) -> tuple[float, float]:
    """Of the starts that end above rank one, without and with the norm."""
    rows = table.filter(model=name, metric=ABOVE, layer=4 * config.designed_layers)
    shares = dict(rows.select("variant", "value").iter_rows())
    return shares[BARE], shares[NORMED]


def _checks(config: Config, group: Mapping[str, Pair]) -> dict[str, bool]:
    return {
        f"{asked}, {name}": same
        for name, pair in group.items()
        for asked, same in pair.same(config).items()
    }


def _phrase(depends: str, counts: str) -> kit.Phrase:
    """Counts complete every verdict; where the checks differ, on what it depends comes first."""
    return {
        **dict.fromkeys(("holds", "fails", "not tried"), counts),
        "depends": f"{depends}: {counts}",
    }


def _counts(config: Config, group: Mapping[str, Pair]) -> str:
    same = [pair.same(config) for pair in group.values()]
    fate, law, speed = (sum(pair[asked] for pair in same) for asked in ("fate", "law", "speed"))
    return (
        f"the same fate in {fate} of {plural(len(same), 'setting')}, the same law in {law}, the "
        f"same speed in {speed}"
    )


def _left_out(doubted: Collection[str], lawless: Collection[str]) -> Iterator[str]:
    """Which cases are not counted, and why."""
    undecided = [name for name in lawless if name not in doubted]
    reasons = {"their figures are in doubt": doubted, "they show no law": undecided}
    for reason, names in reasons.items():
        if names:
            yield f"Left out, because {reason}: {', '.join(names)}."


def _differences(config: Config, group: Mapping[str, Pair]) -> Iterator[str]:
    """A sentence for every setting that LayerNorm changes in some way."""
    for name, pair in group.items():
        other = [asked for asked, same in pair.same(config).items() if not same]
        if other:
            without, normed = map(_ending, pair.laws, pair.reached)
            yield (
                f"{sentence_case(name)}, another {' and '.join(other)}: {without} without "
                f"LayerNorm; {normed} with it."
            )


def _ending(law: Law, reached: int | None) -> str:
    equal = law.kind == "equal"
    end = "all tokens equal" if equal else f"{law.kind}, {power_of_ten(law.last)}"
    small = "" if reached is None else f", small after {plural(reached, 'layer')}"
    return f"{end} in the end{small}"
