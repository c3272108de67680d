"""Chapters that are answers of other questions, each only if it is asked for."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

import polars as pl

from rankscope import tables
from rankscope.errors import RankscopeError
from rankscope.experiments import kit
from rankscope.experiments.diagnosis import _references as references
from rankscope.experiments.diagnosis._stages import masks
from rankscope.experiments.questions import advise, bounds, deep, paths
from rankscope.numerals import duration, power_of_ten
from rankscope.results import Listing, Part

SAMPLES: Final = 4
"""Samples for the slower questions."""
_LONGEST: Final = 12.0
"""Seconds that one of them may take; otherwise it uses one sample, or is left out."""
_ADVICE_TOKENS: Final = 32

Asked = Literal["paths", "core", "bounds", "design", "all"]
DEFAULT: Final[tuple[Asked, ...]] = ("design",)
"""What a reader with a problem needs; the others are for research, and take most of the time."""
Chapter = tuple[Part, pl.DataFrame | None]
"""A part, and the rows its drawings need."""


def answer(
    asked: Sequence[Asked], subject: kit.Subject, seed: int, on_step: kit.OnStep
) -> dict[str, Chapter]:
    """The chapters that are asked for, by name, in the order of the page."""
    chosen = [name for name in _CHAPTERS if is_asked(name, asked)]
    steps = kit.parts(on_step, *(_CHAPTERS[name][1] for name in chosen))
    return {
        name: _CHAPTERS[name][2](subject, seed, on_part)
        for name, on_part in zip(chosen, steps, strict=True)
    }


def is_asked(name: str, asked: Sequence[Asked]) -> bool:
    """Whether a chapter is asked for."""
    return name in asked or "all" in asked


def weight(asked: Sequence[Asked]) -> float:
    """Their share of the time, in the units of a diagnosis."""
    return sum(share for name, (_, share, _) in _CHAPTERS.items() if is_asked(name, asked))


def unasked(answered: Mapping[str, Chapter]) -> tuple[str, ...]:
    """A sentence about the chapters that were not asked for, if there are any."""
    titles = {name: title for name, (title, *_) in _CHAPTERS.items() if name not in answered}
    listed = ", ".join(f"{title} (`{name}`)" for name, title in titles.items())
    words = f"Chapters that take longer and were not asked for: {listed}. `--chapters all` adds "
    return (f'{words}them (in Python `chapters="all"`).',) if titles else ()


def _path_chapter(subject: kit.Subject, _: int, on_step: kit.OnStep) -> Chapter:
    """What paths of each length carry, and each head."""
    return _ask(paths, lambda some: paths.Config(some, by_head=True), subject, on_step, _PATHS)


def _core_chapter(subject: kit.Subject, _: int, on_step: kit.OnStep) -> Chapter:
    """Self-attention alone, in scaled arithmetic."""
    return _ask(
        deep,
        lambda some: deep.Config(_core(some)),
        subject,
        on_step,
        _CORE,
        "The same attention without skip connections, MLPs and norms, the network of the theorems "
        "of Dong et al. 2021, in scaled arithmetic, which does not underflow.",
        drawn=(0, 1),
    )


def _bound_chapter(subject: kit.Subject, _: int, on_step: kit.OnStep) -> Chapter:
    """Bounds for that core, sample by sample."""
    part, table = _ask(
        bounds,
        lambda some: bounds.Config(_core(some)),
        subject,
        on_step,
        _BOUNDS,
        "Bounds of the theorems for that core, compared with measurements.",
        drawn=(0, 2),
    )
    if table is None:
        return part, table
    residuals = table.filter(metric="log10_residual")
    last = residuals.filter(pl.col("layer") == pl.col("layer").max())
    names = last["variant"].unique(maintain_order=True).to_list()
    rows = []
    for (sample,), rows_of_sample in last.group_by("sample", maintain_order=True):
        values = dict(zip(rows_of_sample["variant"], rows_of_sample["value"], strict=True))
        powers = [power_of_ten(values[n], digits=3) if n in values else None for n in names]
        rows.append((sample, *powers))
    listing = Listing(
        "The residual after the last layer, sample by sample",
        ("sample", *names),
        tuple(rows),
        "Composite norm, best center. A dash: the bound does not apply to that sample.",
    )
    return replace(part, listings=(listing,)), table


def _core(subject: kit.Subject) -> kit.Subject:
    return replace(subject, network=subject.network.without("skip", "mlp", "norm"))


def _advice_chapter(subject: kit.Subject, seed: int, on_step: kit.OnStep) -> Chapter:
    """Changes of the design, tried on random networks of it."""

    def configure(first: kit.Subject) -> advise.Config:
        """On the first tokens of the first sample, because predictions have gradients here."""
        tokens = masks(first.batches()[0])[1][0].nonzero().squeeze(-1)[:_ADVICE_TOKENS]
        few = replace(first, x=first.x[:, tokens], token_mask=None)
        return advise.Config(few, confirmed=2, candidates=3, draw_seed=seed)

    part, table = _ask(
        advise,
        configure,
        subject,
        on_step,
        _DESIGN,
        "Changes of the design on random networks: all are predicted, and the best are measured. "
        "A trained model would have to be trained again with the change.",
        at_most=1,
    )
    tried = table is not None and table["variant"].n_unique() > 1
    return part if tried else replace(part, drawings=()), table


def _ask(
    module: Any,
    configure: Callable[[kit.Subject], Any],
    subject: kit.Subject,
    on_step: kit.OnStep,
    title: str,
    opening: str = "",
    *,
    at_most: int = SAMPLES,
    drawn: tuple[int, ...] = (0,),
) -> Chapter:
    """The answer of another question as a chapter, or the reason why it is missing."""
    for count in dict.fromkeys((min(at_most, len(subject.x)), 1)):
        try:
            config = configure(references.first_samples(subject, count))
            seconds = module.cost(config).seconds
            if seconds > _LONGEST:
                continue
            result = module.run(config, on_step)
        except RankscopeError as error:
            return Part(title, (f"Left out: {str(error).rstrip('.')}.",)), None
        return _embed(result, title, opening, drawn)
    why = f"it would take about {duration(seconds)}; run `rankscope {module.ENTRY.id}` for it"
    return Part(title, (f"Left out: {why}.",)), None


def _embed(result: kit.Result, title: str, opening: str, drawn: tuple[int, ...]) -> Chapter:
    """A whole result under one heading; its rows are kept apart by the column ``part``."""
    label = pl.lit(result.id)
    if "part" in result.table.columns:
        label = pl.concat_str([label, pl.lit(": "), pl.col("part").fill_null("")])
    table = tables.stack([result.table.with_columns(label.alias("part"))])
    every = tuple(table["part"].unique(maintain_order=True).to_list())
    drawings = []
    for drawing in (drawing for at, drawing in enumerate(result.drawings) if at in drawn):
        some = tuple(f"{result.id}: {label}" for label in drawing.only.get("part", ()))
        drawings.append(replace(drawing, only={**drawing.only, "part": some or every}))
    sentences = tuple(filter(None, [opening, *result.sentences]))
    return Part(title, sentences, result.listings, tuple(drawings)), table


_PATHS, _CORE = "Path lengths", "The pure-attention core"
_BOUNDS, _DESIGN = "Bounds against measurement", "The design"
_CHAPTERS: Final[Mapping[str, tuple[str, float, Callable[..., Chapter]]]] = {
    "paths": (_PATHS, 3, _path_chapter),
    "core": (_CORE, 2, _core_chapter),
    "bounds": (_BOUNDS, 4, _bound_chapter),
    "design": (_DESIGN, 6, _advice_chapter),
}
"""Title, share of the time and function of each chapter by name."""
