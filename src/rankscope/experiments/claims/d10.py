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
from rankscope.experiments.laws import medians
from rankscope.experiments.norm_cases import Setting, Settings, random_network
from rankscope.numerals import plural, power_of_ten, sentence_case

ENTRY = kit.claim(
    "D10",
    "LayerNorm plays no role in the rank collapse of attention.",
    source="Dong et al. 2021, remark on LayerNorm",
    domain="random attention under the full mask and LayerNorm, without skips and MLPs",
    seconds=32,
)
BARE, NORMED = "attention", "attention and LayerNorm"
_QUESTIONS = ("fate", "law", "speed")
_BEYOND = "masks, and values that keep some sequences above rank one"


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
        a, b = (each.last if neither else each.rate for each in self.laws)
        return math.isfinite(a - b) and abs(a - b) <= config.near * max(abs(a), abs(b))

    @property
    def decided(self) -> bool:
        """Whether both networks show a law."""
        return all(each.decided for each in self.laws)


def run(config: Config, on_step: kit.OnStep) -> kit.Result:
    """Trace each pair in scaled arithmetic, and follow designed values with and without a norm."""
    found = _measure(config, on_step)
    table = tables.joined({name: each.table for name, each in found.items()}, column="model")
    doubted = [name for name, each in found.items() if each.notes]
    judgement, beyond, sentences = judge(config, table, doubted)
    pairs = _decided(_pairs(config, table, config.random), doubted)
    same = [pair.same(config)["fate"] for pair in pairs.values()]
    return ENTRY.result(
        config,
        question="Is anything about the collapse different with LayerNorm?",
        sentences=sentences,
        table=table,
        about={"dispersion": "Frobenius norm"},
        notes={
            f"{name}, {case}": note
            for name, each in found.items()
            for case, note in each.notes.items()
        },
        judgement=judgement,
        beyond=beyond,
        key_figures={
            "settings with the same fate, share": sum(same) / len(same) if same else math.nan
        },
        drawings=(
            kit.Drawing(
                "by_depth",
                "A panel for each setting, with and without LayerNorm.",
                depths.RELATIVE_DISPERSION,
                {"lowest": -40.0},
            ),
        ),
        shown=(depths.RELATIVE_DISPERSION, ABOVE),
    )


def _measure(config: Config, on_step: kit.OnStep) -> dict[str, depths.Measured]:
    """By setting or design, its figures and what is in doubt about them."""
    on_random, on_designed = kit.parts(on_step, 0.5, 0.5)
    x, token_mask = config.texts()
    settings = (*config.random, *config.masked)
    return {
        name: _traced(config, setting, x, token_mask, on_setting)
        for (name, setting), on_setting in kit.tracked(settings, on_random)
    } | {
        case.name: _designed(config, case, on_case)
        for case, on_case in kit.tracked(config.designed, on_designed)
    }


def judge(
    config: Config, table: pl.DataFrame, doubted: Collection[str] = ()
) -> tuple[kit.Judgement, kit.Judgement | None, tuple[str, ...]]:
    """Fate, law and speed of every pair, each a question of its own.

    A setting collapses if the later layers show a law by which it does. A designed one has the same
    fate if sequences stay above rank one in both networks, or in neither. What shows no law, or is
    among the ``doubted``, is undecided and left out.
    """
    every = [_pairs(config, table, each) for each in (config.random, config.masked)]
    own, masked = (_decided(each, doubted) for each in every)
    lawless = [name for each in every for name, pair in each.items() if not pair.decided]
    kept = {
        case.name: _kept(config, table, case.name)
        for case in config.designed
        if case.name not in doubted
    }
    designed = {name: (without > 0) == (normed > 0) for name, (without, normed) in kept.items()}
    others = _cases(config, masked) | {f"fate, {name}": ok for name, ok in designed.items()}
    return (
        _judged(ENTRY.domain, _cases(config, own), "what is asked: ", _counts(config, own)),
        _judged(_BEYOND, others, "the values: ", _beyond(config, designed, masked))
        if others
        else None,
        (
            f"Full mask, random weights: {_counts(config, own)}.",
            *_left_out(doubted, lawless),
            *_differences(config, own),
            *([f"Masks, random weights: {_counts(config, masked)}."] if masked else []),
            *_differences(config, masked),
            *(
                f"{sentence_case(name)}: {without:.0%} of the starts stay above rank one "
                f"without the norm, {normed:.0%} with it."
                for name, (without, normed) in kept.items()
            ),
        ),
    )


def _judged(domain: str, cases: Mapping[str, bool], depends: str, words: str) -> kit.Judgement:
    """With its counts, whatever the verdict; they complete each in its own way."""
    mixed = len(set(cases.values())) > 1
    return kit.judged(domain, cases, depends + words if mixed else words)


def _beyond(config: Config, designed: Mapping[str, bool], masked: Mapping[str, Pair]) -> str:
    changed = sum(not same for same in designed.values())
    words = [f"{changed} of {plural(len(designed), 'design')} with another fate"]
    if masked:
        words.append(f"masks with random weights, {_counts(config, masked)}")
    return "; ".join(words)


def _left_out(doubted: Collection[str], lawless: Collection[str]) -> Iterator[str]:
    """Which cases are not counted, and why."""
    undecided = [name for name in lawless if name not in doubted]
    reasons = {"their figures are in doubt": doubted, "they show no law": undecided}
    for reason, names in reasons.items():
        if names:
            yield f"Left out, because {reason}: {', '.join(names)}."


def _decided(pairs: Mapping[str, Pair], doubted: Collection[str]) -> dict[str, Pair]:
    return {name: pair for name, pair in pairs.items() if pair.decided and name not in doubted}


def _pairs(config: Config, table: pl.DataFrame, settings: Settings) -> dict[str, Pair]:
    """By setting, from the medians over the samples."""
    summary = tables.summary(table)
    pairs = {}
    for name, _ in settings:
        curves = [
            medians(summary, depths.RELATIVE_DISPERSION, model=name, variant=each)
            for each in (BARE, NORMED)
        ]
        laws = [law(curve, UNEVEN) for curve in curves]
        reached = [
            next((layer for layer, value in enumerate(curve) if value < config.reached), None)
            for curve in curves
        ]
        pairs[name] = Pair((laws[0], laws[1]), (reached[0], reached[1]))
    return pairs


def _cases(config: Config, pairs: Mapping[str, Pair]) -> dict[str, bool]:
    return {
        f"{question}, {name}": same
        for name, pair in pairs.items()
        for question, same in pair.same(config).items()
    }


def _counts(config: Config, pairs: Mapping[str, Pair]) -> str:
    same = [pair.same(config) for pair in pairs.values()]
    counts = [sum(each[question] for each in same) for question in _QUESTIONS]
    return (
        f"the same fate in {counts[0]} of {plural(len(same), 'setting')}, the same law in "
        f"{counts[1]}, the same speed in {counts[2]}"
    )


def _differences(config: Config, pairs: Mapping[str, Pair]) -> list[str]:
    """A sentence for every setting that LayerNorm changes in some way."""
    said = []
    for name, pair in pairs.items():
        other = [question for question, same in pair.same(config).items() if not same]
        if other:
            without, normed = map(_ending, pair.laws, pair.reached)
            said.append(
                f"{sentence_case(name)}, another {' and '.join(other)}: {without} without "
                f"LayerNorm; {normed} with it."
            )
    return said


def _ending(found: Law, reached: int | None) -> str:
    end = (
        "all tokens equal" if found.kind == "equal" else f"{found.kind}, {power_of_ten(found.last)}"
    )
    small = "" if reached is None else f", small after {plural(reached, 'layer')}"
    return f"{end} in the end{small}"


def _traced(
    config: Config, setting: Setting, x: Tensor, token_mask: Tensor, on_step: kit.OnStep
) -> depths.Measured:
    """Relative dispersions without and with the norm; the samples of all draws are numbered on."""
    depth = config.layers if setting.mask == "full" else config.masked_layers
    found = []
    notes: dict[str, str] = {}
    for draw, on_draw in kit.tracked(range(config.draws), on_step):
        network = random_network(replace(setting, width=config.width), depth, config.seed + draw)
        pair = {BARE: network.without("norm"), NORMED: network}
        one = depths.compare(pair, x, token_mask, norm="fro", on_step=on_draw)
        sample = pl.col("sample") + draw * config.samples
        rows = depths.dispersions(one.table.filter(metric=depths.RELATIVE))
        found.append(rows.with_columns(sample))
        notes |= {f"{case}, draw {draw + 1}": note for case, note in one.notes.items()}
    return depths.Measured(tables.stack(found), notes)


def _designed(config: Config, case: Dynamics, on_step: kit.OnStep) -> depths.Measured:
    """The shares of starts above rank one, layer by layer, without and with the norm."""
    plan = Plan(config.seed, config.designed_starts, config.designed_layers)
    rows = []
    notes: dict[str, str] = {}
    variants = (replace(case, name=BARE, norm="none"), replace(case, name=NORMED))
    for one, on_part in kit.tracked(variants, on_step):
        found, doubts = follow(plan, one, on_part)
        rows += [row for row in found if row[2] == ABOVE]
        notes |= doubts
    table = tables.from_rows(("variant", "layer", "metric", "value"), rows)
    return depths.Measured(table, notes)


def _kept(config: Config, table: pl.DataFrame, name: str) -> tuple[float, float]:
    """The shares in the end, without and with the norm."""
    rows = table.filter(model=name, metric=ABOVE, layer=4 * config.designed_layers)
    shares = dict(rows.select("variant", "value").iter_rows())
    return shares[BARE], shares[NORMED]
