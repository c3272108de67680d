"""Does LayerNorm alone stop the collapse? Attention and a norm, nothing else, in three formats.

What happens near rank one (derived). Rows of P sum to one, so ``P(1xᵀ + eˢR) = 1xᵀ + eˢPR``; once
tokens agree their logits do, so that P is uniform over what each token sees, whatever the scale of
the logits; and a norm divides all tokens by nearly the same number. Under the full mask the step
stays cubic: rank one attracts from nearby. Under other masks it is linear: averaging shrinks the
deviations, and values may stretch them more than the common row, which random ones are only
measured not to do. Tokens that never come near rank one may stay apart under any mask.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import polars as pl
import torch
from torch import Tensor

from rankscope import tables
from rankscope.core.deep import deep_trace
from rankscope.core.metrics import residual, stable_rank
from rankscope.core.network import Network
from rankscope.core.tracing import Trace, trace
from rankscope.experiments import depths, kit, norm_outcomes
from rankscope.experiments.norm_cases import FACTORS, SWEEPS, NormSetting, Settings, random_network
from rankscope.experiments.norm_outcomes import NOTE, list_cases

ENTRY = kit.study(
    "layernorm",
    "Attention and LayerNorm, without skips and MLPs",
    question="Does LayerNorm alone stop the collapse at initialisation, or does the number format "
    "stop?",
    seconds=250,
)
LOWEST = -24.0
"""Where charts are cut: float64 cannot distinguish tokens this close."""


def _log10_relative(x: Tensor, *, token_mask: Tensor | None = None) -> Tensor:
    size: Tensor = residual(x, norm="fro", relative=True, token_mask=token_mask)
    return size.log10()


PLAIN: Final = {depths.RELATIVE_DISPERSION: _log10_relative, norm_outcomes.STABLE: stable_rank}
"""What is measured of every layer in plain numbers."""


@dataclass(frozen=True)
class Config(kit.Config):
    """Cases, each in three formats, and a search for logits that stop the collapse.

    A case has one draw of weights and ``samples`` passages; where a sample is still apart after
    ``layers``, it is followed ``deeper`` times as far, and where it is level then, that many times
    again, because fresh layers may keep tokens apart for long and then not. The search has
    ``draws`` of weights for each setting of each of its networks (``sweeps`` times ``scales`` of
    the logits times fresh and repeated layers); its ``search_layers`` are, with 16 tokens, three
    times what one-hot attention needs.
    """

    layers: int = 100
    deeper: int = 4
    samples: int = 3
    factors: tuple[tuple[str, Settings], ...] = FACTORS
    sweeps: Settings = SWEEPS
    scales: tuple[float, ...] = (1.0, 4.0, 16.0, 64.0, 256.0)
    search_layers: int = 60
    draws: int = 4

    @property
    def cases(self) -> dict[str, NormSetting]:
        """All cases by their names."""
        return {name: setting for _, group in self.factors for name, setting in group}


def measure(config: Config, on_step: kit.OnStep) -> depths.Measured:
    """Each case in scaled arithmetic, float64 and float32, and a search for logits that stop it.

    The search looks at tokens that end further apart than a hundredth of their size, which plain
    float64 can resolve.
    """
    work = [(name, setting, _case) for name, setting in config.cases.items()]
    work += [(name, setting, _search) for name, setting in config.sweeps]
    parts = [
        measure_part(config, name, setting, on_part)
        for (name, setting, measure_part), on_part in kit.tracked(work, on_step)
    ]
    notes = {case: note for part in parts for case, note in part.notes.items()}
    about = {"about": _describe(config), "dispersion": "Frobenius norm"}
    return depths.Measured(tables.stack(part.table for part in parts), notes, about=about)


def judge(config: Config, measured: depths.Measured) -> kit.Answer:
    """Where tokens stay apart; the cases, factor by factor, and the search."""
    table = measured.table
    return kit.Answer(sentences(config, table), parts=tuple(_parts(config, table)), charts=())


def _describe(config: Config) -> str:
    """What all cases have in common."""
    return (
        f"Base: {NormSetting()}; {config.layers} layers, {config.deeper} times as many where a "
        f"sample is still apart, and again where it is level, one draw of weights, "
        f"{config.samples} passages. Each case changes what its name says. The search has "
        f"{config.draws} draws of weights and {config.samples} passages for each setting."
    )


def _case(config: Config, name: str, setting: NormSetting, on_step: kit.OnStep) -> depths.Measured:
    """All three formats; where some sample has not collapsed, with many more layers."""
    x, token_mask = depths.Passages(setting.width, setting.tokens, config.samples, config.seed)()

    def deep(layers: int) -> tuple[Network, Trace]:
        network = random_network(setting, layers, config.seed)
        return network, deep_trace(network, x, norm="fro", token_mask=token_mask)

    network, scaled = deep(config.layers)
    on_step(0.25)
    if _still_apart(scaled):
        network, scaled = deep(config.deeper * config.layers)
    if norm_outcomes.some_stay(scaled.table):
        network, scaled = deep(config.deeper**2 * config.layers)
    on_step(0.75)
    by_format = {depths.SCALED: depths.dispersions(scaled.table.filter(metric=depths.RELATIVE))}
    for format_, dtype in depths.FORMATS.items():
        plain = network if dtype == torch.float64 else network.float()
        by_format[format_] = trace(plain, x.to(dtype), metrics=PLAIN, token_mask=token_mask).table
    table = tables.joined({name: tables.joined(by_format)}, column="model")
    return depths.Measured(table, depths.doubts({name: scaled}))


def _still_apart(traced: Trace) -> bool:
    """Whether some residual is too large yet to say that it goes on shrinking."""
    rows = traced.table.filter(metric=depths.RELATIVE)
    last = rows.filter(pl.col("layer") == pl.max("layer"))
    return bool((last["value"] > math.log10(norm_outcomes.DIFFERENT)).any())


def _search(
    config: Config, name: str, setting: NormSetting, on_step: kit.OnStep
) -> depths.Measured:
    """Which runs' tokens stay apart, their share, and their stable rank, by logit scale."""
    settings = [
        replace(setting, logits=logits, shared=shared)
        for shared in (False, True)
        for logits in config.scales
    ]
    rows: list[tuple[Any, ...]] = []
    for varied, _ in kit.tracked(settings, on_step):
        ends = [_end(config, varied, config.seed + draw) for draw in range(config.draws)]
        apart = torch.cat([apart for apart, _ in ends]).double()
        ranks = torch.cat([rank for _, rank in ends])
        layers = norm_outcomes.REPEATED if varied.shared else norm_outcomes.FRESH
        label = (name, layers, "logit_scale", varied.logits)
        # Chart and words then have one figure.
        rows.append((*label, 0, norm_outcomes.SHARE, float(apart.mean())))
        rows += [
            (*label, run, norm_outcomes.APART, value) for run, value in enumerate(apart.tolist())
        ]
        rows += [
            (*label, run, f"{norm_outcomes.STABLE}_apart", float(ranks[run]))
            for run in apart.nonzero()[:, 0].tolist()
        ]
    names = ("model", "variant", "parameter", "setting", "sample", "metric", "value")
    return depths.Measured(tables.from_rows(names, rows), {})


def _end(config: Config, setting: NormSetting, seed: int) -> tuple[Tensor, Tensor]:
    """Of every passage under one draw of weights: whether tokens still differ; the stable rank."""
    x, token_mask = depths.Passages(setting.width, setting.tokens, config.samples, seed)()
    with torch.no_grad():
        y = random_network(setting, config.search_layers, seed)(x, token_mask)
    size = residual(y, norm="fro", relative=True, token_mask=token_mask)
    return size > norm_outcomes.DIFFERENT, stable_rank(y, token_mask=token_mask)


def sentences(config: Config, table: pl.DataFrame) -> tuple[str, ...]:
    """Where tokens stay apart and of which rank, how long others did, what plain formats say."""
    outcomes = norm_outcomes.outcomes(table)
    if not outcomes:
        return ()
    return (
        norm_outcomes.domain(outcomes, config.cases),
        *norm_outcomes.poles(outcomes),
        *norm_outcomes.stall(outcomes),
        norm_outcomes.noise(outcomes),
    )


def search_sentences(config: Config, table: pl.DataFrame) -> tuple[str, ...]:
    """What the search counts; nothing where there was none."""
    searched = norm_outcomes.search_counts(tables.summary(table), dict(config.sweeps))
    return tuple(norm_outcomes.search_domain(searched, config.search_layers))


def _parts(config: Config, table: pl.DataFrame) -> Iterator[kit.Part]:
    """The cases, factor by factor, and the search."""
    ends = norm_outcomes.outcomes(table)
    for number, (factor, group) in enumerate(config.factors):
        cases = {name: ends[name] for name, _ in group}
        yield kit.Part(
            factor.capitalize(),
            (_describe(config),) if not number else (),
            (list_cases(f"Relative dispersion: {factor}", cases, "" if number else NOTE),),
            (
                kit.Drawing(
                    "by_depth",
                    f"{factor.capitalize()}: scaled arithmetic beside plain numbers.",
                    depths.RELATIVE_DISPERSION,
                    {"lowest": LOWEST},
                    {"model": tuple(cases)},
                    depths.FLOORS,
                ),
            ),
        )
    if config.sweeps:
        drawing = kit.Drawing(
            "by_setting",
            "The share of runs whose tokens still differ by a hundredth of their size at the end.",
            norm_outcomes.SHARE,
        )
        yield kit.Part("The search", search_sentences(config, table), drawings=(drawing,))
