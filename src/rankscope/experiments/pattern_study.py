"""Other attention patterns against the same yardstick: which law does pure attention follow?"""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Literal

import polars as pl

from rankscope import tables
from rankscope.experiments.depths import RELATIVE, Texts, deep_table
from rankscope.experiments.laws import Law, law, medians, power_of_ten
from rankscope.experiments.n1 import Turning
from rankscope.experiments.study import Drawing, Study
from rankscope.network import (
    ALiBi,
    GaussianKernel,
    LinearKernel,
    Linformer,
    Network,
    ScoreKind,
    Sink,
    Sparsemax,
    Spec,
)
from rankscope.tracing import Provenance

LAYERS = 24
_HEADS = 4
PATTERNS: Mapping[str, ScoreKind | Literal["dot"]] = {
    "dot product": "dot",
    "linear kernel": LinearKernel(),
    "Linformer": Linformer(segments=8),
    "Gaussian kernel": GaussianKernel(),
    "sparsemax": Sparsemax(),
    "sink": Sink(),
    "ALiBi": ALiBi(),
    "rotary": Turning(),
}
_MASKS = ("full", "causal")
_ONLY_FULL = ("Linformer",)
"""It pools the keys of the whole sequence."""


def pattern_study(
    *,
    layers: int = LAYERS,
    reading: Texts | None = None,
    seed: int = 0,
    on_network: Callable[[], None] | None = None,
) -> Study:
    """The same random weights under every pattern, without norms, skips and MLPs."""
    reading = reading or Texts(seed=seed)
    x, token_mask = reading()
    parts = {}
    for mask in _MASKS:
        networks = {
            name: partial(_network, kind, mask, layers, reading.width, seed)
            for name, kind in _allowed(mask).items()
        }
        parts[f"{mask} mask"] = deep_table(networks, x, token_mask, on_network=on_network)
    table = tables.joined(parts, column="model")
    summary = tables.summary(table)
    return Study(
        name="patterns",
        title="Attention patterns side by side",
        question="How fast does pure attention collapse under other patterns than the softmax of "
        "products?",
        sentences=_sentences(summary, layers),
        table=table,
        summary=summary,
        provenance=asdict(Provenance("pure attention", spec=_about(reading, layers), seed=seed))
        | {"input": str(reading), "norm": "composite"},
        drawings=(
            Drawing(
                "by_depth",
                "Pure attention with the same weights. Curves that bend down are doubly "
                "exponential, straight ones exponential.",
                RELATIVE,
                {"lowest": -40.0},
            ),
        ),
        shown=(RELATIVE,),
    )


def steps() -> int:
    """How often ``on_network`` is called."""
    return sum(len(_allowed(mask)) for mask in _MASKS)


def pattern_laws(summary: pl.DataFrame) -> dict[tuple[str, str], Law]:
    """The law of every pattern under every mask, by the medians over the samples."""
    pairs = summary.select("model", "variant").unique(maintain_order=True).iter_rows()
    return {
        (model, variant): law(medians(summary, RELATIVE, model=model, variant=variant))
        for model, variant in pairs
    }


def _allowed(mask: str) -> dict[str, ScoreKind | Literal["dot"]]:
    return {
        name: kind for name, kind in PATTERNS.items() if mask == "full" or name not in _ONLY_FULL
    }


def _network(
    kind: ScoreKind | Literal["dot"], mask: str, layers: int, width: int, seed: int
) -> Network:
    spec = Spec(
        layers,
        _HEADS,
        width,
        mlp_ratio=0.0,
        norm="none",
        skip=False,
        init="lecun",
        mask=mask,
        scores=kind,
    )
    return Network.random(spec, seed=seed)


def _about(reading: Texts, layers: int) -> str:
    shape = f"{_HEADS} heads, width {reading.width}, {layers} layers"
    return f"{shape}, lecun init; no norm, skips or MLPs"


def _sentences(summary: pl.DataFrame, layers: int) -> tuple[str, ...]:
    return tuple(
        f"{variant}, {model}: relative residual {power_of_ten(found.last)} after {layers} layers; "
        f"{found}."
        for (model, variant), found in pattern_laws(summary).items()
    )
