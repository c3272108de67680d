"""What a study found: a table, sentences computed from it, and how it is to be drawn."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import polars as pl

Figure = Literal["by_depth", "by_setting", "by_layer", "by_model", "length_distributions"]


@dataclass(frozen=True)
class Drawing:
    """One chart of a study: a function of ``rankscope.figures`` and what to hand it."""

    figure: Figure
    caption: str
    metric: str
    options: Mapping[str, Any] = field(default_factory=dict)
    only: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Rows of the summary to draw: for a column, the labels kept; all of it unless given."""


@dataclass(frozen=True)
class Study:
    """One question answered by measuring; ``sentences`` say what the table shows."""

    name: str
    title: str
    question: str
    sentences: tuple[str, ...]
    table: pl.DataFrame
    summary: pl.DataFrame
    provenance: Mapping[str, Any]
    drawings: tuple[Drawing, ...] = ()
    shown: tuple[str, ...] = ()
    """Metrics a terminal shows; all unless given."""
