"""Claim D8, Dong et al. 2021, figure 5: how long are the paths of well-known architectures?"""

from dataclasses import dataclass
from math import isclose

import polars as pl

from rankscope import tables
from rankscope.core.paths import PathCounts, count_paths
from rankscope.errors import InputError
from rankscope.experiments import kit
from rankscope.numerals import short

ENTRY = kit.claim(
    "D8",
    "Most paths of well-known transformers are long: about L·H/(H+1) of L layers.",
    source="Dong et al. 2021, figure 5",
    question="Are most paths long, and are these the layers and heads of these architectures?",
    domain="the architectures that the paper plots, with the layers and heads it gives",
    beyond="with the layers and heads that were published",
    options=(),
    seconds=1,
)
CHARTS = (
    kit.Drawing(
        "length_distributions",
        "A curve for each architecture, named with its layers and heads.",
        "proportion",
    ),
)
_NEAR = 1e-9  # relative: two ways of counting agree to this

Shape = tuple[int, int]
"""Layers and heads, of the encoder where there are two stacks."""


@dataclass(frozen=True)
class Config(kit.Config):
    """Architectures by name: layers and heads as the paper gives them, and as they were published.

    Paths are counted, not drawn: the seed changes nothing.
    """

    architectures: tuple[tuple[str, Shape, Shape], ...] = (
        ("DistilBERT", (6, 12), (6, 12)),
        ("DeiT-T", (12, 3), (12, 3)),
        ("MobileBERT", (12, 4), (24, 4)),
        ("BERT-base, ViT-B", (12, 12), (12, 12)),
        ("BERT-large, ViT-L", (24, 16), (24, 16)),
        ("ViT-H", (32, 16), (32, 16)),
        ("T5-3B", (24, 32), (24, 32)),
        ("T5-11B", (24, 128), (24, 128)),
        ("GPT-3", (96, 96), (96, 96)),
    )


def measure(config: Config, on_step: kit.OnStep) -> pl.DataFrame:
    """The part of the paths that has each length."""
    if not config.architectures:
        raise InputError("architectures is empty; give at least one to count the paths of.")
    counted = [(f"{name} {stated}", stated) for name, stated, _ in config.architectures]
    counted += [
        (f"{name} as published {shape}", shape)
        for name, stated, shape in config.architectures
        if shape != stated
    ]
    rows = [
        (name, length, "proportion", proportion)
        for name, shape in counted
        for length, proportion in enumerate(count_paths(*shape).proportions)
    ]
    on_step(1.0)
    return tables.from_rows(("model", "length", "metric", "value"), rows)


def judge(config: Config, _: pl.DataFrame) -> kit.Answer:
    """Whether most paths are long, of the shapes that the paper plots and of those published.

    That a path of L layers with H heads takes L·H/(H+1) of them on average is arithmetic, and holds
    for every shape; "most are long" needs more than one head. A shape that is not the published one
    is an erratum, which the verdict names.
    """
    counts = {f"{name} {stated}": count_paths(*stated) for name, stated, _ in config.architectures}
    plotted = {name: as_stated(count_paths(*stated)) for name, stated, _ in config.architectures}
    wrong = "; ".join(
        f"{name} has {shape[0]} layers and {shape[1]} heads, not {stated[0]} and {stated[1]}"
        for name, stated, shape in config.architectures
        if stated != shape
    )
    fewest = min(counts, key=lambda name: longer_than_half(counts[name]))
    return kit.Answer(
        (
            *([f"In the paper and as published: {wrong}."] if wrong else []),
            f"At least {longer_than_half(counts[fewest]):.1%} of the paths of each architecture "
            f"skip less than half of its layers ({fewest} has the fewest such).",
        ),
        stated=plotted,
        on={"holds": wrong and f"with an erratum: {wrong}"},
        beyond={name: as_stated(count_paths(*shape)) for name, _, shape in config.architectures},
        key_figures={
            "smallest part of paths longer than half the layers": longer_than_half(counts[fewest])
        },
        listings=(
            kit.Listing(
                "Paths as the paper plots them",
                ("layers and heads", "paths", "mean length", "skip no layer"),
                tuple((name, *_entries(paths)) for name, paths in counts.items()),
                "The mean length is L·H/(H+1) of L layers with H heads.",
            ),
        ),
    )


def as_stated(paths: PathCounts) -> bool:
    """Whether most paths are longer than half the layers, most often of about ``L·H/(H+1)``.

    The counts are compared with the binomial law that they follow, computed in another way: the
    chance to skip a layer is one in ``H + 1``.
    """
    taken, law = paths.heads / (paths.heads + 1), [1.0]
    for _ in range(paths.layers):
        stay = [part / (paths.heads + 1) for part in (*law, 0.0)]
        go = [part * taken for part in (0.0, *law)]
        law = [a + b for a, b in zip(stay, go, strict=True)]
    counts_agree = all(
        isclose(count / paths.total, part, rel_tol=_NEAR, abs_tol=1e-300)
        for count, part in zip(paths.counts, law, strict=True)
    )
    commonest = max(range(len(paths.counts)), key=lambda length: paths.counts[length])
    about_the_mean = abs(commonest - paths.layers * taken) <= 1
    return counts_agree and longer_than_half(paths) > 0.5 and about_the_mean


def longer_than_half(paths: PathCounts) -> float:
    """Which part of the paths skips less than half the layers."""
    return sum(paths.counts[paths.layers // 2 + 1 :]) / paths.total


def _entries(paths: PathCounts) -> tuple[str, float, str]:
    """How many paths there are, which may be beyond all floats, how long, how many skip nothing."""
    digits = len(str(paths.total)) - 1
    total = f"{short(paths.total / 10**digits, digits=2)}·10^{digits}"
    mean = sum(length * count for length, count in enumerate(paths.counts)) / paths.total
    return total, round(mean, 2), f"{paths.proportions[-1]:.0%}"
