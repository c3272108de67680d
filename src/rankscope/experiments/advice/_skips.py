"""Skips: added where there are none, and weighed against the branches."""

import math
from collections.abc import Iterator
from dataclasses import replace

from rankscope.core.network import Spec
from rankscope.experiments.advice._change import Change
from rankscope.numerals import short


def skips(spec: Spec, tokens: int) -> Iterator[Change]:
    """Skips where one is missing, then skips of another scale.

    A skip here multiplies the stream, ``αx + f(x)``. Under a norm after the sum only the ratio
    matters, so that ``α = √(2L)`` is a branch scaled by ``1/√(2L)`` (Noci et al. 2022), exactly,
    and ``α = (2L)^¼`` is that of DeepNet (Wang et al. 2022); 2L are the sums of L layers. Elsewhere
    a scale is taken to the power of the depth, so that only a factor of ``√2`` is tried; there
    smaller weights stand for a scaled branch (see ``weights``).
    """
    del tokens
    if 0.0 in spec.skips:
        yield Change(
            "skips added", _with(spec, 1.0), "a sum per part, and the input stays in the stream"
        )
        return
    if spec.norm != "none" and spec.norm_place == "post":
        steps = sums(spec)
        for alpha, name in ((math.sqrt(steps), f"1/√{steps}"), (steps**0.25, f"1/{steps}^¼")):
            words = f"skip × {short(alpha)} (branches × {name})"
            yield Change(words, _with(spec, alpha), f"each branch weighs {name} of the skip")
    for alpha in (math.sqrt(2), math.sqrt(0.5)):
        more, less = ("skip", "branch") if alpha > 1 else ("branch", "skip")
        yield Change(
            f"skip × {short(alpha)}",
            replace(spec, attention_skip=spec.skips[0] * alpha, mlp_skip=spec.skips[1] * alpha),
            f"more {more}, less {less} in every sum",
        )


def sums(spec: Spec) -> int:
    """How many branches are added to the stream, one after the other."""
    return spec.layers * (2 if spec.mlp_width and not spec.parallel else 1)


def _with(spec: Spec, alpha: float) -> Spec:
    return replace(spec, skip=alpha, attention_skip=None, mlp_skip=None)
