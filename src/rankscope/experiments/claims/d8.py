"""Claim D8, Dong et al. 2021, figure 5: how long are the paths of well-known architectures?"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isclose

from rankscope import tables
from rankscope.core.paths import PathCounts, count_paths
from rankscope.errors import InputError
from rankscope.experiments import kit
from rankscope.numerals import short

ENTRY = kit.entry("D8")
_BEYOND = "the lengths alone, with the layers and heads that were published"
_PROPORTION = "proportion"
_NEAR = 1e-9
"""Relative: two ways of counting agree to this."""

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


def run(config: Config, on_step: kit.OnStep) -> kit.Result:
    """Count the paths of each length, and hold the counts against the mean the statement names."""
    if not config.architectures:
        raise InputError("architectures is empty; give at least one to count the paths of.")
    counted = {
        _name(name, stated): count_paths(*stated) for name, stated, _ in config.architectures
    }
    judgement, beyond, sentences = judge(config)
    published = {
        _name(f"{name} as published", shape): count_paths(*shape)
        for name, stated, shape in config.architectures
        if shape != stated
    }
    rows = [
        (name, length, _PROPORTION, proportion)
        for name, found in (counted | published).items()
        for length, proportion in enumerate(found.proportions)
    ]
    on_step(1.0)
    return ENTRY.result(
        config,
        question="Are most paths long, and are these the layers and heads of these architectures?",
        sentences=(*sentences, _sentence(counted)),
        table=tables.from_rows(("model", "length", "metric", "value"), rows),
        listings=(_listing(counted),),
        judgement=judgement,
        beyond=beyond,
        key_figures={
            "smallest part of paths longer than half the layers": min(
                longer_than_half(found) for found in counted.values()
            )
        },
        drawings=(
            kit.Drawing(
                "length_distributions",
                "A curve for each architecture, named with its layers and heads.",
                _PROPORTION,
            ),
        ),
        shown=(_PROPORTION,),
    )


def judge(config: Config) -> tuple[kit.Judgement, kit.Judgement, tuple[str, ...]]:
    """Whether the paper plots the architecture that was published, and its paths are long.

    That a path of L layers with H heads takes L·H/(H+1) of them on average is arithmetic, and holds
    for every shape; "most are long" needs more than one head. What can be wrong is the shape.
    """
    wrong = [
        f"{name} has {shape[0]} layers and {shape[1]} heads, not {stated[0]} and {stated[1]}"
        for name, stated, shape in config.architectures
        if stated != shape
    ]
    plotted = {
        name: stated == shape and as_stated(count_paths(*stated))
        for name, stated, shape in config.architectures
    }
    lengths = {name: as_stated(count_paths(*shape)) for name, _, shape in config.architectures}
    on = f"the architecture: {'; '.join(wrong)}" if wrong and any(plotted.values()) else ""
    sentences = (f"In the paper and as published: {'; '.join(wrong)}.",) if wrong else ()
    return kit.judged(ENTRY.domain, plotted, on), kit.judged(_BEYOND, lengths), sentences


def as_stated(found: PathCounts) -> bool:
    """Whether most paths are longer than half the layers, most often of about ``L·H/(H+1)``.

    The counts are compared with the binomial law that they follow, computed in another way: the
    chance to skip a layer is one in ``H + 1``.
    """
    expected = found.layers * found.heads / (found.heads + 1)
    largest = max(range(len(found.counts)), key=lambda length: found.counts[length])
    counts_agree = all(
        isclose(count / found.total, law, rel_tol=_NEAR, abs_tol=1e-300)
        for count, law in zip(found.counts, _binomial(found), strict=True)
    )
    return counts_agree and longer_than_half(found) > 0.5 and abs(largest - expected) <= 1


def longer_than_half(found: PathCounts) -> float:
    """Which part of the paths skips less than half the layers."""
    return sum(found.counts[found.layers // 2 + 1 :]) / found.total


def _binomial(found: PathCounts) -> list[float]:
    """The law of the lengths, layer by layer."""
    law = [1.0]
    taken = found.heads / (found.heads + 1)
    for _ in range(found.layers):
        stay = [part / (found.heads + 1) for part in (*law, 0.0)]
        go = [part * taken for part in (0.0, *law)]
        law = [a + b for a, b in zip(stay, go, strict=True)]
    return law


def _name(name: str, shape: Shape) -> str:
    return f"{name} {shape}"


def _mean(found: PathCounts) -> float:
    """The mean length, from the exact counts."""
    return sum(k * count for k, count in enumerate(found.counts)) / found.total


def _sentence(counted: Mapping[str, PathCounts]) -> str:
    least = min(counted, key=lambda name: longer_than_half(counted[name]))
    return (
        f"At least {longer_than_half(counted[least]):.1%} of the paths of each architecture skip "
        f"less than half of its layers ({least} has the fewest such)."
    )


def _listing(counted: Mapping[str, PathCounts]) -> kit.Listing:
    return kit.Listing(
        "Paths as the paper plots them",
        ("layers and heads", "paths", "mean length", "skip no layer"),
        tuple(
            (name, _total(found), round(_mean(found), 2), f"{found.proportions[-1]:.0%}")
            for name, found in counted.items()
        ),
        "The mean length is L·H/(H+1) of L layers with H heads.",
    )


def _total(found: PathCounts) -> str:
    """The number of paths, which may be beyond all floats."""
    digits = len(str(found.total)) - 1
    return f"{short(found.total / 10**digits, digits=2)}·10^{digits}"
