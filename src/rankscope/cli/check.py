"""Which experiment answers to which claim; imported only once a command runs."""

from collections.abc import Callable
from dataclasses import dataclass

from rankscope.experiments import Claim, Reading
from rankscope.experiments.d1 import d1
from rankscope.experiments.d5 import Case, d5, passes
from rankscope.experiments.d8 import d8
from rankscope.experiments.d9 import PATHS, d9


@dataclass(frozen=True)
class Asked:
    """What a user said on the command line; each claim takes what it needs."""

    cases: list[Case]
    texts: list[str]
    length: int
    reading: Reading
    seed: int


def steps(claim: str, asked: Asked) -> int:
    """How often a claim's experiment reports progress."""
    return {
        "D5": passes(asked.cases, len(asked.texts)),
        "D9": len(asked.cases) * PATHS,
    }.get(claim, 1)


def run(claim: str, asked: Asked, advance: Callable[[], None]) -> Claim:
    """Run a claim's experiment."""
    match claim:
        case "D5":
            return d5(
                asked.cases,
                texts=asked.texts,
                length=asked.length,
                reading=asked.reading,
                on_batch=advance,
            )
        case "D9":
            return d9(asked.cases, length=asked.length, seed=asked.seed, on_path=advance)
        case "D8":
            return d8()
        case _:
            return d1(seed=asked.seed)
