"""Claim D9: attention matrices chained along single paths tend to rank one with depth."""

from collections.abc import Callable, Sequence
from dataclasses import asdict

import torch

from rankscope import tables
from rankscope.experiments.claims import Claim, overall
from rankscope.experiments.d5 import Case
from rankscope.experiments.fates import COLLAPSED
from rankscope.metrics import residual, spectra
from rankscope.network import Network
from rankscope.paths import Path, chained_matrices, sample_paths
from rankscope.streams import stream
from rankscope.text import passages
from rankscope.tracing import Provenance

STATEMENT = "Attention matrices chained along a single path tend to rank one with its depth."
PATHS = 20
"""As many as the 2021 paper averages over."""


def d9(
    cases: Sequence[Case],
    *,
    texts: Sequence[str] | None = None,
    length: int = 128,
    seed: int = 0,
    on_path: Callable[[], None] | None = None,
) -> Claim:
    """Chain the attention of sampled paths, one head per layer, and measure the product's rank.

    A model bears the claim out if, at full depth, the rows of the products differ on average by
    less than a thousandth of their size.
    """
    texts = passages()[:1] if texts is None else texts
    columns: dict[str, list[object]] = {
        name: [] for name in ("model", "layer", "sample", "metric", "value")
    }
    last: dict[str, float] = {}
    for case in cases:
        loaded = case.model()
        x, token_mask, _ = loaded.inputs(texts, length=length)
        spec = loaded.network.spec
        paths = sample_paths(
            spec.layers,
            spec.heads,
            length=spec.layers,
            count=PATHS,
            generator=stream(seed, "paths"),
        )
        for path in paths:
            ends = _record(columns, case.name, loaded.network, x, token_mask, path)
            last[case.name] = last.get(case.name, 0.0) + ends / len(paths)
            if on_path is not None:
                on_path()
    table = tables.frame(columns)
    return Claim(
        "D9",
        STATEMENT,
        "Dong, Cordonnier, Loukas 2021, section 2 and notebook",
        overall({name: value < COLLAPSED for name, value in last.items()}),
        tuple(
            f"{name}: relative residual of the chained matrices at full depth {value:.1g}."
            for name, value in last.items()
        ),
        table,
        tables.summary(table),
        asdict(Provenance(", ".join(last), seed=seed)) | {"paths": str(PATHS)},
    )


def _record(
    columns: dict[str, list[object]],
    name: str,
    network: Network,
    x: torch.Tensor,
    token_mask: torch.Tensor,
    path: Path,
) -> float:
    """One path's products at every depth; the mean relative residual at the last."""
    ends = 0.0
    chained = chained_matrices(network, x, path, token_mask=token_mask)
    for depth, matrix in enumerate(chained, start=1):
        measured = {
            "relative_residual": residual(matrix, relative=True, token_mask=token_mask),
            "spectral_ratio": spectra(matrix, token_mask=token_mask).spectral_ratio(),
        }
        for metric, values in measured.items():
            numbers = values.double().tolist()
            columns["model"] += [name] * len(numbers)
            columns["layer"] += [depth] * len(numbers)
            columns["sample"] += list(range(len(numbers)))
            columns["metric"] += [metric] * len(numbers)
            columns["value"] += numbers
        ends = float(measured["relative_residual"].mean())
    return ends
