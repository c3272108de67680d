"""What every experiment is made with, behind one door."""

from collections.abc import Mapping

from rankscope.errors import InputError
from rankscope.experiments.catalogue import entry as entry
from rankscope.experiments.config import Config as Config
from rankscope.experiments.progress import OnStep as OnStep
from rankscope.experiments.progress import parts as parts
from rankscope.experiments.progress import silent as silent
from rankscope.experiments.progress import tracked as tracked
from rankscope.experiments.subject import Question as Question
from rankscope.experiments.subject import Subject as Subject
from rankscope.results import Drawing as Drawing
from rankscope.results import Result as Result
from rankscope.results import Verdict as Verdict


def overall(borne_out: Mapping[str, bool]) -> Verdict:
    """Holds if every case bears the claim out, fails if none does, else it depends.

    >>> overall({"one head": True, "two heads": False})
    'depends'
    """
    if not borne_out:
        raise InputError("no case was tried, so there is nothing to judge; give at least one.")
    if all(borne_out.values()):
        return "holds"
    return "depends" if any(borne_out.values()) else "fails"
