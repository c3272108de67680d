"""Parts put together at random, in scaled arithmetic and in many digits.

Some limits of scaled arithmetic are kept out of the draw, for they are properties of its numbers
and not of a part:

- a value projection of rank one (``heads·head_width == 1`` or ``kv_heads·head_width == 1``) before
  a norm: all deviations are parallel to the common row there, and of what a norm leaves of them
  one exponent per sample keeps too few digits;
- attention so strongly saturated (logits of thirty and more) that some tokens agree to more than
  sixteen digits while others do not: R has one exponent for all tokens of a sample, so that the
  differences within such a cluster are lost. Weights are therefore drawn with a deviation of at
  most 0.8 and inputs of about one;
- rows that are exactly zero (a ReLU all of whose units are off) before a sphere: common part and
  deviation add up to rounding instead of zero, and the sphere has no ε to tell.

A score that normalises heads is refused, with a sentence, where positions no longer tell the
queries apart; such draws are passed over.
"""

import hypothesis
import torch
from hypothesis import strategies as st

from rankscope.core.masks import Window
from rankscope.core.network import (
    ALiBi,
    GaussianKernel,
    Init,
    LinearKernel,
    Linformer,
    Sink,
    Sparsemax,
    Spec,
)
from rankscope.errors import UnsupportedModelError

from .comparing import MEASURES, gap
from .kinds import Kind

SCORES = [
    "dot",
    Kind("rotary"),
    Kind("buckets"),
    Kind("sinusoids"),
    Kind("normed"),
    LinearKernel(),
    Linformer(segments=2),
    GaussianKernel(bandwidth=1.5),
    Sparsemax(),
    Sink(tokens=1, strength=2.0),
    ALiBi(),
]
MASKS = ["full", "causal", Window(before=1, after=0), Window(before=1, after=1)]
PADDINGS = [None, [1, 1, 1, 0], [0, 1, 1, 1], [1, 0, 1, 1], [0, 1, 0, 1]]


@st.composite
def specs(draw):
    scores = draw(st.sampled_from(SCORES))
    has_mlp = draw(st.booleans())
    parallel = has_mlp and draw(st.booleans())
    skips = st.sampled_from([0.0, 0.3, 1.0, 1.7])
    skip = draw(skips)
    attention_skip = None if parallel else draw(skips)
    activations = ["gelu", "gelu_tanh", "silu"]
    norm = draw(st.sampled_from(["none", "layer", "rms", "sphere"]))
    if norm != "sphere":
        activations.append("relu")
    return Spec(
        draw(st.integers(1, 3)),
        draw(st.sampled_from([2, 4])),
        4,
        kv_heads=draw(st.sampled_from([1, 2])),
        head_width=draw(st.sampled_from([2, 3])),
        mlp_ratio=1.25 if has_mlp else 0.0,
        activation=draw(st.sampled_from(activations)),
        gated=draw(st.booleans()),
        norm=norm,
        norm_place=draw(st.sampled_from(["pre", "post", "both", "output"])),
        norm_eps=draw(st.sampled_from([1e-12, 1e-5, 0.3])),
        parallel=parallel,
        skip=skip,
        attention_skip=attention_skip,
        mask="full" if isinstance(scores, Linformer) else draw(st.sampled_from(MASKS)),
        bias=draw(st.booleans()),
        centered=bool(skip if attention_skip is None else attention_skip) and draw(st.booleans()),
        scores=scores,
        init=Init("normal", draw(st.sampled_from([0.1, 0.4, 0.8]))),
    )


@st.composite
def inputs(draw):
    """One sample or two, apart by much or by next to nothing, of any size, padded or not."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    rows = []
    for _ in range(draw(st.integers(1, 2))):
        common, own = (
            torch.randn(count, 4, generator=generator, dtype=torch.float64) for count in (1, 4)
        )
        apart = draw(st.sampled_from([1.0, 1e-3, 1e-8, 1e-14]))
        size = draw(st.sampled_from([1.0, 1e-7, 1e-90]))
        rows.append((common + apart * own) * size)
    masks = [draw(st.sampled_from(PADDINGS)) for _ in rows]
    if any(masks):
        filled = [[1, 1, 1, 1] if mask is None else mask for mask in masks]
        return torch.stack(rows), torch.tensor(filled, dtype=torch.bool)
    return torch.stack(rows), None


@hypothesis.settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],  # it only makes nets
)
@hypothesis.given(spec=specs(), given=inputs(), measure=st.sampled_from(MEASURES))
def test_parts_at_random_agree_with_many_digits(spec, given, measure, lively):
    x, token_mask = given
    try:
        worst = gap(lively(spec), x, token_mask, measures=[measure], live=True)
    except UnsupportedModelError:
        assert spec.scores == Kind("normed")
        hypothesis.reject()
    assert worst < 1e-8
