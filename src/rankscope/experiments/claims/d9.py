"""Claim D9: attention matrices chained along single paths tend to rank one with depth."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl
import torch
from torch import Tensor

from rankscope import tables
from rankscope.ask import by_name
from rankscope.core.metrics import dobrushin, matrix_norm
from rankscope.core.paths import FrozenAttention, Path, frozen_steps, sample_paths
from rankscope.core.theory import as_stated, law
from rankscope.experiments import depths, kit, models
from rankscope.experiments.depths import medians
from rankscope.numerals import power_of_ten
from rankscope.streams import stream

ENTRY = kit.claim(
    "D9",
    "Attention matrices chained along a single path tend to rank one with its depth.",
    source="Dong et al. 2021, section 2 and notebook",
    question="At which rate do chained attention matrices tend to rank one?",
    domain="BERT, ALBERT and XLNet",
    beyond="other models",
    options=("seed", "models", "texts", "length"),
    seconds=12,
    small=False,
    metrics=(
        kit.Metric(
            "log10_rank_one_residual",
            "Log10 distance from rank one",
            "log10 ‖P − P1‖ / ‖P‖",
            "exponent",
            "Falling = the chain tends to rank one",
            "The distance of chained attention matrices from the best matrix of rank one in the "
            "least-squares sense, in the composite norm, over their own norm.",
            "down",
        ),
    ),
)
_RESIDUAL, _PROMISED = "log10_rank_one_residual", "dobrushin"
CHARTS = (kit.Drawing("by_depth", "A panel for each model.", _RESIDUAL),)
PAPER: Final = {"samples": 8}
_SMALL: Final = -6.0  # decades: below it, what is left of a chain is first order in that


@dataclass(frozen=True)
class Config(models.ModelsConfig):
    """The models, what they read, and how many paths are followed, each through one text."""

    paths: int = 100  # the notebook's num_repeats


def measure(config: Config, on_step: kit.OnStep) -> kit.Measured[Mapping[str, str]]:
    """Chain the attention of sampled paths, one head per layer, and measure how it nears rank one.

    Exact at any depth: rows of attention add up to one, so that ``P(1mᵀ + R) = 1mᵀ + PR``, and what
    differs between the rows can be carried alone and scaled up in every layer. The families of the
    models are what a verdict needs beside.
    """
    measured, families = {}, {}
    for (name, case), on_case in kit.tracked(by_name(config.models).items(), on_step):
        subject = case.subject(config).to(torch.float64)
        families[name] = subject.about["family"]
        spec, patterns = subject.network.spec, _patterns(subject)
        paths = sample_paths(
            spec.layers,
            spec.heads,
            length=spec.layers,
            count=config.paths,
            generator=stream(config.seed, "paths"),
        )
        rows = []
        for number, (path, _) in enumerate(kit.tracked(paths, on_case)):
            text = slice(number % len(subject.x), number % len(subject.x) + 1)
            mask = None if subject.token_mask is None else subject.token_mask[text]
            rows += [
                (depth, number, metric, float(value))
                for depth, metric, value in chain([row[text] for row in patterns], path, mask)
            ]
        measured[name] = tables.from_rows(("layer", "sample", "metric", "value"), rows)
    return kit.Measured(tables.joined(measured, column="model"), facts=families)


def judge(_: Config, measured: kit.Measured[Mapping[str, str]]) -> kit.Answer:
    """On the paper's models and on others: whether the fall goes on with every layer.

    Ergodicity coefficients, the largest part of a difference between rows that a layer can leave,
    are only listed beside it: that the fall is at least as fast as their product is a theorem.
    """
    families, summary = measured.facts, tables.summary(measured.table)
    laws = {name: law(medians(summary, _RESIDUAL, model=name)) for name in families}
    promised = {name: _promise(measured.table.filter(model=name)) for name in families}
    slowest = max(laws, key=lambda name: laws[name].rate)
    rate, least = (power_of_ten(of, digits=3) for of in (laws[slowest].rate, promised[slowest]))
    return kit.Answer(
        [
            f"Chained matrices tend to rank one most slowly in {slowest}: a layer "
            f"leaves {rate} of the distance; its ergodicity coefficients guarantee {least} or less."
        ],
        **models.by_family(as_stated(laws, lambda _, law: law.collapses), families),
        key_figures={f"{name}, decades a layer": law.rate for name, law in laws.items()},
        listings=(
            kit.Listing(
                "Distance of the chained matrices from rank one, at full depth",
                ("model", *depths.LAW_COLUMNS, "promised"),
                tuple(
                    (
                        name,
                        *depths.law_entries(law),
                        f"layer × {power_of_ten(promised[name], digits=3)}",
                    )
                    for name, law in laws.items()
                ),
                "Medians over the paths; the pace is that of the second half of the "
                "layers. The guarantee is the product of the layers' ergodicity coefficients "
                "there.",
            ),
        ),
    )


def _promise(table: pl.DataFrame) -> float:
    """The mean change a layer, in decades, that coefficients promise over the second half."""
    later = pl.col("layer") > pl.col("layer").max() // 2
    mean = table.filter(later, metric=_PROMISED)["value"].log10().mean()
    assert isinstance(mean, float)
    return mean


def _patterns(subject: kit.Subject) -> list[Tensor]:
    """The attention of every layer, ``(batch, head, query, key)``."""
    network = subject.network
    x, token_mask = network.prepare(subject.x, subject.token_mask)
    with torch.no_grad():
        return [
            branch.part.pattern
            for step in frozen_steps(network, x, token_mask)
            for branch in step.branches
            if isinstance(branch.part, FrozenAttention)
        ]


def chain(
    patterns: Sequence[Tensor], path: Path, token_mask: Tensor | None
) -> Iterator[tuple[int, str, Tensor]]:
    """Depth, metric and a value for each sample, along one path, in decimal logarithms."""
    tokens = patterns[0].shape[-1]
    valid = torch.ones(len(patterns[0]), tokens, 1, dtype=torch.float64)
    if token_mask is not None:
        valid = token_mask.unsqueeze(-1).double()
    product = torch.eye(tokens, dtype=torch.float64) * valid * valid.mT
    rest, log10 = product, torch.zeros(len(valid), dtype=torch.float64)
    for depth, (pattern, head) in enumerate(zip(patterns, path.choices, strict=True), start=1):
        assert head is not None  # these paths skip no layer
        step = pattern[:, head]
        product = step @ product
        rest = step @ rest
        mean = (rest * valid).sum(1, keepdim=True) / valid.sum(1, keepdim=True)
        rest = (rest - mean) * valid
        largest = rest.abs().amax((1, 2))
        rest = rest / largest.clamp(min=1e-300)[:, None, None]
        log10 = log10 + largest.log10()
        size = matrix_norm(product * valid, "composite").log10()
        left = _first_order(rest, product * valid).log10() + log10 - size
        if bool((left > _SMALL).any()):  # the next order counts
            exact = _beside_rank_one(product * valid).log10() - size
            left = torch.where(left > _SMALL, exact, left)
        yield depth, _RESIDUAL, torch.where(log10.isneginf(), -math.inf, left)
        yield depth, _PROMISED, dobrushin(step.unsqueeze(1), token_mask=token_mask)[:, 0]


def _beside_rank_one(product: Tensor) -> Tensor:
    """The composite norm of what the best matrix of rank one leaves."""
    u, values, v = torch.linalg.svd(product)
    first = values[:, :1, None] * u[:, :, :1] * v[:, :1]
    return matrix_norm(product - first, "composite")


def _first_order(rest: Tensor, product: Tensor) -> Tensor:
    """The same of ``1mᵀ + δR`` over δ, as δ → 0: R beside its part along m, without a mean row."""
    direction = torch.nn.functional.normalize(product.sum(1, keepdim=True), dim=-1)
    return matrix_norm(rest - (rest @ direction.mT) @ direction, "composite")
