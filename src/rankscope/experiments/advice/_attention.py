"""Attention: who sees whom, what it leaves out, positions, and how the width is cut into heads."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from rankscope.core.masks import Causal, Full, causal_window, window
from rankscope.core.network import ALiBi, Lent, RelativeBias, Rotary, ScoreKind, Spec
from rankscope.experiments.advice._change import Change
from rankscope.numerals import plural

_PARTS: Final = (4, 16)
"""A window reaches this part of the tokens to either side it looks to."""


def masks(spec: Spec, tokens: int) -> Iterator[Change]:
    """A causal mask under the full one, and windows under either; other masks stay."""
    if spec.layer_masks is not None or not isinstance(spec.mask, Full | Causal):
        return
    causal = isinstance(spec.mask, Causal)
    if not causal:
        yield Change("causal mask", replace(spec, mask="causal"), "no token sees what follows it")
    for part in _PARTS:
        reach = tokens // part
        if reach:
            mask = causal_window(reach) if causal else window(reach)
            yield Change(f"window of {reach}", replace(spec, mask=mask), "far tokens take layers")


def centering(spec: Spec, tokens: int) -> Iterator[Change]:
    """Attention less the mean of what a token sees, where a skip still carries what all share."""
    del tokens
    if spec.skips[0]:
        drawback = "the mean of the values no longer passes through attention"
        yield Change("centred attention", replace(spec, centered=True), drawback)


def positions(spec: Spec, tokens: int) -> Iterator[Change]:
    """Positions in the scores, in the place of whatever is there now."""
    del tokens
    kinds: dict[str, ScoreKind] = {"ALiBi": ALiBi(), "relative biases": RelativeBias()}
    if spec.head_width % 2 == 0:
        kinds = {"rotary positions": Rotary(), **kinds}
    for words, kind in kinds.items():
        if type(kind) is not type(spec.scores):
            drawback = "" if spec.scores == "dot" else f"in place of {spec.scores}"
            yield Change(words, replace(spec, scores=kind), drawback)


def heads(spec: Spec, tokens: int) -> Iterator[Change]:
    """Half and twice as many heads at the same total width, keys and values likewise."""
    del tokens
    if spec.removed_heads or isinstance(spec.scores, Lent):
        return  # a score lent by a model is for its own heads
    usual = spec.score_scale == 1 / math.sqrt(spec.head_width)
    for more, fewer in ((1, 2), (2, 1)):
        new, rest = divmod(spec.heads * more, fewer)
        kv, kv_rest = divmod(spec.kv_heads * more, fewer)
        width, width_rest = divmod(spec.head_width * fewer, more)
        if rest or kv_rest or width_rest or (isinstance(spec.scores, Rotary) and width % 2):
            continue
        if isinstance(spec.scores, ALiBi) and spec.scores.slopes is not None:
            continue  # slopes of one's own are for as many heads as there are
        scale = None if usual else spec.score_scale
        yield Change(
            f"{plural(new, 'head')} of width {width}",
            replace(spec, heads=new, kv_heads=kv, head_width=width, score_scale=scale),
            f"{'fewer, finer' if new < spec.heads else 'more, coarser'} patterns of attention",
        )
