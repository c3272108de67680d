"""Which experiment answers to which claim; imported only once a command runs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from rankscope.errors import InputError
from rankscope.experiments import Claim, Reading, d2, d3, d4, n1, w1, w2, w3, w4
from rankscope.experiments.d1 import d1
from rankscope.experiments.d5 import Case, d5, passes
from rankscope.experiments.d8 import d8
from rankscope.experiments.d9 import PATHS, d9
from rankscope.experiments.w5 import passes as w5_passes
from rankscope.experiments.w5 import w5

Advance = Callable[[], None]


@dataclass(frozen=True)
class Asked:
    """What a user said on the command line; each claim takes what it needs."""

    cases: list[Case]
    texts: list[str]
    length: int
    reading: Reading
    seed: int


@dataclass(frozen=True)
class Experiment:
    """How a claim is run, and how often it reports progress."""

    run: Callable[[Asked, Advance], Claim]
    steps: Callable[[Asked], int]


def _seeded(
    claim: Callable[..., Claim], steps: Callable[[], int], *, report: str = "on_network"
) -> Experiment:
    """A claim about networks of its own, of which only the seed can be chosen."""

    def run(asked: Asked, advance: Advance) -> Claim:
        return claim(seed=asked.seed, **{report: advance})

    return Experiment(run, lambda _: steps())


EXPERIMENTS: Final[dict[str, Experiment]] = {
    "D1": Experiment(lambda asked, _: d1(seed=asked.seed), lambda _: 1),
    "D2": _seeded(d2.d2, d2.steps),
    "D3": _seeded(d3.d3, d3.steps),
    "D4": _seeded(d4.d4, d4.steps),
    "D5": Experiment(
        lambda asked, advance: d5(
            asked.cases,
            texts=asked.texts,
            length=asked.length,
            reading=asked.reading,
            on_batch=advance,
        ),
        lambda asked: passes(asked.cases, len(asked.texts)),
    ),
    "D8": Experiment(lambda _asked, _advance: d8(), lambda _: 1),
    "D9": Experiment(
        lambda asked, advance: d9(
            asked.cases, length=asked.length, seed=asked.seed, on_path=advance
        ),
        lambda asked: len(asked.cases) * PATHS,
    ),
    "N1": _seeded(n1.n1, n1.steps),
    "W1": _seeded(w1.w1, w1.steps),
    "W2": _seeded(w2.w2, w2.steps, report="on_case"),
    "W3": _seeded(w3.w3, w3.steps),
    "W4": _seeded(w4.w4, w4.steps),
    "W5": Experiment(
        lambda asked, advance: w5(
            asked.cases, texts=asked.texts, length=asked.length, on_batch=advance
        ),
        lambda asked: w5_passes(asked.cases, len(asked.texts)),
    ),
}


def known(claim: str) -> str:
    """The claim as it is listed; a wrong one is found before any work is done."""
    if claim.upper() not in EXPERIMENTS:
        raise InputError(f"there is no claim {claim!r}; choose {', '.join(EXPERIMENTS)}.")
    return claim.upper()


def steps(claim: str, asked: Asked) -> int:
    """How often a claim's experiment reports progress."""
    return EXPERIMENTS[claim].steps(asked)


def run(claim: str, asked: Asked, advance: Advance) -> Claim:
    """Run a claim's experiment."""
    return EXPERIMENTS[claim].run(asked, advance)
