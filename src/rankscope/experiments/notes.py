"""What traces in scaled arithmetic say about themselves: doubts that must reach the reader."""

from collections.abc import Iterable, Mapping

from rankscope.tracing import Trace

_DOUBTS = ("beyond", "doubt")


def doubts(traces: Mapping[str, Iterable[Trace]]) -> dict[str, str]:
    """By case, what its traces (of several draws or batches) could not tell for sure, if any."""
    noted = {
        case: dict.fromkeys(
            each.provenance.notes[kind]
            for each in parts
            for kind in _DOUBTS
            if kind in each.provenance.notes
        )
        for case, parts in traces.items()
    }
    return {case: "; ".join(notes) for case, notes in noted.items() if notes}


def note_sentences(noted: Mapping[str, str]) -> tuple[str, ...]:
    """One sentence for each case with a doubt.

    >>> note_sentences({"causal": "from layer 9 on the logarithm is lost"})
    ('Note on causal: from layer 9 on the logarithm is lost.',)
    """
    return tuple(f"Note on {case}: {note}." for case, note in noted.items())
