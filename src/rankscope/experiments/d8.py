"""Claim D8, the 2021 paper's figure 5: how long are the paths of well-known architectures?"""

import math
from dataclasses import asdict
from typing import Any

from rankscope import tables
from rankscope.experiments.claims import Claim, overall
from rankscope.paths import PathCounts, count_paths
from rankscope.tracing import Provenance

STATEMENT = "Most paths of well-known transformers are long: about L·H/(H+1) of L layers."
ARCHITECTURES: dict[str, tuple[int, int]] = {
    "DistilBERT (6, 12)": (6, 12),
    "DeiT-T (12, 3)": (12, 3),
    "MobileBERT (12, 4)": (12, 4),
    "BERT-base, ViT-B (12, 12)": (12, 12),
    "BERT-large, ViT-L (24, 16)": (24, 16),
    "ViT-H (32, 16)": (32, 16),
    "T5-3B (24, 32)": (24, 32),
    "T5-11B (24, 128)": (24, 128),
    "GPT-3 (96, 96)": (96, 96),
}
"""Layers and heads, of the encoder where there are two stacks."""


def d8() -> Claim:
    """Count the paths of each length exactly, and compare with the mean the statement names."""
    counted = {name: count_paths(*shape) for name, shape in ARCHITECTURES.items()}
    columns: dict[str, list[Any]] = {
        "model": [name for name, found in counted.items() for _ in found.counts],
        "length": [k for found in counted.values() for k in range(found.layers + 1)],
        "metric": ["proportion" for found in counted.values() for _ in found.counts],
        "value": [part for found in counted.values() for part in found.proportions],
    }
    table = tables.frame(columns)
    return Claim(
        "D8",
        STATEMENT,
        "Dong, Cordonnier, Loukas 2021, figure 5",
        overall({name: _as_stated(found) for name, found in counted.items()}),
        tuple(_reason(name, found) for name, found in counted.items()),
        table,
        tables.summary(table),
        asdict(Provenance("counted, not measured")),
        metric="proportion",
        figure="length_distributions",
    )


def _mean(found: PathCounts) -> float:
    """The mean length, from the exact counts."""
    return sum(k * count for k, count in enumerate(found.counts)) / found.total


def _as_stated(found: PathCounts) -> bool:
    expected = found.layers * found.heads / (found.heads + 1)
    complete = sum(found.counts) == found.total
    return complete and math.isclose(_mean(found), expected, rel_tol=1e-9)


def _reason(name: str, found: PathCounts) -> str:
    digits = len(str(found.total)) - 1
    leading = found.total / 10**digits
    return (
        f"{name}: {leading:.2g}·10^{digits} paths, mean length {_mean(found):.2f}; "
        f"{found.proportions[-1]:.0%} of them skip no layer."
    )
