"""Claim D5, Dong et al. 2021, figure 2: skips keep BERT, ALBERT and XLNet from collapsing."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import polars as pl
import torch

from rankscope import tables
from rankscope.experiments import kit, models, variants
from rankscope.experiments.fates import findings
from rankscope.numerals import short
from rankscope.results import Finding

ENTRY = kit.entry("D5")
_RESIDUAL = "relative_residual"


@dataclass(frozen=True)
class Config(models.ModelsConfig):
    """The models, what they read (as much as in the paper), and what is taken away from them."""

    samples: int = 32
    reading: variants.Reading = field(default_factory=variants.Reading)


def run(config: Config, on_step: kit.OnStep) -> kit.Result:
    """Trace the four variants of every model; one model is in memory at a time.

    A model bears the claim out if both variants without skips end with tokens that differ by less
    than a thousandth of their size, and both with skips do not come near that.
    """
    measured: dict[str, pl.DataFrame] = {}
    found: dict[str, tuple[Finding, ...]] = {}
    for (name, case), on_case in kit.tracked(models.by_name(config.models).items(), on_step):
        measured[name], epsilon = _measure(config, case, on_case)
        found[name] = findings(tables.summary(measured[name]), epsilon=epsilon)
    return ENTRY.result(
        config,
        question="Do the tokens become alike without skip connections, and only then?",
        sentences=(
            f"{name}: relative residual after {each[0].layers} layers: {_ends(each)}."
            for name, each in found.items()
        ),
        table=tables.joined(measured, column="model"),
        about={"variants": str(config.reading)},
        judgement=kit.judged(ENTRY.domain, {name: bears_out(each) for name, each in found.items()}),
        drawings=(
            kit.Drawing("by_model", f"A panel for each model; {config.reading}.", _RESIDUAL),
        ),
        shown=(_RESIDUAL,),
    )


def bears_out(found: Sequence[Finding]) -> bool:
    """Whether both variants without skips collapse and both with skips do not."""
    fates = {finding.variant: finding.fate for finding in found}
    collapsed = fates[variants.SAN] == fates[variants.SAN_MLP] == "collapse"
    return collapsed and fates[variants.SAN_SKIP] == fates[variants.TRANSFORMER] == "holds"


def _measure(config: Config, case: models.Case, on_step: kit.OnStep) -> tuple[pl.DataFrame, float]:
    """The table of one model's variants, and the epsilon of its number format."""
    subject = config.subject(case)
    networks = variants.four_variants(subject.network, config.reading)
    metrics = (_RESIDUAL, "mean_cosine")
    traces = {
        name: subject.with_network(network).trace(metrics, on_variant).table
        for (name, network), on_variant in kit.tracked(networks.items(), on_step)
    }
    return tables.joined(traces), torch.finfo(subject.x.dtype).eps


def _ends(found: Sequence[Finding]) -> str:
    return ", ".join(f"{one.variant} {short(one.last, digits=1)} ({one.fate})" for one in found)
