"""Sentences about the figures of a state, and the ticks of logarithmic axes."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from rankscope.core.theory import thresholds
from rankscope.numerals import plural, power_of_ten, short
from rankscope.show.lab._state import State

Rows = Sequence[Mapping[str, Any]]
BAND: Final = "random networks"
THIS: Final = "this network"


def describe_first(state: State, answer: Mapping[str, Any]) -> dict[str, Any]:
    """The headline, its tone, and a sentence for each chart of the first part."""
    notes, places, cells = answer["notes"], answer["places"], answer["spectrum"]
    names = dict.fromkeys(("scaled", "float64", state.format))
    curves = {
        name: [row["drawn_median"] for row in answer["residual"] if row["variant"] == name]
        for name in names
    }
    ends = []
    for name, course in curves.items():
        words = "scaled arithmetic" if name == "scaled" else name
        reason = notes.get("residual" if name == "scaled" else name)
        if reason:
            ends.append(f"none in {words} ({reason.rstrip('.')})")
        elif course:
            end = "0" if course[-1] is None else power_of_ten(course[-1])
            ends.append(f"{end} in {words}")
    doubt = f" {notes['doubt'][:1].upper()}{notes['doubt'][1:]}." if "doubt" in notes else ""
    start, end = (short(_spread(places, at), digits=2) for at in (0, places[-1]["layer"]))
    known = Counter(cell["across"] for cell in cells if cell["shade"] is not None)
    sentences = {
        "residual": f"Relative residual after layer {state.layers}: {', '.join(ends)}.{doubt}",
        "plane": "Each layer is normalised; colours show token positions. Root mean square "
        f"distance from the mean: {start} at the input, {end} at the last layer.",
        "sphere": "Directions of the same tokens; drag or use the arrow keys to rotate.",
        "spectrum": f"Singular values relative to the largest. Above rounding: {known[0]} at the "
        f"input, {known[cells[-1]['across']]} at the last layer.",
    }
    course = curves["scaled"] or curves["float64"]
    tone, headline = _headline(course) if course else ("neutral", notes["residual"])
    return {"headline": headline, "tone": tone, "sentences": sentences}


def _headline(course: Sequence[float | None]) -> tuple[str, str]:
    logs = [-math.inf if value is None else value for value in course]
    start, end = power_of_ten(logs[0]), power_of_ten(logs[-1])
    layers = plural(len(logs) - 1, "layer")
    fate, at = thresholds.fate_of([10.0 ** max(log, -300.0) for log in logs])
    if fate == "collapse":
        return fate, (
            f"Collapsed: the relative residual is below a thousandth from layer {at} on, and {end} "
            f"after {layers}."
        )
    numbers = f"the relative residual goes from {start} to {end} over {layers}."
    if fate == "slow":
        return fate, f"Collapsing: {numbers}"
    return "holds", f"The tokens stay distinct: {numbers}"


def _spread(places: Rows, layer: int) -> float:
    """The root mean square distance of tokens from their mean, in the plane."""
    points = [complex(row["x"], row["y"]) for row in places if row["layer"] == layer]
    middle = sum(points) / len(points)
    return math.sqrt(sum(abs(point - middle) ** 2 for point in points) / len(points))


def describe_second(state: State, answer: Mapping[str, Any]) -> dict[str, Any]:
    """A sentence for each chart of the second part."""
    sentences, paths, rows = dict(answer["notes"]), answer["paths"], answer["bounds"]
    if "paths" not in sentences and not state.skip:
        layers = plural(state.layers, "attention layer")
        sentences["paths"] = f"Without skips, every path passes through all {layers}."
    elif "paths" not in sentences:
        largest = max(paths, key=lambda row: row["share"])
        sentences["paths"] = (
            f"Paths through {largest['length']} attention layers contribute most to the residual "
            f"of the last layer: {short(largest['share'], digits=2)} of its norm. Shares may sum "
            "to more than one, because contributions cancel."
        )
    if "prediction" not in sentences:
        last = {row["variant"]: row for row in answer["prediction"]}
        ends = (last[BAND]["drawn_median"], last[BAND]["drawn_low"], last[BAND]["drawn_high"])
        mean, low, high, this = map(power_of_ten, (*ends, last[THIS]["drawn_median"]))
        sentences["prediction"] = (
            f"Random networks of this architecture end at {mean} (80 % between {low} and {high}), "
            f"this one at {this}. Frobenius norm."
        )
    if rows:
        at = max(row["layer"] for row in rows)
        values = {row["variant"]: row["drawn_median"] for row in rows if row["layer"] == at}
        listed = ", ".join(f"{name} {power_of_ten(value)}" for name, value in values.items())
        bounds = f"Residual and bounds at layer {at}: {listed}."
        sentences["bounds"] = " ".join([bounds, *filter(None, [sentences.get("bounds")])])
    sentences.setdefault("bounds", "No bound applies.")
    return {"sentences": {name: sentences[name] for name in ("paths", "prediction", "bounds")}}


# Constant of the symlog scale: logarithms up to about this size are nearly evenly spaced.
LINEAR: Final = 20.0
# Ticks used only for small ranges.
_FINE: Final = (0.3, 0.6, 0.7, 0.8, 0.9, 0.95, 1.05, 1.1, 1.2, 1.5)
_GAP: Final = 17.0
_HEIGHT: Final = 240.0
_RAISED: Final = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def _powers() -> dict[float, str]:
    """Numbers from 0.01 to 100, and increasingly sparse powers of ten beyond."""
    near = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, *_FINE]
    labels = {round(math.log10(number), 6): f"{number:g}" for number in near}
    steps = [3, 4, 5, 6, 8, *(m * 10**e for e in range(1, 6) for m in (1, 2, 5))]
    for step in (*steps, *(10**e for e in range(6, 17))):
        for exponent in (-step, step):
            raised = str(exponent).translate(_RAISED)
            if step >= 10**6:  # too long for a superscript
                raised = f"^{'−' * (exponent < 0)}10{str(len(str(step)) - 1).translate(_RAISED)}"
            labels[float(exponent)] = f"10{raised}"
    return dict(sorted(labels.items()))


POWERS: Final = _powers()  # labels of ticks by base-10 logarithm


def choose_ticks(values: Iterable[float | None]) -> list[float]:
    """Ticks for these logarithms, with enough distance between labels; 1 has priority.

    >>> [POWERS[tick] for tick in choose_ticks([0.0, -2.2])]
    ['0.01', '0.02', '0.05', '0.1', '0.2', '0.3', '0.5', '1']
    """

    def position(log: float) -> float:  # on the axis, in arbitrary units
        return math.copysign(math.log1p(abs(log) / LINEAR), log)

    known = [0.0, *(value for value in values if value is not None and math.isfinite(value))]
    low, high = min(known), max(known)
    scale = _HEIGHT / max(position(high) - position(low), 1e-9)
    chosen: list[float] = []
    fine = {round(math.log10(number), 6) for number in _FINE}
    for tick in sorted(POWERS, key=lambda tick: (tick in fine, abs(tick))):
        far = all(abs(position(tick) - position(other)) * scale >= _GAP for other in chosen)
        if low <= tick <= high and far:
            chosen.append(tick)
    return sorted(chosen)
