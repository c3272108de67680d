"""From what each case shows to a verdict on the claim."""

from collections.abc import Mapping

from rankscope.results import Verdict


def overall(borne_out: Mapping[str, bool]) -> Verdict:
    """Holds if every case bears the claim out, fails if none does, else it depends."""
    if all(borne_out.values()):
        return "holds"
    return "depends" if any(borne_out.values()) else "fails"
