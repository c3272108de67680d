"""What the figures of a state say: in sentences with their numbers, and beside an axis.

An axis of logarithms has ticks where there is room for the numbers written there.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from rankscope.core.theory import thresholds
from rankscope.numerals import plural, power_of_ten, short
from rankscope.show.lab._state import State

Rows = Sequence[Mapping[str, Any]]
BAND: Final = "random networks like it"
THIS: Final = "this network"


def describe_first(state: State, found: Mapping[str, Any]) -> dict[str, Any]:
    """The answer, its tone, and a sentence for each chart of the first part."""
    scaled = _curve(found["residual"], "scaled")
    floats = _curve(found["residual"], "float64")
    course = scaled or floats
    tone, headline = _headline(course) if course else ("neutral", found["notes"]["residual"])
    sentences = {
        "residual": _residual_words(state, found["residual"], found["notes"]),
        "plane": _place_words(found["places"]),
        "sphere": "The same ways seen as directions alone; drag, or use the arrow keys, to turn.",
        "spectrum": _spectrum_words(found["spectrum"]),
    }
    return {"headline": headline, "tone": tone, "sentences": sentences}


def describe_second(state: State, found: Mapping[str, Any]) -> dict[str, Any]:
    """A sentence for each chart of the second part."""
    notes = found["notes"]
    return {
        "sentences": {
            "paths": notes.get("paths") or _path_words(state, found["paths"]),
            "prediction": notes.get("prediction") or _prediction_words(found["prediction"]),
            "bounds": _bound_words(found["bounds"], notes),
        }
    }


def _curve(rows: Rows, name: str) -> list[float | None]:
    return [row["drawn_median"] for row in rows if row["variant"] == name]


def _headline(course: Sequence[float | None]) -> tuple[str, str]:
    logs = [-math.inf if value is None else value for value in course]
    start, end, layers = logs[0], logs[-1], plural(len(logs) - 1, "layer")
    fate, at = thresholds.fate_of([10.0 ** max(log, -300.0) for log in logs])
    if fate == "collapse":
        sentence = (
            f"Collapsed: at layer {at} the tokens differ by less than a thousandth of their size; "
            f"after {layers} by {power_of_ten(end)} of it."
        )
        return "collapse", sentence
    numbers = f"the relative residual goes from {power_of_ten(start)} to {power_of_ten(end)}"
    if fate == "slow":
        return "slow", f"Collapsing: {numbers} over {layers}."
    return "holds", f"The tokens stay apart: {numbers} over {layers}."


def _residual_words(state: State, rows: Rows, notes: Mapping[str, str]) -> str:
    parts = []
    for name in dict.fromkeys(("scaled", "float64", state.format)):
        course = _curve(rows, name)
        words = "scaled arithmetic" if name == "scaled" else name
        reason = notes.get("residual" if name == "scaled" else name)
        if reason:
            parts.append(f"none in {words} ({reason.rstrip('.')})")
        elif course:
            end = "0" if course[-1] is None else power_of_ten(course[-1])
            parts.append(f"{end} in {words}")
    doubt = f" {notes['doubt'][:1].upper()}{notes['doubt'][1:]}." if "doubt" in notes else ""
    return f"Relative residual after layer {state.layers}: {', '.join(parts)}.{doubt}"


def _place_words(places: Rows) -> str:
    """How far apart tokens are in the plane, first and last, in parts of their size."""
    first, last = (_spread(places, layer) for layer in (0, places[-1]["layer"]))
    return (
        "Every layer drawn at the same size, tokens coloured by position. Root mean square "
        f"distance from the middle of all tokens: {short(first, digits=2)} at the input, "
        f"{short(last, digits=2)} at the end."
    )


def _spread(places: Rows, layer: int) -> float:
    points = [complex(row["x"], row["y"]) for row in places if row["layer"] == layer]
    middle = sum(points) / len(points)
    return math.sqrt(sum(abs(point - middle) ** 2 for point in points) / len(points))


def _spectrum_words(rows: Rows) -> str:
    start, end = (
        sum(row["shade"] is not None for row in rows if row["across"] == layer)
        for layer in (0, rows[-1]["across"])
    )
    return (
        f"Singular values as parts of the largest. {start} of the input's and {end} of the last "
        "layer's are above rounding."
    )


def _path_words(state: State, rows: Rows) -> str:
    if not state.skip:
        layers = plural(state.layers, "attention layer")
        return f"Without a skip there is one length: every path goes through all {layers}."
    largest = max(rows, key=lambda row: row["share"])
    return (
        f"Of what tells the tokens of the last layer apart, paths through {largest['length']} "
        f"attention layers carry most: {short(largest['share'], digits=2)} of its size. "
        "Shares may add to more than one, for parts cancel."
    )


def _prediction_words(rows: Rows) -> str:
    end, this = ([row for row in rows if row["variant"] == name][-1] for name in (BAND, THIS))
    mean, low, high = (power_of_ten(end[f"drawn_{name}"]) for name in ("median", "low", "high"))
    return (
        f"Random networks like this one end at {mean} (80 % of them between {low} and {high}), "
        f"this one at {power_of_ten(this['drawn_median'])}. In the Frobenius norm."
    )


def _bound_words(rows: Rows, notes: Mapping[str, str]) -> str:
    if not rows:
        return notes.get("bounds", "No bound applies.")
    last = max(row["layer"] for row in rows)
    values = {row["variant"]: row["drawn_median"] for row in rows if row["layer"] == last}
    listed = ", ".join(f"{name} {power_of_ten(value)}" for name, value in values.items())
    rest = f" {notes['bounds']}" if "bounds" in notes else ""
    return f"Residual and bounds on it at layer {last}: {listed}.{rest}"


LINEAR: Final = 20.0
"""Logarithms up to about this size are nearly evenly spaced; beyond, their own logarithms are."""
_FINE: Final = (0.3, 0.6, 0.7, 0.8, 0.9, 0.95, 1.05, 1.1, 1.2, 1.5)
"""Numbers for which there is room only where little happens."""
_GAP: Final = 17.0
_HEIGHT: Final = 240.0

_RAISED: Final = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def _power(exponent: int) -> str:
    """``10⁻²⁰``; an exponent too long to be raised is written out."""
    if abs(exponent) < 10**6:
        return "10" + str(exponent).translate(_RAISED)
    return f"10^{'−' if exponent < 0 else ''}10" + str(round(math.log10(abs(exponent)))).translate(
        _RAISED
    )


def _powers() -> dict[float, str]:
    """Numbers from 0.01 to 100, and beyond them powers of ten, ever sparser."""
    near = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, *_FINE]
    found = {round(math.log10(number), 6): f"{number:g}" for number in near}
    steps = [3, 4, 5, 6, 8, *(m * 10**e for e in range(1, 6) for m in (1, 2, 5))]
    steps += [10**e for e in range(6, 17)]
    for step in steps:
        found |= {float(-step): _power(-step), float(step): _power(step)}
    return dict(sorted(found.items()))


POWERS: Final = _powers()
"""Logarithms to base ten, and their numbers in words that fit a tick."""


def choose_ticks(values: Iterable[float | None]) -> list[float]:
    """Ticks for these logarithms, so far apart that their labels do not touch; 1 comes first.

    >>> [POWERS[tick] for tick in choose_ticks([0.0, -2.2])]
    ['0.01', '0.02', '0.05', '0.1', '0.2', '0.3', '0.5', '1']
    """
    known = [0.0, *(value for value in values if value is not None and math.isfinite(value))]
    low, high = min(known), max(known)
    scale = _HEIGHT / max(_place(high) - _place(low), 1e-9)
    chosen: list[float] = []
    fine = {round(math.log10(number), 6) for number in _FINE}
    for tick in sorted(POWERS, key=lambda tick: (tick in fine, abs(tick))):
        far = all(abs(_place(tick) - _place(each)) * scale >= _GAP for each in chosen)
        if low <= tick <= high and far:
            chosen.append(tick)
    return sorted(chosen)


def _place(log: float) -> float:
    """Where a logarithm stands on the axis, in arbitrary units."""
    return math.copysign(math.log1p(abs(log) / LINEAR), log)
