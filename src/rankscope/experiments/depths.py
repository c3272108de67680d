"""Networks side by side in scaled arithmetic: what claims about depth are read off."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl
import torch
from torch import Tensor

from rankscope import tables
from rankscope.deep import deep_trace
from rankscope.experiments.config import Config
from rankscope.experiments.laws import SMOOTH, Evidence, Law, law, medians
from rankscope.experiments.progress import OnStep, silent, tracked
from rankscope.metrics import Norm
from rankscope.network import Network, Spec
from rankscope.numerals import power_of_ten
from rankscope.text import embed, passages

RELATIVE, DISPERSION = "log10_relative_residual", "log10_dispersion"
_DOUBTS = ("doubt", "beyond")
"""Notes of a deep trace that say where its figures may be off."""


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

    width: int = 64
    tokens: int = 32
    samples: int = 4

    @property
    def texts(self) -> Texts:
        """What the networks read."""
        return Texts(self.width, self.tokens, self.samples, self.seed)


def pure(layers: int, heads: int, width: int, **more: Any) -> Spec:
    """Attention alone: no MLPs, norms or skips."""
    return Spec(layers, heads, width, mlp_ratio=0.0, norm="none", skip=False, **more)


Named = Mapping[str, Callable[[], Network]]
"""Networks under their names, made when their turn comes."""


@dataclass(frozen=True)
class Comparison:
    """The deep traces of some networks, told apart by the column ``variant``.

    ``notes`` holds what is in doubt about the figures of a network, for those where something is.
    """

    table: pl.DataFrame
    notes: Mapping[str, str]

    @property
    def sentences(self) -> tuple[str, ...]:
        """The notes, for those who read the figures."""
        return tuple(f"Note on {name}: {note}." for name, note in self.notes.items())


def compare(
    networks: Named,
    x: Tensor,
    token_mask: Tensor | None,
    *,
    norm: Norm = "composite",
    on_step: OnStep = silent,
) -> Comparison:
    """Trace some networks on one input in scaled arithmetic, one after the other."""
    found, notes = {}, {}
    for (name, make), _ in tracked(networks.items(), on_step):
        traced = deep_trace(make(), x, norm=norm, token_mask=token_mask)
        found[name] = traced.table
        doubts = [note for key, note in traced.provenance.notes.items() if key in _DOUBTS]
        if doubts:
            notes[name] = "; ".join(doubts)
    return Comparison(tables.joined(found), notes)


def deep_table(
    networks: Named,
    x: Tensor,
    token_mask: Tensor | None,
    *,
    norm: Norm = "composite",
    on_step: OnStep = silent,
) -> pl.DataFrame:
    """The table of a comparison alone; whoever shows it to people wants its notes, too."""
    return compare(networks, x, token_mask, norm=norm, on_step=on_step).table


def ending(name: str, law: Law, layers: int) -> str:
    """Where a network's residual arrived, and by which law."""
    return f"{name}: relative residual {power_of_ten(law.last)} after {layers} layers; {law}"


def dispersions(table: pl.DataFrame) -> pl.DataFrame:
    """A trace in Frobenius norm with its residual under the name it has in Wu et al. 2024, μ."""
    return table.with_columns(pl.col("metric").replace({"log10_residual": DISPERSION}))


def laws(
    summary: pl.DataFrame, metric: str = RELATIVE, *, evidence: Evidence = SMOOTH
) -> dict[str, Law]:
    """The law each variant follows, by the medians over the samples."""
    names = summary["variant"].unique(maintain_order=True).to_list()
    return {name: law(medians(summary, metric, variant=name), evidence) for name in names}
