"""States worth looking at first: one for each figure of the two papers, and what it shows."""

from typing import Final, NamedTuple

from rankscope.show.lab._state import State


class Preset(NamedTuple):
    """A state, as a query, under a name: which paper it is about, and what to look for."""

    title: str
    paper: str
    sentence: str
    query: str


# By paper and title: the state as a query, and the sentence.
_STATES: Final = {
    "Dong et al. 2021": {
        "Fig. 2, SAN": (
            "",
            "Attention alone: the residual falls doubly exponentially, far below what floats hold.",
        ),
        "Fig. 2, SAN + MLP": (
            "mlp=4",
            "MLPs change the pace, for their Lipschitz constant enters the bound; they stop "
            "nothing.",
        ),
        "Fig. 2, SAN + skip": (
            "skip=1&layers=12&scale=0.5",
            "A skip alone carries the tokens past attention of half LeCun's weights, and they stay "
            "apart.",
        ),
        "Fig. 2, transformer": (
            "skip=1&mlp=4&norm=layer&place=post&layers=12&scale=0.5",
            "Skips, MLPs and LayerNorm after each sum, as in BERT, with half LeCun's weights: the "
            "tokens stay apart.",
        ),
        "Fig. 3, one layer repeated": (
            "input=arc&shared=yes&layers=8&heads=1&width=8",
            "Tokens start on a half circle and the same layer runs again and again, without a "
            "skip.",
        ),
        "Fig. 3, with a skip": (
            "input=arc&shared=yes&layers=16&heads=1&width=8&scale=0.25&skip=1",
            "The same layer with a skip: each step moves the tokens a little, and they stay apart.",
        ),
        "Fig. 4, paths with a skip": (
            "skip=1&layers=6&norm=layer",
            "What tells the tokens apart flows through short paths; see the path lengths.",
        ),
        "Fig. 5, many short paths": (
            "skip=1&mlp=2&norm=layer&layers=12&heads=4&width=32&tokens=16",
            "Twelve layers of four heads: most paths are of middle length, and most carry little.",
        ),
    },
    "Wu et al. 2024": {
        "Full mask": (
            "layers=12&tokens=16",
            "Every token attends to every token, and the fall is doubly exponential.",
        ),
        "Causal mask": (
            "layers=24&tokens=16&mask=causal",
            "All tokens hear the first one in the end and converge to it, but only exponentially.",
        ),
        "Window mask": (
            "layers=48&tokens=8&mask=window:1",
            "Tokens hear their neighbours alone; what one says needs many layers to reach the "
            "others.",
        ),
        "LayerNorm, random values": (
            "layers=12&norm=layer&place=output",
            "LayerNorm after the attention renews the tokens' lengths, yet under the full mask "
            "their differences go on falling.",
        ),
        "LayerNorm, orthogonal values": (
            "layers=24&norm=sphere&place=output&init=orthogonal&mask=causal",
            "Orthogonal values on the unit sphere under a causal mask: the fall is exponential.",
        ),
        "Equilibria": (
            "layers=48&heads=1&width=4&norm=sphere&place=post&shared=yes&skip=1&sharpness=50"
            "&mask=causal&init=orthogonal",
            "One layer on the sphere, repeated with a skip and sharp attention: with most seeds "
            "tokens settle in different places, with some they meet.",
        ),
    },
    "Beyond": {
        "Sharp attention": (
            "sharpness=10&layers=16",
            "Scores ten times as large: attention mixes less at first, and the fall begins later.",
        ),
        "Half precision": (
            "mask=causal&layers=24&format=bfloat16",
            "The same figures in bfloat16: the residual ends where the number format does.",
        ),
    },
}
PRESETS: Final = tuple(
    Preset(title, paper, sentence, State.read(query).query())
    for paper, states in _STATES.items()
    for title, (query, sentence) in states.items()
)
