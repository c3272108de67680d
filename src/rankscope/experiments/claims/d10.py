"""Claim D10: LayerNorm plays no role in the rank collapse of attention.

The remark's argument is that LayerNorm is a right multiplication, and a shift, so that it cannot
raise the rank. The division by each token's deviation multiplies from the left, and takes collinear
tokens to tokens that are not (docs/theory.md, section 7); the counterexample is part of the claim.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import polars as pl
import torch
from torch import Tensor

from rankscope import tables
from rankscope.core.network import Init
from rankscope.core.theory import UNEVEN, Law, law
from rankscope.experiments import depths, kit
from rankscope.experiments.claims._norm_starts import ABOVE, Dynamics, StartsPlan, follow
from rankscope.experiments.depths import medians
from rankscope.experiments.norm_cases import NormSetting, Settings, random_network
from rankscope.numerals import plural, power_of_ten, sentence_case

ENTRY = kit.claim(
    "D10",
    "LayerNorm plays no role in the rank collapse of attention.",
    source="Dong et al. 2021, remark on LayerNorm",
    question="Does LayerNorm change the collapse, and can it raise a rank?",
    domain="random attention under the full mask and LayerNorm, without skips and MLPs",
    beyond="masks, and values that keep some sequences above rank one",
    seconds=32,
)
BARE, NORMED = "attention", "attention and LayerNorm"
_RANK = 1e-9  # relative: singular values below it are rounding
CHARTS = (
    kit.Drawing(
        "by_depth",
        "A panel for each setting, with and without LayerNorm.",
        depths.RELATIVE_DISPERSION,
        {"lowest": -40.0},
    ),
)


@dataclass(frozen=True)
class Config(depths.DeepConfig):
    """Random attention with and without a LayerNorm after it; the weights of a pair are the same.

    ``random`` are under the full mask, ``masked`` beyond the claim, as are ``designed`` values,
    each followed from ``designed_starts`` starts.
    """

    layers: int = 20
    draws: int = 3  # how many random weights each setting is tried with
    masked_layers: int = 64
    random: Settings = (
        ("4 heads", NormSetting()),
        ("1 head", NormSetting(heads=1)),
        ("16 heads", NormSetting(heads=16)),
        ("BERT's weights", NormSetting(init="bert")),
        ("weights × 0.5", NormSetting(init=Init("lecun", 0.5))),
        ("weights × 1.4", NormSetting(init=Init("lecun", 1.4))),
        ("weights × 2", NormSetting(init=Init("lecun", 2.0))),
        ("biases of 1", NormSetting(biases=1.0)),
    )
    masked: Settings = (
        ("causal mask", NormSetting(mask="causal")),
        ("window of 4", NormSetting(mask="window:4")),
        ("causal mask, one layer repeated", NormSetting(mask="causal", shared=True)),
    )
    designed: tuple[Dynamics, ...] = (
        Dynamics("diagonal values", tokens=16, width=4, norm="layer", strength=4.0),
        Dynamics("diagonal values on the sphere", tokens=16, width=4),
    )
    designed_starts: int = 100
    designed_layers: int = 25  # a quarter of those that are run
    reached: float = -6.0  # log10 of the relative dispersion until which layers are counted
    near: float = 0.2  # speeds are the same within one layer, or within this part of each other


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
    config: Config, setting: NormSetting, x: Tensor, token_mask: Tensor, on_step: kit.OnStep
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
    plan = StartsPlan(config.seed, config.designed_starts, config.designed_layers)
    rows = []
    notes: dict[str, str] = {}
    variants = (replace(case, name=BARE, norm="none"), replace(case, name=NORMED))
    for variant, on_part in kit.tracked(variants, on_step):
        followed, doubts = follow(plan, variant, on_part)
        rows += [row for row in followed if row[2] == ABOVE]
        notes |= doubts
    return depths.Measured(tables.from_rows(("variant", "layer", "metric", "value"), rows), notes)


def judge(config: Config, measured: kit.Measured[list[str]]) -> kit.Answer:
    """Fate, law and speed of every pair, each a check of its own.

    A setting collapses if the later layers show a law by which it does. A designed one has the same
    fate if sequences stay above rank one in both networks, or in neither. What shows no law, or is
    in doubt, is undecided and left out.
    """
    table, doubted = measured.table, measured.facts
    random, masked = (
        _compare(config, table, [name for name, _ in settings if name not in doubted])
        for settings in (config.random, config.masked)
    )
    by_setting = {
        case.name: shares_above(config, table, case.name)
        for case in config.designed
        if case.name not in doubted
    }
    designed = {
        f"fate, {name}": (without > 0) == (normed > 0)
        for name, (without, normed) in by_setting.items()
    }
    changed = sum(not same for same in designed.values())
    others = f"{changed} of {plural(len(designed), 'design')} with another fate"
    if masked.checks:
        others += f"; masks with random weights, {masked.counts}"
    fates = [same for check, same in random.checks.items() if check.startswith("fate")]
    lawless = (*random.lawless, *masked.lawless)
    before, after = counterexample()
    raised = after > before
    argument = "; the argument for it is false" if raised else ""
    left_out = {"their figures are in doubt": doubted, "they show no law": lawless}
    return kit.Answer(
        (
            f"Full mask, random weights: {random.counts}.",
            f"The argument that LayerNorm cannot raise a rank has a counterexample: three tokens "
            f"on a line, residual of rank {before}, have one of rank {after} after it.",
            *(
                f"Not counted, because {why}: {', '.join(names)}."
                for why, names in left_out.items()
                if names
            ),
            *random.differences,
            *([f"Masks, random weights: {masked.counts}."] if masked.checks else []),
            *masked.differences,
            *(
                f"{sentence_case(name)}: {without:.0%} of the starts stay above rank one without "
                f"the norm, {normed:.0%} with it."
                for name, (without, normed) in by_setting.items()
            ),
        ),
        stated=random.checks and random.checks | {"argument": not raised},
        on=f"{random.counts}{argument}",
        beyond=masked.checks | designed or None,
        on_beyond=others,
        key_figures={
            "settings with the same fate, share": sum(fates) / len(fates) if fates else math.nan
        },
        shown=(depths.RELATIVE_DISPERSION, ABOVE),
    )


def shares_above(config: Config, table: pl.DataFrame, name: str) -> tuple[float, float]:
    """Of the starts that end above rank one, without and with the norm."""
    rows = table.filter(model=name, metric=ABOVE, layer=4 * config.designed_layers)
    shares = dict(rows.select("variant", "value").iter_rows())
    return shares[BARE], shares[NORMED]


class _Compared(NamedTuple):
    """Fate, law and speed of settings, how many agree, which do not, and those without a law."""

    checks: dict[str, bool]
    counts: str
    differences: list[str]
    lawless: list[str]


def counterexample() -> tuple[int, int]:
    """The rank of what tells three collinear tokens apart, before and after LayerNorm."""
    tokens = torch.tensor([[1, -1, 0], [1, 0, -1], [1, 1, -2]], dtype=torch.float64)
    normed = torch.nn.functional.layer_norm(tokens, (3,))
    before, after = (
        int(torch.linalg.matrix_rank(rows - rows.mean(0), rtol=_RANK)) for rows in (tokens, normed)
    )
    return before, after


def _compare(config: Config, table: pl.DataFrame, settings: Sequence[str]) -> _Compared:
    checks: dict[str, bool] = {}
    differences, lawless = [], []
    for name in settings:
        laws, reached = follow_pair(config, table, name)
        if not all(law.decided for law in laws):
            lawless.append(name)
            continue
        same = unchanged(config, laws, reached)
        checks |= {f"{asked}, {name}": holds for asked, holds in same.items()}
        if not all(same.values()):
            other = " and ".join(asked for asked, holds in same.items() if not holds)
            without, normed = map(_ending, laws, reached)
            differences.append(
                f"{sentence_case(name)}, another {other}: {without} without LayerNorm; {normed} "
                "with it."
            )
    fate, law, speed = (
        sum(holds for check, holds in checks.items() if check.startswith(f"{asked}, "))
        for asked in ("fate", "law", "speed")
    )
    counted = plural(len(settings) - len(lawless), "setting")
    counts = (
        f"the same fate in {fate} of {counted}, the same law in {law}, the same speed in {speed}"
    )
    return _Compared(checks, counts, differences, lawless)


class Reached(NamedTuple):
    """The layer after which a dispersion is small, by the medians and in each draw of weights."""

    layer: int | None
    draws: tuple[int, ...]

    def __str__(self) -> str:
        low, high = min(self.draws, default=0), max(self.draws, default=0)
        spread = f" ({low} to {high} in the draws)" if low < high else ""
        return f", small after {plural(self.layer or 0, 'layer')}{spread}"


def follow_pair(
    config: Config, table: pl.DataFrame, name: str
) -> tuple[list[Law], tuple[Reached, Reached]]:
    """Without and with LayerNorm: the law of a setting's medians, and where they are small."""

    def small(rows: pl.DataFrame) -> list[int]:
        curve = medians(tables.summary(rows), depths.RELATIVE_DISPERSION)
        return [layer for layer, value in enumerate(curve) if value < config.reached][:1]

    laws, reached = [], []
    for variant in (BARE, NORMED):
        rows = table.filter(model=name, variant=variant, metric=depths.RELATIVE_DISPERSION)
        laws.append(law(medians(tables.summary(rows), depths.RELATIVE_DISPERSION), UNEVEN))
        draws = [draw for _, draw in rows.group_by(pl.col("sample") // config.samples)]
        by_draw = tuple(sorted(layer for draw in draws for layer in small(draw)))
        reached.append(Reached(next(iter(small(rows)), None), by_draw))
    return laws, (reached[0], reached[1])


def unchanged(
    config: Config, laws: Sequence[Law], reached: tuple[Reached, Reached]
) -> dict[str, bool]:
    """Whether LayerNorm leaves the fate, the law and the speed of a setting as they are.

    Speeds are the same if the layers at which dispersions are small are near each other, or if
    their ranges over the draws of weights overlap.
    """
    (without, normed), (bare_at, normed_at) = laws, (end.layer for end in reached)
    if bare_at is not None and normed_at is not None:
        near = abs(bare_at - normed_at) <= max(1.0, config.near * max(bare_at, normed_at))
        # Medians over all samples can be small where those of no single draw are.
        ranges = [(min(draws), max(draws)) for _, draws in reached if draws]
        overlap = len(ranges) == 2 and max(low for low, _ in ranges) <= min(up for _, up in ranges)
        speed = near or overlap
    else:
        neither = bare_at is None and normed_at is None
        a, b = (law.last if neither else law.rate for law in laws)
        speed = math.isfinite(a - b) and abs(a - b) <= config.near * max(abs(a), abs(b))
    fate = without.collapses == normed.collapses
    return {"fate": fate, "law": without.kind == normed.kind, "speed": speed}


def _ending(law: Law, reached: Reached) -> str:
    end = "all tokens equal" if law.kind == "equal" else f"{law.kind}, {power_of_ten(law.last)}"
    return f"{end} in the end{'' if reached.layer is None else reached}"
