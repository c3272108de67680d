"""Doubts of traces reach the reader, whichever draw or batch they come from."""

from rankscope.experiments.notes import doubts, note_sentences
from rankscope.tracing import Provenance, Trace


def traced(**notes: str) -> Trace:
    return Trace(
        {"layer": [], "sample": [], "metric": [], "value": []}, Provenance("n", notes=notes)
    )


def test_doubts_are_those_of_any_trace_each_once() -> None:
    first, same = traced(norm="fro"), traced(doubt="a digit is lost", norm="fro")
    other = traced(beyond="no logarithm", doubt="a digit is lost")
    noted = doubts({"calm": [first], "wild": [first, same, same, other]})
    assert noted == {"wild": "a digit is lost; no logarithm"}
    assert note_sentences(noted) == ("Note on wild: a digit is lost; no logarithm.",)
