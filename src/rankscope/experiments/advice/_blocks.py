"""Blocks: with MLPs or without, one part after the other or both side by side."""

from collections.abc import Iterator
from dataclasses import replace

from rankscope.core.network import Spec
from rankscope.experiments.advice._change import Change


def mlps(spec: Spec, tokens: int) -> Iterator[Change]:
    """MLPs of the usual ratio where there are none, or none."""
    del tokens
    if not spec.mlp_width:
        yield Change("MLPs added", replace(spec, mlp_ratio=4.0))
    else:
        bare = replace(spec, mlp_ratio=0.0, mlp_identity=False)
        yield Change("MLPs removed", bare, "tokens are only mixed, never bent")


def parallel_blocks(spec: Spec, tokens: int) -> Iterator[Change]:
    """Attention and MLP side by side instead of one after the other, or the other way round."""
    del tokens
    if not spec.mlp_width or spec.mlp_identity:
        return
    if spec.parallel:
        words = "MLP after attention"
        yield Change(words, replace(spec, parallel=False), "two steps in a row per layer")
    elif spec.skips[0] == spec.skips[1]:
        words = "MLP beside attention"
        yield Change(words, replace(spec, parallel=True), "an MLP does not see its own attention")
