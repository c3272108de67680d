"""Claim D8, Dong et al. 2021, figure 5: how long are the paths of well-known architectures?"""

import math
from dataclasses import dataclass

from rankscope import tables
from rankscope.experiments.catalogue import CATALOGUE
from rankscope.experiments.config import Config as _Config
from rankscope.experiments.progress import OnStep
from rankscope.experiments.verdicts import overall
from rankscope.paths import PathCounts, count_paths
from rankscope.results import Drawing, Result

ENTRY = CATALOGUE["D8"]
_PROPORTION = "proportion"


@dataclass(frozen=True)
class Config(_Config):
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


def run(config: Config, on_step: OnStep) -> Result:
    """Count the paths of each length exactly, and compare with the mean the statement names."""
    counted = {
        f"{name} ({layers}, {heads})": count_paths(layers, heads)
        for name, layers, heads in config.architectures
    }
    lengths = [(name, found, k) for name, found in counted.items() for k in range(found.layers + 1)]
    table = tables.frame(
        {
            "model": [name for name, _, _ in lengths],
            "length": [k for _, _, k in lengths],
            "metric": [_PROPORTION] * len(lengths),
            "value": [found.proportions[k] for _, found, k in lengths],
        }
    )
    on_step(1.0)
    return Result(
        id=ENTRY.id,
        title=ENTRY.title,
        question="How many layers does the average path not skip?",
        sentences=tuple(_sentence(name, found) for name, found in counted.items()),
        table=table,
        provenance=ENTRY.provenance(config),
        source=ENTRY.source,
        verdict=overall({name: as_stated(found) for name, found in counted.items()}),
        drawings=(
            Drawing(
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
        f"{name}: {leading:.2g}·10^{digits} paths, mean length {_mean(found):.2f}; "
        f"{found.proportions[-1]:.0%} of them skip no layer."
    )
