"""A re-checked claim as a page: the verdict, what was seen case by case, the curves."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import polars as pl

from rankscope import figures
from rankscope.report.diagnosis import plain
from rankscope.report.page import Report, Section

_WORDS = {
    "holds": "holds in every case tried",
    "fails": "holds in no case tried",
    "depends": "holds in some of the cases tried and not in others",
}


_READING = {
    "by_model": "A panel for each case. Lines are means over the samples, bands their 10th to 90th "
    "percentile.",
    "by_depth": "A curve for each network. Lines are medians over the samples, bands their 10th to "
    "90th percentile; the axis shows exponents, which go far below what a float can hold.",
    "by_setting": "A panel for what was varied.",
    "length_distributions": "Which part of all paths has which length, exactly counted.",
}


class Checked(Protocol):
    """What a claim must have to be shown."""

    @property
    def id(self) -> str: ...
    @property
    def statement(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def verdict(self) -> str: ...
    @property
    def reasons(self) -> Sequence[str]: ...
    @property
    def summary(self) -> pl.DataFrame: ...
    @property
    def provenance(self) -> Mapping[str, Any]: ...
    @property
    def table(self) -> pl.DataFrame: ...
    @property
    def metric(self) -> str: ...
    @property
    def figure(self) -> str: ...
    @property
    def lowest(self) -> float | None: ...


def claim_page(claim: Checked) -> Report:
    """The page for a claim, drawn from its summary; nothing is computed here."""
    return Report(
        title=f"Claim {claim.id}: {claim.statement}",
        lead=f"{verdict_sentence(claim)} The claim is that of {claim.source}.",
        verdicts=[("Verdict", verdict_sentence(claim), "neutral")],
        sections=[
            Section("The figures", _READING[claim.figure], claim_chart(claim)),
            Section("What was seen", "\n\n".join(claim.reasons)),
        ],
        provenance={key: plain(value) for key, value in claim.provenance.items()},
    )


def claim_chart(claim: Checked) -> figures.Figure:
    """The chart a claim asks for."""
    if claim.figure == "length_distributions":
        return figures.length_distributions(claim.table)
    if claim.figure == "by_setting":
        return figures.by_setting(claim.summary, metric=claim.metric)
    if claim.figure == "by_depth":
        return figures.by_depth(claim.summary, metric=claim.metric, lowest=claim.lowest)
    return figures.by_model(claim.summary, metric=claim.metric)


def verdict_sentence(claim: Checked) -> str:
    """The verdict in words."""
    return f"**{claim.verdict.capitalize()}**: it {_WORDS[claim.verdict]}."
