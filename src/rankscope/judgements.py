"""What the figures say about a statement: a verdict, the domain tested, and a qualification."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from rankscope.arguments import checked
from rankscope.numerals import sentence_case

Verdict = Literal["holds", "fails", "depends", "not tried"]
"""Supported in every case tested, in none, in some; or there was nothing to test."""
_WORDS: Final[dict[Verdict, str]] = {
    "holds": "supported",
    "fails": "not supported",
    "depends": "supported in part",
    "not tried": "not tested",
}
_PREPOSITIONS: Final = ("for ", "in ", "up to ", "where ", "with ")


@checked
@dataclass(frozen=True)
class Judgement:
    """What the figures say about a statement on one domain.

    >>> str(Judgement("depends", "any number of heads", "supported for one head; not for two"))
    'Supported for one head; not for two'
    >>> str(Judgement("depends", "any scale of the weights", "cubic up to LeCun × 1.4"))
    'Supported in part: cubic up to LeCun × 1.4'
    >>> str(Judgement("holds", "networks with skips", "for β down to 0.001"))
    'Supported for β down to 0.001'
    >>> str(Judgement("fails", "any number of tokens", "off by 0.2 at 100 tokens"))
    'Not supported: off by 0.2 at 100 tokens'

    ``domain`` says what the statement was tested on. ``on`` completes the verdict: where the
    statement is supported and where not, which models were tested, or which option is missing.
    """

    verdict: Verdict
    domain: str
    on: str = ""
    checks: Mapping[str, bool] = field(default_factory=dict)
    """The checks behind the verdict: whether each was met, by name."""

    def __str__(self) -> str:
        if self.verdict == "depends" and self.on.startswith(("supported ", "not supported ")):
            return sentence_case(self.on)
        separator = " " if self.on.startswith(_PREPOSITIONS) else ": "
        return sentence_case(f"{self.words}{separator}{self.on}" if self.on else self.words)

    @property
    def words(self) -> str:
        """The verdict in words, such as "not supported"."""
        return _WORDS[self.verdict]


@checked
def in_words(stated: Judgement | None, beyond: Judgement | None) -> str:
    """The whole verdict, such as "Supported. Beyond its domain: not supported"."""
    if stated is None:
        return ""
    if beyond is None:
        return str(stated)
    return f"{stated}. Beyond its domain: {str(beyond)[0].lower()}{str(beyond)[1:]}"


@checked
def over_seeds(judgements: Mapping[int, Judgement]) -> Judgement:
    """Combine judgements by seed: the first if all verdicts agree, otherwise "depends".

    >>> holds, fails = Judgement("holds", "all masks"), Judgement("fails", "all masks")
    >>> str(over_seeds({0: holds, 1: fails, 2: holds}))
    'Supported for seeds 0, 2; not supported for seed 1'
    """
    by_verdict: dict[Verdict, list[int]] = {}
    for seed, judgement in judgements.items():
        by_verdict.setdefault(judgement.verdict, []).append(seed)
    first = next(iter(judgements.values()))
    if len(by_verdict) == 1:
        return first
    parts = [
        f"{_WORDS[verdict]} for seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
        for verdict, seeds in by_verdict.items()
    ]
    return Judgement("depends", first.domain, "; ".join(parts))


@checked
def unstable_checks(judgements: Sequence[Judgement]) -> dict[str, int]:
    """Count, for each check met by some judgements but not by all, how many meet it.

    >>> met, missed = ({"cubic": outcome, "bounded": True} for outcome in (True, False))
    >>> unstable_checks([Judgement("holds", "", "", met), Judgement("depends", "", "", missed)])
    {'cubic': 1}
    """
    names = dict.fromkeys(name for judgement in judgements for name in judgement.checks)
    outcomes = {
        name: [judgement.checks[name] for judgement in judgements if name in judgement.checks]
        for name in names
    }
    return {name: sum(met) for name, met in outcomes.items() if len(set(met)) > 1}
