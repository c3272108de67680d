"""Claim N1: scores that depend on the pair of positions make collapse exponential only."""

from dataclasses import dataclass
from functools import partial
from typing import Literal

from rankscope import tables
from rankscope.experiments.catalogue import CATALOGUE
from rankscope.experiments.depths import RELATIVE, DeepConfig, compare, ending, laws, pure
from rankscope.experiments.laws import LawKind
from rankscope.experiments.progress import OnStep
from rankscope.experiments.verdicts import overall
from rankscope.network import ALiBi, Network, RelativeBias, Rotary, ScoreKind, Sink
from rankscope.results import Drawing, Result

ENTRY = CATALOGUE["N1"]


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
class Config(DeepConfig):
    """The same weights under scores and masks of both kinds."""

    layers: int = 24
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


def run(config: Config, on_step: OnStep) -> Result:
    """Follow each network in scaled arithmetic; it bears the claim out if its law is as stated."""
    x, token_mask = config.texts()
    networks = {pattern.name: partial(_network, config, pattern) for pattern in config.patterns}
    compared = compare(networks, x, token_mask, on_step=on_step)
    found = laws(tables.summary(compared.table))
    return Result(
        id=ENTRY.id,
        title=ENTRY.title,
        question="Is the collapse doubly exponential exactly where all rows of attention agree?",
        sentences=(
            *(f"{ending(name, law, config.layers)}." for name, law in found.items()),
            *compared.sentences,
        ),
        table=compared.table,
        provenance=ENTRY.provenance(config, input=str(config.texts), notes=compared.notes),
        source=ENTRY.source,
        verdict=overall(
            {
                pattern.name: found[pattern.name].kind == pattern.expected
                for pattern in config.patterns
            }
        ),
        drawings=(
            Drawing("by_depth", "A curve for each network.", RELATIVE, options={"lowest": -60.0}),
        ),
        shown=(RELATIVE,),
    )


def _network(config: Config, pattern: Pattern) -> Network:
    spec = pure(
        config.layers,
        config.heads,
        config.width,
        init=config.init,
        mask=pattern.mask,
        scores=pattern.scores,
    )
    return Network.random(spec, seed=config.seed)
