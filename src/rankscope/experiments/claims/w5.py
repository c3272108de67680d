"""Claim W5: the hidden states of pretrained models have full rank and yet are anisotropic.

Only the caption of figure 4 is at hand: pretrained transformers, absolute pairwise cosines, the
share of full rank, the smallest singular value. It names no cosine from which on tokens are called
anisotropic, so that they are compared with isotropic ones. Where no pretrained model is given, the
claim is not tried: a small model that was trained here is beyond it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import polars as pl
import torch
from torch import Tensor

from rankscope import tables
from rankscope.ask import Model, by_name
from rankscope.core.metrics import effective_rank, numerical_rank, singular_values
from rankscope.experiments import depths, kit, models
from rankscope.numerals import short
from rankscope.streams import stream

ENTRY = kit.claim(
    "W5",
    "The hidden states of pretrained models keep full rank at every layer, and yet are "
    "anisotropic: tokens have larger absolute cosines than isotropic ones.",
    source="Wu et al. 2024, figure 4 (by its caption)",
    question="Do trained models keep full rank at every layer, and are their tokens anisotropic?",
    domain="pretrained models",
    beyond="models trained here, the same models with random weights, and whether training makes "
    "tokens more anisotropic",
    options=("seed", "models", "texts", "length"),
    seconds=50,
    small=False,
    metrics=(
        kit.Metric(
            "absolute_cosine",
            "Mean absolute cosine",
            "|cos(x, x′)|",
            "linear",
            "1 = one line; isotropic tokens have about 0.8/sqrt(d)",
            "The mean of |cos(x, x′)| over all pairs of different tokens.",
            "up",
            includes=(0.0, 1.0),
        ),
        kit.Metric(
            "smallest_singular_value",
            "Smallest singular value",
            "min σ",
            "log",
            "0 = not of full rank",
            "The smallest of the min(n, d) singular values of X, n tokens of d features.",
            "down",
        ),
    ),
)
_RANK, _NUMERICAL, _EFFECTIVE = "rank_share", "numerical_rank", "effective_rank"
_COSINE, _SMALLEST = "absolute_cosine", "smallest_singular_value"
TRAINED, TWIN, NULL = "trained", "untrained twin", "isotropic null"
LARGEST = "largest possible"
"""What a rank is compared with: as many as there are tokens, or features if they are fewer."""
CHARTS = (
    kit.Drawing("by_model", "A panel for each model.", _COSINE),
    kit.Drawing(
        "by_depth",
        "A panel for each model: how many singular values are above the noise of the number "
        "format, beside as many as there are tokens, or features if they are fewer.",
        _NUMERICAL,
        roles={LARGEST: "bound"},
    ),
    kit.Drawing("by_model", "A panel for each model.", _SMALLEST),
    kit.Drawing(
        "by_depth",
        "How many directions the tokens use, and the largest possible rank.",
        _EFFECTIVE,
        roles={LARGEST: "bound"},
    ),
)


@dataclass(frozen=True)
class Config(models.ModelsConfig):
    """Models, and what they read."""

    models: tuple[Model, ...] = field(default_factory=models.trained_models)
    samples: int = 8
    length: int = 48


PAPER: Final = {"samples": 32, "length": 128}


class Seen(NamedTuple):
    """Of one model with one set of weights, after its layers."""

    rank: float  # the smallest share of full rank of any layer and sample
    lowest: int  # the layer of that
    smallest: float  # the smallest singular value of any layer and sample
    cosine: float  # the mean absolute cosine after the last layer, median of the samples
    times_null: float  # of the layers, the least that its lowest sample has of the highest null

    @property
    def full(self) -> bool:
        return self.rank == 1.0

    @property
    def anisotropic(self) -> bool:
        return self.times_null > 1.0


def measure(config: Config, on_step: kit.OnStep) -> kit.Measured[dict[str, str]]:
    """Ranks and cosines of every layer of every model, beside an untrained twin and a null.

    The null are tokens that point anywhere: as many standard normal ones, drawn anew for every
    layer. One model is in memory at a time. The facts are the models that were trained here, and
    what each has learnt.
    """
    parts, largest, trained_here = {}, {}, {}
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
        if case.trained_here and not case.at_init:
            trained_here[name] = subject.about["skill"]
    table = tables.stack([tables.joined(part, column="model") for part in (parts, largest)])
    return kit.Measured(table, facts=trained_here, about={"special tokens": "counted"})


def judge(_: Config, measured: kit.Measured[dict[str, str]]) -> kit.Answer:
    """Rank and anisotropy of pretrained models; beyond, those of others, and what training does.

    A model keeps full rank if the numerical rank of every sample is ``min(tokens, features)`` after
    every layer: singular values count from ``max(tokens, features)·ε`` of the largest, the noise of
    the number format. Its tokens are anisotropic if after every layer the mean absolute cosine of
    every sample is above that of every isotropic sample. Training makes them more so if the median
    of the samples after the last layer is above that of the untrained twin. The input is not
    judged: where a model adds no positions to it, repeated words are equal rows. Special tokens
    count.
    """
    seen = read(measured.table)
    trained, twins = (
        {name: layers for (name, variant), layers in seen.items() if variant == kind}
        for kind in (TRAINED, TWIN)
    )
    pretrained = {name: it for name, it in trained.items() if name not in measured.facts}
    more = {
        f"{name}: more anisotropic than its untrained twin": trained[name].cosine > twin.cosine
        for name, twin in twins.items()
        if name in trained
    }
    here = checks({name: it for name, it in trained.items() if name in measured.facts})
    with_random = {f"random weights, {name}": holds for name, holds in checks(twins).items()}
    beyond = here | with_random | more
    against = [name for name, holds in beyond.items() if not holds]
    pass_one = "no pretrained model was named; pass one with --pretrained"
    tested = f"for {', '.join(pretrained)}"
    return kit.Answer(
        (
            *([] if pretrained else [f"{pass_one.capitalize()}."]),
            *_sentences(seen),
            *(f"{name}: {skill}." for name, skill in measured.facts.items()),
        ),
        stated=checks(pretrained),
        on={"holds": tested, "fails": tested, "not tried": pass_one},
        beyond=beyond or None,
        on_beyond={"depends": f"supported except for: {'; '.join(against)}"},
        key_figures={
            f"{name}, absolute cosine after the last layer, {variant}": layers.cosine
            for (name, variant), layers in seen.items()
        },
        listings=(_listing(seen),),
        shown=(_COSINE, _RANK, _SMALLEST),
    )


def checks(seen: Mapping[str, Seen]) -> dict[str, bool]:
    """Two of every model."""
    return {f"{name}: full rank": layers.full for name, layers in seen.items()} | {
        f"{name}: anisotropic": layers.anisotropic for name, layers in seen.items()
    }


def rank_share(x: Tensor, *, token_mask: Tensor | None = None) -> Tensor:
    """The numerical rank as a part of ``min(tokens, features)``, the largest there can be."""
    return _rank(x, token_mask=token_mask) / _largest_ranks(x, token_mask)


def absolute_cosine(x: Tensor, *, token_mask: Tensor | None = None) -> Tensor:
    """The mean of ``|cos|`` over all pairs of different tokens; 1 for a single token.

    >>> absolute_cosine(torch.tensor([[1.0, 0.0], [-2.0, 0.0], [0.0, 3.0]]))
    tensor(0.3333)
    """
    units = torch.nn.functional.normalize(x, dim=-1)
    if token_mask is not None:
        units = units * token_mask.unsqueeze(-1)
    cosines = (units @ units.mT).abs()
    pairs = cosines.sum((-2, -1)) - cosines.diagonal(dim1=-2, dim2=-1).sum(-1)
    tokens = _tokens(x, token_mask).to(x.dtype)
    mean: Tensor = torch.where(tokens > 1, pairs / (tokens * (tokens - 1)).clamp(min=1), 1.0)
    return mean


def smallest_singular_value(x: Tensor, *, token_mask: Tensor | None = None) -> Tensor:
    """The last of the ``min(tokens, features)`` singular values; padding adds none."""
    values = singular_values(x, token_mask=token_mask)
    last = _largest_ranks(x, token_mask).clamp(min=1) - 1
    return values.gather(-1, last.expand(values.shape[:-1]).unsqueeze(-1)).squeeze(-1)


def _tokens(x: Tensor, token_mask: Tensor | None) -> Tensor:
    if token_mask is None:
        return torch.tensor(x.shape[-2], device=x.device)
    return token_mask.sum(-1)


def _largest_ranks(x: Tensor, token_mask: Tensor | None) -> Tensor:
    return _tokens(x, token_mask).clamp(max=x.shape[-1])


def _rank(x: Tensor, *, token_mask: Tensor | None = None) -> Tensor:
    return numerical_rank(x, token_mask=token_mask).to(x.dtype)


_MEASURES: Final = {
    _RANK: rank_share,
    _NUMERICAL: _rank,
    _COSINE: absolute_cosine,
    _SMALLEST: smallest_singular_value,
    _EFFECTIVE: effective_rank,
}


def _largest(subject: kit.Subject, layers: Sequence[int]) -> pl.DataFrame:
    """The rank that no hidden state of these numbers of tokens and features can exceed."""
    samples = subject.x.shape[0]
    ranks = _largest_ranks(subject.x, subject.token_mask).expand(samples).tolist()
    rows = [
        (LARGEST, layer, sample, metric, float(rank))
        for layer in layers
        for metric in (_NUMERICAL, _EFFECTIVE)
        for sample, rank in enumerate(ranks)
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


def read(table: pl.DataFrame) -> dict[tuple[str, str], Seen]:
    """By model and variant, what its layers after the input show, beside the null."""
    after = table.filter(pl.col("layer") > 0, pl.col("variant") != LARGEST)
    highest = (
        after.filter(variant=NULL, metric=_COSINE)
        .group_by("model", "layer")
        .agg(pl.max("value").alias("null"))
    )
    keys = after.select("model", "variant").unique(maintain_order=True).rows()
    seen = {}
    for model, variant in keys:
        rows = after.filter(model=model, variant=variant)
        rank, lowest = (
            rows.filter(metric=_RANK).sort("value", "layer").select("value", "layer").row(0)
        )
        cosines = rows.filter(metric=_COSINE).join(highest, on=("model", "layer"))
        times = (cosines["value"] / cosines["null"]).to_list()
        medians = depths.medians(tables.summary(rows), _COSINE)
        smallest = rows.filter(metric=_SMALLEST)["value"].to_list()
        seen[model, variant] = Seen(
            rank, lowest, min(smallest), medians[-1], min(times, default=math.nan)
        )
    return seen


def _sentences(seen: Mapping[tuple[str, str], Seen]) -> Iterator[str]:
    """How many keep full rank at every layer, and how many are anisotropic there, of each kind."""
    for kind in dict.fromkeys(variant for _, variant in seen if variant != NULL):
        of_kind = [layers for (_, variant), layers in seen.items() if variant == kind]
        full = sum(layers.full for layers in of_kind)
        anisotropic = sum(layers.anisotropic for layers in of_kind)
        yield (
            f"{kind.capitalize()}: full rank at every layer in {full} of {len(of_kind)}, tokens "
            f"more alike in direction than isotropic ones at every layer in {anisotropic}."
        )


def _listing(seen: Mapping[tuple[str, str], Seen]) -> kit.Listing:
    rows = []
    for (name, variant), layers in seen.items():
        rank = "full" if layers.full else f"{layers.rank:.0%} (layer {layers.lowest})"
        smallest = short(layers.smallest, digits=2)
        rows.append((name, variant, rank, smallest, round(layers.cosine, 3)))
    return kit.Listing(
        "Ranks and absolute cosines after the input",
        ("model", "weights", "lowest rank", "min σ", "|cos|"),
        tuple(rows),
        "The lowest numerical rank of any layer and sample, relative to the largest possible; "
        "the smallest singular value of any; the mean absolute cosine after the last layer, as the "
        "median of the samples.",
    )
