"""Claim P6: one singular value of attention stands out, and rank is lost as contexts grow."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Annotated, cast

import polars as pl
import torch
from torch import Tensor

from rankscope import tables
from rankscope.arguments import Range, checked
from rankscope.core.metrics import deviations
from rankscope.core.network import Block, Network, Spec
from rankscope.core.prediction import predict
from rankscope.core.theory import power_exponent
from rankscope.errors import InputError
from rankscope.experiments import kit
from rankscope.experiments.claims._overlapping import (
    first_pattern,
    overlap_kernel,
    overlapping_tokens,
)
from rankscope.experiments.kit import Mean
from rankscope.numerals import sentence_case, short

ENTRY = kit.claim(
    "P6",
    "At initialisation attention has one singular value near 1 and all others of order 1/√T, so "
    "that the Gram matrix of one layer's output tends to stable rank one as the context T grows, "
    "unless the outlier is removed.",
    source="Nait Saada et al. 2025, rank collapse in width",
    question="Does one layer lose rank as the context grows, because of one singular value?",
    domain="one head as wide as the context, orthogonal tokens",
    beyond="the output itself, tokens that become alike, heads of fixed width, and tokens with an "
    "overlap",
    seconds=10,
    metrics=(
        kit.Metric(
            "first_singular_value",
            "First singular value",
            "σ1(P)",
            "linear",
            "1 = what all tokens share keeps its size",
            "σ₁(P), the largest singular value of the attention matrix.",
            includes=(1.0,),
        ),
        kit.Metric(
            "gram_stable_rank",
            "Stable rank of the Gram matrix",
            "Σ(σ²)² / max (σ²)²",
            "linear",
            "1 = one direction dominates",
            "Σσ⁴ / σ₁⁴ of the singular values of X: the stable rank of XXᵀ.",
            "down",
            includes=(0.0,),
        ),
    ),
)
PAPER = {"tokens": (64, 128, 256, 512, 1024), "networks": 8}
_FIRST, _SECOND, _GRAM, _RANK, _DISPERSION = (
    "first_singular_value",
    "second_singular_value",
    "gram_stable_rank",
    "stable_rank",
    "relative_dispersion",
)
NETWORKS, CENTRED, PREDICTED = "networks", "networks without the outlier", "predicted"
_FEWEST = 3  # lengths from which an exponent is read off, the longest ones
_ROOT = (-0.6, -0.4)  # exponents of T that count as a falling square root
_OUTPUT = "the output tends to stable rank one"
_FALLS, _GROWS = -0.4, 0.5
# How far a singular value, and a stable rank, may be from 1 at the longest context.
_NEAR_ONE, _ONE = 0.1, 0.05
CHARTS = tuple(
    kit.Drawing("by_setting", caption, metric)
    for metric, caption in {
        _RANK: "Stable rank of a layer's output.",
        _SECOND: "The second singular value of attention.",
        _DISPERSION: "Relative dispersion of a layer's output.",
    }.items()
)


@checked
@dataclass(frozen=True)
class HeadSetting:
    """What is varied beside the length: the tokens' overlap, and the width of a head (0: T)."""

    name: str
    overlap: float = 0.0
    head_width: int = 0


@dataclass(frozen=True)
class Config(kit.Config):
    """One layer of attention with orthogonal values, logits of deviation 1, growing contexts.

    With independent logits of deviation s, weights are ``1/T + N`` with entries N of variance
    ``(e^(s²) − 1)/T²``: one singular value near 1, and T of mean square ``(e^(s²) − 1)/T``. Of
    orthogonal tokens the output therefore has the stable rank ``e^(s²)``, 2.72 here, at any length,
    and the relative dispersion ``√(1 − e^(−s²))``, 0.795; fourth powers, in its Gram matrix, tend
    to rank one.
    """

    tokens: tuple[Annotated[int, Range(8, 4096)], ...] = (64, 128, 256, 512)
    settings: tuple[HeadSetting, ...] = (
        HeadSetting("orthogonal tokens, one head of width T"),
        HeadSetting("orthogonal tokens, heads of width 16", head_width=16),
        HeadSetting("tokens of overlap 0.3, one head of width T", overlap=0.3),
    )
    """The first is the claim's own, the others lie beyond it."""
    networks: int = 3
    draws: int = 4

    def spec(self, setting: HeadSetting, tokens: int) -> Spec:
        head_width = setting.head_width or tokens
        return Spec.pure_attention(
            1,
            max(1, tokens // head_width),
            tokens + 1,
            head_width=head_width,
            bias=False,
            init="orthogonal",
        )


def measure(config: Config, on_step: kit.OnStep) -> pl.DataFrame:
    """Singular values of attention and ranks of its output, by the length of the context."""
    if len(set(config.tokens)) < _FEWEST or not config.settings:
        raise InputError(f"P6 needs a setting, and {_FEWEST} lengths or more to see a law.")
    rows = [
        (setting.name, variant, float(tokens), draw, metric, value)
        for (setting, tokens), _ in kit.tracked(product(config.settings, config.tokens), on_step)
        for variant, draw, figures in _contexts(config, setting, tokens)
        for metric, value in figures.items()
    ]
    table = tables.from_rows(("model", "variant", "setting", "sample", "metric", "value"), rows)
    return tables.joined({"tokens": table}, column="parameter")


def _contexts(
    config: Config, setting: HeadSetting, tokens: int
) -> Iterator[tuple[str, int, dict[str, float]]]:
    """Figures by variant and draw, measured, then predicted."""
    spec = config.spec(setting, tokens)
    x = overlapping_tokens(tokens, spec.width, setting.overlap, config.seed)
    for draw in range(config.networks):
        network = Network.random(spec, seed=config.seed + draw, dtype=torch.float64)
        for variant, figures in _layer(network, x).items():
            yield variant, draw, figures
    kernel = overlap_kernel(tokens, setting.overlap)
    predicted = predict(spec, kernel=kernel, draws=config.draws, seed=config.seed)
    for draw, value in enumerate(predicted.values[_DISPERSION][1].flatten().tolist()):
        yield PREDICTED, draw, {_DISPERSION: value}


@torch.no_grad()
def _layer(network: Network, x: Tensor) -> dict[str, dict[str, float]]:
    """Figures of a layer as it is, and with 11ᵀ/T taken out of its attention.

    Rows of attention add up to 1, so that ``(P − 11ᵀ/T)V = P(V − 1v̄ᵀ)``: the outlier is gone where
    values are centred, here by taking from the output what the mean token would give.
    """
    attention = cast(Block, network.blocks[0]).attention
    values = torch.linalg.svdvals(first_pattern(network, x))
    output = network(x.unsqueeze(0))[0]
    mean = attention.output(attention.value(x.mean(0)))
    return {
        NETWORKS: {
            _FIRST: float(values[:, 0].mean()),
            _SECOND: float(values[:, 1].mean()),
            **_ranks(output),
        },
        CENTRED: _ranks(output - mean),
    }


def _ranks(output: Tensor) -> dict[str, float]:
    """Σσ²/max σ² of the output and of its Gram matrix, and how much its tokens differ."""
    squares = torch.linalg.svdvals(output).square()
    shares = squares / squares[0]
    return {
        _RANK: float(shares.sum()),
        _GRAM: float(shares.square().sum()),
        _DISPERSION: float(deviations(output.unsqueeze(0)).relative_dispersion()),
    }


def judge(_: Config, table: pl.DataFrame) -> kit.Answer:
    """Exponents of T over the three longest contexts, and values at the longest.

    The first singular value is near 1 within 0.1, the second falls as 1/√T at exponents from −0.6
    to −0.4. A stable rank tends to one if it is at most 1.05 at the longest context and what it is
    above 1 has an exponent of −0.4 or less; without the outlier the output's grows at 0.5 or more.
    Tokens become alike if the relative dispersion has an exponent of −0.4 or less, predicted and
    measured.
    """
    curves = kit.curves(table)
    settings = list(dict.fromkeys(setting for setting, _, _ in curves))
    stated, beyond = _checks(curves, settings[0]), dict[str, bool]()
    for setting in settings:
        # The paper measures the Gram matrix; the output is asked about here.
        output_check = {_OUTPUT: stated.pop(_OUTPUT)} if setting == settings[0] else None
        checks = output_check or _checks(curves, setting)
        checks["tokens become alike"] = all(
            exponent(curves[setting, source, _DISPERSION]) <= _FALLS
            for source in (NETWORKS, PREDICTED)
        )
        beyond |= {f"{setting}: {question}": holds for question, holds in checks.items()}
    against = "; ".join(case for case, holds in beyond.items() if not holds)
    off = max(
        mean.errors_from(curves[setting, PREDICTED, _DISPERSION][length])
        for setting in settings
        for length, mean in curves[setting, NETWORKS, _DISPERSION].items()
    )
    figures: dict[str, float] = {}
    for setting in settings:
        second, rank, dispersion = (
            curves[setting, NETWORKS, metric] for metric in (_SECOND, _RANK, _DISPERSION)
        )
        figures |= {
            f"exponent of σ₂(P), {setting}": exponent(second),
            f"stable rank of the output, {setting}": _longest(rank),
            f"exponent of the dispersion, {setting}": exponent(dispersion),
        }
    return kit.Answer(
        (
            "Networks differ from their predictions by "
            f"{short(off, digits=2)} standard errors of the relative dispersion at most.",
        ),
        stated=stated,
        beyond=beyond,
        on_beyond={"depends": f"supported except for: {against}"},
        key_figures=figures,
        listings=(_listing(curves, settings),),
    )


def _longest(curve: Mapping[float, Mean]) -> float:
    return curve[max(curve)].value


def exponent(curve: Mapping[float, Mean], above: float = 0.0) -> float:
    """Of T in what a curve is above a value, over the longest contexts."""
    lengths = sorted(curve)[-_FEWEST:]
    gained = [curve[length].value - above for length in lengths]
    return power_exponent(lengths, gained) if min(gained) > 0 else -math.inf


def _checks(curves: kit.Curves, setting: str) -> dict[str, bool]:
    first, second, gram, rank = (
        curves[setting, NETWORKS, metric] for metric in (_FIRST, _SECOND, _GRAM, _RANK)
    )
    to_one = [_longest(r) <= 1 + _ONE and exponent(r, 1.0) <= _FALLS for r in (gram, rank)]
    return {
        "the first singular value is near 1": abs(_longest(first) - 1) <= _NEAR_ONE,
        "the second falls as 1/√T": _ROOT[0] <= exponent(second) <= _ROOT[1],
        "the Gram matrix tends to stable rank one": to_one[0],
        _OUTPUT: to_one[1],
        "without the outlier its rank grows with T": exponent(curves[setting, CENTRED, _RANK])
        >= _GROWS,
    }


def _listing(curves: kit.Curves, settings: Sequence[str]) -> kit.Listing:
    """What is measured of each setting at the longest context, and how it goes with the length."""
    rows: list[tuple[str | float, ...]] = []
    for setting in settings:
        first, second, rank, gram, dispersion = (
            curves[setting, NETWORKS, metric]
            for metric in (_FIRST, _SECOND, _RANK, _GRAM, _DISPERSION)
        )
        centred = curves[setting, CENTRED, _RANK]
        rows.append(
            (
                *(sentence_case(setting), _longest(first)),
                *(_longest(second), round(exponent(second), 2)),
                *map(_longest, (rank, gram, centred)),
                *(_longest(dispersion), round(exponent(dispersion), 2)),
            )
        )
    return kit.Listing(
        "At the longest context",
        ("setting", "σ₁", "σ₂", "power of σ₂", "rank", "Gram", "centred", "dispersion", "power"),
        tuple(rows),
        "σ₁, σ₂: singular values of attention; powers are of the length T. Stable ranks of the "
        "output, of its Gram matrix, and of the output without the outlier (centred). Dispersion: "
        "the relative dispersion of the output, and the power of T it goes like.",
    )
