"""How weights are drawn: another scale, another rule."""

from collections.abc import Iterator
from dataclasses import replace

from rankscope.core.network import Init, Spec
from rankscope.experiments.advice._change import Change
from rankscope.experiments.advice._skips import sums
from rankscope.numerals import short


def weights(spec: Spec, tokens: int) -> Iterator[Change]:
    """Smaller and larger weights, and the usual rules.

    A branch is a product of two matrices that scale it (values and outputs, or the MLP's two), so
    that weights times ``(2L)^−¼`` make branches of about ``1/√(2L)``; logits shrink as much.
    """
    del tokens
    yield _scaled(spec, 0.5, "weights × 0.5", "branches do about a quarter as much at first")
    yield _scaled(spec, 2.0, "weights × 2", "branches do about four times as much at first")
    steps = sums(spec)
    factor = steps**-0.25
    yield _scaled(
        spec,
        factor,
        f"weights × {short(factor)} (branches × 1/√{steps})",
        f"branches do about 1/√{steps} as much at first",
    )
    for name, words in (
        ("lecun", "LeCun weights"),
        ("xavier", "Xavier weights"),
        ("bert", "weights of deviation 0.02"),
        ("orthogonal", "orthogonal values and outputs"),
    ):
        yield Change(words, replace(spec, init=name))


def _scaled(spec: Spec, factor: float, words: str, drawback: str) -> Change:
    init = Init(spec.init.kind, spec.init.scale * factor)
    return Change(words, replace(spec, init=init), drawback)
