"""Claim D5, the 2021 paper's figure 2: skips keep BERT, ALBERT and XLNet from collapsing."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field

import polars as pl
import torch

from rankscope import tables
from rankscope.experiments.claims import Claim, overall
from rankscope.experiments.fates import Finding, findings
from rankscope.experiments.variants import (
    SAN,
    SAN_MLP,
    SAN_SKIP,
    TRANSFORMER,
    Reading,
    four_variants,
)
from rankscope.families import Loaded
from rankscope.text import passages
from rankscope.tracing import Provenance, trace_in_batches

STATEMENT = (
    "BERT, ALBERT and XLNet lose rank with depth as SAN and as SAN+MLP, "
    "and keep it with skip connections."
)
SAMPLES, TOKENS = 32, 128
"""As in the paper: 32 passages of 128 tokens."""
_BATCH = 8


@dataclass(frozen=True)
class Case:
    """A model under a name that says whether it is trained."""

    name: str
    model: Callable[[], Loaded] = field(repr=False)


def d5(
    cases: Sequence[Case],
    *,
    texts: Sequence[str] | None = None,
    length: int = TOKENS,
    reading: Reading | None = None,
    on_batch: Callable[[], None] | None = None,
) -> Claim:
    """Trace the four variants of every model; one model is in memory at a time.

    A model bears the claim out if both variants without skips end with tokens that differ by less
    than a thousandth of their size, and both with skips do not come near that.
    """
    texts = passages()[:SAMPLES] if texts is None else texts
    tables_of: dict[str, pl.DataFrame] = {}
    seen: dict[str, tuple[Finding, ...]] = {}
    for case in cases:
        table, epsilon = _measured(case, texts, length, reading, on_batch)
        tables_of[case.name] = table
        seen[case.name] = findings(tables.summary(table), epsilon=epsilon)
    table = tables.joined(tables_of, column="model")
    borne_out = {name: _bears_out(found) for name, found in seen.items()}
    reasons = tuple(_reason(name, found) for name, found in seen.items())
    provenance = asdict(Provenance(", ".join(seen))) | {
        "reading of SAN": str(reading or Reading()),
        "samples": f"{len(texts)} texts of up to {length} tokens",
    }
    return Claim(
        "D5",
        STATEMENT,
        "Dong, Cordonnier, Loukas 2021, figure 2",
        overall(borne_out),
        reasons,
        table,
        tables.summary(table),
        provenance,
    )


def _measured(
    case: Case,
    texts: Sequence[str],
    length: int,
    reading: Reading | None,
    on_batch: Callable[[], None] | None,
) -> tuple[pl.DataFrame, float]:
    """The table of one model's variants, and the epsilon of its number format."""
    loaded = case.model()
    x, token_mask, _ = loaded.inputs(texts, length=length)
    traces = {
        name: trace_in_batches(
            variant,
            x,
            metrics=("relative_residual", "mean_cosine"),
            token_mask=token_mask,
            batch_size=_BATCH,
            on_batch=on_batch,
        ).table
        for name, variant in four_variants(loaded.network, reading).items()
    }
    return tables.joined(traces), torch.finfo(x.dtype).eps


def _bears_out(found: Sequence[Finding]) -> bool:
    fates = {finding.variant: finding.fate for finding in found}
    collapsed = fates[SAN] == fates[SAN_MLP] == "collapse"
    return collapsed and fates[SAN_SKIP] == fates[TRANSFORMER] == "holds"


def _reason(model: str, found: Sequence[Finding]) -> str:
    ends = ", ".join(f"{each.variant} {each.last:.1g} ({each.fate})" for each in found)
    return f"{model}: relative residual after {found[0].layers} layers: {ends}."


def passes(cases: Sequence[Case], texts: int) -> int:
    """How many forward passes the whole takes, for a progress bar."""
    return len(cases) * 4 * -(-texts // _BATCH)
