"""Claim W5: the hidden states of real models have full rank and yet are anisotropic."""

from dataclasses import dataclass

import polars as pl
from torch import Tensor

from rankscope import tables
from rankscope.experiments import kit, models
from rankscope.experiments.fates import ANISOTROPIC
from rankscope.experiments.laws import medians
from rankscope.metrics import effective_rank, mean_cosine, numerical_rank
from rankscope.numerals import short

ENTRY = kit.entry("W5")
_RANK, _COSINE, _EFFECTIVE = "rank_share", "mean_cosine", "effective_rank"


@dataclass(frozen=True)
class Config(models.ModelsConfig):
    """Models, what they read, and the mean cosine from which tokens count as pointing the same way.

    One half is what unit tokens have that share as much with all others as they have for
    themselves; independent directions have 0.
    """

    samples: int = 8
    length: int = 64
    batch_size: int = 8
    cone: float = ANISOTROPIC


def run(config: Config, on_step: kit.OnStep) -> kit.Result:
    """Rank and mean cosine of every layer of every model; one model is in memory at a time."""
    table = tables.joined(
        {
            name: _measure(config, case, on_part)
            for (name, case), on_part in kit.tracked(models.by_name(config.models).items(), on_step)
        },
        column="model",
    )
    judgement, sentences = judge(config, table)
    return ENTRY.result(
        config,
        question="Do trained models keep full rank at every layer, and point into a narrow cone?",
        sentences=sentences,
        table=table,
        about={"special tokens": "counted"},
        judgement=judgement,
        drawings=(
            kit.Drawing("by_model", "A panel for each model.", _COSINE),
            kit.Drawing("by_model", "The rank, as a part of the largest there can be.", _RANK),
        ),
    )


def judge(config: Config, table: pl.DataFrame) -> tuple[kit.Judgement, tuple[str, ...]]:
    """The verdict on the trained models, and a sentence for every model.

    The statement is about trained models; others are shown as a contrast, and alone they allow no
    verdict. A model bears it out if the numerical rank of every sample is ``min(tokens, features)``
    after every layer, and the mean cosine, as the median over the samples, reaches ``config.cone``
    after some layer. A singular value counts if it is above the noise of the number format,
    ``max(tokens, features)·ε`` of the largest. The input is not judged: where a model adds no
    positions to it, repeated words are equal rows. Special tokens count.
    """
    trained, others = {}, []
    for name, case in models.by_name(config.models).items():
        rows = table.filter((pl.col("model") == name) & (pl.col("layer") > 0))
        borne_out, sentence = _judge_model(config, name, rows)
        if case.trained:
            trained[sentence] = borne_out
        else:
            others.append(f"Not trained: {sentence}")
    if not trained:
        none = "No trained model was tried, and the statement is about those: there is no verdict."
        return kit.judged(ENTRY.domain, {}, "pass a trained model with --pretrained"), (
            none,
            *others,
        )
    count = f"{sum(trained.values())} of {len(trained)} trained models have full rank and a cone."
    return kit.judged(ENTRY.domain, trained), (count, *trained, *others)


def rank_share(x: Tensor, *, token_mask: Tensor | None = None) -> Tensor:
    """The numerical rank as a part of ``min(tokens, features)``, the largest there can be."""
    tokens = x.shape[-2] if token_mask is None else token_mask.sum(-1)
    rank = numerical_rank(x, token_mask=token_mask).to(x.dtype)
    if isinstance(tokens, int):
        return rank / min(tokens, x.shape[-1])
    return rank / tokens.clamp(max=x.shape[-1])


def _measure(config: Config, case: models.Case, on_step: kit.OnStep) -> pl.DataFrame:
    metrics = {_RANK: rank_share, _COSINE: mean_cosine, _EFFECTIVE: effective_rank}
    subject = config.subject(case, batch_size=config.batch_size)
    return subject.trace(metrics, on_step).table


def _judge_model(config: Config, name: str, rows: pl.DataFrame) -> tuple[bool, str]:
    """Whether the rank is full everywhere and there is a cone somewhere, and both in words."""
    ranks = rows.filter(metric=_RANK)
    least, lowest = ranks.sort("value", "layer").select("value", "layer").row(0)
    summary = tables.summary(rows)
    cosines, effective = (medians(summary, metric) for metric in (_COSINE, _EFFECTIVE))
    at = cosines.index(max(cosines)) + 1
    full, cone = least == 1.0, max(cosines) >= config.cone
    rank = "full rank at every layer"
    if not full:
        rank = f"rank down to {least:.0%} of what can be (layer {lowest})"
    return (
        full and cone,
        f"{name}: {rank}; effective rank {short(effective[0])} after the first and "
        f"{short(effective[-1])} after the last of {len(cosines)} layers; mean cosine "
        f"{cosines[-1]:.2f} after the last, at most {max(cosines):.2f} (layer {at}).",
    )
