"""Networks side by side in scaled arithmetic: what claims about depth are read off."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import polars as pl
import torch
from torch import Tensor

from rankscope import tables
from rankscope.deep import deep_trace
from rankscope.experiments.laws import Law, law, medians, power_of_ten
from rankscope.experiments.progress import OnStep, silent, tracked
from rankscope.metrics.norms import Norm
from rankscope.network import Network
from rankscope.text import embed, passages

RELATIVE, DISPERSION = "log10_relative_residual", "log10_dispersion"


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


Named = Mapping[str, Callable[[], Network]]
"""Networks under their names, made when their turn comes."""


def deep_table(
    networks: Named,
    x: Tensor,
    token_mask: Tensor | None,
    *,
    norm: Norm = "composite",
    on_step: OnStep = silent,
) -> pl.DataFrame:
    """The deep traces of some networks on one input, told apart by the column ``variant``."""
    found = {}
    for (name, make), _ in tracked(networks.items(), on_step):
        found[name] = deep_trace(make(), x, norm=norm, token_mask=token_mask).table
    return tables.joined(found)


def ending(name: str, law: Law, layers: int) -> str:
    """Where a network's residual arrived, and by which law."""
    return f"{name}: relative residual {power_of_ten(law.last)} after {layers} layers; {law}"


def dispersions(table: pl.DataFrame) -> pl.DataFrame:
    """A trace in Frobenius norm with its residual under W's name, μ."""
    return table.with_columns(pl.col("metric").replace({"log10_residual": DISPERSION}))


def laws(summary: pl.DataFrame, metric: str = RELATIVE) -> dict[str, Law]:
    """The law each variant follows, by the medians over the samples."""
    names = summary["variant"].unique(maintain_order=True).to_list()
    return {name: law(medians(summary, metric, variant=name)) for name in names}
