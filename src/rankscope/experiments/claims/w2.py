"""Claim W2: LayerNorm alone stops μ → 0; under which masks, and up to which layer.

The caption of figure 2 is at hand, the authors' code is not. Its first half, on random weights, is
judged mask by mask; its second half, on pretrained models, where one is given. What keeps μ under a
window is that information spreads slowly (docs/theory.md, section 7); why it should stay under
other masks is not stated. That their random models were in training mode, with dropout, is a
hypothesis of ours: it would explain a plateau.

What counts as gone (1 % of the input's μ) was fixed before any run; that the input is BERT's own,
with positions and a segment, after a first run on words alone, whose verdicts were the same.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final, NamedTuple

import polars as pl

from rankscope import tables
from rankscope.ask import Model, by_name
from rankscope.experiments import depths, kit, models
from rankscope.experiments.claims import _bert_shape
from rankscope.experiments.claims._bert_shape import (
    DROPOUT,
    NORMED,
    NORMED_SKIPPING,
    PURE,
    SKIPPING,
    STABLE,
    Shape,
)
from rankscope.numerals import plural, power_of_ten, short, span_of

ENTRY = kit.claim(
    "W2",
    "LayerNorm alone stops μ → 0 in randomly initialised models; in pretrained ones it does so "
    "together with other components.",
    source="Wu et al. 2024, figure 2 (by its caption)",
    question="Does μ stop falling under LayerNorm alone, under which masks, and for how long?",
    domain="BERT-base's shape with LayerNorm only, under four masks; pretrained models",
    beyond="the figure's other panels, in a smaller shape, and dropout",
    options=("seed", "models", "texts", "length"),
    seconds=75,
    small=False,
)
PAPER: Final = {"shape": Shape(layers=256, draws=4)}
_LEFT = -2.0  # log10 of what is left of the input's μ, from which on it has not gone to zero
_PRETRAINED, _RELATIVE = "pretrained models", "relative_dispersion"
CHARTS = (
    kit.Drawing(
        "by_depth",
        "A panel for each set of parts, a curve for each mask, on logarithmic axes as in the "
        "figure; a curve ends where float64 no longer resolves it.",
        depths.DISPERSION,
        {"lowest": -10.0, "log_depth": True},
    ),
)


@dataclass(frozen=True)
class Config(models.ModelsConfig):
    """The shape of the claim, and models, of which there are none unless they are given."""

    models: tuple[Model, ...] = ()
    samples: int = 8
    shape: Shape = field(default_factory=Shape)


class Course(NamedTuple):
    """What becomes of μ under one mask: log10 of what is left of it, by draw."""

    ends: tuple[float, ...]  # after the last layer that was followed
    apart: tuple[int, ...]  # the last layer after which it has not gone to zero
    layers: int
    rank: float  # the median stable rank at the end

    @property
    def stays(self) -> bool:
        """Whether a hundredth of it or more is left after the last layer, in every draw."""
        return min(self.ends) >= _LEFT


@dataclass(frozen=True)
class PretrainedFacts:
    """Of the models that were given: which are pretrained, and how far apart each one's tokens end
    in the sample in which they are most alike, as a part of their size."""

    pretrained: tuple[str, ...] = ()
    apart: Mapping[str, float] = field(default_factory=dict)


def measure(config: Config, on_step: kit.OnStep) -> kit.Measured[PretrainedFacts]:
    """The claim's shape under every mask and draw, and the models that were given."""
    on_shape, on_models = kit.parts(on_step, 5, max(len(config.models), 1))
    parts = [_bert_shape.measure(config.shape, config.seed, on_shape)]
    apart = {}
    named = by_name(config.models) if config.models else {}
    for (name, case), on_case in kit.tracked(named.items(), on_models):
        on_load, on_trace = kit.parts(on_case, 1, 1)
        traced = case.subject(config, on_load).trace((_RELATIVE,), on_trace).table
        last = traced.filter(pl.col("layer") == pl.max("layer"))
        apart[name] = float(min(last["value"].to_list()))
        parts.append(traced.with_columns(model=pl.lit(name), variant=pl.lit("all parts")))
    if not named:
        on_models(1.0)
    pretrained = [n for n, case in named.items() if not (case.at_init or case.trained_here)]
    return kit.Measured(tables.stack(parts), facts=PretrainedFacts(tuple(pretrained), apart))


def judge(config: Config, measured: kit.Measured[PretrainedFacts]) -> kit.Answer:
    """Mask by mask: whether a hundredth of the input's μ is left in every draw.

    A hundredth is a convention of ours; the sentences say between which ones the verdict is the
    same. The claim is supported for a model if its tokens differ by a hundredth of their size
    after the last layer, in every sample. Beyond, attention alone must lose μ, and the other panels
    and dropout keep it, under every mask.
    """
    courses = read(measured.table)
    normed = {mask: course for (panel, mask), course in courses.items() if panel == NORMED}
    apart = {name: it >= 10**_LEFT for name, it in measured.facts.apart.items()}
    stated: dict[str, bool | None] = {mask: course.stays for mask, course in normed.items()}
    stated |= {name: apart[name] for name in measured.facts.pretrained}
    if not measured.facts.pretrained:
        stated[_PRETRAINED] = None
    beyond = {
        f"{panel}, {mask}": course.stays is not (panel == PURE)
        for (panel, mask), course in courses.items()
        if panel in (PURE, SKIPPING, NORMED_SKIPPING, DROPOUT)
    } | {name: holds for name, holds in apart.items() if name not in measured.facts.pretrained}
    against = [name for name, holds in beyond.items() if not holds]
    noisy = [10**log10 for log10 in ends_with_dropout(measured.table).values()]
    return kit.Answer(
        _sentences(config.shape, normed, min(noisy)),
        stated=stated,
        on={
            "depends": _by_mask(normed),
            "holds": _by_mask(normed).removeprefix("supported "),
            "fails": _by_mask(normed).removeprefix("not "),
        },
        beyond=beyond,
        on_beyond={"depends": f"supported except for: {'; '.join(against)}"},
        key_figures={
            **{
                f"{mask}, layers with a hundredth of μ": float(min(course.apart))
                for mask, course in normed.items()
            },
            "lowest μ with dropout": min(noisy),
            "μ that dropout keeps (derived)": config.shape.dropout_floor,
        },
        listings=(_listing(courses),),
        shown=(depths.DISPERSION,),
    )


def read(table: pl.DataFrame) -> dict[tuple[str, str], Course]:
    """By panel and mask, what becomes of μ."""
    courses = {}
    rows = table.filter(metric=depths.DISPERSION)
    for (panel, mask), part in rows.group_by("model", "variant", maintain_order=True):
        curves = [
            draw.sort("layer")["value"].to_list()
            for _, draw in part.group_by("sample", maintain_order=True)
        ]
        left = [[value - curve[0] for value in curve] for curve in curves]
        ranks = table.filter(model=panel, variant=mask, metric=STABLE)
        last = ranks.filter(pl.col("layer") == pl.max("layer").over("sample"))["value"].to_list()
        courses[str(panel), str(mask)] = Course(
            tuple(curve[-1] for curve in left),
            tuple(_last_apart(curve) for curve in left),
            max(map(len, curves)) - 1,
            median(last),
        )
    return courses


def _last_apart(left: Sequence[float]) -> int:
    return max(layer for layer, log10 in enumerate(left) if log10 >= _LEFT)


def ends_with_dropout(table: pl.DataFrame) -> dict[str, float]:
    """By mask, log10 μ under dropout: the median over the second half of the layers."""
    rows = table.filter(model=DROPOUT, metric=depths.DISPERSION)
    late = rows.filter(2 * pl.col("layer") > pl.max("layer"))
    return {
        str(mask): median(part["value"].to_list())
        for (mask,), part in late.group_by("variant", maintain_order=True)
    }


def _by_mask(normed: Mapping[str, Course]) -> str:
    """The masks for which the claim is supported, up to which layer, and the others."""
    lasting = [mask for mask, course in normed.items() if course.stays]
    lost = {mask: course.apart for mask, course in normed.items() if not course.stays}
    depth = max(course.layers for course in normed.values())
    words = [f"supported for {', '.join(lasting)} up to layer {depth}"] if lasting else []
    if lost:
        since = [span_of(min(apart) + 1, max(apart) + 1) for apart in lost.values()]
        start = f"μ below 1% of its initial value from layer {', '.join(since)} on"
        words.append(f"not for {', '.join(lost)} ({start})")
    return "; ".join(words)


def _sentences(shape: Shape, normed: Mapping[str, Course], noisy: float) -> Iterator[str]:
    """How μ ends, between which conventions the verdict is the same, and our hypothesis."""
    draws = max(len(course.ends) for course in normed.values())
    yield (
        f"BERT-base's shape, {shape}, LayerNorm only, {plural(draws, 'draw')} of all weights: "
        f"{_by_mask(normed)}."
    )
    lost = [max(course.ends) for course in normed.values() if not course.stays]
    lowest = [min(course.ends) for course in normed.values() if course.stays]
    if lost and lowest:
        low, high = power_of_ten(max(lost)), power_of_ten(min(lowest))
        yield f"Any other part of the input's μ from {low} to {high} gives the same verdict."
    ranks = ", ".join(f"{mask} {short(it.rank)}" for mask, it in normed.items() if it.stays)
    if ranks:
        yield f"Stable rank of the tokens where μ stays, after the last layer: {ranks}."
    yield (
        "Hypothesis (ours): with dropout left on, as in training mode, μ ends at "
        f"{short(noisy)} or more under every mask. Where tokens agree, dropout of outputs makes "
        "them differ again in every layer (derived): "
        f"μ = √(p(n − 1)d) = {short(shape.dropout_floor)}."
    )


def _listing(courses: Mapping[tuple[str, str], Course]) -> kit.Listing:
    rows = tuple(
        (
            panel,
            mask,
            course.layers,
            span_of(min(course.apart), max(course.apart)),
            _from_to(course.ends),
            course.rank,
        )
        for (panel, mask), course in courses.items()
    )
    return kit.Listing(
        "Share of the input's μ that remains",
        ("parts", "mask", "layers", "lasts", "in the end", "rank"),
        rows,
        "Over the draws of all weights. Lasts: the last layer after which a hundredth of it "
        "remains. Rank: the final median stable rank. Layers: as far as float64 resolves μ.",
    )


def _from_to(log10: Sequence[float]) -> str:
    low, high = power_of_ten(min(log10)), power_of_ten(max(log10))
    return low if low == high else f"{low} to {high}"
