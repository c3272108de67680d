"""Networks side by side in scaled arithmetic: what claims about depth are read off."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import polars as pl
import torch
from torch import Tensor

from rankscope import tables
from rankscope.arguments import checked
from rankscope.core.deep import deep_trace
from rankscope.core.metrics import Center, Norm
from rankscope.core.network import Network, Spec
from rankscope.core.theory import SMOOTH, Evidence, Law
from rankscope.core.tracing import Trace
from rankscope.experiments import kit
from rankscope.experiments.config import Config
from rankscope.experiments.laws import law_of_medians
from rankscope.models.text import embed, passages
from rankscope.numerals import power_of_ten
from rankscope.process.progress import OnStep, silent, tracked
from rankscope.results import Role

Measured = kit.Measured[Any]
RELATIVE = "log10_relative_residual"
DISPERSION, RELATIVE_DISPERSION = "log10_dispersion", "log10_relative_dispersion"
"""What residuals and relative residuals in the Frobenius norm are called: μ and μ / ‖X‖."""
SCALED: Final = "scaled"
FORMATS: Final[Mapping[str, torch.dtype]] = {"float64": torch.float64, "float32": torch.float32}
"""Plain number formats that are shown beside scaled arithmetic."""
FLOORS: Final[Mapping[str, Role]] = dict.fromkeys(FORMATS, "floor")
"""What plain formats are in a chart beside the true curve: where each of them ends."""
_DOUBTS = ("doubt", "beyond")
"""Notes of a deep trace that say where its figures may be off."""


@checked
@dataclass(frozen=True)
class Texts:
    """What every network of a comparison reads: the first bundled passages."""

    width: int = 64
    tokens: int = 32
    samples: int = 4
    seed: int = 0

    def __call__(self) -> tuple[Tensor, Tensor]:
        """Embeddings and token mask."""
        return embed(
            passages()[: self.samples],
            self.width,
            length=self.tokens,
            seed=self.seed,
            dtype=torch.float64,
        )

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
    def texts(self) -> Texts:
        """What the networks read."""
        return Texts(self.width, self.tokens, self.samples, self.seed)

    def provenance(self, experiment: str) -> dict[str, Any]:
        """That of every configuration, and the input in words."""
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
    """By case, what its trace in scaled arithmetic leaves uncertain, if anything."""
    noted = {
        case: [note for kind, note in traced.provenance.notes.items() if kind in _DOUBTS]
        for case, traced in traces.items()
    }
    return {case: "; ".join(notes) for case, notes in noted.items() if notes}


def ending(name: str, law: Law, layers: int) -> str:
    """Where a network's residual arrived, or was when last sure, and by which law."""
    layers = layers if law.sure_to is None else law.sure_to
    return f"{name}: relative residual {power_of_ten(law.last)} after {layers} layers; {law}"


LAW_COLUMNS: Final = ("in the end", "law", "pace")
LAW_NOTE: Final = (
    "Pace: what a layer multiplies it by. Where the law is doubly exponential, what each "
    "step of its logarithm is of the one before; where it is between that and exponential, by how "
    "many decades each step is longer."
)


def law_entries(found: Law) -> tuple[str, str, str | None]:
    """Where a residual arrived, by which law and how fast: the ``LAW_COLUMNS`` of a listing."""
    return power_of_ten(found.last), found.name, found.pace or None


def left_out(found: Mapping[str, Law]) -> Iterator[str]:
    """Which cases say nothing about a claim, in a sentence; none if all show a law."""
    names = [name for name, law in found.items() if not law.decided]
    if names:
        yield (
            "Left out of the verdict, because their layers are too few or too uneven to show a "
            f"law: {', '.join(names)}."
        )


def dispersions(table: pl.DataFrame) -> pl.DataFrame:
    """A trace in the Frobenius norm with its residuals under the names they have there."""
    named = {"log10_residual": DISPERSION, RELATIVE: RELATIVE_DISPERSION}
    return table.with_columns(pl.col("metric").replace(named))


def laws(
    summary: pl.DataFrame, metric: str = RELATIVE, *, evidence: Evidence = SMOOTH
) -> dict[str, Law]:
    """The law each variant follows, by the medians over the samples, as far as they are sure."""
    names = summary["variant"].unique(maintain_order=True).to_list()
    return {name: law_of_medians(summary, metric, evidence, variant=name) for name in names}
