"""Claim W2: LayerNorm alone stops μ → 0; what a plateau of μ can come from, and what it cannot."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean

import polars as pl

from rankscope import tables
from rankscope.experiments import depths, kit, norm_outcomes
from rankscope.experiments.claims import _bert_shape
from rankscope.experiments.claims._bert_shape import DROPOUT, Shape, last_dispersions
from rankscope.experiments.norm_outcomes import Outcome
from rankscope.experiments.studies import layernorm
from rankscope.numerals import power_of_ten, short

ENTRY = kit.claim(
    "W2",
    "LayerNorm alone stops μ → 0 in randomly initialised models.",
    source="Wu et al. 2024, figure 2",
    question="Does μ stop falling under LayerNorm alone, and do the tokens keep their rank?",
    domain="BERT-base's shape with LayerNorm only, under four masks",
    beyond="other shapes, weights, biases, norms and masks",
    seconds=297,
    small=False,
)
# As many cases and draws as the LayerNorm study has, and more layers for the slow window.
PAPER = {"shape": Shape(layers=160, samples=4), "sweep": layernorm.Config()}
_QUICK = layernorm.Config(scales=(1.0, 16.0, 256.0), draws=2)


@dataclass(frozen=True)
class Config(kit.Config):
    """The shape of the claim, and the LayerNorm study's settings for what lies beyond it."""

    shape: Shape = field(default_factory=Shape)
    sweep: layernorm.Config = _QUICK


Tables = tuple[pl.DataFrame, pl.DataFrame]
"""Of the claim's shape, and of the settings beyond it."""


def measure(config: Config, on_step: kit.OnStep) -> kit.Measured[Tables]:
    """The claim's shape, and the study's settings."""
    on_shape, on_sweep = kit.parts(on_step, 1, 2)
    return join(
        _bert_shape.measure(config.shape, config.seed, on_shape),
        layernorm.measure(replace(config.sweep, seed=config.seed), on_sweep),
    )


def join(shape: depths.Measured, sweep: depths.Measured) -> kit.Measured[Tables]:
    """Both in one table, which names the two groups of a setting's samples separately where some
    stay apart and others do not."""
    labelled = norm_outcomes.relabel(
        sweep.table, norm_outcomes.panels(norm_outcomes.outcomes(sweep.table))
    )
    return kit.Measured(
        tables.stack([shape.table, labelled]),
        {**shape.notes, **sweep.notes},
        (shape.table, sweep.table),
        {"dispersion": "Frobenius norm"},
    )


def judge(config: Config, measured: kit.Measured[Tables]) -> kit.Answer:
    """Every sample of the claim's shape and of what lies beyond it, by scaled arithmetic alone.

    A sample bears the claim out if its relative dispersion has stopped shrinking before it is
    small, and is still where it was with more layers. What keeps rank is judged apart from what
    keeps μ: tokens at ±x differ, and have rank one.
    """
    table, swept = measured.facts
    ends, others = norm_outcomes.outcomes(table), norm_outcomes.outcomes(swept)
    drawn, *beyond = _drawings(config.shape, others)
    noisy = last_dispersions(table, DROPOUT)
    listed = (norm_outcomes.list_cases("Relative dispersion, by case", others),) if others else ()
    said = (
        *layernorm.sentences(config.sweep, swept),
        *layernorm.search_sentences(config.sweep, swept),
    )
    return kit.Answer(
        _sentences(config.shape, table, ends, others),
        stated=norm_outcomes.verdicts(ends),
        on=_phrase(ends),
        beyond=norm_outcomes.verdicts(others),
        on_beyond=_phrase(others),
        key_figures={
            "samples that stay apart": float(sum(end.staying for end in ends.values())),
            "lowest μ with dropout": 10 ** min(noisy.values()),
            "μ that dropout keeps (derived)": config.shape.dropout_floor,
        },
        listings=(_listing(config.shape, table, ends),),
        parts=(kit.Part("Beyond that shape", said, listed, tuple(beyond)),),
        charts=(drawn,),
        shown=(),
    )


def _phrase(ends: Mapping[str, Outcome]) -> kit.Phrase:
    """What holds of rank completes the verdict, which is on μ."""
    stay = norm_outcomes.verdicts(ends)
    apart, ranks = sum(stay.values()), norm_outcomes.high_ranks(ends)
    words = f"μ stays in {apart} of {len(stay)} samples, a rank above one in {ranks} of these"
    return {
        "holds": words,
        "depends": f"the sample: {words}",
        "fails": "for μ and with it for rank",
        "not tried": "the layers are too few to show what becomes of μ",
    }


def _sentences(
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
    depth = max(end.layers for end in ends.values())
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
    floor = {name: at for name, at in single.items() if at > scaled[name] + 1}
    if floor:  # under these masks scaled arithmetic goes further down
        yield (
            f"float32 without dropout goes no further down than μ = {_from_to(floor)} under "
            f"{len(floor)} of the {len(single)} masks: the format stops, not the collapse."
        )
    sources = _sources(ends, others, noisy, shape.dropout_floor)
    can, cannot = (
        ", ".join(words for words, seen in sources.items() if seen is side) or "nothing tried here"
        for side in (True, False)
    )
    yield (f"So a plateau of μ at the size of the tokens can come from {can}; not from {cannot}.")


def _listing(shape: Shape, table: pl.DataFrame, ends: Mapping[str, Outcome]) -> kit.Listing:
    """μ in the end under each mask, as it truly is, in float32, and with dropout."""
    variants = (depths.SCALED, *depths.FORMATS, *(name for name, _ in shape.dropouts))
    last = {variant: last_dispersions(table, variant) for variant in variants}
    last = {variant: by_panel for variant, by_panel in last.items() if by_panel}
    rows = tuple(
        (mask, _fate(ends[panel]), *(power_of_ten(log10[panel]) for log10 in last.values()))
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


def _drawings(shape: Shape, others: Mapping[str, Outcome]) -> Iterator[kit.Drawing]:
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
    panels = norm_outcomes.panels(others)
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
