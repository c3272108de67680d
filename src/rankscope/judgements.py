"""What figures say about a statement: a verdict, what it was tried on, and what completes it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from rankscope.arguments import checked

Verdict = Literal["holds", "fails", "depends", "not tried"]
"""Of a claim: borne out by every case tried, by none, by some; or there was nothing to try."""


@checked
@dataclass(frozen=True)
class Judgement:
    """What the figures say about a statement on one domain.

    >>> str(Judgement("depends", "any scale of the weights", "the scale: cubic up to LeCun × 1.4"))
    'depends on the scale: cubic up to LeCun × 1.4'

    ``domain`` says what the statement was tried on. ``on`` is a phrase that completes the verdict:
    what it depends on, how far it holds, which subjects it was tried on, what to pass so that it
    can be tried.
    """

    verdict: Verdict
    domain: str
    on: str = ""
    checks: Mapping[str, bool] = field(default_factory=dict)
    """Of each check that the verdict comes from, whether it was met."""

    def __str__(self) -> str:
        between = {"depends": " ", "not tried": ": "}.get(self.verdict, ", ")
        return f"{self.verdict}{between}{self.rest}" if self.on else self.verdict

    @property
    def rest(self) -> str:
        """What is said after the verdict."""
        return f"on {self.on}" if self.verdict == "depends" and self.on else self.on


@checked
def in_words(stated: Judgement | None, beyond: Judgement | None) -> str:
    """The whole verdict, such as "holds; beyond: depends on the weights' scale"."""
    if stated is None:
        return ""
    return str(stated) if beyond is None else f"{stated}; beyond: {beyond}"


@checked
def over_seeds(judgements: Mapping[int, Judgement]) -> Judgement:
    """One judgement of several, by seed: the first if their verdicts agree, else it depends.

    >>> holds, fails = Judgement("holds", "all masks"), Judgement("fails", "all masks")
    >>> str(over_seeds({0: holds, 1: fails, 2: holds}))
    'depends on the seed: holds with 0, 2; fails with 1'
    """
    by_verdict: dict[str, list[int]] = {}
    for seed, judgement in judgements.items():
        by_verdict.setdefault(judgement.verdict, []).append(seed)
    first = next(iter(judgements.values()))
    if len(by_verdict) == 1:
        return first
    said = [f"{verdict} with {', '.join(map(str, s))}" for verdict, s in by_verdict.items()]
    return Judgement("depends", first.domain, f"the seed: {'; '.join(said)}")


@checked
def unstable_checks(judgements: Sequence[Judgement]) -> dict[str, int]:
    """Checks that some judgements meet and others do not, and how many meet each.

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
