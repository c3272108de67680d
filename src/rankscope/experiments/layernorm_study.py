"""Does LayerNorm alone stop the collapse? Attention and a norm, nothing else, in three formats.

What happens near rank one (derived). Rows of P sum to one, so ``P(1xᵀ + eˢR) = 1xᵀ + eˢPR``; once
tokens agree their logits do, so that P is uniform over what each token sees, whatever the scale of
the logits; and a norm divides all tokens by nearly the same number. Under the full mask the step
stays cubic: rank one attracts from nearby. Under other masks it is linear: averaging shrinks the
deviations, and values may stretch them more than the common row, which random ones are only
measured not to do. Tokens that never come near rank one may stay apart under any mask.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from statistics import fmean, median
from typing import Any, Literal

import polars as pl
import torch
from torch import Tensor

from rankscope import tables
from rankscope.deep import deep_trace
from rankscope.experiments.deep_study import FORMATS, SCALED
from rankscope.experiments.depths import RELATIVE, Texts
from rankscope.experiments.laws import Law, LawKind, law, medians, power_of_ten
from rankscope.experiments.layernorm_cases import FACTORS, SCALES, SWEEPS, Setting, random_network
from rankscope.experiments.study import Drawing, Study
from rankscope.metrics import residual, stable_rank
from rankscope.tracing import Provenance, trace

LAYERS = 100
_SEARCHED = 60
"""Layers of the search's networks: with 16 tokens, three times what one-hot attention needs."""
_DEEPER = 4
"""Where tokens stay apart, so many times more layers are asked whether they go on doing so."""
_LEVEL = 0.1
"""Decades by which the last quarter of the layers may lie below the one before and count as level;
a collapse by a hundredth a layer, the slowest seen under a window, loses a quarter of a decade."""
_CUBIC = 0.5
"""How far from 3 the growth of the last steps may be."""
_FARTHER = 3.0
"""A straight line ends twice as far down as its middle; a doubly exponential fall much farther."""
APART = 1e-2
"""Tokens that differ by more than this part of their size: far above the noise of any format."""
_STABLE = "stable_rank"
_SHARE = "share_still_apart"
_SAMPLES = 3
SEEDS = 4
"""Draws of weights in the search."""

_FRESH, _REPEATED = "fresh layers", "one layer repeated"

Fate = Literal["stops", "collapses"]


def layernorm_study(
    *,
    layers: int = LAYERS,
    factors: Mapping[str, Mapping[str, Setting]] = FACTORS,
    sweeps: Mapping[str, Setting] = SWEEPS,
    seeds: int = SEEDS,
    seed: int = 0,
    on_case: Callable[[], None] | None = None,
) -> Study:
    """Each case in scaled arithmetic, float64 and float32, and a search for logits that stop it.

    The search looks at tokens that end further apart than a hundredth of their size, which plain
    float64 can tell.
    """
    found: list[pl.DataFrame] = []
    for name, setting in (each for group in factors.values() for each in group.items()):
        found.append(_case(name, setting, layers, seed))
        if on_case is not None:
            on_case()
    for name, setting in sweeps.items():
        found.append(_swept(name, setting, min(layers, _SEARCHED), range(seed, seed + seeds)))
        if on_case is not None:
            on_case()
    merged = pl.concat(found, how="diagonal")
    table = merged.select([name for name in tables.COLUMNS if name in merged.columns])
    summary = tables.summary(table)
    return Study(
        name="layernorm",
        title="Attention and LayerNorm, without skips and MLPs",
        question="Does LayerNorm alone stop the collapse at initialisation, or does the number "
        "format stop?",
        sentences=_sentences(summary),
        table=table,
        summary=summary,
        provenance=asdict(Provenance("attention and norm", seed=seed))
        | {"base": str(Setting()), "layers": str(layers), "seeds of the search": str(seeds)},
        drawings=tuple(_drawings(factors, sweeps)),
        shown=(RELATIVE,),
    )


def cases(
    factors: Mapping[str, Mapping[str, Setting]] = FACTORS,
    sweeps: Mapping[str, Setting] = SWEEPS,
) -> int:
    """How often ``on_case`` is called."""
    return sum(map(len, factors.values())) + len(sweeps)


@dataclass(frozen=True)
class Outcome:
    """One case: by format (scaled, float64, float32) how it ends, and what law it truly follows."""

    layers: int
    law: str
    last: Mapping[str, float]
    fate: Mapping[str, Fate]
    rank: float
    """The stable rank in float64 where the tokens truly stay apart; 1 means two opposite poles."""


def outcomes(summary: pl.DataFrame) -> dict[str, Outcome]:
    """How every case of a study ends, by the medians over its samples."""
    rows = summary.filter(pl.col("metric") == RELATIVE)
    found = {}
    for name in rows["model"].unique(maintain_order=True).to_list():
        curves = {
            format_: medians(rows, RELATIVE, model=name, variant=format_)
            for format_ in (SCALED, *FORMATS)
        }
        rank = medians(summary, _STABLE, model=name, variant="float64")[-1]
        found[name] = Outcome(
            len(curves[SCALED]) - 1,
            str(long_law(curves[SCALED])),
            {format_: curve[-1] for format_, curve in curves.items()},
            {format_: fate(curve) for format_, curve in curves.items()},
            rank,
        )
    return found


def fate(log10: list[float]) -> Fate:
    """Whether a residual has stopped shrinking: its last quarter is level with the one before.

    >>> fate([0.0, -1.0, -2.0, -2.0, -2.0, -2.0, -2.0, -2.0])
    'stops'

    Medians of whole quarters, because fresh layers make the residual of tokens that stay apart go
    up and down.
    """
    quarter = max(1, len(log10) // 4)
    before, after = median(log10[-2 * quarter : -quarter]), median(log10[-quarter:])
    return "stops" if after > before - _LEVEL else "collapses"


def long_law(log10: list[float]) -> Law:
    """The law of a residual that fresh layers make go up and down, by its whole second half.

    >>> long_law([0.0, -0.1, -0.2, -0.3, -0.4, -0.5, -0.52, -0.6]).kind
    'exponential'

    ``law`` tells double exponents from the last few steps, where scatter may look like growth; here
    the whole second half has to bear it out.
    """
    found = law(log10)
    middle = len(log10) // 2
    if found.kind == "equal":
        return found
    if fate(log10) == "stops":
        kind: LawKind = "none"
    elif abs(found.growth - 3) < _CUBIC and found.last < _FARTHER * log10[middle]:
        return Law("doubly exponential", found.growth, found.rate, found.last)
    else:
        kind = "exponential"
    rate = (log10[-1] - log10[middle]) / max(1, len(log10) - 1 - middle)
    return Law(kind, found.growth, rate, found.last)


def shares(summary: pl.DataFrame) -> dict[tuple[str, str], dict[float, float]]:
    """By network and kind of layers: for each logit scale, the share of runs that stay apart."""
    found: dict[tuple[str, str], dict[float, float]] = {}
    rows = summary.filter(pl.col("metric") == _SHARE)
    if rows.is_empty():
        return found
    for model, variant, setting, mean in rows.select(
        "model", "variant", "setting", "mean"
    ).iter_rows():
        found.setdefault((model, variant), {})[setting] = mean
    return found


def _case(name: str, setting: Setting, layers: int, seed: int) -> pl.DataFrame:
    """All three formats; where the tokens stay apart, with many more layers."""
    x, token_mask = Texts(setting.width, setting.tokens, _SAMPLES, seed)()
    network = random_network(setting, layers, seed)
    scaled = deep_trace(network, x, token_mask=token_mask).table
    if fate(medians(tables.summary(scaled), RELATIVE)) == "stops":
        network = random_network(setting, _DEEPER * layers, seed)
        scaled = deep_trace(network, x, token_mask=token_mask).table
    found = {SCALED: scaled.filter(pl.col("metric") == RELATIVE)}
    for format_, dtype in FORMATS.items():
        plain = network if dtype == torch.float64 else network.float()
        metrics = {RELATIVE: _log10_relative, _STABLE: stable_rank}
        found[format_] = trace(plain, x.to(dtype), metrics=metrics, token_mask=token_mask).table
    return tables.joined({name: tables.joined(found)}, column="model")


def _swept(name: str, setting: Setting, layers: int, seeds: range) -> pl.DataFrame:
    """The share of passages whose tokens stay apart, and their stable rank, by logit scale."""
    columns: dict[str, list[Any]] = {
        key: [] for key in ("model", "variant", "parameter", "setting", "sample", "metric", "value")
    }
    for shared in (False, True):
        for logits in SCALES:
            for seed in seeds:
                one = replace(setting, logits=logits, shared=shared)
                x, token_mask = Texts(one.width, one.tokens, _SAMPLES, seed)()
                with torch.no_grad():
                    y = random_network(one, layers, seed)(x, token_mask)
                apart = residual(y, relative=True, token_mask=token_mask) > APART
                ranks = stable_rank(y, token_mask=token_mask)[apart].tolist()
                values = [(_SHARE, float(apart.double().mean()))]
                values += [(f"{_STABLE}_apart", fmean(ranks))] if ranks else []
                for metric, value in values:
                    label = _REPEATED if shared else _FRESH
                    row = (name, label, "logit_scale", logits, seed, metric, value)
                    for key, entry in zip(columns, row, strict=True):
                        columns[key].append(entry)
    return tables.frame(columns)


def _log10_relative(x: Tensor, *, token_mask: Tensor | None = None) -> Tensor:
    size: Tensor = residual(x, relative=True, token_mask=token_mask)
    return size.log10()


def _sentences(summary: pl.DataFrame) -> tuple[str, ...]:
    found = outcomes(summary)
    told = []
    for name, one in found.items():
        ends = ", ".join(f"{power_of_ten(last)} in {form}" for form, last in one.last.items())
        true = "stays apart" if one.fate[SCALED] == "stops" else one.law
        rank = f"; stable rank {one.rank:.2f}" if one.fate[SCALED] == "stops" else ""
        told.append(f"{name}: {true}; relative residual after {one.layers} layers {ends}{rank}.")
    return (*told, *(noise(found, form) for form in FORMATS), *boundaries(summary))


def noise(found: Mapping[str, Outcome], format_: str) -> str:
    """How often a plain format would have called a collapse stopped."""
    going = [one for one in found.values() if one.fate[SCALED] == "collapses"]
    fooled = sum(one.fate[format_] == "stops" for one in going)
    return (
        f"{format_} alone would have said that it stops in {fooled} of the {len(going)} cases in "
        "which it goes on."
    )


def boundaries(summary: pl.DataFrame) -> Iterator[str]:
    """For each network of the search, from which logit scale on most runs stay apart."""
    rows = summary.filter(pl.col("metric") == f"{_STABLE}_apart")
    for (model, variant), by_scale in shares(summary).items():
        fewer = max((s for s, share in by_scale.items() if share <= 0.5), default=0.0)
        most = [scale for scale in by_scale if scale > fewer]
        highest = max(by_scale.values())
        same = (pl.col("model") == model) & (pl.col("variant") == variant)
        ranks: list[float] = rows.filter(same)["median"].to_list()
        rank = f", with a stable rank of {median(ranks):.2f}" if ranks else ""
        where = (
            f"most runs stay apart from logits × {min(most):g} on"
            if most
            else f"at logits × {max(by_scale):g} no majority stays apart"
        )
        yield f"{model}, {variant}: {where}; at any scale at most {highest:.0%} do{rank}."


def _drawings(
    factors: Mapping[str, Mapping[str, Setting]], sweeps: Mapping[str, Setting]
) -> Iterator[Drawing]:
    for factor, group in factors.items():
        yield Drawing(
            "by_depth",
            f"{factor.capitalize()}: scaled arithmetic beside plain numbers.",
            RELATIVE,
            {"lowest": -24.0},
            {"model": tuple(group)},
        )
    if sweeps:
        yield Drawing(
            "by_setting",
            "The share of runs whose tokens still differ by a hundredth of their size at the end.",
            _SHARE,
        )
