"""A diagnosis as a page: what each variant does, the curves behind it, the figures under those."""

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from rankscope import figures
from rankscope.report.page import Report, Section
from rankscope.report.terminal import Told, few_layers

_READING = (
    "Each curve is one network on the same text with the same weights; only the parts differ. SAN "
    "is self-attention alone, SAN+MLP adds the MLPs, SAN+skip the skip "
    "connections, the transformer has everything. A relative residual of 1 means that nothing is "
    "common to all tokens, 0 that all tokens are alike. Lines are means over the samples, bands "
    "their 10th to 90th percentile."
)


def diagnosis_page(
    summary: pl.DataFrame,
    findings: Sequence[Told],
    provenance: Mapping[str, Any],
    *,
    title: str,
) -> Report:
    """The page for a diagnosis, drawn from its summary; nothing is computed here."""
    return Report(
        title="What keeps the tokens apart?",
        lead=f"{title}. {_lead(findings)}",
        verdicts=[(each.variant, each.sentence, each.fate) for each in findings],
        sections=[
            Section("Layer by layer", _READING, figures.by_layer(summary), None),
            Section(
                "Relative residual by layer",
                "Means over the samples, at a few of the layers.",
                None,
                _few(summary),
            ),
        ],
        provenance={key: plain(value) for key, value in provenance.items()},
    )


def _lead(findings: Sequence[Told]) -> str:
    """Which variants do what, in a sentence each."""
    lost, slow, kept = (
        [finding.variant for finding in findings if finding.fate == fate]
        for fate in ("collapse", "slow", "holds")
    )
    sentences = []
    if lost:
        sentences.append(f"{_listed(lost)}: tokens become alike with depth.")
    if slow:
        sentences.append(f"{_listed(slow)}: tokens are on the way there.")
    if kept:
        sentences.append(f"{_listed(kept)}: tokens stay different.")
    return " ".join(sentences)


def _few(summary: pl.DataFrame) -> pl.DataFrame:
    """One row per variant, one column for each of a few layers."""
    wanted = summary.filter(
        (pl.col("metric") == "relative_residual") & pl.col("layer").is_in(few_layers(summary))
    )
    return wanted.select("variant", pl.format("layer {}", "layer").alias("at"), "mean").pivot(
        on="at", index="variant", values="mean"
    )


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def plain(value: Any) -> str:
    """A value of the provenance in words."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {inner}" for key, inner in value.items())
    return str(value)
