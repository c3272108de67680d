"""What every experiment is made with, behind one door."""

from collections.abc import Mapping

from rankscope.experiments.catalogue import entry as entry
from rankscope.experiments.config import Config as Config
from rankscope.experiments.subject import Question as Question
from rankscope.experiments.subject import Subject as Subject
from rankscope.models.text import InputCheck as InputCheck
from rankscope.process.progress import OnStep as OnStep
from rankscope.process.progress import parts as parts
from rankscope.process.progress import silent as silent
from rankscope.process.progress import tracked as tracked
from rankscope.results import Drawing as Drawing
from rankscope.results import Judgement as Judgement
from rankscope.results import Listing as Listing
from rankscope.results import Part as Part
from rankscope.results import Result as Result

_FEW = 3
"""Cases that a verdict names one by one."""


def judged(domain: str, borne_out: Mapping[str, bool], on: str = "") -> Judgement:
    """Holds if every case bears the statement out, fails if none does, else it depends.

    >>> str(judged("random networks", {"one head": True, "two heads": False}))
    'depends on the case: one head bears it out, two heads does not'
    >>> str(judged("trained models", {}, "pass one with --pretrained"))
    'not tried: pass one with --pretrained'

    ``on`` completes the verdict (see ``Judgement``); where it is not given and the verdict depends,
    the cases on either side are named or counted.
    """
    if not borne_out:
        return Judgement("not tried", domain, on)
    if all(borne_out.values()):
        return Judgement("holds", domain, on)
    if not any(borne_out.values()):
        return Judgement("fails", domain, on)
    return Judgement("depends", domain, on or _sides(borne_out))


def _sides(borne_out: Mapping[str, bool]) -> str:
    """Which cases bear a statement out and which do not; many are counted."""
    held, against = (
        [case for case, held in borne_out.items() if held is side] for side in (True, False)
    )
    if max(len(held), len(against)) > _FEW:
        return f"the case: {len(held)} of {len(borne_out)} bear it out"
    some, others = (
        f"{', '.join(cases)} {one if len(cases) == 1 else many}"
        for cases, one, many in (
            (held, "bears it out", "bear it out"),
            (against, "does not", "do not"),
        )
    )
    return f"the case: {some}, {others}"
