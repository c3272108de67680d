"""Claim N1: scores that depend on the pair of positions make collapse exponential only."""

from dataclasses import dataclass
from typing import Literal

from rankscope import tables
from rankscope.experiments import depths, kit
from rankscope.experiments.laws import LawKind
from rankscope.network import ALiBi, RelativeBias, Rotary, ScoreKind, Sink

ENTRY = kit.entry("N1")


@dataclass(frozen=True)
class Pattern:
    """Scores and a mask, and whether the attention of all tokens is alike once the tokens are."""

    name: str
    rows_agree: bool
    scores: ScoreKind | Literal["dot"] = "dot"
    mask: str = "full"

    @property
    def expected(self) -> LawKind:
        """The law of the claim."""
        return "doubly exponential" if self.rows_agree else "exponential"


@dataclass(frozen=True)
class Config(depths.DeepConfig):
    """The same weights under scores and masks of both kinds."""

    heads: int = 1
    init: str = "orthogonal"
    patterns: tuple[Pattern, ...] = (
        Pattern("absolute positions", rows_agree=True),
        Pattern("sink", rows_agree=True, scores=Sink()),
        Pattern("rotary", rows_agree=False, scores=Rotary()),
        Pattern("relative bias", rows_agree=False, scores=RelativeBias()),
        Pattern("ALiBi", rows_agree=False, scores=ALiBi()),
        Pattern("causal mask", rows_agree=False, mask="causal"),
        Pattern("window mask", rows_agree=False, mask="window:8"),
    )


def run(config: Config, on_step: kit.OnStep) -> kit.Result:
    """Follow each network in scaled arithmetic; it bears the claim out if its law is as stated."""
    networks = {
        each.name: config.pure_attention(
            config.heads, init=config.init, mask=each.mask, scores=each.scores
        )
        for each in config.patterns
    }
    compared = depths.compare(networks, *config.texts(), on_step=on_step)
    found = depths.laws(tables.summary(compared.table))
    return ENTRY.result(
        config,
        question="Is the collapse doubly exponential exactly where all rows of attention agree?",
        sentences=(f"{depths.ending(name, law, config.layers)}." for name, law in found.items()),
        table=compared.table,
        notes=compared.notes,
        judgement=kit.judged(
            ENTRY.domain,
            {each.name: found[each.name].kind == each.expected for each in config.patterns},
        ),
        drawings=(
            kit.Drawing(
                "by_depth", "A curve for each network.", depths.RELATIVE, {"lowest": -60.0}
            ),
        ),
        shown=(depths.RELATIVE,),
    )
