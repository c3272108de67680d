"""Claim W5: the hidden states of real models have full rank and yet are anisotropic."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

import polars as pl
from torch import Tensor

from rankscope import tables
from rankscope.experiments.claims import Claim, overall
from rankscope.experiments.d5 import Case
from rankscope.experiments.fates import ANISOTROPIC
from rankscope.families import Loaded
from rankscope.metrics import effective_rank, mean_cosine, numerical_rank
from rankscope.text import passages
from rankscope.tracing import Provenance, trace_in_batches

STATEMENT = (
    "The hidden states of real models keep full rank at every layer, and yet point into a narrow "
    "cone: full rank, high mean cosine."
)
SAMPLES, TOKENS = 8, 64
_BATCH = 8
_RANK, _COSINE, _EFFECTIVE = "rank_share", "mean_cosine", "effective_rank"


def w5(
    cases: Sequence[Case],
    *,
    texts: Sequence[str] | None = None,
    length: int = TOKENS,
    on_batch: Callable[[], None] | None = None,
) -> Claim:
    """Rank and mean cosine of every layer of every model; one model is in memory at a time.

    Judged are pretrained models, which a case's name tells (``pretrained``); others are shown as a
    contrast. Where there is none but others, the verdict is ``depends``: on what was not tried.

    A model bears the claim out if the numerical rank of every sample is ``min(tokens, features)``
    after every layer, and the mean cosine, as the median over the samples, reaches one half after
    some layer. A singular value counts if it is above the noise of the number format,
    ``max(tokens, features)·ε`` of the largest. One half is what unit tokens have that share as much
    with all others as they have for themselves; independent directions have 0. The input is not
    judged: where a model adds no positions to it, repeated words are equal rows. Special tokens
    count.
    """
    texts = passages()[:SAMPLES] if texts is None else texts
    found = {case.name: _measured(case.model(), texts, length, on_batch) for case in cases}
    table = tables.joined(found, column="model")
    summary = tables.summary(table)
    judged = {name: _judged(summary, part, name) for name, part in found.items()}
    real = {name: full and cone for name, (full, cone, _) in judged.items() if pretrained(name)}
    return Claim(
        "W5",
        STATEMENT,
        "Wu, Ajorlou, Wang, Jegelka, Jadbabaie 2024, experiments",
        overall(real) if real else "depends",
        (
            *_tried(real),
            *(reason for name, (*_, reason) in judged.items() if name in real),
            *(f"Not trained: {told}" for name, (*_, told) in judged.items() if name not in real),
        ),
        table,
        summary,
        asdict(Provenance(", ".join(found), spec="as each model is configured"))
        | {"samples": f"{len(texts)} texts of up to {length} tokens", "special tokens": "counted"},
        metric=_COSINE,
    )


def pretrained(name: str) -> bool:
    """Whether a case's name says that its model is trained: ``BERT (pretrained)``."""
    return "(pretrained)" in name


def _tried(real: Mapping[str, bool]) -> tuple[str, ...]:
    """How many models the verdict rests on."""
    if not real:
        return ("No trained model was tried; the statement is about those.",)
    return (f"{sum(real.values())} of {len(real)} trained models have full rank and a cone.",)


def passes(cases: Sequence[Case], texts: int) -> int:
    """How often ``on_batch`` is called."""
    return len(cases) * -(-texts // _BATCH)


def rank_share(x: Tensor, *, token_mask: Tensor | None = None) -> Tensor:
    """The numerical rank as a part of ``min(tokens, features)``, the largest there can be."""
    tokens = x.shape[-2] if token_mask is None else token_mask.sum(-1)
    rank = numerical_rank(x, token_mask=token_mask).to(x.dtype)
    if isinstance(tokens, int):
        return rank / min(tokens, x.shape[-1])
    return rank / tokens.clamp(max=x.shape[-1])


def _measured(
    loaded: Loaded,
    texts: Sequence[str],
    length: int,
    on_batch: Callable[[], None] | None,
) -> pl.DataFrame:
    if hasattr(loaded.body.config, "image_size"):
        x, token_mask, _ = loaded.inputs(loaded.noise_images(len(texts)))
    else:
        x, token_mask, _ = loaded.inputs(texts, length=length)
    return trace_in_batches(
        loaded.network,
        x,
        metrics={_RANK: rank_share, _COSINE: mean_cosine, _EFFECTIVE: effective_rank},
        token_mask=token_mask,
        batch_size=_BATCH,
        on_batch=on_batch,
    ).table


def _judged(summary: pl.DataFrame, part: pl.DataFrame, name: str) -> tuple[bool, bool, str]:
    """Whether the rank is full everywhere, whether there is a cone somewhere, and both in words."""
    inside = part.filter(pl.col("layer") > 0)
    ranks = inside.filter(pl.col("metric") == _RANK)
    least, lowest = ranks.sort("value", "layer").select("value", "layer").row(0)
    full = least == 1.0
    rows = summary.filter((pl.col("model") == name) & (pl.col("layer") > 0)).sort("layer")
    cosines = rows.filter(pl.col("metric") == _COSINE)["median"].to_list()
    effective = rows.filter(pl.col("metric") == _EFFECTIVE)["median"].to_list()
    cone = max(cosines) >= ANISOTROPIC
    at = cosines.index(max(cosines)) + 1
    rank = "full rank at every layer"
    if not full:
        rank = f"rank down to {least:.0%} of what can be (layer {lowest})"
    return (
        full,
        cone,
        f"{name}: {rank}; effective rank {effective[0]:.3g} after the first and "
        f"{effective[-1]:.3g} after the last of {len(cosines)} layers; mean cosine "
        f"{cosines[-1]:.2f} after the last, at most {max(cosines):.2f} (layer {at}).",
    )
