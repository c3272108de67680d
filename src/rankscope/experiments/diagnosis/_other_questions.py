"""Chapters that other questions answer: paths, the pure-attention core, bounds, advice."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import polars as pl

from rankscope import tables
from rankscope.errors import RankscopeError
from rankscope.experiments import kit
from rankscope.experiments.diagnosis._measure import counted_tokens
from rankscope.experiments.diagnosis._samples import first_samples
from rankscope.experiments.questions import advise, bounds, deep, paths
from rankscope.numerals import duration, power_of_ten
from rankscope.results import Drawing, Listing, Part

SAMPLES: Final = 4
"""Samples that the slower questions are asked about."""
LONGEST: Final = 12.0
"""Seconds that one of them may take; what takes longer is asked about one sample, or left out."""
_ADVICE_TOKENS: Final = 32


@dataclass(frozen=True)
class Chapter:
    """A part, and the rows its drawings need."""

    part: Part
    table: pl.DataFrame | None = None


def path_chapter(subject: kit.Subject, on_step: kit.OnStep) -> Chapter:
    """How much paths of every length carry, and what flows through every head."""
    return _ask(
        "Path lengths",
        lambda some: paths.Config(some, by_head=True),
        paths,
        subject,
        on_step,
    )


def core_chapter(subject: kit.Subject, on_step: kit.OnStep) -> Chapter:
    """Self-attention alone, in scaled arithmetic."""
    return _ask(
        "The pure-attention core",
        lambda some: deep.Config(_core(some)),
        deep,
        subject,
        on_step,
        "The same attention without skips, MLPs and norms, which the theorems of Dong et al. 2021 "
        "are about, in arithmetic that does not end where floats do.",
        drawn=(0, 1),
    )


def bound_chapter(subject: kit.Subject, on_step: kit.OnStep) -> Chapter:
    """What theory promises for that core, sample by sample."""
    chapter = _ask(
        "Bounds against measurement",
        lambda some: bounds.Config(_core(some)),
        bounds,
        subject,
        on_step,
        "What the theorems promise for that core, and what happens.",
        drawn=(0, 2),
    )
    if chapter.table is None:
        return chapter
    listing = _by_sample(chapter.table)
    return replace(chapter, part=replace(chapter.part, listings=(listing,)))


def advice_chapter(subject: kit.Subject, seed: int, on_step: kit.OnStep) -> Chapter:
    """Changes of the design, tried on random networks of it."""
    chapter = _ask(
        "What to do",
        lambda some: advise.Config(_short(some), confirmed=2, candidates=3, draw_seed=seed),
        advise,
        subject,
        on_step,
        "Changes of the design, tried on its random networks: predicted first, and the best of "
        "them measured. A trained model has to be trained anew to have any of them.",
        at_most=1,
    )
    tried = chapter.table is not None and chapter.table["variant"].n_unique() > 1
    return chapter if tried else replace(chapter, part=replace(chapter.part, drawings=()))


def _ask(
    title: str,
    configure: Callable[[kit.Subject], Any],
    module: Any,
    subject: kit.Subject,
    on_step: kit.OnStep,
    opening: str = "",
    *,
    at_most: int = SAMPLES,
    drawn: Sequence[int] = (0,),
) -> Chapter:
    """The answer of another question as a chapter; one that cannot be had says why."""
    for count in dict.fromkeys((min(at_most, len(subject.x)), 1)):
        try:
            config = configure(first_samples(subject, count))
            seconds = module.cost(config).seconds
            if seconds > LONGEST:
                why = f"it would take about {duration(seconds)}"
                continue
            return _embed(title, opening, module.run(config, on_step), drawn)
        except RankscopeError as error:
            return Chapter(Part(title, (f"Left out: {str(error).rstrip('.')}.",)))
    command = f"`rankscope {module.ENTRY.id}`"
    return Chapter(Part(title, (f"Left out: {why}; {command} answers it on its own.",)))


def _embed(title: str, opening: str, result: kit.Result, drawn: Sequence[int]) -> Chapter:
    """A whole result under one heading; its rows are kept apart by the column ``part``."""
    own = pl.lit(result.id)
    if "part" in result.table.columns:
        own = pl.concat_str([own, pl.lit(": "), pl.col("part").fill_null("")])
    table = result.table.with_columns(own.alias("part"))
    labels = tuple(table["part"].unique(maintain_order=True).to_list())
    drawings = tuple(
        _within(each, result.id, labels)
        for number, each in enumerate(result.drawings)
        if number in drawn
    )
    said = tuple(filter(None, [opening, *result.sentences]))
    listings = result.listings
    return Chapter(Part(title, said, listings, drawings), tables.stack([table]))


def _within(drawing: Drawing, name: str, labels: tuple[str, ...]) -> Drawing:
    given = drawing.only.get("part")
    runs = labels if given is None else tuple(f"{name}: {each}" for each in given)
    return replace(drawing, only={**drawing.only, "part": runs})


def _core(subject: kit.Subject) -> kit.Subject:
    return replace(subject, network=subject.network.without("skip", "mlp", "norm"))


def _short(subject: kit.Subject) -> kit.Subject:
    """The first tokens of the first sample, for predictions with gradients."""
    some = first_samples(subject, 1)
    kept = counted_tokens(some.batches()[0])[0].nonzero().squeeze(-1)[:_ADVICE_TOKENS]
    return replace(some, x=some.x[:, kept], token_mask=None, measured=some.measured)


def _by_sample(table: pl.DataFrame) -> Listing:
    """Every bound and the measured residual after the last layer, a row for each sample."""
    rows = table.filter(metric="log10_residual")
    last = rows.filter(pl.col("layer") == pl.col("layer").max())
    names = last["variant"].unique(maintain_order=True).to_list()
    found: dict[int, Mapping[str, float]] = {
        sample: dict(zip(own["variant"], own["value"], strict=True))
        for (sample,), own in last.group_by("sample", maintain_order=True)
    }
    return Listing(
        "The residual after the last layer, sample by sample",
        ("sample", *names),
        tuple(
            (sample, *(_power(own.get(name)) for name in names)) for sample, own in found.items()
        ),
        "Composite norm, best center. A dash: the bound does not apply to that sample.",
    )


def _power(log10: float | None) -> str | None:
    return None if log10 is None else power_of_ten(log10, digits=3)
