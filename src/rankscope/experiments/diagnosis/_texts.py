"""Distances between texts by layer, for the vectors that may represent them."""

from typing import Final

import polars as pl
import torch
from torch import Tensor

from rankscope import tables
from rankscope.core import metrics
from rankscope.core.theory import thresholds
from rankscope.experiments.diagnosis._measure import MOST_VALUES, VIEWS, ModelFigures
from rankscope.streams import stream

TEXTS, TEXT_SPECTRUM = "texts", "spectrum of texts"
"""Values of the column ``part``."""
_TINY: Final = 1e-300


def between_texts(views: Tensor) -> dict[str, Tensor]:
    """Figures of all texts by layer from 0 and view, as if each text were a token of one sample."""
    x = views.permute(0, 1, 3, 2).flatten(0, 1).double()  # layer and view, text, feature
    spectrum = metrics.spectra(x)
    figures = {
        "relative_dispersion": metrics.deviations(x).relative_dispersion(),
        "mean_cosine": metrics.mean_cosine(x),
        "effective_rank": spectrum.effective_rank(),
    }
    return {name: values.double().view(views.shape[:2]) for name, values in figures.items()}


def text_rows(measured: ModelFigures, twin: ModelFigures | None) -> list[pl.DataFrame]:
    """Distances between texts by layer: this model's views, the twin's, and random vectors."""
    frames: list[pl.DataFrame] = []

    def add(views: Tensor, variant: str, view: int) -> None:
        for metric, values in between_texts(views).items():
            column = values[:, view].tolist()
            labels = {"part": TEXTS, "variant": variant, "metric": metric}
            frames.append(
                tables.frame(
                    {
                        "layer": list(range(len(column))),
                        "sample": [0] * len(column),
                        **{name: [label] * len(column) for name, label in labels.items()},
                        "value": column,
                    }
                )
            )

    if measured.views.shape[-1] < thresholds.LEAST_TEXTS:
        return frames
    for at, name in enumerate(VIEWS):
        add(measured.views, name, at)
    if twin is not None:
        add(twin.views, "mean, untrained twin", 0)
    null = torch.randn(measured.views.shape[1:], generator=stream(0, "isotropic texts"))
    add(null.expand(measured.views.shape), "unrelated vectors", 0)
    values = text_spectrum(measured)
    layers, count = values.shape
    frames.append(
        tables.frame(
            {
                "part": [TEXT_SPECTRUM] * (layers * count),
                "layer": [layer for layer in range(layers) for _ in range(count)],
                "index": list(range(1, count + 1)) * layers,
                "sample": [0] * (layers * count),
                "metric": ["singular_value_share"] * (layers * count),
                "value": values.flatten().tolist(),
            }
        )
    )
    return frames


def text_spectrum(measured: ModelFigures) -> Tensor:
    """Singular values of the means of all texts, as shares of their sum: (layer, value)."""
    sigma = metrics.spectra(measured.views[:, 0].mT.double()).sigma
    return (sigma / sigma.sum(-1, keepdim=True).clamp_min(_TINY))[:, :MOST_VALUES]
