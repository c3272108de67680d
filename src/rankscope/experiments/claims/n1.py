"""Claim N1: scores that depend on the pair of positions make collapse exponential only."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import polars as pl

from rankscope import tables
from rankscope.arguments import checked
from rankscope.core.network import ALiBi, Network, RelativeBias, Rotary, ScoreKind, Sink
from rankscope.core.theory import as_stated
from rankscope.experiments import depths, kit
from rankscope.experiments.claims._positions import Found, position_table, read
from rankscope.numerals import power_of_ten

ENTRY = kit.claim(
    "N1",
    "Pure attention collapses doubly exponentially where its rows agree once the tokens do, and "
    "only exponentially where scores or a mask depend on the pair of positions, as long as the "
    "logits of the collapsed state do not vanish.",
    source="derived for rankscope",
    domain="pure attention whose hidden states keep their size",
    seconds=8,
    metrics=(
        kit.Metric(
            "second_eigenvalue",
            "Second eigenvalue",
            "|λ2(P)|",
            "log",
            "What a layer leaves of differences in the long run",
            "The second largest modulus among the eigenvalues of the attention matrix that all "
            "tokens would have if they were equal to their mean.",
            "down",
            includes=(1.0,),
        ),
    ),
)
KEEPING, SHRINKING = "hidden states keep their size", "hidden states shrink"
"""Panels: what the claim is about, and what lies beyond it."""
_AGREED = 3.0
"""Standard errors within which a measured rate and that of positions alone agree."""


@checked
@dataclass(frozen=True)
class Pattern:
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
    patterns: tuple[Pattern, ...] = (
        Pattern("absolute positions"),
        Pattern("sink", Sink()),
        Pattern("rotary", Rotary()),
        Pattern("relative bias", RelativeBias()),
        Pattern("ALiBi", ALiBi()),
        Pattern("causal mask", mask="causal"),
        Pattern("window mask", mask="window:8"),
    )

    def network(self, pattern: Pattern, init: str) -> Network:
        """One head under one pattern."""
        scores = pattern.scores
        if isinstance(scores, RelativeBias):
            scores = replace(scores, seed=self.seed)
        return self.pure_attention(1, init=init, mask=pattern.mask, scores=scores)


def run(config: Config, on_step: kit.OnStep) -> kit.Result:
    """Follow each network in scaled arithmetic, and the attention of its collapsed state."""
    x, token_mask = config.texts()
    parts: dict[str, pl.DataFrame] = {}
    notes: dict[str, str] = {}
    panels = {KEEPING: config.init, SHRINKING: config.shrinking}
    for (panel, init), on_panel in kit.tracked(panels.items(), on_step):
        networks = {each.name: config.network(each, init) for each in config.patterns}
        compared = depths.compare(networks, x, token_mask, on_step=on_panel)
        positions = {name: position_table(net, x, token_mask) for name, net in networks.items()}
        parts[panel] = tables.stack([compared.table, tables.joined(positions)])
        notes |= {f"{name}, {panel}": note for name, note in compared.notes.items()}
    table = tables.joined(parts, column="model")
    found = {panel: read(table, panel) for panel in panels}
    gaps = [one.gap for one in found[KEEPING].values() if math.isfinite(one.gap)]
    return ENTRY.result(
        config,
        question="Is the collapse doubly exponential exactly where all rows of attention agree?",
        sentences=sentences(found),
        table=table,
        listings=tuple(_listing(config, panel, each) for panel, each in found.items()),
        notes=notes,
        judgement=judged(ENTRY.domain, found[KEEPING]),
        beyond=judged("pure attention whose hidden states shrink with depth", found[SHRINKING]),
        key_figures={
            "patterns whose law is as stated": float(
                sum(one.law.kind == one.expected for one in found[KEEPING].values())
            ),
            **({"rates off those of positions, in standard errors": max(gaps)} if gaps else {}),
        },
        drawings=(
            kit.Drawing(
                "by_depth",
                "A curve for each network. Straight ones are exponential.",
                depths.RELATIVE,
                {"lowest": -60.0},
            ),
        ),
        shown=(depths.RELATIVE,),
    )


def judged(domain: str, found: Mapping[str, Found]) -> kit.Judgement:
    """A pattern bears the claim out if its law is that of the claim; without a law it is left out.

    Whether the rows of attention agree once tokens do is read off the collapsed state.
    """
    laws = {name: one.law for name, one in found.items()}
    borne_out = as_stated(laws, lambda name, law: law.kind == found[name].expected)
    if not borne_out:
        return kit.judged(domain, {}, "the layers are too few to show a law")
    against = [name for name, holds in borne_out.items() if not holds]
    if not against or len(against) == len(borne_out):
        return kit.judged(domain, borne_out)
    words = ", ".join(f"{name}: {laws[name].kind}" for name in against)
    others = len(borne_out) - len(against)
    return kit.judged(domain, borne_out, f"the scores ({words}; {others} as stated)")


def sentences(found: Mapping[str, Mapping[str, Found]]) -> Iterator[str]:
    """The rates beside those of positions alone, and what becomes of them beyond."""
    keeping, shrinking = found[KEEPING], found[SHRINKING]
    rated = {name: one for name, one in keeping.items() if not math.isnan(one.gap)}
    if rated:
        worst = max(rated, key=lambda name: rated[name].gap)
        near = sum(one.gap <= _AGREED for one in rated.values())
        yield (
            f"{near} of {len(rated)} exponential rates agree within {_AGREED:g} standard errors "
            "with what positions alone make of the collapsed state's attention; farthest off is "
            f"{worst}, {_beside(rated[worst])}."
        )
    yield from depths.left_out({name: one.law for name, one in keeping.items()})
    for name, one in shrinking.items():
        if one.law.kind == "between":
            yield (
                f"Beyond: where a layer multiplies hidden states by {power_of_ten(one.shrinks)}, "
                f"the steps of {name} grow by {-one.law.bend:.2f} decades each; twice the states' "
                f"own decades a layer are {-2 * one.shrinks:.2f} (derived: the logits of the "
                "collapsed state shrink like its square)."
            )
    steady = [name for name, one in shrinking.items() if one.law.kind == "exponential"]
    if steady:
        yield f"Beyond: {', '.join(steady)} stay exponential there: they need no hidden states."


def _listing(config: Config, panel: str, found: Mapping[str, Found]) -> kit.Listing:
    """The law of every pattern, and what positions alone would make of its rate."""
    rows = []
    for name, one in found.items():
        alone, second = None, None
        if one.positions is not None and not math.isnan(one.gap):
            alone = f"layer × {power_of_ten(one.positions.rate, digits=3)}"
            second = one.second
        rows.append((name, *depths.law_entries(one.law), alone, second))
    return kit.Listing(
        f"Relative residual after {config.layers} layers: {panel}",
        ("scores or mask", *depths.LAW_COLUMNS, "positions alone", "|λ₂|"),
        tuple(rows),
        "Medians over the samples. Positions alone: the pace of products of the collapsed state's "
        f"attention, and the second eigenvalue of the last of them. {depths.LAW_NOTE}",
    )


def _beside(one: Found) -> str:
    assert one.positions is not None  # a gap has two rates
    measured, derived = (power_of_ten(each.rate, digits=3) for each in (one.law, one.positions))
    return f"× {measured} a layer beside {derived}, {one.gap:.1f} standard errors"
