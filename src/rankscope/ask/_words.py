"""The words that things are asked in: what fields are called, shown as and, by default, are.

Nothing heavy is imported here, so that ``--help`` answers at once.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypedDict

from rankscope.arguments import short
from rankscope.core.names import NORM_PLACES, NormName, NormPlace

Dtype = Literal["float32", "float64", "bfloat16", "float16"]
PASSAGES, LENGTH = 32, 128


@dataclass(frozen=True)
class Asks:
    """How a question differs from others in what it is asked about; part of its registration."""

    samples: int = PASSAGES
    length: int = LENGTH
    without: str = ""
    """Parts that are left out unless said otherwise."""
    all_tokens: str = ""
    """Why every token counts, where none can be left out of the figures."""
    wide: str = ""
    """Why half precision is refused, where it is."""
    unfit_text: bool = False
    """Whether it says itself what a text is worth of which a model knows hardly a word."""
    seeded: str = ""
    """An option of its own that is the setup's seed unless said."""


@dataclass(frozen=True)
class Dialect:
    """How fields are written where they were said.

    ``said`` is a field with the value it was given, ``write`` with one it could be given. A
    ``strict`` dialect refuses what changes nothing; in a grid it may be of use along some axis.
    """

    name: Callable[[str], str]
    said: Callable[[str, Any], str]
    write: Callable[[str, Any], str]
    strict: bool


def _option(name: str) -> str:
    return "MODEL" if name == "model" else f"--{name.replace('_', '-')}"


def _option_with(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return _option(name if value else f"no_{name}")
    return f"{_option(name)} {value}" if value != "" else f"{_option(name)}=''"


COMMAND_LINE: Final = Dialect(_option, _option_with, _option_with, strict=True)
GRID: Final = Dialect(
    str,
    lambda name, value: f"{name}{short(value)}",
    lambda name, value: f"{name} = {json.dumps(value)}",
    strict=False,
)


@dataclass(frozen=True)
class Word:
    """A field as the command line offers it; ``kind`` is what it reads there, if that differs."""

    panel: str
    help: str
    kind: Any = None


_PLACES: Final = ", ".join(f"{name} {words}" for name, words in NORM_PLACES.items())


class NetworkOptions(TypedDict, total=False):
    """Fields of a ``Spec`` that are options of the command line; a grid takes all others, too."""

    layers: Annotated[int, Word("Network", "Blocks.")]
    heads: Annotated[int, Word("Network", "Attention heads per block.")]
    width: Annotated[int, Word("Network", "Features per token.")]
    mlp_ratio: Annotated[float, Word("Network", "MLP width over token width; 0 for none.")]
    norm: Annotated[NormName, Word("Network", "Normalisation.")]
    norm_place: Annotated[NormPlace, Word("Network", f"Norm placement: {_PLACES}.")]
    skip: Annotated[float, Word("Network", "Scale of the skips; 0 for none.")]
    mask: Annotated[
        str | None,
        Word(
            "Network", "Who attends to whom: full, causal, window:8, ...; unless given, as built."
        ),
    ]
    init: Annotated[
        str,
        Word(
            "Network",
            "bert, gpt2, t5, xavier, lecun, orthogonal, or a number: a standard deviation.",
        ),
    ]
    embedding_scale: Annotated[
        float | None,
        Word(
            "Network",
            "Size of a feature of the embeddings; unless given, as --init under norms before each "
            "part (0.02 in GPT-2 and Llama), else 1.",
        ),
    ]


BERT: Final = {"layers": 12, "heads": 12, "width": 768, "norm_place": "post", "norm_eps": 1e-12}
"""A design of which nothing is said has BERT-base's shape."""
SHOWN: Final = {**BERT, "mlp_ratio": 4.0, "norm": "layer", "skip": 1.0, "init": "bert"}
"""The same with what a ``Spec`` has by default."""
LEFT_OUT: Final = {
    "SAN": ("mlp", "skip"),
    "SAN+MLP": ("skip",),
    "SAN+skip": ("mlp",),
    "transformer": (),
}
"""The parts that each variant of the 2021 paper's figure 2 lacks, read as ``steps`` below."""
Parts = Literal["steps", "paper", "identity", "theorems"]
PARTS: Final = {
    "steps": "MLPs go with their norm and skip, and no skip is left where skips go",
    "paper": "as in the 2021 paper's code: MLPs go with their norm and skip, but LN(gelu(x) + x) "
    "stays in ALBERT, whose layers share their weights; of the skips the attention's goes alone",
    "identity": "the identity stays in the place of MLPs, with their norm and skip",
    "theorems": "as steps, and without norms in all four variants",
}
"""Readings of what is taken away: the papers leave room for more than one."""
DESCRIBE: Final = {
    "norm": ("norm", "norm_place", "norm_eps"),
    "mlp": ("mlp_ratio",),
    "skip": ("skip",),
}
"""Fields that change nothing where a part is left out."""
