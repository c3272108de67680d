"""States worth looking at first: one for each figure of the two papers, and what it shows."""

from dataclasses import dataclass
from typing import Any, Final

from rankscope.show.lab._state import State

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
        "MLPs change the pace, for their Lipschitz constant enters the bound; they stop nothing.",
        State(mlp=4.0),
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
        "Tokens start on a half circle and the same layer runs again and again, without a skip.",
        State(input="arc", shared="yes", layers=8, heads=1, width=8),
    ),
    Preset(
        "Fig. 3, with a skip",
        _DONG,
        "The same layer with a skip: each step moves the tokens a little, and they stay apart.",
        State(input="arc", shared="yes", layers=16, heads=1, width=8, scale=0.5, skip=1.0),
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
        "Every token attends to every token, and the fall is doubly exponential.",
        State(layers=12, tokens=16),
    ),
    Preset(
        "Causal mask",
        _WU,
        "All tokens hear the first one in the end and converge to it, but only exponentially.",
        State(layers=24, tokens=16, mask="causal"),
    ),
    Preset(
        "Window mask",
        _WU,
        "Tokens hear their neighbours alone; what one says needs many layers to reach the others.",
        State(layers=48, tokens=8, mask="window:1"),
    ),
    Preset(
        "LayerNorm, random values",
        _WU,
        "LayerNorm after the attention renews the tokens' lengths, yet under the full mask their "
        "differences go on falling.",
        State(layers=12, norm="layer", place="output"),
    ),
    Preset(
        "LayerNorm, orthogonal values",
        _WU,
        "Orthogonal values on the unit sphere under a causal mask: the fall is exponential.",
        State(layers=24, norm="sphere", place="output", init="orthogonal", mask="causal"),
    ),
    Preset(
        "Equilibria",
        _WU,
        "One layer on the sphere, repeated with a skip and sharp attention: tokens settle in "
        "different places.",
        State(
            layers=48,
            heads=1,
            width=4,
            norm="sphere",
            place="post",
            shared="yes",
            skip=1.0,
            sharpness=50.0,
            mask="causal",
            init="orthogonal",
        ),
    ),
    Preset(
        "Sharp attention",
        _MORE,
        "Scores ten times as large: attention mixes less at first, and the fall begins later.",
        State(sharpness=10.0, layers=8),
    ),
    Preset(
        "Half precision",
        _MORE,
        "The same figures in bfloat16: the residual ends where the number format does.",
        State(mask="causal", layers=24, format="bfloat16"),
    ),
)
