"""What becomes of two points under a layer applied again and again, held against the statement."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Final

import polars as pl

from rankscope.experiments import kit
from rankscope.numerals import power_of_ten, sentence_case

DISTANCE, ERROR = "log10_distance", "step_error"
PURE, MLP, SKIP = "pure attention", "with MLP", "with skip"
KINDS: Final = (PURE, MLP, SKIP)
TOGETHER, WIDER = "pure attention of the smallest width", "a larger width"
_PARTS: Final = {
    TOGETHER: "pure attention of the smallest width moves the points together",
    WIDER: "a larger width slows or stops that",
    MLP: "an MLP slows or stops it wherever pure attention does it",
    SKIP: "a skip slows or stops it wherever pure attention does it",
}

Layer = tuple[int, str]
"""Width and kind."""


@dataclass(frozen=True)
class Ending:
    """How two points end under layers of one width and kind, over the seeds."""

    arrivals: tuple[float, ...]
    """For each seed, after how many steps the points are together; infinite if they never are."""
    log10_last: float
    """The median of the last distance's logarithm."""
    error: float
    """The median of the step's error."""

    @property
    def steps(self) -> float:
        """The median of the arrivals: infinite if most seeds never arrive."""
        return median(self.arrivals)


def endings(table: pl.DataFrame, widths: Sequence[int], *, together: float) -> dict[Layer, Ending]:
    """Read off a table; points are together within this part of their first distance."""
    return {
        (width, kind): _ending(table.filter(model=f"width {width}", variant=kind), together)
        for width in widths
        for kind in KINDS
    }


def _ending(rows: pl.DataFrame, together: float) -> Ending:
    limit = math.log10(together)
    arrivals, last = [], []
    for sample in rows.filter(metric=DISTANCE).partition_by("sample", maintain_order=True):
        logs = sample.sort("layer")["value"].to_list()
        arrived = (float(at) for at, log in enumerate(logs) if log <= logs[0] + limit)
        arrivals.append(next(arrived, math.inf))
        last.append(logs[-1])
    errors = rows.filter(metric=ERROR)["value"].to_list()
    return Ending(tuple(arrivals), median(last), median(errors))


def try_parts(
    steps: Mapping[Layer, float], widths: Collection[int]
) -> tuple[dict[str, bool], dict[str, str]]:
    """Which parts of the statement are borne out, and why the others cannot be tried.

    ``steps`` are those until the points are together, of the layers that have learnt their arcs.
    """
    smallest = min(widths)
    pure = [steps[width, PURE] for width in sorted(widths) if (width, PURE) in steps]
    borne_out: dict[str, bool] = {}
    untried: dict[str, str] = {}
    if (smallest, PURE) in steps:
        borne_out[TOGETHER] = steps[smallest, PURE] < math.inf
    else:
        untried[TOGETHER] = f"pure attention of width {smallest} has not learnt its arcs"
    if len(pure) < 2:
        untried[WIDER] = "pure attention has not learnt its arcs at two widths"
    elif min(pure) == math.inf:
        untried[WIDER] = "pure attention moves the points together at no width"
    else:
        borne_out[WIDER] = all(_slower(*pair) for pair in pairwise(pure))
    for kind in (MLP, SKIP):
        pairs = [
            (steps[width, PURE], steps[width, kind])
            for width in sorted(widths)
            if steps.get((width, PURE), math.inf) < math.inf and (width, kind) in steps
        ]
        if pairs:
            borne_out[kind] = all(_slower(*pair) for pair in pairs)
        else:
            untried[kind] = "at no width have both learnt, and pure attention moves them together"
    return borne_out, untried


def _slower(before: float, after: float) -> bool:
    """Whether more steps are taken; what never arrives cannot be slower still."""
    return after > before or before == after == math.inf


def parts_in_words(borne_out: Mapping[str, bool], untried: Mapping[str, str]) -> Iterator[str]:
    """Which parts of the statement are borne out, which are not, and which were not tried."""
    if borne_out:
        true, false = (
            "; ".join(_PARTS[part] for part, held in borne_out.items() if held is side)
            for side in (True, False)
        )
        yield f"Borne out: {true or 'nothing'}. Not borne out: {false or 'nothing'}."
    if untried:
        parts = "; ".join(f"that {_PARTS[part]} ({why})" for part, why in untried.items())
        yield f"Not tried: {parts}."


def ending_listing(title: str, ends: Mapping[Layer, Ending]) -> kit.Listing:
    """By kind and width, how often the points come together, how soon, and how near in the end."""
    rows = []
    for (width, kind), end in ends.items():
        arrived = [each for each in end.arrivals if each < math.inf]
        rows.append(
            (
                *(sentence_case(kind), width, f"{len(arrived)} of {len(end.arrivals)}"),
                median(arrived) if arrived else None,
                power_of_ten(end.log10_last),
                end.error,
            )
        )
    return kit.Listing(
        title,
        ("layer", "width", "come together", "after steps", "last distance", "error of a step"),
        tuple(rows),
        "In how many seeds the points come together; the others are medians over the seeds, the "
        "error in lengths of a step along the arc.",
    )
