"""What a re-checked claim consists of: a verdict computed from figures, and the figures."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import polars as pl

Verdict = Literal["holds", "fails", "depends"]


@dataclass(frozen=True)
class Claim:
    """One claim of theory section 9, with what the product measured about it.

    ``verdict`` is ``depends`` when some of the cases bear the claim out and others do not;
    ``reasons`` says case by case what was seen.
    """

    id: str
    statement: str
    source: str
    verdict: Verdict
    reasons: tuple[str, ...]
    table: pl.DataFrame
    summary: pl.DataFrame
    provenance: Mapping[str, Any]
    metric: str = "relative_residual"
    figure: Literal["by_model", "by_depth", "by_setting", "length_distributions"] = "by_model"
    """How the table is drawn: this metric, by this function of ``rankscope.figures``."""
    lowest: float | None = None
    """Where ``by_depth`` cuts its axis."""


def overall(borne_out: Mapping[str, bool]) -> Verdict:
    """Holds if every case bears the claim out, fails if none does, else it depends."""
    if all(borne_out.values()):
        return "holds"
    return "depends" if any(borne_out.values()) else "fails"
