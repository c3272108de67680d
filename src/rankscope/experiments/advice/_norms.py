"""Norms: added, moved, taken away."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from rankscope.core.network import NormPlace, Spec
from rankscope.experiments.advice._change import Change

_PLACES: Final[dict[NormPlace, str]] = {
    "pre": "norms before each part",
    "post": "norms after each sum",
    "both": "norms before and after each part",
    "output": "norms after each part",
}


def norms(spec: Spec, tokens: int) -> Iterator[Change]:
    """Every place for the norm there is, or for LayerNorm where there is none; and no norm."""
    del tokens
    kind = "layer" if spec.norm == "none" else spec.norm
    drawback = "a norm per part more to compute" if spec.norm == "none" else ""
    for place, words in _PLACES.items():
        yield Change(words, replace(spec, norm=kind, norm_place=place), drawback)
    if spec.norm != "none":
        bare = replace(spec, norm="none", norm_place=spec.norm_place)
        yield Change("no norms", bare, "nothing holds the size of the tokens")
