"""Claim D5, Dong et al. 2021, figure 2: skips keep BERT, ALBERT and XLNet from collapsing."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import polars as pl
import torch

from rankscope import tables
from rankscope.batches import batches
from rankscope.experiments.catalogue import CATALOGUE
from rankscope.experiments.config import Config as _Config
from rankscope.experiments.fates import findings
from rankscope.experiments.models import Case, at_initialisation, by_name, inputs
from rankscope.experiments.progress import OnStep, tracked
from rankscope.experiments.variants import (
    SAN,
    SAN_MLP,
    SAN_SKIP,
    TRANSFORMER,
    Reading,
    four_variants,
)
from rankscope.experiments.verdicts import overall
from rankscope.numerals import short
from rankscope.results import Drawing, Finding, Result
from rankscope.tracing import Trace, trace

ENTRY = CATALOGUE["D5"]
_RESIDUAL = "relative_residual"
_BATCH = 8


@dataclass(frozen=True)
class Config(_Config):
    """The models, what they read, and what is taken away from them."""

    models: tuple[Case, ...] = at_initialisation("bert-base", "albert-base-v2", "xlnet-base")
    texts: tuple[str, ...] | None = None
    """What the models read; the first bundled passages unless given."""
    samples: int = 32
    """How many bundled passages, as in the paper."""
    length: int = 128
    """Tokens of a text at most, as in the paper."""
    reading: Reading = field(default_factory=Reading)


def run(config: Config, on_step: OnStep) -> Result:
    """Trace the four variants of every model; one model is in memory at a time.

    A model bears the claim out if both variants without skips end with tokens that differ by less
    than a thousandth of their size, and both with skips do not come near that.
    """
    measured: dict[str, pl.DataFrame] = {}
    found: dict[str, tuple[Finding, ...]] = {}
    for (name, case), on_case in tracked(by_name(config.models).items(), on_step):
        measured[name], epsilon = _measure(config, case, on_case)
        found[name] = findings(tables.summary(measured[name]), epsilon=epsilon)
    return Result(
        id=ENTRY.id,
        title=ENTRY.title,
        question="Do the tokens become alike without skip connections, and only then?",
        sentences=tuple(_sentence(name, each) for name, each in found.items()),
        table=tables.joined(measured, column="model"),
        provenance=ENTRY.provenance(config, variants=str(config.reading)),
        source=ENTRY.source,
        verdict=overall({name: bears_out(each) for name, each in found.items()}),
        drawings=(Drawing("by_model", f"A panel for each model; {config.reading}.", _RESIDUAL),),
        shown=(_RESIDUAL,),
    )


def bears_out(found: Sequence[Finding]) -> bool:
    """Whether both variants without skips collapse and both with skips do not."""
    fates = {finding.variant: finding.fate for finding in found}
    collapsed = fates[SAN] == fates[SAN_MLP] == "collapse"
    return collapsed and fates[SAN_SKIP] == fates[TRANSFORMER] == "holds"


def _measure(config: Config, case: Case, on_step: OnStep) -> tuple[pl.DataFrame, float]:
    """The table of one model's variants, and the epsilon of its number format."""
    loaded = case.load(seed=config.seed)
    x, token_mask = inputs(
        loaded, config.texts, config.length, samples=config.samples, seed=config.seed
    )
    variants = four_variants(loaded.network, config.reading)
    traces = {}
    for (name, network), on_variant in tracked(variants.items(), on_step):
        traces[name] = Trace.joined(
            [
                trace(
                    network,
                    batch.x,
                    metrics=(_RESIDUAL, "mean_cosine"),
                    token_mask=batch.token_mask,
                )
                for batch, _ in tracked(batches(x, token_mask, size=_BATCH), on_variant)
            ]
        ).table
    return tables.joined(traces), torch.finfo(x.dtype).eps


def _sentence(model: str, found: Sequence[Finding]) -> str:
    ends = ", ".join(f"{each.variant} {short(each.last, digits=1)} ({each.fate})" for each in found)
    return f"{model}: relative residual after {found[0].layers} layers: {ends}."
