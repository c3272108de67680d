"""Claim P1: attention of random layers condenses where the random energy model does.

Attention of a random layer is one such model for every query. Given the query q, its logits over
the keys are normal with variance ``s²|q|²``, s the scale of the scores; keys of tokens with overlap
p have a part of variance p in common, which shifts all logits alike and drops out of the softmax.
What is left are independent normal logits, of 1 − p times that variance.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Annotated

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

from rankscope import tables
from rankscope.arguments import Range
from rankscope.core.metrics import attention_entropy
from rankscope.core.network import Network, Spec
from rankscope.core.prediction import predict
from rankscope.errors import InputError
from rankscope.experiments import kit
from rankscope.experiments.claims._overlapping import (
    first_pattern,
    overlap_kernel,
    overlapping_tokens,
)
from rankscope.numerals import short
from rankscope.streams import stream

ENTRY = kit.claim(
    "P1",
    "Softmax attention is spread out for logits of deviation below √(2/(1−p))·√(log T), p the "
    "tokens' overlap, and condensed on a few tokens above, Σ P² → 1 − β_c/β.",
    source="Giorlandino and Goldt 2026, random energies",
    question="Do attention weights condense where the random energy model predicts?",
    domain="one layer of random attention, tokens of one overlap p, their number T → ∞",
    beyond="a hundred to a million tokens",
    seconds=21,
    metrics=(
        kit.Metric(
            "weight_participation",
            "Participation of weights",
            "Σ P²",
            "linear",
            "1 = one key per query; 1 / n = uniform",
            "Σ_j P_ij², the mean over the queries: one over the number of keys that share a "
            "query's attention.",
            includes=(0.0, 1.0),
        ),
    ),
)
PAPER = {"tokens": (64, 512, 2048), "networks": 8}
CRITICAL = math.sqrt(2)
"""The ratio of a logit's deviation to √(log T) at which the weights condense."""
_METRIC, _ENTROPY = "weight_participation", "attention_entropy"
LIMIT, MODEL, SAMPLED, NETWORKS, PREDICTED = (
    "limit of many tokens",
    "random energies",
    "random energies, drawn",
    "networks",
    "predicted",
)
_POWER = "T = 10^"  # of ten: the number of tokens of random energies beside the limit
_ERRORS = 3.0  # standard errors that the mean over networks may be off
_CLOSE = 0.02  # and this beside them: lengths of queries vary at a finite head width
_NEAR = 0.25  # closer to β_c no distance is asked of: there the limit is approached most slowly
_REACHED = 0.02  # the distance to the limit within which the longest of all contexts is to be
_USED = 0.05  # the distance within which contexts that people use would show the limit
_LARGEST = 20.0  # the largest β/β_c for which integrals are done
CHARTS = (
    kit.Drawing(
        "by_setting",
        "Σ P² of a query's weights; random energies at each number of tokens, and the limit; "
        "networks at theirs.",
        _METRIC,
        roles={LIMIT: "bound"},
    ),
)
Row = tuple[str, str, float, int, str, float]


@dataclass(frozen=True)
class Config(kit.Config):
    """One layer of attention on tokens of one overlap, and random energies at any size."""

    tokens: tuple[Annotated[int, Range(2, 8192)], ...] = (64, 512)
    overlaps: tuple[float, ...] = (0.0, 0.5, 0.9)
    ratios: tuple[float, ...] = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0)  # β/β_c
    networks: int = 4
    heads: int = 4
    head_width: int = 256
    draws: int = 4  # predicted networks
    decades: tuple[Annotated[int, Range(1, 300)], ...] = (2, 3, 4, 5, 6, 12, 30, 100)
    """Powers of ten of tokens at which random energies are held against the limit."""
    drawn: tuple[int, int] = (1_000_000, 32)
    """Tokens and number of random energy models that are drawn beside the integrals."""

    def spec(self, tokens: int) -> Spec:
        """A layer whose logits have the deviation √(log T); β is in the tokens' size."""
        return Spec.pure_attention(
            1,
            self.heads,
            tokens + 1,
            head_width=self.head_width,
            bias=False,
            init="lecun",
            score_scale=math.sqrt(math.log(tokens) / self.head_width),
        )


def measure(config: Config, on_step: kit.OnStep) -> pl.DataFrame:
    """Networks beside random energies at their size, and these beside the limit."""
    if not (config.tokens and config.overlaps and config.ratios and config.decades):
        raise InputError("P1 needs at least one length, overlap, ratio and decade.")
    if not all(0 < ratio <= _LARGEST for ratio in config.ratios):
        raise InputError(f"ratios={config.ratios} are β/β_c, expected above 0, to {_LARGEST:g}.")
    if not any(abs(ratio - 1) >= _NEAR for ratio in config.ratios):
        raise InputError(f"ratios={config.ratios}: one has to be {_NEAR} or more away from 1.")
    on_networks, on_energies = kit.parts(on_step, 3, 1)
    rows = [*_networks(config, on_networks), *_energies(config, on_energies)]
    table = tables.from_rows(("model", "variant", "setting", "sample", "metric", "value"), rows)
    return tables.joined({"β over β_c": table}, column="parameter")


def _networks(config: Config, on_step: kit.OnStep) -> Iterator[Row]:
    """Participation and entropy by head, and the entropy predicted; β scales the tokens."""
    for tokens, on_tokens in kit.tracked(config.tokens, on_step):
        spec, panel = config.spec(tokens), f"T = {tokens:,}"
        for draw, _ in kit.tracked(range(config.networks), on_tokens):
            network = Network.random(spec, seed=config.seed + draw, dtype=torch.float64)
            for overlap in config.overlaps:
                x = overlapping_tokens(tokens, spec.width, overlap, config.seed)
                label = (panel, f"{NETWORKS}, p = {overlap:g}")
                for ratio in config.ratios:
                    pattern = first_pattern(network, x * math.sqrt(ratio * critical_ratio(overlap)))
                    participation = pattern.square().sum(-1).mean(-1)
                    values = zip(participation, attention_entropy(pattern), strict=True)
                    for sample, by_head in enumerate(values, start=draw * config.heads):
                        for metric, value in zip((_METRIC, _ENTROPY), by_head, strict=True):
                            yield *label, ratio, sample, metric, float(value)
        for overlap, ratio in product(config.overlaps, config.ratios):
            kernel = ratio * critical_ratio(overlap) * overlap_kernel(tokens, overlap)
            predicted = predict(spec, kernel=kernel, draws=config.draws, seed=config.seed)
            for draw, value in enumerate(predicted.values[_ENTROPY][1].flatten().tolist()):
                yield panel, f"{PREDICTED}, p = {overlap:g}", ratio, draw, _ENTROPY, value
        for ratio in config.ratios:
            yield panel, MODEL, ratio, 0, _METRIC, mean_participation(math.log(tokens), ratio)


def _energies(config: Config, on_step: kit.OnStep) -> Iterator[Row]:
    """The model by itself: its mean at every size, drawn ones at one, and the limit."""
    for ratio in config.ratios:
        yield MODEL, LIMIT, ratio, 0, _METRIC, limit_participation(ratio)
    for decade, _ in kit.tracked(config.decades, on_step):
        for ratio in config.ratios:
            mean = mean_participation(decade * math.log(10), ratio)
            yield MODEL, f"{_POWER}{decade}", ratio, 0, _METRIC, mean
    tokens, draws = config.drawn
    drawn = sampled_participation(tokens, config.ratios, draws, config.seed)
    for ratio, values in zip(config.ratios, drawn.tolist(), strict=True):
        for draw, value in enumerate(values):
            yield MODEL, f"{SAMPLED}, T = {tokens:,}", ratio, draw, _METRIC, value


def judge(config: Config, table: pl.DataFrame) -> kit.Answer:
    """Networks are random energies; these tend to the limit; and how near it is what people use.

    The claim holds if the mean over heads is within three standard errors and 0.02 of the random
    energies of the same size at every β and overlap, and if at every β that is a quarter or more
    from β_c the distance of random energies to the limit shrinks with every length, to at most 0.02
    at the longest. Lengths up to a million are judged beyond it: within 0.05 at every such β?
    """
    curves = kit.curves(table)
    same = _same(curves)
    stated = {f"networks, {case}": ok for case, (ok, _) in same.items()}
    matching, difference = sum(stated.values()), max(off for _, off in same.values())
    distances = {
        variant: {
            ratio: abs(mean.value - limit_participation(ratio))
            for ratio, mean in curve.items()
            if abs(ratio - 1) >= _NEAR
        }
        for (_, variant, _), curve in curves.items()
        if variant.startswith(_POWER)
    }
    for ratio in next(iter(distances.values())):
        falling = [by_ratio[ratio] for by_ratio in distances.values()]
        shrinks = falling == sorted(falling, reverse=True)
        stated[f"limit at {short(ratio)} β_c"] = shrinks and falling[-1] <= _REACHED
    farthest = {length: max(by_ratio.values()) for length, by_ratio in distances.items()}
    lengths = list(farthest)
    ends = {length: farthest[length] for length in (lengths[0], lengths[-1])}
    used = [length for length in lengths if int(length.removeprefix(_POWER)) <= 6]
    ends_used = (f"{short(farthest[at])} at {at}" for at in (*used[:1], *used[-1:]))
    off_by = f"off by {' and '.join(ends_used)}"
    gap = _entropy_gap(config, curves)
    return kit.Answer(
        (
            f"Networks and random energies of their size agree in {matching} of {len(same)} cases; "
            f"the means of Σ P² differ by {short(difference)} at most.",
            *(
                f"{length} tokens: random energies are {short(far)} from the limit at most, a "
                "quarter or more away from β_c."
                for length, far in ends.items()
            ),
            f"Entropies predicted and those of networks differ by {gap:.1%} of log T at most.",
        ),
        stated=stated,
        beyond={length: farthest[length] <= _USED for length in used},
        on_beyond={"depends": off_by, "fails": off_by},
        key_figures={
            "networks − random energies, largest difference of Σ P²": difference,
            **{f"distance to the limit, {length}": far for length, far in ends.items()},
            "entropy, predicted and measured, largest difference over log T": gap,
        },
    )


def _same(curves: kit.Curves) -> dict[str, tuple[bool, float]]:
    """By case, whether the networks' mean is that of random energies, and how far it is off."""
    same = {}
    for (panel, variant, metric), curve in curves.items():
        if metric == _METRIC and variant.startswith(NETWORKS):
            for ratio, mean in curve.items():
                off = abs(mean.value - curves[panel, MODEL, _METRIC][ratio].value)
                case = f"{panel}, {variant.removeprefix(f'{NETWORKS}, ')}, {short(ratio)} β_c"
                same[case] = (off <= _ERRORS * mean.error + _CLOSE, off)
    return same


def _entropy_gap(config: Config, curves: kit.Curves) -> float:
    """The largest difference of mean entropies, predicted and measured, in parts of log T."""
    gaps = []
    for tokens, overlap in product(config.tokens, config.overlaps):
        predicted, measured = (
            curves[f"T = {tokens:,}", f"{source}, p = {overlap:g}", _ENTROPY]
            for source in (PREDICTED, NETWORKS)
        )
        gaps += [
            abs(measured[at].value - predicted[at].value) / math.log(tokens) for at in measured
        ]
    return max(gaps)


def critical_ratio(overlap: float) -> float:
    """β_c = √(2/(1 − p)), for logits of deviation β√(log T) over tokens with overlap p.

    >>> critical_ratio(0.5)
    2.0
    """
    return CRITICAL / math.sqrt(1 - overlap)


def limit_participation(ratio: float) -> float:
    """Σ_j P_j² for T → ∞ at β = ratio·β_c: 0 below, ``1 − β_c/β`` above.

    >>> limit_participation(0.9), limit_participation(2.0)
    (0.0, 0.5)
    """
    return max(0.0, 1 - 1 / ratio) if ratio > 0 else 0.0


_FAR = 8.0  # deviations beyond which the largest of T normal numbers is as good as never
_FINE = 0.4  # steps of logarithms in the integrals; all integrands vary on the scale 1
_AT_ONCE = 2**23


def mean_participation(log_tokens: float, ratio: float) -> float:
    """The mean of Σ_j P_j² over T tokens, for any T, by quadrature.

    With ``w = e^(σg)``, ``σ = √2·ratio·√(log T)``, and ``1/Z² = ∫ t e^(−tZ) dt`` it is
    ``T ∫ t E[w² e^(−tw)] E[e^(−tw)]^(T−1) dt``: one normal integral inside another, both of smooth
    functions of logarithms, for which the plain sum is exact to many digits.
    """
    deviation = CRITICAL * ratio * math.sqrt(log_tokens)
    top = math.sqrt(2 * log_tokens)
    g = torch.arange(-_FAR - 2, top + _FAR + 2, min(0.1, _FINE / deviation), dtype=torch.float64)
    step = float(g[1] - g[0])
    density = torch.exp(-(g**2) / 2) * (step / math.sqrt(2 * math.pi))
    highest = max(deviation * (top + _FAR), log_tokens + deviation**2 / 2) + 15
    lowest = max(deviation * min(0.0, top - _FAR), -highest) - 5
    log_t = torch.arange(-highest, -lowest, _FINE, dtype=torch.float64)
    others = math.expm1(log_tokens)
    total = 0.0
    for part in log_t.split(max(1, _AT_ONCE // len(g))):
        log_tw = part.unsqueeze(1) + deviation * g
        tw = log_tw.clamp(max=50.0).exp()
        missing = (-torch.expm1(-tw)) @ density  # 1 − E[e^(−tw)], exact where it is tiny
        alone = torch.exp(2 * log_tw.clamp(max=50.0) - tw) @ density
        survival = torch.exp(others * torch.log1p(-missing.clamp(max=1 - 1e-16)))
        total += float((alone * survival).sum()) * _FINE
    return math.exp(log_tokens) * total


def sampled_participation(
    tokens: int, ratios: tuple[float, ...], draws: int, seed: int
) -> Float[Tensor, "ratio draw"]:
    """Σ_j P_j² of drawn models, the same normal numbers at every ratio."""
    generator = stream(seed, "random energies", tokens)
    scale = CRITICAL * math.sqrt(math.log(tokens))
    columns = []
    for _ in range(draws):
        g = torch.randn(tokens, generator=generator, dtype=torch.float64)
        columns.append(
            torch.stack([(scale * ratio * g).softmax(0).square().sum() for ratio in ratios])
        )
    return torch.stack(columns, 1)
