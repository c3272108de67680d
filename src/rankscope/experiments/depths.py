"""Compare networks in scaled arithmetic, and fit the laws of their curves."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import polars as pl
import torch
from torch import Tensor

from rankscope import tables
from rankscope.arguments import checked
from rankscope.core.deep import deep_trace
from rankscope.core.metrics import Center, Norm
from rankscope.core.network import Network, Spec
from rankscope.core.theory import SMOOTH, Law, LawCriteria, law
from rankscope.core.tracing import Trace
from rankscope.experiments import kit
from rankscope.experiments.config import Config
from rankscope.models.text import embed, passages
from rankscope.numerals import power_of_ten
from rankscope.process import OnStep, silent, tracked
from rankscope.results import Role
from rankscope.show.words import LAW_NAMES

Measured = kit.Measured[Any]
RELATIVE = "log10_relative_residual"
DISPERSION, RELATIVE_DISPERSION = "log10_dispersion", "log10_relative_dispersion"
"""The names of residuals and relative residuals in the Frobenius norm: μ and μ / ‖X‖."""
SCALED: Final = "scaled"
FORMATS: Final[Mapping[str, torch.dtype]] = {"float64": torch.float64, "float32": torch.float32}
"""Floating-point formats that are compared with scaled arithmetic."""
FLOORS: Final[Mapping[str, Role]] = dict.fromkeys(FORMATS, "floor")
"""The role of floating-point formats in a chart, next to the exact curve."""
_DOUBTS = ("doubt", "beyond")  # notes of a deep trace that say where its figures may be off


@checked
@dataclass(frozen=True)
class Passages:
    """The input of all networks of a comparison: the first bundled passages."""

    width: int = 64
    tokens: int = 32
    samples: int = 4
    seed: int = 0

    def __call__(self) -> tuple[Tensor, Tensor]:
        """Embeddings and token mask."""
        texts, exact = passages()[: self.samples], torch.float64
        return embed(texts, self.width, length=self.tokens, seed=self.seed, dtype=exact)

    def __str__(self) -> str:
        return f"{self.samples} bundled passages of {self.tokens} tokens, {self.width} features"


@dataclass(frozen=True)
class DeepConfig(Config):
    """A configuration whose networks all read the first bundled passages."""

    layers: int = 24
    width: int = 64
    tokens: int = 32
    samples: int = 4

    def pure_attention(self, heads: int, **more: Any) -> Network:
        """Random attention and nothing else; ``more`` are other fields of its ``Spec``."""
        spec = Spec.pure_attention(self.layers, heads, self.width, **more)
        return Network.random(spec, seed=self.seed)

    @property
    def texts(self) -> Passages:
        """The input of the networks."""
        return Passages(self.width, self.tokens, self.samples, self.seed)

    def provenance(self, experiment: str) -> dict[str, Any]:
        """The provenance of every configuration, and the input in words."""
        return super().provenance(experiment) | {"input": str(self.texts)}


def compare(
    networks: Mapping[str, Network],
    x: Tensor,
    token_mask: Tensor | None,
    *,
    norm: Norm = "composite",
    center: Center = "mean",
    on_step: OnStep = silent,
) -> Measured:
    """Trace some networks on one input in scaled arithmetic; ``variant`` is the name of each."""
    traces = {
        name: deep_trace(network, x, norm=norm, center=center, token_mask=token_mask)
        for (name, network), _ in tracked(networks.items(), on_step)
    }
    table = tables.joined({name: traced.table for name, traced in traces.items()})
    return Measured(table, doubts(traces))


def doubts(traces: Mapping[str, Trace]) -> dict[str, str]:
    """The doubts of each case's trace in scaled arithmetic."""
    noted = {
        case: [note for kind, note in traced.provenance.notes.items() if kind in _DOUBTS]
        for case, traced in traces.items()
    }
    return {case: "; ".join(notes) for case, notes in noted.items() if notes}


def ending(name: str, law: Law, layers: int) -> str:
    """The last certain residual of a network, and its law."""
    layers = layers if law.sure_to is None else law.sure_to
    return f"{name}: relative residual {power_of_ten(law.last)} after {layers} layers; {law}"


LAW_COLUMNS: Final = ("in the end", "law", "pace")
LAW_NOTE: Final = (
    "Pace: the factor per layer. For a doubly exponential law, the ratio of successive steps of "
    "the logarithm; for a law between that and exponential, the number of decades by which each "
    "step is longer."
)


def law_entries(law: Law) -> tuple[str, str, str | None]:
    """The final residual, its law and its rate: the ``LAW_COLUMNS`` of a listing."""
    return power_of_ten(law.last), law.name, law.pace or None


def left_out(laws: Mapping[str, Law]) -> Iterator[str]:
    """A sentence about the cases that show no law, if there are any."""
    names = [name for name, law in laws.items() if not law.decided]
    if names:
        yield (
            "Left out of the verdict, because their layers are too few or too uneven to show a "
            f"law: {', '.join(names)}."
        )


def dispersions(table: pl.DataFrame) -> pl.DataFrame:
    """A trace in the Frobenius norm, with residuals renamed to dispersions."""
    named = {"log10_residual": DISPERSION, RELATIVE: RELATIVE_DISPERSION}
    return table.with_columns(pl.col("metric").replace(named))


def laws(
    summary: pl.DataFrame, metric: str = RELATIVE, *, evidence: LawCriteria = SMOOTH
) -> dict[str, Law]:
    """The law of each variant, fitted to the medians over samples before the first doubt."""
    names = summary["variant"].unique(maintain_order=True).to_list()
    return {name: law_of_medians(summary, metric, evidence, variant=name) for name in names}


def medians(summary: pl.DataFrame, metric: str, **labels: str) -> list[float]:
    """The medians of a metric by layer, of the rows with these labels."""
    return summary.filter(metric=metric, **labels).sort("layer")["median"].to_list()


def sure_medians(summary: pl.DataFrame, metric: str, **labels: str) -> list[float]:
    """The same, up to the first layer in which a sample is in doubt.

    >>> summary = pl.DataFrame({"layer": [0, 1, 2], "metric": "r", "median": [0.0, -1.0, -9.0],
    ...                         "doubt": [False, False, True]})
    >>> sure_medians(summary, "r")
    [0.0, -1.0]
    """
    rows = summary.filter(metric=metric, **labels).sort("layer")
    return _before_doubts(rows)["median"].to_list()


def law_of_medians(
    summary: pl.DataFrame, metric: str, evidence: LawCriteria = SMOOTH, **labels: str
) -> Law:
    """The law of a metric's medians before the first doubt of any sample."""
    rows = summary.filter(metric=metric, **labels).sort("layer")
    return _law_before_doubts(rows, "median", evidence)


def _law_before_doubts(rows: pl.DataFrame, column: str, evidence: LawCriteria = SMOOTH) -> Law:
    """The law of a curve, with its last certain layer if that is not the last one."""
    sure = _before_doubts(rows)
    fitted = law(sure[column].to_list(), evidence)
    return fitted if len(sure) == len(rows) else replace(fitted, sure_to=len(sure) - 1)


def _before_doubts(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows, sorted by layer, before the first one in doubt; the input is never in doubt."""
    if "doubt" not in rows.columns:
        return rows
    doubts = rows["doubt"].to_list()
    return rows.head(max(1, doubts.index(True))) if True in doubts else rows


def disagreement(table: pl.DataFrame, metric: str, **labels: str) -> str:
    """A clause about samples that follow different laws; empty if they agree.

    Each sample counts up to its first layer in doubt.

    >>> disagreement(pl.DataFrame({
    ...     "layer": [0, 1, 2, 3, 4] * 2, "sample": [0] * 5 + [1] * 5, "metric": "r",
    ...     "value": [0.0, -1.0, -2.0, -3.0, -4.0, 0.0, 0.0, 0.0, 0.0, 0.0]}), "r")
    'the samples disagree: 1 of 2 exponential, 1 of 2 no collapse; they end between 10^−4.0 and 1'
    """
    counted, laws = _count_laws(table, metric, labels)
    if not counted:
        return ""
    low, high = (power_of_ten(end(law.last for law in laws)) for end in (min, max))
    sure = "" if all(law.sure_to is None for law in laws) else ", as far as they are sure"
    return f"the samples disagree: {counted}; they end between {low} and {high}{sure}"


def different_laws(table: pl.DataFrame, metric: str, **labels: str) -> str:
    """The number of samples by law; empty if they agree."""
    return _count_laws(table, metric, labels)[0]


def _count_laws(
    table: pl.DataFrame, metric: str, labels: Mapping[str, str]
) -> tuple[str, list[Law]]:
    """The same, and the laws of the samples that show one."""
    curves = table.filter(metric=metric, **labels).sort("layer")
    every = [
        _law_before_doubts(curve, "value")
        for _, curve in curves.group_by("sample", maintain_order=True)
    ]
    # Where doubts leave too little of a curve, it agrees with any other.
    decided = [law for law in every if law.decided or law.sure_to is None]
    kinds = Counter(law.kind for law in decided)
    if len(kinds) < 2:
        return "", decided
    counts = {LAW_NAMES.get(kind, kind): many for kind, many in kinds.items()}
    if len(decided) < len(every):
        counts["in doubt too early to tell"] = len(every) - len(decided)
    return ", ".join(f"{many} of {len(every)} {words}" for words, many in counts.items()), decided
