"""The random energy model: what softmax does to independent normal logits.

Attention of a random layer is one such model for every query. Given the query q, its logits over
the keys are normal with variance ``s²|q|²``, s the scale of the scores; keys of tokens with overlap
p have a part of variance p in common, which shifts all logits alike and drops out of the softmax.
What is left are independent normal logits, of 1 − p times that variance.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, stdev
from typing import Annotated, cast

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

from rankscope import tables
from rankscope.arguments import Range
from rankscope.core.metrics import attention_entropy
from rankscope.core.network import Block, Network, Spec, Visibility
from rankscope.core.prediction import predict
from rankscope.errors import InputError
from rankscope.experiments import kit
from rankscope.experiments.claims._overlapping import overlap_kernel, overlapping_tokens
from rankscope.numerals import short
from rankscope.streams import stream

CRITICAL = math.sqrt(2)
"""The ratio of a logit's deviation to √(log T) at which the weights condense."""
_FAR = 8.0
"""Deviations beyond which the largest of T normal numbers is as good as never."""
_FINE = 0.4
"""Steps of logarithms in the integrals; all integrands vary on the scale 1, as ``e^(x − eˣ)``."""
_AT_ONCE = 2**23


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


ENTRY = kit.claim(
    "P1",
    "Softmax attention is spread out for logits of deviation below √(2/(1−p))·√(log T), p the "
    "tokens' overlap, and condensed on a few tokens above, Σ P² → 1 − β_c/β.",
    source="Giorlandino and Goldt 2026, random energies",
    domain="one layer of random attention, tokens of one overlap p, their number T → ∞",
    seconds=21,
    metrics=(
        kit.Metric(
            "weight_participation",
            "Participation of weights",
            "Σ P²",
            "linear",
            "1 = one key per query; 1 / n = all alike",
            "Σ_j P_ij², the mean over the queries: one over the number of keys that share a "
            "query's attention.",
            includes=(0.0, 1.0),
        ),
    ),
)
PAPER = {"tokens": (64, 512, 2048), "networks": 8}
_METRIC, _ENTROPY = "weight_participation", "attention_entropy"
LIMIT, MODEL, SAMPLED, NETWORKS, PREDICTED = (
    "limit of many tokens",
    "random energies",
    "random energies, drawn",
    "networks",
    "predicted",
)
_RATIO = "β over β_c"
_ERRORS = 3.0
"""Standard errors that the mean over networks may be off."""
_CLOSE = 0.02
"""And this beside them: lengths of queries vary at a finite head width."""
_NEAR = 0.25
"""Closer than this to β_c no distance is asked of: there the limit is approached most slowly."""
_REACHED = 0.02
"""The distance to the limit within which the longest of all contexts is to be."""
_USED = 0.05
"""The distance within which contexts that people use would show the limit."""
_LARGEST = 20.0
"""The largest β/β_c for which integrals are done."""
_BEYOND = "a hundred to a million tokens"

Row = tuple[str, str, str, float, int, str, float]


@dataclass(frozen=True)
class Config(kit.Config):
    """One layer of attention on tokens of one overlap, and random energies at any size."""

    tokens: tuple[Annotated[int, Range(2, 8192)], ...] = (64, 512)
    overlaps: tuple[float, ...] = (0.0, 0.5, 0.9)
    ratios: tuple[float, ...] = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
    """β/β_c."""
    networks: int = 4
    heads: int = 4
    head_width: int = 256
    draws: int = 4
    """Predicted networks."""
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


def run(config: Config, on_step: kit.OnStep) -> kit.Result:
    """Networks beside random energies at their size, and these beside the limit."""
    if not (config.tokens and config.overlaps and config.ratios and config.decades):
        raise InputError("P1 needs at least one length, overlap, ratio and decade.")
    if not all(0 < ratio <= _LARGEST for ratio in config.ratios):
        raise InputError(f"ratios={config.ratios} are β/β_c, expected above 0, to {_LARGEST:g}.")
    if not any(map(_apart, config.ratios)):
        raise InputError(f"ratios={config.ratios}: one has to be {_NEAR} or more away from 1.")
    on_networks, on_energies = kit.parts(on_step, 3, 1)
    rows = [*_networks(config, on_networks), *_energies(config, on_energies)]
    names = ("model", "variant", "parameter", "setting", "sample", "metric", "value")
    table = tables.from_rows(names, rows)
    judgement, beyond, sentences = judge(table)
    return ENTRY.result(
        config,
        question="Do the weights of attention condense where the random energy model says?",
        sentences=(*sentences, _predicted(config, table)),
        table=table,
        judgement=judgement,
        beyond=beyond,
        key_figures=_key_figures(config, table),
        drawings=(
            kit.Drawing(
                "by_setting",
                "Σ P² of a query's weights; random energies at each number of tokens, and the "
                "limit; networks at theirs.",
                _METRIC,
                roles={LIMIT: "bound"},
            ),
        ),
        shown=(_METRIC,),
    )


def _networks(config: Config, on_step: kit.OnStep) -> Iterator[Row]:
    """Participation and entropy by head, and the entropy predicted; β scales the tokens."""
    for tokens, on_tokens in kit.tracked(config.tokens, on_step):
        spec = config.spec(tokens)
        for draw, _ in kit.tracked(range(config.networks), on_tokens):
            network = Network.random(spec, seed=config.seed + draw, dtype=torch.float64)
            for overlap in config.overlaps:
                x = overlapping_tokens(tokens, spec.width, overlap, config.seed)
                for ratio in config.ratios:
                    pattern = _pattern(network, x * math.sqrt(ratio * critical_ratio(overlap)))
                    values = zip(_participation(pattern), attention_entropy(pattern), strict=True)
                    label = (f"T = {tokens:,}", f"{NETWORKS}, p = {overlap:g}", _RATIO, ratio)
                    for head, (participation, entropy) in enumerate(values):
                        sample = draw * config.heads + head
                        yield *label, sample, _METRIC, float(participation)
                        yield *label, sample, _ENTROPY, float(entropy)
        yield from _prediction(config, tokens)
        for ratio in config.ratios:
            mean = mean_participation(math.log(tokens), ratio)
            yield f"T = {tokens:,}", MODEL, _RATIO, ratio, 0, _METRIC, mean


def _prediction(config: Config, tokens: int) -> Iterator[Row]:
    spec = config.spec(tokens)
    for overlap in config.overlaps:
        for ratio in config.ratios:
            kernel = ratio * critical_ratio(overlap) * overlap_kernel(tokens, overlap)
            found = predict(spec, kernel=kernel, draws=config.draws, seed=config.seed)
            label = (f"T = {tokens:,}", f"{PREDICTED}, p = {overlap:g}", _RATIO, ratio)
            for draw, value in enumerate(found.values[_ENTROPY][1].flatten().tolist()):
                yield *label, draw, _ENTROPY, value


def _energies(config: Config, on_step: kit.OnStep) -> Iterator[Row]:
    """The model by itself: its mean at every size, drawn ones at one, and the limit."""
    panel = "random energies"
    for ratio in config.ratios:
        yield panel, LIMIT, _RATIO, ratio, 0, _METRIC, limit_participation(ratio)
    for decade, _ in kit.tracked(config.decades, on_step):
        for ratio in config.ratios:
            mean = mean_participation(decade * math.log(10), ratio)
            yield panel, f"T = 10^{decade}", _RATIO, ratio, 0, _METRIC, mean
    tokens, draws = config.drawn
    found = sampled_participation(tokens, config.ratios, draws, config.seed)
    for ratio, values in zip(config.ratios, found.tolist(), strict=True):
        for draw, value in enumerate(values):
            yield panel, f"{SAMPLED}, T = {tokens:,}", _RATIO, ratio, draw, _METRIC, value


def _pattern(network: Network, x: Tensor) -> Tensor:
    seen = Visibility.of(network.spec.mask, len(x), None, x.device)
    with torch.no_grad():
        found: Tensor = cast(Block, network.blocks[0]).attention.pattern(x.unsqueeze(0), seen)[0]
    return found


def _participation(pattern: Tensor) -> Tensor:
    """Σ_j P_ij² by head, the mean over its queries."""
    return pattern.square().sum(-1).mean(-1)


def judge(table: pl.DataFrame) -> tuple[kit.Judgement, kit.Judgement, tuple[str, ...]]:
    """Networks are random energies; these tend to the limit; and how near it is what people use.

    The claim holds if the mean over heads is within three standard errors and 0.02 of the random
    energies of the same size at every β and overlap, and if at every β that is a quarter or more
    from β_c the distance of random energies to the limit shrinks with every length, to at most 0.02
    at the longest. Lengths up to a million are judged beyond it: within 0.05 at every such β?
    """
    same = _same(table)
    distances = _distances(table)
    lengths = list(dict.fromkeys(length for length, _ in distances))
    tends = {f"limit at {short(ratio)} β_c": ok for ratio, ok in _tends(distances, lengths).items()}
    used = {
        length: max(d for (one, ratio), d in distances.items() if one == length and _apart(ratio))
        for length in lengths
        if int(length.removeprefix("T = 10^")) <= 6
    }
    own = {f"networks, {case}": ok for case, (ok, _) in same.items()} | tends
    matching = sum(ok for ok, _ in same.values())
    worst = max(abs(d) for _, d in same.values())
    return (
        kit.judged(ENTRY.domain, own),
        kit.judged(
            _BEYOND,
            {length: distance <= _USED for length, distance in used.items()},
            "" if all(far <= _USED for far in used.values()) else _used(used),
        ),
        (
            f"Networks and random energies of their size agree in {matching} of {len(same)} cases; "
            f"the means of Σ P² differ by {short(worst)} at most.",
            *(
                f"{length} tokens: random energies are {short(far)} from the limit at most, a "
                "quarter or more away from β_c."
                for length, far in _farthest(distances, lengths).items()
            ),
        ),
    )


def _used(used: Mapping[str, float]) -> str:
    first, last = next(iter(used)), list(used)[-1]
    far = f"off by {short(used[first])} at {first} and {short(used[last])} at {last}"
    return f"the length: {far}" if min(used.values()) <= _USED else far


def _apart(ratio: float) -> bool:
    return abs(ratio - 1) >= _NEAR


def _same(table: pl.DataFrame) -> dict[str, tuple[bool, float]]:
    """By case, whether the networks' mean is that of random energies, and how far it is off."""
    rows = table.filter(metric=_METRIC)
    expected = {
        (model, ratio): value
        for model, ratio, value in rows.filter(variant=MODEL)
        .select("model", "setting", "value")
        .iter_rows()
    }
    found = {}
    wanted = rows.filter(pl.col("variant").str.starts_with(NETWORKS))
    for (model, variant, ratio), part in wanted.group_by(
        "model", "variant", "setting", maintain_order=True
    ):
        values = part["value"].to_list()
        off = fmean(values) - expected[model, ratio]
        error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
        case = f"{model}, {str(variant).removeprefix(f'{NETWORKS}, ')}, {short(ratio)} β_c"
        found[case] = (abs(off) <= _ERRORS * error + _CLOSE, off)
    return found


def _distances(table: pl.DataFrame) -> dict[tuple[str, float], float]:
    """By length and ratio, how far the mean of random energies is from the limit."""
    rows = table.filter(metric=_METRIC).filter(pl.col("variant").str.starts_with("T = 10^"))
    return {
        (length, ratio): abs(value - limit_participation(ratio))
        for length, ratio, value in rows.select("variant", "setting", "value").iter_rows()
    }


def _tends(distances: Mapping[tuple[str, float], float], lengths: list[str]) -> dict[float, bool]:
    """By ratio, whether the distance shrinks with every length and is small in the end."""
    found = {}
    for ratio in dict.fromkeys(ratio for _, ratio in distances if _apart(ratio)):
        falling = [distances[length, ratio] for length in lengths]
        shrinks = all(after <= before for before, after in pairwise(falling))
        found[ratio] = shrinks and falling[-1] <= _REACHED
    return found


def _farthest(distances: Mapping[tuple[str, float], float], lengths: list[str]) -> dict[str, float]:
    return {
        length: max(d for (one, ratio), d in distances.items() if one == length and _apart(ratio))
        for length in (lengths[0], lengths[-1])
    }


def _entropies(table: pl.DataFrame, kind: str) -> dict[tuple[str, str, float], float]:
    rows = table.filter(metric=_ENTROPY).filter(pl.col("variant").str.starts_with(kind))
    grouped = rows.group_by("model", "variant", "setting", maintain_order=True)
    return {
        (model, variant.removeprefix(kind), ratio): value
        for model, variant, ratio, value in grouped.agg(pl.mean("value")).iter_rows()
    }


def _entropy_gap(config: Config, table: pl.DataFrame) -> float:
    """The largest difference of mean entropies, predicted and measured, in parts of log T."""
    predicted, measured = (_entropies(table, kind) for kind in (PREDICTED, NETWORKS))
    logs = {f"T = {tokens:,}": math.log(tokens) for tokens in config.tokens}
    return max(abs(measured[case] - value) / logs[case[0]] for case, value in predicted.items())


def _predicted(config: Config, table: pl.DataFrame) -> str:
    gap = _entropy_gap(config, table)
    return f"Entropies predicted and those of networks differ by {gap:.1%} of log T at most."


def _key_figures(config: Config, table: pl.DataFrame) -> dict[str, float]:
    distances = _distances(table)
    lengths = list(dict.fromkeys(length for length, _ in distances))
    return {
        "networks − random energies, largest difference of Σ P²": max(
            abs(off) for _, off in _same(table).values()
        ),
        **{f"distance to the limit, {k}": v for k, v in _farthest(distances, lengths).items()},
        "entropy, predicted and measured, largest difference over log T": _entropy_gap(
            config, table
        ),
    }
