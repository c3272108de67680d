"""Claim N1: scores that depend on the pair of positions make collapse exponential only."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import mean
from typing import Literal, cast

import polars as pl
import torch
from torch import Tensor

from rankscope import tables
from rankscope.arguments import checked
from rankscope.core.deep import deep_states
from rankscope.core.network import (
    ALiBi,
    Block,
    Network,
    RelativeBias,
    Rotary,
    ScoreKind,
    Sink,
    Visibility,
)
from rankscope.core.theory import Law, LawKind, as_stated, ergodicity, law, second_modulus
from rankscope.experiments import depths, kit
from rankscope.experiments.depths import law_of_medians, medians
from rankscope.numerals import plural, power_of_ten

ENTRY = kit.claim(
    "N1",
    "Pure attention collapses doubly exponentially where its rows agree once the tokens do, and "
    "only exponentially where scores or a mask depend on the pair of positions, as long as the "
    "logits of the collapsed state do not vanish.",
    source="derived for rankscope",
    question="Is the collapse doubly exponential exactly where all rows of attention agree?",
    domain="pure attention whose hidden states keep their size",
    beyond="pure attention whose hidden states shrink with depth",
    seconds=8,
    metrics=(
        kit.Metric(
            "second_eigenvalue",
            "Second eigenvalue",
            "|λ2(P)|",
            "log",
            "Factor on differences per layer in the long run",
            "The second largest modulus among the eigenvalues of the attention matrix that all "
            "tokens would have if they were equal to their mean.",
            "down",
            includes=(1.0,),
        ),
    ),
)
CHARTS = (
    kit.Drawing(
        "by_depth",
        "A curve for each network. Straight ones are exponential.",
        depths.RELATIVE,
        {"lowest": -60.0},
    ),
)
KEEPING, SHRINKING = "hidden states keep their size", "hidden states shrink"
"""Panels: what the claim is about, and what lies beyond it."""
TAU, PRODUCT, SECOND = "dobrushin", "log10_product_ergodicity", "second_eigenvalue"
_AGREED = 3.0  # standard errors within which a measured rate and that of positions alone agree
_ROUNDING = 1e-12  # an ergodicity coefficient below this is that of rows which agree


@checked
@dataclass(frozen=True)
class PositionScheme:
    """Scores and a mask."""

    name: str
    scores: ScoreKind | Literal["dot"] = "dot"
    mask: str = "full"


@dataclass(frozen=True)
class Config(depths.DeepConfig):
    """One head with the same weights under many scores and masks.

    Orthogonal values keep the size of hidden states; those of ``shrinking`` do not. A relative bias
    is drawn anew with every seed.
    """

    init: str = "orthogonal"
    shrinking: str = "bert"
    patterns: tuple[PositionScheme, ...] = (
        PositionScheme("absolute positions"),
        PositionScheme("sink", Sink()),
        PositionScheme("rotary", Rotary()),
        PositionScheme("relative bias", RelativeBias()),
        PositionScheme("ALiBi", ALiBi()),
        PositionScheme("causal mask", mask="causal"),
        PositionScheme("window mask", mask="window:8"),
    )

    def network(self, pattern: PositionScheme, init: str) -> Network:
        """One head under one pattern."""
        scores = pattern.scores
        if isinstance(scores, RelativeBias):
            scores = replace(scores, seed=self.seed)
        return self.pure_attention(1, init=init, mask=pattern.mask, scores=scores)


def measure(config: Config, on_step: kit.OnStep) -> depths.Measured:
    """Follow each network in scaled arithmetic, and the attention of its collapsed state."""
    x, token_mask = config.texts()
    parts: dict[str, pl.DataFrame] = {}
    notes: dict[str, str] = {}
    panels = {KEEPING: config.init, SHRINKING: config.shrinking}
    for (panel, init), on_panel in kit.tracked(panels.items(), on_step):
        networks = {pattern.name: config.network(pattern, init) for pattern in config.patterns}
        compared = depths.compare(networks, x, token_mask, on_step=on_panel)
        positions = {name: position_table(net, x, token_mask) for name, net in networks.items()}
        parts[panel] = tables.stack([compared.table, tables.joined(positions)])
        notes |= {f"{name}, {panel}": note for name, note in compared.notes.items()}
    return depths.Measured(tables.joined(parts, column="model"), notes)


@torch.no_grad()
def collapsed_patterns(network: Network, x: Tensor, token_mask: Tensor) -> Iterator[Tensor]:
    """In each layer the first head's ``(sample, query, key)`` matrix if all tokens were their mean.

    Once tokens agree, attention depends on positions and on the row they have in common. What is in
    doubt about these states is what is noted about a deep trace of the same network and input.
    """
    network = network.double()
    states = deep_states(network, x, token_mask)
    for mask, block, (_, state) in zip(network.spec.masks, network.blocks, states, strict=False):
        seen = Visibility.of(mask, x.shape[1], token_mask, x.device)
        common = state.common.at(0.0).unsqueeze(1).expand(x.shape)
        yield cast(Block, block).attention.pattern(common, seen)[:, 0]


def position_table(network: Network, x: Tensor, token_mask: Tensor) -> pl.DataFrame:
    """By layer and sample, of the collapsed state's attention: by how much its rows differ, τ, and
    unless they agree somewhere, τ of all layers so far and its second eigenvalue.
    """
    matrices = list(collapsed_patterns(network, x, token_mask))
    mixing = ergodicity(matrices, token_mask=token_mask)
    differ = bool((mixing.coefficients > _ROUNDING).all())
    columns = {
        TAU: mixing.coefficients,
        PRODUCT: mixing.log_products / math.log(10),
        SECOND: second_modulus(torch.stack(matrices)),
    }
    rows = [
        (layer, sample, metric, value)
        for metric, by_layer in columns.items()
        if differ or metric == TAU
        for layer, values in enumerate(by_layer.tolist(), start=1)
        for sample, value in enumerate(values)
    ]
    return tables.from_rows(("layer", "sample", "metric", "value"), rows)


@dataclass(frozen=True)
class PatternLaw:
    """One pattern: its law, and what its collapsed state says about it, by medians over samples."""

    law: Law
    positions: Law | None
    """The law of the products of the collapsed state's attention; none where its rows agree."""
    second: float
    """|λ₂| of that attention, its geometric mean over the later layers; NaN where rows agree."""
    rows_agree: bool
    shrinks: float  # log₁₀ of the factor by which a layer multiplies the hidden states

    @property
    def expected(self) -> LawKind:
        """The law of the claim."""
        return "doubly exponential" if self.rows_agree else "exponential"

    @property
    def gap(self) -> float:
        """How many standard errors the measured rate is off that of positions alone."""
        if self.positions is None or self.law.kind != "exponential":
            return math.nan
        error = math.hypot(self.law.rate_error, self.positions.rate_error)
        return abs(self.law.rate - self.positions.rate) / error if error else math.inf

    def alone(self) -> tuple[str | None, float | None]:
        """What positions alone would make of the rate, for a listing."""
        if self.positions is None or math.isnan(self.gap):
            return None, None
        return f"layer × {power_of_ten(self.positions.rate, digits=3)}", self.second


def judge(config: Config, measured: depths.Measured) -> kit.Answer:
    """The claim is supported for a pattern with the claimed law; one without a law is left out.

    Whether the rows of attention agree once tokens do is read off the collapsed state.
    """
    keeping, shrinking = (read(measured.table, panel) for panel in (KEEPING, SHRINKING))
    gaps = [pattern.gap for pattern in keeping.values() if math.isfinite(pattern.gap)]
    as_claimed = sum(pattern.law.kind == pattern.expected for pattern in keeping.values())
    return kit.Answer(
        _sentences(keeping, shrinking),
        stated=_checks(keeping),
        on=_phrase(keeping),
        beyond=_checks(shrinking),
        on_beyond=_phrase(shrinking),
        key_figures={
            "patterns whose law is as stated": float(as_claimed),
            **({"rates off those of positions, in standard errors": max(gaps)} if gaps else {}),
        },
        listings=tuple(
            kit.Listing(
                f"Relative residual after {config.layers} layers: {panel}",
                ("scores or mask", *depths.LAW_COLUMNS, "positions alone", "|λ₂|"),
                tuple(
                    (name, *depths.law_entries(pattern.law), *pattern.alone())
                    for name, pattern in patterns.items()
                ),
                "Medians over the samples. Positions alone: the pace of products of the collapsed "
                "state's attention, and the second eigenvalue of the last of them. "
                f"{depths.LAW_NOTE}",
            )
            for panel, patterns in ((KEEPING, keeping), (SHRINKING, shrinking))
        ),
    )


def read(table: pl.DataFrame, panel: str) -> dict[str, PatternLaw]:
    """What the table says about every pattern of a panel."""
    panel_summary = tables.summary(table.filter(model=panel))
    patterns = {}
    for (name,), summary in panel_summary.group_by("variant", maintain_order=True):
        taus, seconds, products, absolute, relative = (
            medians(summary, metric)
            for metric in (TAU, SECOND, PRODUCT, "log10_residual", depths.RELATIVE)
        )
        sizes = [a - b for a, b in zip(absolute, relative, strict=True)]
        half = len(sizes) // 2
        later = [math.log10(value) for value in seconds[len(seconds) // 2 :]]
        patterns[str(name)] = PatternLaw(
            law_of_medians(summary, depths.RELATIVE),
            law([0.0, *products]) if products else None,
            10 ** mean(later) if later else math.nan,
            rows_agree=taus[0] < _ROUNDING,
            shrinks=(sizes[-1] - sizes[half]) / max(1, len(sizes) - 1 - half),
        )
    return patterns


def _checks(patterns: Mapping[str, PatternLaw]) -> dict[str, bool]:
    laws = {name: pattern.law for name, pattern in patterns.items()}
    return as_stated(laws, lambda name, law: law.kind == patterns[name].expected)


def _phrase(patterns: Mapping[str, PatternLaw]) -> kit.Phrase:
    checks = _checks(patterns)
    against = [f"{name} ({patterns[name].law.kind})" for name, holds in checks.items() if not holds]
    as_claimed = len(checks) - len(against)
    return {
        "depends": f"supported for {plural(as_claimed, 'pattern')}; not for {', '.join(against)}",
        "not tried": "the layers are too few to show a law",
    }


def _sentences(
    keeping: Mapping[str, PatternLaw], shrinking: Mapping[str, PatternLaw]
) -> Iterator[str]:
    """The rates beside those of positions alone, and what becomes of them beyond."""
    rated = {name: pattern for name, pattern in keeping.items() if not math.isnan(pattern.gap)}
    if rated:
        name = max(rated, key=lambda name: rated[name].gap)
        worst = rated[name]
        assert worst.positions is not None  # a gap has two rates
        near = sum(pattern.gap <= _AGREED for pattern in rated.values())
        yield (
            f"{near} of {len(rated)} exponential rates agree within {_AGREED:g} standard errors "
            "with what positions alone make of the collapsed state's attention; farthest off is "
            f"{name}, × {power_of_ten(worst.law.rate, digits=3)} a layer beside "
            f"{power_of_ten(worst.positions.rate, digits=3)}, {worst.gap:.1f} standard errors."
        )
    yield from depths.left_out({name: pattern.law for name, pattern in keeping.items()})
    for name, pattern in shrinking.items():
        if pattern.law.kind == "between":
            yield (
                f"Beyond: where a layer multiplies hidden states by "
                f"{power_of_ten(pattern.shrinks)}, the steps of {name} grow by "
                f"{-pattern.law.bend:.2f} decades each; twice the states' own decades a layer are "
                f"{-2 * pattern.shrinks:.2f} (derived: the logits of the collapsed state shrink "
                "like its square)."
            )
    steady = [name for name, pattern in shrinking.items() if pattern.law.kind == "exponential"]
    if steady:
        yield f"Beyond: {', '.join(steady)} stay exponential there: they need no hidden states."
