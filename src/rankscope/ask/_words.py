"""The fields of a question: their names, help texts and defaults.

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
    """The defaults and restrictions of a question; part of its registration."""

    samples: int = PASSAGES
    length: int = LENGTH
    without: str = ""
    """Parts that are left out by default."""
    all_tokens: str = ""
    """Why no token can be left out of the figures; empty if some can."""
    wide: str = ""
    """Why half precision is refused; empty if it is not."""
    unfit_text: bool = False
    """Whether it accepts a text of which the model knows hardly a word, and reports it itself."""
    any_model: bool = False
    """Whether it accepts a model that cannot be converted, and traces it as it is."""
    seeded: str = ""
    """One of its options whose default is the seed of the setup."""


@dataclass(frozen=True)
class Dialect:
    """How fields are written on the command line or in a grid.

    ``said`` is a field with its given value, ``write`` with a suggested one. A ``strict`` dialect
    refuses fields without effect; in a grid they may have one along some axis.
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
    """A field as an option of the command line; ``kind`` is its type there, if that differs."""

    panel: str
    help: str
    kind: Any = None


_AS_BERT: Final = "by default as in BERT-base"
"""Why a default is not that of ``Spec``: a network without a description has BERT's shape."""
_PLACES: Final = ", ".join(f"{name} {words}" for name, words in NORM_PLACES.items())


class NetworkOptions(TypedDict, total=False):
    """Fields of a ``Spec`` that are options of the command line; a grid accepts all fields."""

    layers: Annotated[int, Word("Network", f"Number of blocks; {_AS_BERT}.")]
    heads: Annotated[int, Word("Network", f"Attention heads per block; {_AS_BERT}.")]
    width: Annotated[int, Word("Network", f"Features per token; {_AS_BERT}.")]
    mlp_ratio: Annotated[float, Word("Network", "MLP width divided by token width; 0: no MLP.")]
    norm: Annotated[
        NormName, Word("Network", f"Normalisation; {_AS_BERT}, epsilon 1e-12 (Spec: 1e-5).")
    ]
    norm_place: Annotated[
        NormPlace, Word("Network", f"Norm placement: {_PLACES}; {_AS_BERT} (Spec: pre).")
    ]
    skip: Annotated[float, Word("Network", "Scale of the skip connections; 0: none.")]
    mask: Annotated[
        str | None,
        Word(
            "Network",
            "Attention mask: full, causal, window:8, ...; default: full, or the mask of the MODEL.",
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
            "Root mean square of the embeddings; default: the scale of --init if norms are before "
            "each part (0.02 in GPT-2 and Llama), else 1.",
        ),
    ]


BERT: Final = {"layers": 12, "heads": 12, "width": 768, "norm_place": "post", "norm_eps": 1e-12}
"""The default design: the shape, norm placement and epsilon of BERT-base."""
SHOWN: Final = {**BERT, "mlp_ratio": 4.0, "norm": "layer", "skip": 1.0, "init": "bert"}
"""The same with defaults of ``Spec``."""
LEFT_OUT: Final = {
    "SAN": ("mlp", "skip"),
    "SAN+MLP": ("skip",),
    "SAN+skip": ("mlp",),
    "transformer": (),
}
"""The parts that each variant of the 2021 paper's figure 2 lacks, read as ``steps`` below."""
Parts = Literal["steps", "paper", "identity", "theorems"]
PARTS: Final = {
    "steps": "remove MLPs with their norm and skip, and all skips where skips are removed",
    "paper": "as in the code of Dong et al. 2021: as steps, but ALBERT keeps LN(gelu(x) + x), and "
    "of the skips only that of attention is removed",
    "identity": "replace MLPs by the identity, and keep their norm and skip",
    "theorems": "as steps, and remove the norms of all four variants",
}
"""Interpretations of what is removed: the papers allow more than one."""
DESCRIBE: Final = {
    "norm": ("norm", "norm_place", "norm_eps"),
    "mlp": ("mlp_ratio",),
    "skip": ("skip",),
}
"""Fields without effect if a part is left out."""
