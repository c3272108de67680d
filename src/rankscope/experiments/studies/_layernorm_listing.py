"""How the cases of the LayerNorm study end, as a table."""

from collections.abc import Mapping, Sequence
from statistics import median

from rankscope.experiments import kit
from rankscope.experiments.depths import SCALED
from rankscope.experiments.studies._layernorm_outcomes import Outcome
from rankscope.numerals import power_of_ten

NOTE = (
    "Stay apart: in how many samples tokens truly do, and the median of their stable ranks; "
    "the law is that of the others. In the end: the relative dispersion of all samples, in scaled "
    "arithmetic."
)


def list_cases(title: str, ends: Mapping[str, Outcome], note: str = NOTE) -> kit.Listing:
    """A row for each case: who stays apart, the law of the rest, and where they end."""
    rows = tuple(
        (
            name,
            one.layers,
            _staying(one),
            None if one.law is None else one.law.name,
            _range(one.last[SCALED]),
        )
        for name, one in ends.items()
    )
    columns = ("case", "layers", "stay apart", "law", "in the end")
    return kit.Listing(title, columns, rows, note)


def _staying(one: Outcome) -> str:
    rank = f", rank {median(one.ranks):.2f}" if one.ranks else ""
    return f"{one.staying} of {one.samples}{rank}"


def _range(log10: Sequence[float]) -> str:
    """From the smallest to the largest of the samples, or one figure where they agree."""
    low, high = (power_of_ten(end(log10)) for end in (min, max))
    return low if low == high else f"{low} to {high}"
