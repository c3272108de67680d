"""From what each case shows to a verdict on the claim."""

from collections.abc import Mapping

from rankscope.errors import InputError
from rankscope.results import Verdict


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
