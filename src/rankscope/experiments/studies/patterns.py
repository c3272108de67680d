"""Other attention patterns: which law does pure attention follow under each of them?"""

from dataclasses import dataclass
from typing import Literal

import polars as pl

from rankscope import tables
from rankscope.arguments import checked
from rankscope.core import network
from rankscope.core.theory import Law
from rankscope.experiments import depths, kit

ENTRY = kit.study(
    "patterns",
    "Attention patterns side by side",
    question="How fast does pure attention collapse under other patterns than the softmax of "
    "products?",
    seconds=16,
)
CHARTS = (
    kit.Drawing(
        "by_depth",
        "Pure attention with the same weights. Curves that bend down are doubly exponential, "
        "straight ones exponential.",
        depths.RELATIVE,
        {"lowest": -40.0},
    ),
)


@checked
@dataclass(frozen=True)
class ScorePattern:
    """A kind of scores under its name; ``only_full`` if it pools the keys of all tokens."""

    name: str
    scores: network.ScoreKind | Literal["dot"]
    only_full: bool = False


@dataclass(frozen=True)
class Config(depths.DeepConfig):
    """Pure attention with the same weights under every pattern and mask."""

    heads: int = 4
    masks: tuple[str, ...] = ("full", "causal")
    patterns: tuple[ScorePattern, ...] = (
        ScorePattern("dot product", "dot"),
        ScorePattern("linear kernel", network.LinearKernel()),
        ScorePattern("Linformer", network.Linformer(segments=8), only_full=True),
        ScorePattern("Gaussian kernel", network.GaussianKernel()),
        ScorePattern("sparsemax", network.Sparsemax()),
        ScorePattern("sink", network.Sink()),
        ScorePattern("ALiBi", network.ALiBi()),
        ScorePattern("rotary", network.Rotary()),
    )


def measure(config: Config, on_step: kit.OnStep) -> depths.Measured:
    """The same random weights under every pattern, without norms, skips and MLPs."""
    parts: dict[str, pl.DataFrame] = {}
    notes: dict[str, str] = {}
    for mask, on_mask in kit.tracked(config.masks, on_step):
        networks = {
            pattern.name: config.pure_attention(
                config.heads, init="lecun", mask=mask, scores=pattern.scores
            )
            for pattern in config.patterns
            if mask == "full" or not pattern.only_full
        }
        compared = depths.compare(networks, *config.texts(), on_step=on_mask)
        parts[f"{mask} mask"] = compared.table
        notes |= {f"{name}, {mask} mask": note for name, note in compared.notes.items()}
    table = tables.joined(parts, column="model")
    return depths.Measured(table, notes, about={"residuals": "composite norm"})


def judge(config: Config, measured: depths.Measured) -> kit.Answer:
    """Under each mask, which patterns follow which law."""
    laws = pattern_laws(measured.table)
    by_mask: dict[str, dict[str, list[str]]] = {}
    for (mask, pattern), law in laws.items():
        by_mask.setdefault(mask, {}).setdefault(law.name, []).append(pattern)
    listing = kit.Listing(
        f"Relative residual after {config.layers} layers",
        ("scores", "mask", *depths.LAW_COLUMNS),
        tuple((pattern, mask, *depths.law_entries(law)) for (mask, pattern), law in laws.items()),
        f"Medians over the samples. {depths.LAW_NOTE}",
    )
    return kit.Answer(
        [
            f"Under the {mask}, "
            + "; ".join(f"{law}: {', '.join(names)}" for law, names in by_law.items())
            + "."
            for mask, by_law in by_mask.items()
        ],
        listings=(listing,),
    )


def pattern_laws(table: pl.DataFrame) -> dict[tuple[str, str], Law]:
    """The law of every pattern under every mask, by the medians over the samples."""
    summary = tables.summary(table)
    pairs = summary.select("model", "variant").unique(maintain_order=True).iter_rows()
    return {
        (model, variant): depths.law_of_medians(
            summary, depths.RELATIVE, model=model, variant=variant
        )
        for model, variant in pairs
    }
