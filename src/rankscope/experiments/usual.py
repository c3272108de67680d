"""What a question is asked about unless told otherwise: BERT-base's shape, on bundled passages.

Nothing heavy is imported here: the command line's help shows these numbers.
"""

from dataclasses import dataclass
from typing import Final

LAYERS: Final = 12
HEADS: Final = 12
WIDTH: Final = 768
NORM_PLACE: Final = "post"
NORM_EPS: Final = 1e-12


@dataclass(frozen=True)
class Usual:
    """How many samples a question reads, of how many tokens at most, and what is left out."""

    passages: int = 32
    length: int = 128
    without: str = ""


DEPTH: Final = Usual(passages=4, without="skip,mlp,norm")
"""Questions in float64, about attention alone."""
PREDICTION: Final = Usual(passages=1)
"""Every draw reads every sample."""
ADVICE: Final = Usual(passages=1, length=32)
"""Gradients are predicted, too."""
_OF = {"deep": DEPTH, "bounds": DEPTH, "masks": DEPTH, "predict": PREDICTION, "advise": ADVICE}


def usual(question: str) -> Usual:
    """What a question reads unless told otherwise.

    >>> usual("trace").passages, usual("deep").without
    (32, 'skip,mlp,norm')
    """
    return _OF.get(question, Usual())
