"""Presets: figures of papers as states of the lab, with a sentence about each."""

from typing import Final, NamedTuple

from rankscope.show.lab._state import State


class Preset(NamedTuple):
    """A named state, as a query string, with its paper and a sentence about it."""

    title: str
    paper: str
    sentence: str
    query: str


# By paper and title: the state as a query, and the sentence.
_STATES: Final = {
    "Dong et al. 2021": {
        "Fig. 2, SAN": (
            "",
            "Attention alone: the residual decays doubly exponentially, below the range of floats.",
        ),
        "Fig. 2, SAN + MLP": (
            "mlp=4",
            "MLPs change the rate, because their Lipschitz constant enters the bound, but do not "
            "prevent collapse.",
        ),
        "Fig. 2, SAN + skip": (
            "skip=1&layers=12&scale=0.5",
            "With skips alone, and half of LeCun's weights, the tokens stay distinct.",
        ),
        "Fig. 2, transformer": (
            "skip=1&mlp=4&norm=layer&norm_place=post&layers=12&scale=0.5",
            "Skips, MLPs and LayerNorm after each sum, as in BERT, with half of LeCun's weights: "
            "the tokens stay distinct.",
        ),
        "Fig. 3, one layer repeated": (
            "input=arc&shared=yes&layers=8&heads=1&width=8",
            "Tokens start on a half circle, and one layer without skip is applied repeatedly.",
        ),
        "Fig. 3, with a skip": (
            "input=arc&shared=yes&layers=16&heads=1&width=8&scale=0.25&skip=1",
            "The same layer with a skip: each step moves the tokens a little; they stay distinct.",
        ),
        "Fig. 4, paths with a skip": (
            "skip=1&layers=6&norm=layer",
            "Short paths contribute most to the residual; see the chart of path lengths.",
        ),
        "Fig. 5, many short paths": (
            "skip=1&mlp=2&norm=layer&layers=12&heads=4&width=32&tokens=16",
            "Twelve layers of four heads: most paths have medium length and contribute little.",
        ),
    },
    "Wu et al. 2024": {
        "Full mask": (
            "layers=12&tokens=16",
            "Every token attends to every token: the decay is doubly exponential.",
        ),
        "Causal mask": (
            "layers=24&tokens=16&mask=causal",
            "All tokens depend on the first one in the end and converge to it, only exponentially.",
        ),
        "Window mask": (
            "layers=48&tokens=8&mask=window:1",
            "Tokens attend only to their neighbours; information needs many layers to reach the "
            "others.",
        ),
        "LayerNorm, random values": (
            "layers=12&norm=layer&norm_place=output",
            "LayerNorm after attention restores token norms, but under the full mask the residual "
            "still decays.",
        ),
        "LayerNorm, orthogonal values": (
            "layers=24&norm=sphere&norm_place=output&init=orthogonal&mask=causal",
            "Orthogonal values on the unit sphere under a causal mask: the decay is exponential.",
        ),
        "Equilibria": (
            "layers=48&heads=1&width=4&norm=sphere&norm_place=post&shared=yes&skip=1&sharpness=50"
            "&mask=causal&init=orthogonal",
            "One layer on the sphere, repeated with a skip and sharp attention: with most seeds "
            "tokens converge to different points, with some to one.",
        ),
    },
    "Beyond": {
        "Sharp attention": (
            "sharpness=10&layers=16",
            "Scores ten times as large: attention mixes less at first, and the decay starts later.",
        ),
        "Half precision": (
            "mask=causal&layers=24&format=bfloat16",
            "In bfloat16, the residual stops at the resolution of the number format.",
        ),
    },
}
PRESETS: Final = tuple(
    Preset(title, paper, sentence, State.read(query).query())
    for paper, states in _STATES.items()
    for title, (query, sentence) in states.items()
)
