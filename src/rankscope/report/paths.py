"""A study of path lengths as a page."""

import math
from collections.abc import Mapping
from typing import Any, Protocol

import polars as pl

from rankscope import figures
from rankscope.report.diagnosis import plain
from rankscope.report.page import Report, Section

_READING = (
    "A path takes one head, or the skip, in every layer; its length is how many layers it does not "
    "skip. Everything that depends on the input (attention, the scale of norms, the gates of MLPs) "
    "is held at its value there, which makes the network linear, and what all paths of one length "
    "contribute is added up exactly. The share of the residual is the norm of what those paths "
    "tell the tokens apart by, over that of the whole; shares need not sum to one, because "
    "contributions can cancel."
)


class Studied(Protocol):
    """What a study must have to be shown."""

    @property
    def summary(self) -> pl.DataFrame: ...
    @property
    def heads(self) -> pl.DataFrame | None: ...
    @property
    def paths(self) -> int: ...
    @property
    def reconstruction_error(self) -> float: ...
    @property
    def sentence(self) -> str: ...
    @property
    def provenance(self) -> Mapping[str, Any]: ...


def paths_page(found: Studied, *, title: str) -> Report:
    """The page for a study of paths, drawn from its summary; nothing is computed here."""
    sections = [Section("By length", _READING, figures.by_length(found.summary))]
    if found.heads is not None:
        text = "What all paths through a head carry to the output, with everything else held."
        sections.append(Section("By head", text, figures.head_map(found.heads)))
    return Report(
        title="Which paths carry the differences?",
        lead=f"{title}. {found.sentence} {exactness(found)}",
        sections=sections,
        provenance={key: plain(value) for key, value in found.provenance.items()},
    )


def exactness(found: Studied) -> str:
    """How many paths were added up, and how well their sum rebuilds the network."""
    if math.isnan(found.reconstruction_error):
        return f"There are {found.paths:.3g} paths; the longest were left out."
    return (
        f"All {found.paths:.3g} attention paths were added up; with the biases they rebuild every "
        f"layer to {found.reconstruction_error:.0e} (relative)."
    )
