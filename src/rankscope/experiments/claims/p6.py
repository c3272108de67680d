"""Claim P6: one singular value of attention stands out, and rank is lost as contexts grow."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, cast

import polars as pl
import torch
from torch import Tensor

from rankscope import tables
from rankscope.arguments import Range, checked
from rankscope.core.metrics import deviations
from rankscope.core.network import Block, Network, Spec, Visibility
from rankscope.core.prediction import predict
from rankscope.core.theory import power_exponent
from rankscope.errors import InputError
from rankscope.experiments import kit
from rankscope.experiments.claims._overlapping import (
    overlap_kernel,
    overlapping_tokens,
)
from rankscope.experiments.kit import Mean
from rankscope.numerals import sentence_case, short

ENTRY = kit.claim(
    "P6",
    "At initialisation attention has one singular value near 1 and all others of order 1/√T, so "
    "that one layer's output tends to rank one as the context T grows, unless the outlier is "
    "removed.",
    source="Nait Saada et al. 2025, rank collapse in width",
    domain="one head as wide as the context, orthogonal tokens",
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
_FEWEST = 3
"""Lengths from which an exponent is read off, the longest ones."""
_ROOT = (-0.6, -0.4)
"""Exponents of T that count as a falling square root."""
_FALLS, _GROWS = -0.4, 0.5
_NEAR_ONE = 0.1
_ONE = 0.05
"""How far a singular value, and a stable rank, may be from 1 at the longest context."""
_ASKED: Final = (
    "the first singular value is near 1",
    "the second falls as 1/√T",
    "the Gram matrix tends to stable rank one",
    "the output tends to stable rank one",
    "without the outlier its rank grows with T",
)
_ALIKE = "tokens become alike"
_BEYOND = "tokens that become alike, heads of fixed width, and tokens with an overlap"

Row = tuple[str, str, str, float, int, str, float]


@checked
@dataclass(frozen=True)
class Setting:
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
    settings: tuple[Setting, ...] = (
        Setting("orthogonal tokens, one head of width T"),
        Setting("orthogonal tokens, heads of width 16", head_width=16),
        Setting("tokens of overlap 0.3, one head of width T", overlap=0.3),
    )
    """The first is the claim's own, the others lie beyond it."""
    networks: int = 3
    draws: int = 4

    def spec(self, setting: Setting, tokens: int) -> Spec:
        head_width = setting.head_width or tokens
        return Spec.pure_attention(
            1,
            max(1, tokens // head_width),
            tokens + 1,
            head_width=head_width,
            bias=False,
            init="orthogonal",
        )


def run(config: Config, on_step: kit.OnStep) -> kit.Result:
    """Singular values of attention and ranks of its output, by the length of the context."""
    if len(set(config.tokens)) < _FEWEST or not config.settings:
        raise InputError(f"P6 needs a setting, and {_FEWEST} lengths or more to see a law.")
    cases = [(setting, tokens) for setting in config.settings for tokens in config.tokens]
    rows = [
        row
        for (setting, tokens), _ in kit.tracked(cases, on_step)
        for row in (*_measured(config, setting, tokens), *_predicted(config, setting, tokens))
    ]
    names = ("model", "variant", "parameter", "setting", "sample", "metric", "value")
    table = tables.from_rows(names, rows)
    judgement, beyond, sentences = judge(table)
    captions = {
        _RANK: "Stable rank of a layer's output.",
        _SECOND: "The second singular value of attention.",
        _DISPERSION: "Relative dispersion of a layer's output.",
    }
    return ENTRY.result(
        config,
        question="Does one layer lose rank as the context grows, for one singular value?",
        sentences=sentences,
        table=table,
        listings=(_listing(table),),
        judgement=judgement,
        beyond=beyond,
        key_figures=_key_figures(table),
        drawings=tuple(kit.Drawing("by_setting", text, name) for name, text in captions.items()),
        shown=tuple(captions),
    )


def _measured(config: Config, setting: Setting, tokens: int) -> Iterator[Row]:
    spec = config.spec(setting, tokens)
    x = overlapping_tokens(tokens, spec.width, setting.overlap, config.seed)
    for draw in range(config.networks):
        network = Network.random(spec, seed=config.seed + draw, dtype=torch.float64)
        for variant, figures in _layer(network, x).items():
            for metric, value in figures.items():
                yield setting.name, variant, "tokens", float(tokens), draw, metric, value


def _layer(network: Network, x: Tensor) -> dict[str, dict[str, float]]:
    """Figures of a layer as it is, and with 11ᵀ/T taken out of its attention.

    Rows of attention add up to 1, so that ``(P − 11ᵀ/T)V = P(V − 1v̄ᵀ)``: the outlier is gone where
    values are centred, here by taking from the output what the mean token would give.
    """
    attention = cast(Block, network.blocks[0]).attention
    seen = Visibility.of(network.spec.mask, len(x), None, x.device)
    with torch.no_grad():
        pattern = attention.pattern(x.unsqueeze(0), seen)[0]
        values = torch.linalg.svdvals(pattern)
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


def _predicted(config: Config, setting: Setting, tokens: int) -> Iterator[Row]:
    kernel = overlap_kernel(tokens, setting.overlap)
    spec = config.spec(setting, tokens)
    found = predict(spec, kernel=kernel, draws=config.draws, seed=config.seed)
    for draw, value in enumerate(found.values[_DISPERSION][1].flatten().tolist()):
        yield setting.name, PREDICTED, "tokens", float(tokens), draw, _DISPERSION, value


def judge(table: pl.DataFrame) -> tuple[kit.Judgement, kit.Judgement, tuple[str, ...]]:
    """Exponents of T over the three longest contexts, and values at the longest.

    The first singular value is near 1 within 0.1, the second falls as 1/√T at exponents from −0.6
    to −0.4. A stable rank tends to one if it is at most 1.05 at the longest context and what it is
    above 1 has an exponent of −0.4 or less; without the outlier the output's grows at 0.5 or more.
    Tokens become alike if the relative dispersion has an exponent of −0.4 or less, predicted and
    measured.
    """
    curves = _curves(table)
    settings = list(dict.fromkeys(setting for setting, _, _ in curves))
    own, *others = settings
    further = {f"{own}: {_ALIKE}": _alike(curves, own)}
    for setting in others:
        answers = _answers(curves, setting) | {_ALIKE: _alike(curves, setting)}
        further |= {f"{setting}: {question}": ok for question, ok in answers.items()}
    against = "; ".join(case for case, ok in further.items() if not ok)
    mixed = len(set(further.values())) > 1
    return (
        kit.judged(ENTRY.domain, _answers(curves, own)),
        kit.judged(_BEYOND, further, f"the case: not borne out are {against}" if mixed else ""),
        (_sentence(curves, settings),),
    )


Curves = Mapping[tuple[str, str, str], Mapping[float, Mean]]


def _curves(table: pl.DataFrame) -> Curves:
    """By setting, variant and metric, means over networks at each length."""
    grouped = table.group_by("model", "variant", "metric", "setting", maintain_order=True)
    found: dict[tuple[str, str, str], dict[float, Mean]] = {}
    for setting, variant, metric, tokens, values in grouped.agg("value").iter_rows():
        found.setdefault((setting, variant, metric), {})[tokens] = Mean.of(values)
    return found


def _longest(curve: Mapping[float, Mean]) -> float:
    return curve[max(curve)].value


def exponent(curve: Mapping[float, Mean], above: float = 0.0) -> float:
    """Of T in what a curve is above a value, over the longest contexts."""
    lengths: Sequence[float] = sorted(curve)[-_FEWEST:]
    gained = [curve[length].value - above for length in lengths]
    return power_exponent(lengths, gained) if min(gained) > 0 else -math.inf


def _answers(curves: Curves, setting: str) -> dict[str, bool]:
    first, second, gram, rank = (
        curves[setting, NETWORKS, metric] for metric in (_FIRST, _SECOND, _GRAM, _RANK)
    )
    asked = (
        abs(_longest(first) - 1) <= _NEAR_ONE,
        _ROOT[0] <= exponent(second) <= _ROOT[1],
        *(_longest(each) <= 1 + _ONE and exponent(each, 1.0) <= _FALLS for each in (gram, rank)),
        exponent(curves[setting, CENTRED, _RANK]) >= _GROWS,
    )
    return dict(zip(_ASKED, asked, strict=True))


def _alike(curves: Curves, setting: str) -> bool:
    return all(
        exponent(curves[setting, source, _DISPERSION]) <= _FALLS for source in (NETWORKS, PREDICTED)
    )


def _sentence(curves: Curves, settings: Sequence[str]) -> str:
    """How far networks are from their predictions, at the most."""
    off = max(
        mean.errors_from(curves[setting, PREDICTED, _DISPERSION][length])
        for setting in settings
        for length, mean in curves[setting, NETWORKS, _DISPERSION].items()
    )
    return (
        "Networks differ from their predictions by "
        f"{short(off, digits=2)} standard errors of the relative dispersion at most."
    )


def _listing(table: pl.DataFrame) -> kit.Listing:
    """What is measured of each setting at the longest context, and how it goes with the length."""
    curves = _curves(table)
    rows: list[tuple[str | float, ...]] = []
    for setting in dict.fromkeys(setting for setting, _, _ in curves):
        own = {
            metric: each
            for (name, s, metric), each in curves.items()
            if (name, s) == (setting, NETWORKS)
        }
        rows.append(
            (
                sentence_case(setting),
                *(_longest(own[each]) for each in (_FIRST, _SECOND)),
                round(exponent(own[_SECOND]), 2),
                *(_longest(own[each]) for each in (_RANK, _GRAM)),
                _longest(curves[setting, CENTRED, _RANK]),
                _longest(own[_DISPERSION]),
                round(exponent(own[_DISPERSION]), 2),
            )
        )
    columns = (
        "setting",
        "σ₁",
        "σ₂",
        "power of σ₂",
        "rank",
        "Gram",
        "centred",
        "dispersion",
        "power",
    )
    return kit.Listing(
        "At the longest context",
        columns,
        tuple(rows),
        "σ₁, σ₂: singular values of attention; powers are of the length T. Stable ranks of the "
        "output, of its Gram matrix, and of the output without the outlier (centred). Dispersion: "
        "the relative dispersion of the output, and the power of T it goes like.",
    )


def _key_figures(table: pl.DataFrame) -> dict[str, float]:
    curves = _curves(table)
    figures = {}
    for setting in dict.fromkeys(setting for setting, _, _ in curves):
        figures[f"exponent of σ₂(P), {setting}"] = exponent(curves[setting, NETWORKS, _SECOND])
        figures[f"stable rank of the output, {setting}"] = _longest(
            curves[setting, NETWORKS, _RANK]
        )
        figures[f"exponent of the dispersion, {setting}"] = exponent(
            curves[setting, NETWORKS, _DISPERSION]
        )
    return figures
