"""What a plateau of μ can come from, and what it cannot, by what was measured."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean

import polars as pl

from rankscope import tables
from rankscope.experiments import depths, kit, norm_outcomes
from rankscope.experiments.claims import _bert_shape
from rankscope.experiments.claims._bert_shape import DROPOUT, Shape, last_dispersions
from rankscope.experiments.norm_outcomes import Outcome, list_cases
from rankscope.experiments.studies import layernorm
from rankscope.numerals import power_of_ten, short


def sentences(
    shape: Shape,
    table: pl.DataFrame,
    ends: Mapping[str, Outcome],
    others: Mapping[str, Outcome],
) -> Iterator[str]:
    """How μ ends at the claim's shape, and what a plateau can and cannot come from.

    ``ends`` are read off ``table``, ``others`` off the settings beyond the claim's.
    """
    scaled, single, noisy = (
        last_dispersions(table, variant) for variant in (depths.SCALED, "float32", DROPOUT)
    )
    depth = max(one.layers for one in ends.values())
    start = table.filter(metric=depths.DISPERSION, variant=depths.SCALED, layer=0)["value"]
    yield (
        f"BERT-base's shape, {shape}, LayerNorm only, {depth} layers: μ goes from "
        f"{power_of_ten(fmean(start.to_list()), digits=3)} to {_from_to(scaled)}, by "
        "mask."
    )
    yield from norm_outcomes.poles(ends)
    yield (
        f"With dropout left on μ ends at {_from_to(noisy)}. Where tokens agree, dropout of outputs "
        "alone makes them differ again in every layer (derived): "
        f"μ = √(p(n − 1)d) = {short(shape.dropout_floor)}."
    )
    yield from _floor_of_float32(scaled, single)
    sources = _sources(ends, others, noisy, shape.dropout_floor)
    can, cannot = (
        [words for words, is_one in sources.items() if is_one is y] for y in (True, False)
    )
    yield (
        f"So a plateau of μ at the size of the tokens can come from {_listed(can)}; not from "
        f"{_listed(cannot)}."
    )


def listing(shape: Shape, table: pl.DataFrame, ends: Mapping[str, Outcome]) -> kit.Listing:
    """μ in the end under each mask, as it truly is, in float32, and with dropout."""
    variants = (depths.SCALED, *depths.FORMATS, *(name for name, _ in shape.dropouts))
    last = {variant: last_dispersions(table, variant) for variant in variants}
    last = {variant: found for variant, found in last.items() if found}
    rows = tuple(
        (mask, _fate(ends[panel]), *(power_of_ten(found[panel]) for found in last.values()))
        for mask, panel in zip(shape.masks, shape.panels, strict=True)
    )
    return kit.Listing(
        "μ after the last layer",
        ("mask", "law", *last),
        rows,
        "Medians over the samples; with dropout over the last quarter of the layers, too. Plain "
        "formats end where their rounding does.",
    )


def _sources(
    ends: Mapping[str, Outcome],
    others: Mapping[str, Outcome],
    noisy: Mapping[str, float],
    floor: float,
) -> dict[str, bool]:
    """What was seen to keep tokens a hundredth of their size apart, and what was not."""
    apart = math.log10(norm_outcomes.DIFFERENT)
    every = [*ends.values(), *others.values()]
    fallen = [one for one in ends.values() if not one.staying]
    return {
        "dropout": min(noisy.values()) > math.log10(floor / 2),
        "a fall that is merely slow": any(max(one.last[depths.SCALED]) > apart for one in fallen),
        "a stall that ends later": any(
            2 * level > one.layers and last < apart
            for one in every
            for level, last in zip(one.stalled_for, one.last[depths.SCALED], strict=True)
        ),
        "LayerNorm at this shape": any(one.staying for one in ends.values()),
        "the precision of float32": any(
            max(one.last["float32"]) > apart >= max(one.last[depths.SCALED]) for one in fallen
        ),
    }


def _fate(one: Outcome) -> str:
    if one.staying:
        return f"{one.staying} of {one.samples} samples stay"
    return "" if one.law is None else one.law.kind


def _from_to(log10: Mapping[str, float]) -> str:
    return f"{power_of_ten(min(log10.values()))} to {power_of_ten(max(log10.values()))}"


def _floor_of_float32(scaled: Mapping[str, float], single: Mapping[str, float]) -> Iterator[str]:
    """Where float32 ends, of the masks under which scaled arithmetic goes further down."""
    floor = {name: at for name, at in single.items() if at > scaled[name] + 1}
    if floor:
        yield (
            f"float32 without dropout goes no further down than μ = {_from_to(floor)} under "
            f"{len(floor)} of the {len(single)} masks: the format stops, not the collapse."
        )


def _listed(words: list[str]) -> str:
    return ", ".join(words) or "nothing tried here"


ENTRY = kit.claim(
    "W2",
    "LayerNorm alone stops μ → 0 in randomly initialised models.",
    source="Wu et al. 2024, figure 2",
    domain="BERT-base's shape with LayerNorm only, under four masks",
    seconds=297,
    small=False,
)
PAPER = {
    "shape": Shape(layers=160, samples=4),
    "sweep": layernorm.Config(),
}
"""As many cases and draws as the LayerNorm study has, and more layers for the slow window."""

_QUICK = layernorm.Config(scales=(1.0, 16.0, 256.0), draws=2)


@dataclass(frozen=True)
class Config(kit.Config):
    """The shape of the claim, and the LayerNorm study's settings for what lies beyond it."""

    shape: Shape = field(default_factory=Shape)
    sweep: layernorm.Config = _QUICK


def run(config: Config, on_step: kit.OnStep) -> kit.Result:
    """Measure the claim's shape and the study's settings, and judge both."""
    on_shape, on_sweep = kit.parts(on_step, 1, 2)
    found = _bert_shape.measure(config.shape, config.seed, on_shape)
    sweep = layernorm.measure(replace(config.sweep, seed=config.seed), on_sweep)
    return judge(config, found, sweep)


def judge(config: Config, found: depths.Measured, sweep: depths.Measured) -> kit.Result:
    """Both verdicts from scaled arithmetic alone, sample by sample.

    A sample bears the claim out if its relative dispersion has stopped shrinking before it is
    small, and is still where it was with more layers. What keeps rank is judged apart from what
    keeps μ: tokens at ±x differ, and have rank one. Where some samples of a setting stay apart and
    others do not, the table names the two groups separately.
    """
    ends, others = norm_outcomes.outcomes(found.table), norm_outcomes.outcomes(sweep.table)
    panels = {name: norm_outcomes.panels(name, one) for name, one in others.items()}
    drawn, *beyond = _drawings(config.shape, others, panels)
    noisy = last_dispersions(found.table, DROPOUT)
    return ENTRY.result(
        config,
        question="Does μ stop falling under LayerNorm alone, and do the tokens keep their rank?",
        sentences=sentences(config.shape, found.table, ends, others),
        listings=(listing(config.shape, found.table, ends),),
        parts=(
            kit.Part(
                "Beyond that shape",
                (
                    *layernorm.sentences(config.sweep, sweep.table),
                    *layernorm.search_sentences(config.sweep, sweep.table),
                ),
                (list_cases("Relative dispersion, by case", others),) if others else (),
                tuple(beyond),
            ),
        ),
        table=tables.stack([found.table, norm_outcomes.relabel(sweep.table, panels)]),
        about={"dispersion": "Frobenius norm"},
        notes={**found.notes, **sweep.notes},
        judgement=_judged(ENTRY.domain, ends),
        beyond=_judged("other shapes, weights, biases, norms and masks", others),
        key_figures={
            "samples that stay apart": float(sum(one.staying for one in ends.values())),
            "lowest μ with dropout": 10 ** min(noisy.values()),
            "μ that dropout keeps (derived)": config.shape.dropout_floor,
        },
        drawings=(drawn,),
    )


def _judged(domain: str, ends: Mapping[str, Outcome]) -> kit.Judgement:
    """What holds of μ, in the verdict; what holds of rank, in the words that complete it."""
    stay = norm_outcomes.verdicts(ends)
    apart, ranks = sum(stay.values()), norm_outcomes.high_ranks(ends)
    if not stay:
        return kit.judged(domain, {}, "the layers are too few to show what becomes of μ")
    if not apart:
        return kit.judged(domain, stay, "for μ and with it for rank")
    words = f"μ stays in {apart} of {len(stay)} samples, a rank above one in {ranks} of these"
    return kit.judged(domain, stay, words if apart == len(stay) else f"the sample: {words}")


def _drawings(
    shape: Shape, others: Mapping[str, Outcome], panels: Mapping[str, tuple[str, ...]]
) -> Iterator[kit.Drawing]:
    """The claim's shape, and beyond it the few settings that differ in what becomes of them."""
    yield kit.Drawing(
        "by_depth",
        "BERT-base's shape with LayerNorm only: scaled arithmetic beside plain numbers, and "
        "float32 with dropout.",
        depths.DISPERSION,
        {"lowest": -12.0},
        {"model": shape.panels},
        depths.FLOORS,
    )
    drawn = tuple(
        panel
        for name in norm_outcomes.cases_to_draw(others)
        for panel in dict.fromkeys(panels[name])
    )
    if drawn:
        yield kit.Drawing(
            "by_depth",
            "Beyond that shape: the first case of every law, the one that ends highest, and those "
            "in which some sample stays apart.",
            depths.RELATIVE_DISPERSION,
            {"lowest": layernorm.LOWEST},
            {"model": drawn},
            depths.FLOORS,
        )
