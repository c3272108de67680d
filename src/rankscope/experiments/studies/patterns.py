"""Other attention patterns against the same yardstick: which law does pure attention follow?"""

from dataclasses import dataclass
from functools import partial
from typing import Literal

import polars as pl

from rankscope import tables
from rankscope.experiments.catalogue import CATALOGUE
from rankscope.experiments.depths import RELATIVE, DeepConfig, compare, ending, pure
from rankscope.experiments.laws import Law, law, medians
from rankscope.experiments.notes import note_sentences
from rankscope.experiments.progress import OnStep, tracked
from rankscope.network import (
    ALiBi,
    GaussianKernel,
    LinearKernel,
    Linformer,
    Network,
    Rotary,
    ScoreKind,
    Sink,
    Sparsemax,
)
from rankscope.results import Drawing, Result

ENTRY = CATALOGUE["patterns"]


@dataclass(frozen=True)
class Pattern:
    """A kind of scores under its name; ``only_full`` if it pools the keys of all tokens."""

    name: str
    scores: ScoreKind | Literal["dot"]
    only_full: bool = False


@dataclass(frozen=True)
class Config(DeepConfig):
    """Pure attention with the same weights under every pattern and mask."""

    layers: int = 24
    heads: int = 4
    masks: tuple[str, ...] = ("full", "causal")
    patterns: tuple[Pattern, ...] = (
        Pattern("dot product", "dot"),
        Pattern("linear kernel", LinearKernel()),
        Pattern("Linformer", Linformer(segments=8), only_full=True),
        Pattern("Gaussian kernel", GaussianKernel()),
        Pattern("sparsemax", Sparsemax()),
        Pattern("sink", Sink()),
        Pattern("ALiBi", ALiBi()),
        Pattern("rotary", Rotary()),
    )


def run(config: Config, on_step: OnStep) -> Result:
    """The same random weights under every pattern, without norms, skips and MLPs."""
    x, token_mask = config.texts()
    parts: dict[str, pl.DataFrame] = {}
    noted: dict[str, str] = {}
    for mask, on_mask in tracked(config.masks, on_step):
        networks = {
            pattern.name: partial(_network, config, pattern, mask)
            for pattern in config.patterns
            if mask == "full" or not pattern.only_full
        }
        compared = compare(networks, x, token_mask, on_step=on_mask)
        parts[f"{mask} mask"] = compared.table
        noted |= {f"{name}, {mask} mask": note for name, note in compared.notes.items()}
    table = tables.joined(parts, column="model")
    return Result(
        id=ENTRY.id,
        title=ENTRY.title,
        question="How fast does pure attention collapse under other patterns than the softmax of "
        "products?",
        sentences=(
            *(
                f"{ending(f'{variant}, {model}', found, config.layers)}."
                for (model, variant), found in pattern_laws(table).items()
            ),
            *note_sentences(noted),
        ),
        table=table,
        provenance=ENTRY.provenance(
            config, input=str(config.texts), residuals="composite norm", notes=noted
        ),
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


def pattern_laws(table: pl.DataFrame) -> dict[tuple[str, str], Law]:
    """The law of every pattern under every mask, by the medians over the samples."""
    summary = tables.summary(table)
    pairs = summary.select("model", "variant").unique(maintain_order=True).iter_rows()
    return {
        (model, variant): law(medians(summary, RELATIVE, model=model, variant=variant))
        for model, variant in pairs
    }


def _network(config: Config, pattern: Pattern, mask: str) -> Network:
    spec = pure(
        config.layers, config.heads, config.width, init="lecun", mask=mask, scores=pattern.scores
    )
    return Network.random(spec, seed=config.seed)
