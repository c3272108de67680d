"""The names that a ``Spec`` accepts, each with a description for the command line and the lab.

This module imports no torch, so that ``rankscope --help`` and the lab's server start quickly. The
implementations are in the tables of ``rankscope.core.network``; a test compares the two.
"""

from typing import Final, Literal

NormName = Literal["layer", "rms", "sphere", "none"]
NormPlace = Literal["pre", "post", "both", "output"]
MLPForm = Literal["mlp", "identity", "activation"]

NORMS: Final = {"layer": "LayerNorm", "rms": "RMSNorm", "sphere": "unit sphere", "none": "none"}

NORM_PLACES: Final = {
    "pre": "before each part",
    "post": "after each sum",
    "both": "before and after each part",
    "output": "after each part",
}

SCORES: Final = {
    "dot": "dot product",
    "rotary": "rotary positions",
    "alibi": "ALiBi (distance penalty)",
    "relative": "relative bias (as in T5)",
    "sink": "sink at the first token",
    "gaussian": "Gaussian kernel",
    "linear": "linear attention",
    "linformer": "Linformer, 4 segments",
    "sparsemax": "sparsemax",
}

MLP_FORMS: Final = {
    "mlp": "an MLP",
    "identity": "replaced by the identity",
    "activation": "only its activation",
}

ABLATIONS: Final = ("skip", "attention_skip", "mlp_skip", "mlp", "mlp_weights", "norm")
"""The parts that ``Network.without`` can remove."""
