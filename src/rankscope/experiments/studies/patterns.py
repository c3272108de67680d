"""Other attention patterns against the same yardstick: which law does pure attention follow?"""

from dataclasses import dataclass
from typing import Literal

import polars as pl
import torch

from rankscope import tables
from rankscope.deep import deep_trace
from rankscope.experiments.catalogue import CATALOGUE
from rankscope.experiments.config import Config as _Config
from rankscope.experiments.depths import RELATIVE, Texts
from rankscope.experiments.laws import Law, law, medians
from rankscope.experiments.notes import doubts, note_sentences, with_notes
from rankscope.experiments.progress import OnStep, tracked
from rankscope.network import (
    ALiBi,
    GaussianKernel,
    LinearKernel,
    Linformer,
    Network,
    ScoreKind,
    Scores,
    Sink,
    Sparsemax,
    Spec,
)
from rankscope.network.positions import Rotary as _RotaryScores
from rankscope.numerals import power_of_ten
from rankscope.results import Drawing, Result

ENTRY = CATALOGUE["patterns"]


@dataclass(frozen=True)
class Rotary:
    """Rotary positions with the usual frequencies, for a network drawn at random."""

    base: float = 10000.0

    def build(self, heads: int, head_width: int) -> Scores:
        """The scores of one layer; all heads turn alike."""
        del heads
        return _RotaryScores(self.base ** -(torch.arange(0, head_width, 2) / head_width))


@dataclass(frozen=True)
class Pattern:
    """A kind of scores under its name; ``only_full`` if it pools the keys of all tokens."""

    name: str
    scores: ScoreKind | Literal["dot"]
    only_full: bool = False


@dataclass(frozen=True)
class Config(_Config):
    """Pure attention with the same weights under every pattern and mask."""

    layers: int = 24
    heads: int = 4
    width: int = 64
    tokens: int = 32
    samples: int = 4
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
    x, token_mask = Texts(config.width, config.tokens, config.samples, config.seed)()
    pairs = [
        (mask, pattern)
        for mask in config.masks
        for pattern in config.patterns
        if mask == "full" or not pattern.only_full
    ]
    traces = {
        (f"{mask} mask", pattern.name): deep_trace(
            _network(config, pattern, mask), x, token_mask=token_mask
        )
        for (mask, pattern), _ in tracked(pairs, on_step)
    }
    parts: dict[str, dict[str, pl.DataFrame]] = {}
    for (model, variant), traced in traces.items():
        parts.setdefault(model, {})[variant] = traced.table
    table = tables.joined(
        {model: tables.joined(by_pattern) for model, by_pattern in parts.items()}, column="model"
    )
    noted = doubts(
        {f"{variant}, {model}": (traced,) for (model, variant), traced in traces.items()}
    )
    return Result(
        id=ENTRY.id,
        title=ENTRY.title,
        question="How fast does pure attention collapse under other patterns than the softmax of "
        "products?",
        sentences=(
            *(
                f"{variant}, {model}: relative residual {power_of_ten(found.last)} after "
                f"{config.layers} layers; {found}."
                for (model, variant), found in pattern_laws(table).items()
            ),
            *note_sentences(noted),
        ),
        table=table,
        provenance=with_notes({**ENTRY.provenance(config), "residuals": "composite norm"}, noted),
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
    spec = Spec(
        config.layers,
        config.heads,
        config.width,
        mlp_ratio=0.0,
        norm="none",
        skip=False,
        init="lecun",
        mask=mask,
        scores=pattern.scores,
    )
    return Network.random(spec, seed=config.seed)
