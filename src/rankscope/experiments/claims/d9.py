"""Claim D9: attention matrices chained along single paths tend to rank one with depth."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl
import torch
from torch import Tensor

from rankscope import tables
from rankscope.core.metrics import dobrushin, matrix_norm
from rankscope.core.paths import FrozenAttention, Path, frozen_steps, sample_paths
from rankscope.core.theory import Law, as_stated, law
from rankscope.experiments import depths, kit, models
from rankscope.experiments.laws import medians
from rankscope.numerals import power_of_ten
from rankscope.streams import stream

ENTRY = kit.claim(
    "D9",
    "Attention matrices chained along a single path tend to rank one with its depth.",
    source="Dong et al. 2021, section 2 and notebook",
    domain="BERT, ALBERT and XLNet",
    options=("seed", "models", "texts", "length"),
    seconds=5,
    small=False,
)
_RESIDUAL, _PROMISED = depths.RELATIVE, "dobrushin"
_SLACK: Final = 0.05
"""Decades a layer by which a fall may be slower than promised: coefficients are about sums of
absolute differences, the residual about another norm."""


@dataclass(frozen=True)
class Config(models.ModelsConfig):
    """The models, what they read, and how many paths are followed through each."""

    paths: int = 20
    """As many as the paper averages over."""


PAPER: Final = {"samples": 8}


def run(config: Config, on_step: kit.OnStep) -> kit.Result:
    """Chain the attention of sampled paths, one head per layer, and measure how it nears rank one.

    Exact at any depth: rows of attention add up to one, so that ``P(1mᵀ + R) = 1mᵀ + PR``, and what
    differs between the rows can be carried alone and scaled up in every layer.
    """
    measured, families = {}, {}
    for (name, case), on_case in kit.tracked(models.by_name(config.models).items(), on_step):
        subject = case.subject(config).to(torch.float64)
        families[name] = subject.about["family"]
        measured[name] = _measure(config, subject, on_case)
    table = tables.joined(measured, column="model")
    laws = {name: law(medians(tables.summary(each), _RESIDUAL)) for name, each in measured.items()}
    promised = {name: _promise(each) for name, each in measured.items()}
    judgement, beyond = judge(laws, promised, families)
    return ENTRY.result(
        config,
        question="At which rate do the rows of chained attention become alike?",
        sentences=_sentences(laws, promised),
        table=table,
        listings=(_listing(laws, promised),),
        judgement=judgement,
        beyond=beyond,
        key_figures={f"{name}, decades a layer": found.rate for name, found in laws.items()},
        drawings=(kit.Drawing("by_depth", "A panel for each model.", _RESIDUAL),),
        shown=(_RESIDUAL,),
    )


def _sentences(laws: Mapping[str, Law], promised: Mapping[str, float]) -> Iterator[str]:
    slowest = max(laws, key=lambda name: laws[name].rate)
    yield (
        f"The rows of the chained matrices become alike most slowly in {slowest}: a layer leaves "
        f"{power_of_ten(laws[slowest].rate, digits=3)} of their relative residual, where its "
        f"ergodicity coefficients promise {power_of_ten(promised[slowest], digits=3)} or less."
    )


def _listing(laws: Mapping[str, Law], promised: Mapping[str, float]) -> kit.Listing:
    rows = (
        (name, *depths.law_entries(found), f"layer × {power_of_ten(promised[name], digits=3)}")
        for name, found in laws.items()
    )
    return kit.Listing(
        "Relative residual of the chained matrices, at full depth",
        ("model", *depths.LAW_COLUMNS, "promised"),
        tuple(rows),
        "Medians over paths and samples; the pace is that of the second half of the layers. What "
        "is promised is the product of the layers' ergodicity coefficients there.",
    )


def judge(
    laws: Mapping[str, Law], promised: Mapping[str, float], families: Mapping[str, str]
) -> tuple[kit.Judgement, kit.Judgement | None]:
    """On the paper's models and on others: whether the fall goes on, as fast as is promised.

    An ergodicity coefficient is the largest part of a difference between rows that a layer can
    leave, so that a product falls by the coefficients' product at least.
    """
    borne_out = as_stated(
        laws, lambda name, found: found.collapses and found.rate <= promised[name] + _SLACK
    )
    return models.judged_by_family(ENTRY.domain, borne_out, families)


def _measure(config: Config, subject: kit.Subject, on_step: kit.OnStep) -> pl.DataFrame:
    """The products along sampled paths of one model, at every depth."""
    patterns = _patterns(subject)
    spec = subject.network.spec
    paths = sample_paths(
        spec.layers,
        spec.heads,
        length=spec.layers,
        count=config.paths,
        generator=stream(config.seed, "paths"),
    )
    rows = [
        (depth, number * len(subject.x) + sample, metric, value)
        for number, (path, _) in enumerate(kit.tracked(paths, on_step))
        for depth, metric, values in chain(patterns, path, subject.token_mask)
        for sample, value in enumerate(values.tolist())
    ]
    return tables.from_rows(("layer", "sample", "metric", "value"), rows)


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
        rest = _centered(step @ rest, valid)
        largest = rest.abs().amax((1, 2))
        rest = rest / largest.clamp(min=1e-300)[:, None, None]
        log10 = log10 + largest.log10()
        whole = matrix_norm(product * valid, "composite")
        size = matrix_norm(rest, "composite").log10() - whole.log10()
        yield depth, _RESIDUAL, torch.where(log10.isneginf(), -math.inf, log10 + size)
        yield depth, _PROMISED, dobrushin(step.unsqueeze(1), token_mask=token_mask)[:, 0]


def _centered(matrix: Tensor, valid: Tensor) -> Tensor:
    mean = (matrix * valid).sum(1, keepdim=True) / valid.sum(1, keepdim=True)
    return (matrix - mean) * valid


def _promise(table: pl.DataFrame) -> float:
    """The mean change a layer, in decades, that coefficients promise over the second half."""
    depth = table["layer"].max()
    assert isinstance(depth, int)
    later = table.filter((pl.col("metric") == _PROMISED) & (pl.col("layer") > depth // 2))
    found = later["value"].log10().mean()
    assert isinstance(found, float)
    return found
