"""What the figures of a state say, in sentences with their numbers."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rankscope.core.theory import thresholds
from rankscope.numerals import plural, power_of_ten, short
from rankscope.show.lab._state import State

Rows = Sequence[Mapping[str, Any]]


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


def _curve(rows: Rows, arithmetic: str) -> list[float | None]:
    return [row["value"] for row in rows if row["arithmetic"] == arithmetic]


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
    last = rows[-1]["layer"]
    start, end = (
        sum(row["value"] is not None for row in rows if row["layer"] == layer)
        for layer in (0, last)
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
    end = rows[-1]
    return (
        f"Random networks like this one end at {power_of_ten(end['mean'])} (80 % of them between "
        f"{power_of_ten(end['low'])} and {power_of_ten(end['high'])}), this one at "
        f"{power_of_ten(end['measured'])}. In the Frobenius norm."
    )


def _bound_words(rows: Rows, notes: Mapping[str, str]) -> str:
    if not rows:
        return notes.get("bounds", "No bound applies.")
    last = [row for row in rows if row["layer"] == rows[-1]["layer"]]
    values = {row["curve"]: row["value"] for row in last}
    listed = ", ".join(f"{name} {power_of_ten(value)}" for name, value in values.items())
    rest = f" {notes['bounds']}" if "bounds" in notes else ""
    return f"Residual and bounds on it at layer {last[0]['layer']}: {listed}.{rest}"
