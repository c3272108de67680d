"""A spec in words."""

import math
from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rankscope.core.network._spec import Spec

_PLACES = {
    "pre": "before each part",
    "post": "after each sum",
    "both": "before and after each part",
    "output": "after each part",
}


def in_words(spec: "Spec") -> Iterator[str]:
    """One phrase for each thing a spec says."""
    shared = " that share their weights" if spec.shared_layers else ""
    yield f"{_counted(spec.layers, 'layer')}{shared}"
    yield f"width {spec.width}"
    yield from _attention(spec)
    yield from _norms(spec)
    yield _skips(spec)
    yield _mlps(spec)
    yield "biases" if spec.bias else "no biases"
    yield f"init {spec.init.kind}({spec.init.scale:g})"


def _attention(spec: "Spec") -> Iterator[str]:
    groups = "" if spec.kv_heads == spec.heads else f" ({spec.kv_heads} for keys and values)"
    yield f"{_counted(spec.heads, 'head')} of width {spec.head_width}{groups}"
    if spec.removed_heads:
        silent = ", ".join(f"{head} of layer {layer}" for layer, head in spec.removed_heads)
        yield f"silent heads {silent}"
    if spec.centered:
        yield "centred attention"
    if spec.scores != "dot":
        yield f"{spec.scores} scores"
    if spec.score_scale != 1 / math.sqrt(spec.head_width):
        yield f"logits times {spec.score_scale:g}"
    if spec.layer_masks is None:
        yield f"{spec.mask} mask"
    else:
        runs = ((mask, len(list(same))) for mask, same in groupby(spec.layer_masks))
        each = (f"{mask} for {_counted(layers, 'layer')}" for mask, layers in runs)
        yield f"masks {'; '.join(each)}"


def _norms(spec: "Spec") -> Iterator[str]:
    if spec.norm == "none":
        yield "no norm"
        return
    yield f"{spec.norm} norm {_PLACES[spec.norm_place]}"
    if spec.norm_eps != 1e-5:
        yield f"eps {spec.norm_eps:g}"


def _skips(spec: "Spec") -> str:
    attention, mlp = spec.skips
    if attention != mlp:
        return f"skips times {attention:g} around attention and {mlp:g} around MLPs"
    if attention == 1:
        return "skips"
    return f"skips times {attention:g}" if attention else "no skips"


def _mlps(spec: "Spec") -> str:
    if not spec.mlp_width:
        return "no MLPs"
    beside = " beside attention" if spec.parallel else ""
    if spec.mlp_identity:
        return f"the identity in place of MLPs of {spec.mlp_width} units{beside}"
    gated = "gated " if spec.gated else ""
    return f"{gated}MLPs of {spec.mlp_width} {spec.activation} units{beside}"


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
