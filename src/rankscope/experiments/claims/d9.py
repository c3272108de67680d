"""Claim D9: attention matrices chained along single paths tend to rank one with depth."""

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean

import polars as pl
from torch import Tensor

from rankscope import tables
from rankscope.errors import InputError
from rankscope.experiments.catalogue import CATALOGUE
from rankscope.experiments.config import Config as _Config
from rankscope.experiments.fates import COLLAPSED
from rankscope.experiments.models import Case, at_initialisation, by_name, inputs
from rankscope.experiments.progress import OnStep, tracked
from rankscope.experiments.verdicts import overall
from rankscope.metrics import residual, spectra
from rankscope.network import Network
from rankscope.numerals import short
from rankscope.paths import Path, chained_matrices, sample_paths
from rankscope.results import Drawing, Result
from rankscope.streams import stream

ENTRY = CATALOGUE["D9"]
_RESIDUAL = "relative_residual"


@dataclass(frozen=True)
class Config(_Config):
    """The models, what they read, and how many paths are followed through each."""

    models: tuple[Case, ...] = at_initialisation("bert-base", "albert-base-v2", "xlnet-base")
    texts: tuple[str, ...] | None = None
    """What the models read; the first bundled passages unless given."""
    samples: int = 1
    """How many bundled passages."""
    length: int = 128
    """Tokens of a text at most."""
    paths: int = 20
    """As many as the paper averages over."""


def run(config: Config, on_step: OnStep) -> Result:
    """Chain the attention of sampled paths, one head per layer, and measure the product's rank.

    A model bears the claim out if, at full depth, the rows of the products differ on average by
    less than a thousandth of their size.
    """
    measured = {
        name: _measure(config, case, on_case)
        for (name, case), on_case in tracked(by_name(config.models).items(), on_step)
    }
    last = {name: _at_full_depth(table) for name, table in measured.items()}
    return Result(
        id=ENTRY.id,
        title=ENTRY.title,
        question="How alike are the rows of the product of the attention matrices along a path?",
        sentences=tuple(
            f"{name}: relative residual of the chained matrices at full depth "
            f"{short(value, digits=1)}."
            for name, value in last.items()
        ),
        table=tables.joined(measured, column="model"),
        provenance=ENTRY.provenance(config),
        source=ENTRY.source,
        verdict=overall({name: value < COLLAPSED for name, value in last.items()}),
        key_figures={f"{name}, relative residual": value for name, value in last.items()},
        drawings=(Drawing("by_model", "A panel for each model.", _RESIDUAL),),
        shown=(_RESIDUAL,),
    )


def _measure(config: Config, case: Case, on_step: OnStep) -> pl.DataFrame:
    """The products along sampled paths of one model, at every depth."""
    if config.paths < 1:
        raise InputError(f"paths={config.paths} leaves nothing to follow; use 1 or more.")
    loaded = case.load(seed=config.seed)
    x, token_mask = inputs(
        loaded, config.texts, config.length, samples=config.samples, seed=config.seed
    )
    spec = loaded.network.spec
    paths = sample_paths(
        spec.layers,
        spec.heads,
        length=spec.layers,
        count=config.paths,
        generator=stream(config.seed, "paths"),
    )
    rows = [
        (depth, number * len(x) + sample, metric, value)
        for number, (path, _) in enumerate(tracked(paths, on_step))
        for depth, sample, metric, value in _chain(loaded.network, x, token_mask, path)
    ]
    layer, sample, metric, value = zip(*rows, strict=True)
    return tables.frame({"layer": layer, "sample": sample, "metric": metric, "value": value})


def _chain(
    network: Network, x: Tensor, token_mask: Tensor, path: Path
) -> Iterator[tuple[int, int, str, float]]:
    """One path's products: depth, sample, metric and value."""
    chained = chained_matrices(network, x, path, token_mask=token_mask)
    for depth, matrix in enumerate(chained, start=1):
        measured = {
            _RESIDUAL: residual(matrix, relative=True, token_mask=token_mask),
            "spectral_ratio": spectra(matrix, token_mask=token_mask).spectral_ratio(),
        }
        for metric, values in measured.items():
            for sample, value in enumerate(values.double().tolist()):
                yield depth, sample, metric, value


def _at_full_depth(table: pl.DataFrame) -> float:
    """The mean over paths and samples where the paths end."""
    ends = table.filter((pl.col("metric") == _RESIDUAL) & (pl.col("layer") == pl.max("layer")))
    return fmean(ends["value"].to_list())
