"""Claim W5: the hidden states of real models have full rank and yet are anisotropic."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import polars as pl
import torch
from torch import Tensor

from rankscope import tables
from rankscope.ask import Model, by_name
from rankscope.core.metrics import effective_rank, mean_cosine, numerical_rank
from rankscope.core.theory import thresholds
from rankscope.experiments import depths, kit, models
from rankscope.numerals import short
from rankscope.streams import stream

ENTRY = kit.claim(
    "W5",
    "The hidden states of real models keep full rank at every layer, and yet point into a narrow "
    "cone: full rank, high mean cosine.",
    source="Wu et al. 2024, experiments",
    question="Do trained models keep full rank at every layer, and point into a narrow cone?",
    domain="trained models",
    beyond="the same models with random weights",
    options=("seed", "models", "texts", "length"),
    seconds=1,
    small=False,
)
_RANK, _COSINE, _EFFECTIVE = "rank_share", "mean_cosine", "effective_rank"
_NUMERICAL = "numerical_rank"
TRAINED, TWIN, NULL = "trained", "untrained twin", "isotropic null"
LARGEST = "largest possible"
"""What a rank is held against: as many as there are tokens, or features if they are fewer."""
CHARTS = (
    kit.Drawing(
        "by_depth",
        "A panel for each model: how many singular values are above the noise of the number "
        "format, beside as many as there are tokens, or features if they are fewer.",
        _NUMERICAL,
        roles={LARGEST: "bound"},
    ),
    kit.Drawing(
        "by_depth",
        "How many directions the tokens make use of, beside the largest rank there can be.",
        _EFFECTIVE,
        roles={LARGEST: "bound"},
    ),
    kit.Drawing("by_model", "A panel for each model.", _COSINE),
)


@dataclass(frozen=True)
class Config(models.ModelsConfig):
    """Models, what they read, and the mean cosine from which tokens count as pointing the same way.

    One half is what unit tokens have that share as much with all others as they have for
    themselves; independent directions have 0.
    """

    models: tuple[Model, ...] = field(default_factory=models.trained_models)
    samples: int = 8
    length: int = 48
    cone: float = thresholds.CONE_COSINE
    other_cones: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 0.8, 0.9)
    """Thresholds at which the verdict is asked for once more."""


PAPER: Final = {"samples": 32, "length": 128}


class Seen(NamedTuple):
    """Of one model: the smallest part of full rank, and the largest mean cosine, and where."""

    rank: float
    lowest: int
    cosine: float
    highest: int
    last_cosine: float
    effective: tuple[float, float]


def measure(config: Config, on_step: kit.OnStep) -> kit.Measured[dict[str, str]]:
    """Rank and mean cosine of every layer of every model, beside an untrained twin and a null.

    The null are tokens that point anywhere: as many standard normal ones, drawn anew for every
    layer. One model is in memory at a time. The facts are what models have learnt, by name.
    """
    parts, largest, skills = {}, {}, {}
    for (name, case), on_part in kit.tracked(by_name(config.models).items(), on_step):
        on_load, on_model, on_twin = kit.parts(on_part, 2, 1, 1)
        subject = case.subject(config, on_load)
        traced = subject.trace(_MEASURES, on_model).table
        layers = traced["layer"].unique().to_list()
        variants = {TWIN if case.at_init else TRAINED: traced}
        if not case.at_init:
            variants[TWIN] = case.twin().subject(config).trace(_MEASURES, on_twin).table
        variants[NULL] = _isotropic(config, subject, layers)
        parts[name] = tables.joined(variants)
        largest[name] = _largest(subject, layers)
        skills[name] = subject.about.get("skill", "")
    table = tables.stack([tables.joined(each, column="model") for each in (parts, largest)])
    return kit.Measured(table, facts=skills, about={"special tokens": "counted"})


def judge(config: Config, measured: kit.Measured[dict[str, str]]) -> kit.Answer:
    """On trained models, and on their untrained twins.

    A model bears the statement out if the numerical rank of every sample is
    ``min(tokens, features)`` after every layer, and the mean cosine, as the median over the
    samples, reaches ``config.cone`` after some layer. A singular value counts if it is above the
    noise of the number format, ``max(tokens, features)·ε`` of the largest. The input is not judged:
    where a model adds no positions to it, repeated words are equal rows. Special tokens count.
    """
    seen = _all_seen(measured.table)
    trained, twins = (
        {name: layers for (name, variant), layers in seen.items() if variant == kind}
        for kind in (TRAINED, TWIN)
    )
    tried = f"tried on {', '.join(trained)}"
    pass_one = "no trained model was named; pass one with --pretrained"
    return kit.Answer(
        (
            _sensitivity(config, trained) if trained else f"{pass_one.capitalize()}.",
            *_in_words(seen, config.cone),
            *(f"{name}: {skill}." for name, skill in measured.facts.items() if skill),
        ),
        stated=_borne_out(trained, config.cone),
        on={"holds": tried, "fails": tried, "not tried": pass_one},
        beyond=_borne_out(twins, config.cone) or None,
        key_figures={
            f"{name}, largest mean cosine, {variant}": layers.cosine
            for (name, variant), layers in seen.items()
            if variant != NULL
        },
        listings=(_listing(seen),),
        shown=(_COSINE, _RANK),
    )


def rank_share(x: Tensor, *, token_mask: Tensor | None = None) -> Tensor:
    """The numerical rank as a part of ``min(tokens, features)``, the largest there can be."""
    rank = _rank(x, token_mask=token_mask)
    if token_mask is None:
        return rank / min(x.shape[-2:])
    return rank / token_mask.sum(-1).clamp(max=x.shape[-1])


def _rank(x: Tensor, *, token_mask: Tensor | None = None) -> Tensor:
    return numerical_rank(x, token_mask=token_mask).to(x.dtype)


_MEASURES: Final = {
    _RANK: rank_share,
    _NUMERICAL: _rank,
    _COSINE: mean_cosine,
    _EFFECTIVE: effective_rank,
}


def _borne_out(seen: Mapping[str, Seen], cone: float) -> dict[str, bool]:
    return {name: layers.rank == 1.0 and layers.cosine >= cone for name, layers in seen.items()}


def _sensitivity(config: Config, trained: Mapping[str, Seen]) -> str:
    """How the verdict changes with the mean cosine that is called a cone."""
    asked = sorted({*config.other_cones, config.cone})
    verdicts = {cone: kit.judged("", _borne_out(trained, cone)).verdict for cone in asked}
    same = [cone for cone in asked if verdicts[cone] == verdicts[config.cone]]
    others = ", ".join(
        f"{verdict} from {cone:g}" for cone, verdict in verdicts.items() if cone not in same
    )
    return (
        f"With a cone from a mean cosine of {config.cone:g} the verdict is "
        f"{verdicts[config.cone]!r}, as it is from {same[0]:g} to {same[-1]:g}"
        + (f"; otherwise: {others}." if others else ".")
    )


def _largest(subject: kit.Subject, layers: Sequence[int]) -> pl.DataFrame:
    """The rank that no hidden state of so many tokens and features can exceed."""
    samples, tokens, features = subject.x.shape
    real = [tokens] * samples
    if subject.token_mask is not None:
        real = subject.token_mask.expand(samples, tokens).sum(-1).tolist()
    rows = [
        (LARGEST, layer, sample, metric, float(min(count, features)))
        for layer in layers
        for metric in (_NUMERICAL, _EFFECTIVE)
        for sample, count in enumerate(real)
    ]
    return tables.from_rows(("variant", "layer", "sample", "metric", "value"), rows)


def _isotropic(config: Config, subject: kit.Subject, layers: Sequence[int]) -> pl.DataFrame:
    """Standard normal tokens in the place of the hidden states."""
    rows = []
    for layer in layers:
        generator = stream(config.seed, "isotropic tokens", str(layer))
        x = torch.randn(subject.x.shape, generator=generator, dtype=torch.float64)
        for metric, measure in _MEASURES.items():
            values = measure(x.to(subject.x.dtype), token_mask=subject.token_mask)
            rows += [(layer, i, metric, value) for i, value in enumerate(values.tolist())]
    return tables.from_rows(("layer", "sample", "metric", "value"), rows)


def _all_seen(table: pl.DataFrame) -> dict[tuple[str, str], Seen]:
    """By model and variant, what its layers after the input show."""
    after = table.filter(pl.col("layer") > 0, pl.col("variant") != LARGEST)
    keys = after.select("model", "variant").unique(maintain_order=True).rows()
    return {
        (model, variant): _seen(after.filter(model=model, variant=variant))
        for model, variant in keys
    }


def _seen(rows: pl.DataFrame) -> Seen:
    least, lowest = rows.filter(metric=_RANK).sort("value", "layer").select("value", "layer").row(0)
    summary = tables.summary(rows)
    cosines, effective = (depths.medians(summary, metric) for metric in (_COSINE, _EFFECTIVE))
    highest = cosines.index(max(cosines)) + 1
    return Seen(least, lowest, max(cosines), highest, cosines[-1], (effective[0], effective[-1]))


def _in_words(seen: Mapping[tuple[str, str], Seen], cone: float) -> Iterator[str]:
    """How many keep full rank at every layer, and how many point into a cone, of each kind."""
    for kind in dict.fromkeys(variant for _, variant in seen):
        some = [layers for (_, variant), layers in seen.items() if variant == kind]
        full = sum(layers.rank == 1 for layers in some)
        narrow = sum(layers.cosine >= cone for layers in some)
        yield (
            f"{kind.capitalize()}: full rank at every layer in {full} of {len(some)}, a mean "
            f"cosine of {cone:g} or more at some layer in {narrow}."
        )


def _listing(seen: Mapping[tuple[str, str], Seen]) -> kit.Listing:
    columns = ("model", "weights", "lowest rank", "effective rank", "mean cosine", "at most")
    rows = []
    for (name, variant), layers in seen.items():
        rank = "full" if layers.rank == 1 else f"{layers.rank:.0%} (layer {layers.lowest})"
        first, last = (short(value) for value in layers.effective)
        highest = f"{layers.cosine:.2f} (layer {layers.highest})"
        rows.append(
            (name, variant, rank, f"{first} → {last}", round(layers.last_cosine, 3), highest)
        )
    return kit.Listing(
        "Ranks and cosines after the input",
        columns,
        tuple(rows),
        "The lowest numerical rank of any layer and sample, as a part of the largest there can be; "
        "the effective rank after the first and the last layer; the mean cosine after the last "
        "layer, and the largest of any.",
    )
