"""Which room can do which score: one entry each, consulted by every room."""

from dataclasses import dataclass
from typing import Literal

from rankscope.core.network._scores.alibi import ALiBi, ALiBiScores
from rankscope.core.network._scores.base import ScoreKind, Scores
from rankscope.core.network._scores.gaussian_kernel import GaussianKernel, GaussianKernelScores
from rankscope.core.network._scores.linear_kernel import LinearKernel, LinearKernelScores
from rankscope.core.network._scores.linformer import Linformer, LinformerScores
from rankscope.core.network._scores.normed_heads import NormedHeads
from rankscope.core.network._scores.relative_bias import BucketedBiasScores, RelativeBias
from rankscope.core.network._scores.rotary import Rotary, RotaryScores
from rankscope.core.network._scores.sink import Sink, SinkScores
from rankscope.core.network._scores.sinusoid_keys import SinusoidKeys
from rankscope.core.network._scores.sparsemax import Sparsemax, SparsemaxScores
from rankscope.errors import UnsupportedModelError


@dataclass(frozen=True)
class ScoreEntry:
    """A score and the rooms that can work with it.

    ``module`` computes it, ``kind`` describes it in a ``Spec`` (None if it is not built from one).
    A forward pass and paths need rows that sum to one and no more, so they can do every score.
    ``deep`` says how scaled arithmetic does it: ``"scaled"``, by a rule of its own in ``deep``;
    ``"plain"``, from plain logits, as long as positions tell the queries apart; or not at all.
    ``bounds`` are derived for the softmax of plain products.
    """

    words: str
    module: type[Scores]
    kind: type[ScoreKind] | None = None
    forward: bool = True
    paths: bool = True
    deep: Literal["scaled", "plain"] | None = None
    bounds: bool = False


SCORES: dict[type[Scores], ScoreEntry] = {
    entry.module: entry
    for entry in (
        ScoreEntry("dot product", Scores, deep="scaled", bounds=True),
        ScoreEntry("rotary", RotaryScores, Rotary, deep="scaled"),
        ScoreEntry("relative bias", BucketedBiasScores, RelativeBias, deep="scaled"),
        ScoreEntry("ALiBi", ALiBiScores, ALiBi, deep="scaled"),
        ScoreEntry("sink", SinkScores, Sink, deep="scaled"),
        ScoreEntry("Gaussian kernel", GaussianKernelScores, GaussianKernel, deep="scaled"),
        ScoreEntry("linear kernel", LinearKernelScores, LinearKernel, deep="scaled"),
        ScoreEntry("Linformer", LinformerScores, Linformer, deep="scaled"),
        ScoreEntry("sparsemax", SparsemaxScores, Sparsemax, deep="scaled"),
        ScoreEntry("normalised heads", NormedHeads, deep="plain"),
        ScoreEntry("sinusoids of distances", SinusoidKeys, deep="plain"),
    )
}


def score_entry(scores: Scores) -> ScoreEntry:
    """What is known of a score, by its exact class: a subclass may compute anything else.

    A score of one's own has no entry. It runs, and paths take the weights it makes; scaled
    arithmetic takes its logits in plain numbers if a softmax makes its weights; no bound covers it.
    """
    entry = SCORES.get(type(scores))
    if entry is not None:
        return entry
    deep: Literal["plain"] | None = "plain" if scores.fused else None
    return ScoreEntry(type(scores).__name__, type(scores), deep=deep)


def require_score(scores: Scores, room: Literal["forward", "paths", "deep"]) -> ScoreEntry:
    """The entry of a score that a room can do, or an error that says which rooms can."""
    entry = score_entry(scores)
    if not getattr(entry, room):
        able = [name for name in ("forward", "paths", "deep") if getattr(entry, name)]
        raise UnsupportedModelError(
            f"the score {entry.words} is not one that {_ROOMS[room]} can follow; it can be used in "
            f"{' and '.join(_ROOMS[name] for name in able)}."
        )
    return entry


_ROOMS = {
    "forward": "a forward pass (rankscope.trace)",
    "paths": "paths (rankscope.path_lengths)",
    "deep": "scaled arithmetic (rankscope.deep_trace)",
}
