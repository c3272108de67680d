"""Claim D9: attention matrices chained along single paths tend to rank one with depth."""

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean

import polars as pl

from rankscope import tables
from rankscope.errors import InputError
from rankscope.experiments import kit, models
from rankscope.experiments.fates import COLLAPSED
from rankscope.metrics import residual, spectra
from rankscope.numerals import short
from rankscope.paths import Path, chained_matrices, sample_paths
from rankscope.streams import stream

ENTRY = kit.entry("D9")
_RESIDUAL = "relative_residual"


@dataclass(frozen=True)
class Config(models.ModelsConfig):
    """The models, what they read, and how many paths are followed through each."""

    paths: int = 20
    """As many as the paper averages over."""


def run(config: Config, on_step: kit.OnStep) -> kit.Result:
    """Chain the attention of sampled paths, one head per layer, and measure the product's rank.

    A model bears the claim out if, at full depth, the rows of the products differ on average by
    less than a thousandth of their size.
    """
    measured = {
        name: _measure(config, case, on_case)
        for (name, case), on_case in kit.tracked(models.by_name(config.models).items(), on_step)
    }
    last = {name: _at_full_depth(table) for name, table in measured.items()}
    return ENTRY.result(
        config,
        question="How alike are the rows of the product of the attention matrices along a path?",
        sentences=tuple(
            f"{name}: relative residual of the chained matrices at full depth "
            f"{short(value, digits=1)}."
            for name, value in last.items()
        ),
        table=tables.joined(measured, column="model"),
        judgement=kit.judged(
            ENTRY.domain, {name: value < COLLAPSED for name, value in last.items()}
        ),
        key_figures={f"{name}, relative residual": value for name, value in last.items()},
        drawings=(kit.Drawing("by_model", "A panel for each model.", _RESIDUAL),),
        shown=(_RESIDUAL,),
    )


def _measure(config: Config, case: models.Case, on_step: kit.OnStep) -> pl.DataFrame:
    """The products along sampled paths of one model, at every depth."""
    if config.paths < 1:
        raise InputError(f"paths={config.paths} leaves nothing to follow; use 1 or more.")
    subject = config.subject(case)
    spec = subject.network.spec
    paths = sample_paths(
        spec.layers,
        spec.heads,
        length=spec.layers,
        count=config.paths,
        generator=stream(config.seed, "paths"),
    )
    rows = [
        (depth, number * len(subject.x) + sample, metric, value)
        for number, (path, _) in enumerate(kit.tracked(paths, on_step))
        for depth, sample, metric, value in _chain(subject, path)
    ]
    return tables.from_rows(("layer", "sample", "metric", "value"), rows)


def _chain(subject: kit.Subject, path: Path) -> Iterator[tuple[int, int, str, float]]:
    """One path's products: depth, sample, metric and value."""
    token_mask = subject.token_mask
    chained = chained_matrices(subject.network, subject.x, path, token_mask=token_mask)
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
