"""Claim D8, Dong et al. 2021, figure 5: how long are the paths of well-known architectures?"""

import math
from dataclasses import dataclass

from rankscope import tables
from rankscope.experiments import kit
from rankscope.numerals import short
from rankscope.paths import PathCounts, count_paths

ENTRY = kit.entry("D8")
_PROPORTION = "proportion"


@dataclass(frozen=True)
class Config(kit.Config):
    """Architectures by name, layers and heads, of the encoder where there are two stacks.

    Paths are counted, not drawn: the seed changes nothing.
    """

    architectures: tuple[tuple[str, int, int], ...] = (
        ("DistilBERT", 6, 12),
        ("DeiT-T", 12, 3),
        ("MobileBERT", 12, 4),
        ("BERT-base, ViT-B", 12, 12),
        ("BERT-large, ViT-L", 24, 16),
        ("ViT-H", 32, 16),
        ("T5-3B", 24, 32),
        ("T5-11B", 24, 128),
        ("GPT-3", 96, 96),
    )


def run(config: Config, on_step: kit.OnStep) -> kit.Result:
    """Count the paths of each length exactly, and compare with the mean the statement names."""
    counted = {
        f"{name} ({layers}, {heads})": count_paths(layers, heads)
        for name, layers, heads in config.architectures
    }
    rows = [
        (name, length, _PROPORTION, proportion)
        for name, found in counted.items()
        for length, proportion in enumerate(found.proportions)
    ]
    on_step(1.0)
    return ENTRY.result(
        config,
        question="How many layers does the average path not skip?",
        sentences=tuple(_sentence(name, found) for name, found in counted.items()),
        table=tables.from_rows(("model", "length", "metric", "value"), rows),
        judgement=kit.judged(
            ENTRY.domain, {name: as_stated(found) for name, found in counted.items()}
        ),
        drawings=(
            kit.Drawing(
                "length_distributions",
                "A curve for each architecture, named with its layers and heads.",
                _PROPORTION,
            ),
        ),
        shown=(_PROPORTION,),
    )


def as_stated(found: PathCounts) -> bool:
    """Whether every path is counted once, and their mean length is ``L·H/(H+1)``."""
    expected = found.layers * found.heads / (found.heads + 1)
    complete = sum(found.counts) == found.total
    return complete and math.isclose(_mean(found), expected, rel_tol=1e-9)


def _mean(found: PathCounts) -> float:
    """The mean length, from the exact counts."""
    return sum(k * count for k, count in enumerate(found.counts)) / found.total


def _sentence(name: str, found: PathCounts) -> str:
    digits = len(str(found.total)) - 1
    leading = found.total / 10**digits
    return (
        f"{name}: {short(leading, digits=2)}·10^{digits} paths, mean length {_mean(found):.2f}; "
        f"{found.proportions[-1]:.0%} of them skip no layer."
    )
