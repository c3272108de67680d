"""States worth looking at first: one for each figure of the two papers, and what it shows."""

from dataclasses import dataclass
from typing import Any, Final

from rankscope.lab._state import State

_DONG: Final = "Dong et al. 2021"
_WU: Final = "Wu et al. 2024"
_MORE: Final = "Beyond"


@dataclass(frozen=True)
class Preset:
    """A state under a name, which paper's figure it is about, and what to look for."""

    title: str
    paper: str
    sentence: str
    state: State

    def describe(self) -> dict[str, Any]:
        """As the page shows it."""
        return {
            "title": self.title,
            "paper": self.paper,
            "sentence": self.sentence,
            "query": self.state.query(),
        }


PRESETS: Final = (
    Preset(
        "Fig. 2, SAN",
        _DONG,
        "Attention alone: the residual falls doubly exponentially, far below what floats hold.",
        State(),
    ),
    Preset(
        "Fig. 2, SAN + MLP",
        _DONG,
        "MLPs slow the fall, for their Lipschitz constant enters the bound; they do not stop it.",
        State(mlp=4.0, layers=8),
    ),
    Preset(
        "Fig. 2, SAN + skip",
        _DONG,
        "A skip alone carries the tokens past the attention, and they stay apart.",
        State(skip=1.0, layers=12),
    ),
    Preset(
        "Fig. 2, transformer",
        _DONG,
        "Skips, MLPs and LayerNorm after each sum, as in BERT.",
        State(skip=1.0, mlp=4.0, norm="layer", place="post", layers=12),
    ),
    Preset(
        "Fig. 3, one layer repeated",
        _DONG,
        "Tokens start on a circle and the same layer runs again and again, without a skip.",
        State(input="circle", shared="yes", layers=16, heads=1, width=2, scale=1.5),
    ),
    Preset(
        "Fig. 3, with a skip",
        _DONG,
        "The same layer with a skip: each step now moves the tokens only a little.",
        State(input="circle", shared="yes", layers=16, heads=1, width=2, scale=0.5, skip=1.0),
    ),
    Preset(
        "Fig. 4, paths with a skip",
        _DONG,
        "What tells the tokens apart flows through short paths; see the path lengths.",
        State(skip=1.0, layers=6, norm="layer"),
    ),
    Preset(
        "Fig. 5, many short paths",
        _DONG,
        "Twelve layers of four heads: most paths are of middle length, and most carry little.",
        State(skip=1.0, mlp=2.0, norm="layer", layers=12, heads=4, width=32, tokens=16),
    ),
    Preset(
        "Full mask",
        _WU,
        "Every token attends to every token; the graph is complete and the fall is fastest.",
        State(layers=10, skip=0.0, scale=0.7, norm="sphere", place="output"),
    ),
    Preset(
        "Causal mask",
        _WU,
        "The first token is a centre that all others hear in the end; they converge to it.",
        State(layers=24, mask="causal", norm="sphere", place="output"),
    ),
    Preset(
        "Window",
        _WU,
        "Tokens hear their neighbours alone: information needs many layers, and so does collapse.",
        State(layers=24, mask="window:1", norm="sphere", place="output"),
    ),
    Preset(
        "LayerNorm, random weights",
        _WU,
        "LayerNorm after the attention and values of any kind: see whether it stops the collapse.",
        State(layers=24, norm="layer", place="output", init="lecun"),
    ),
    Preset(
        "LayerNorm, orthogonal values",
        _WU,
        "With orthogonal value matrices the norm only renews lengths: collapse is exponential.",
        State(layers=24, norm="sphere", place="output", init="orthogonal", mask="causal"),
    ),
    Preset(
        "Equilibria",
        _WU,
        "One layer on the sphere, repeated: tokens may settle at states that are not all equal.",
        State(
            layers=32, norm="sphere", place="post", shared="yes", skip=1.0, heads=1, sharpness=4.0,
            width=8,
        ),
    ),
    Preset(
        "Sharp attention",
        _MORE,
        "Scores a hundred times as large: attention is nearly one-hot and mixes little.",
        State(sharpness=100.0, layers=12),
    ),
    Preset(
        "Half precision",
        _MORE,
        "The same network in bfloat16: the residual ends where the number format does.",
        State(skip=0.0, mlp=2.0, layers=6, format="bfloat16"),
    ),
)
