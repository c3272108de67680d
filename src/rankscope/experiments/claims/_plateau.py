"""What a plateau of μ can come from, and what it cannot, by what was measured."""

import math
from collections.abc import Iterator, Mapping
from statistics import fmean

import polars as pl

from rankscope.experiments import depths, kit
from rankscope.experiments.claims._bert_shape import DROPOUT, Shape, last_dispersions
from rankscope.experiments.studies import _layernorm_outcomes as outcomes
from rankscope.experiments.studies._layernorm_outcomes import Outcome
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
    yield from outcomes.poles(ends)
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
    apart = math.log10(outcomes.DIFFERENT)
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
