"""What could be changed about a design, what each change costs, and how a design stands.

To add an alternative, write one generator that yields ``Change``s of a spec, and enter it in
``ALTERNATIVES``; what comes to the design itself is left out, and prices are counted, not told.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from rankscope.core.network import Spec
from rankscope.experiments.advice._attention import centering, heads, masks, positions
from rankscope.experiments.advice._blocks import mlps, parallel_blocks
from rankscope.experiments.advice._change import Change as Change
from rankscope.experiments.advice._measured import measured_values as measured_values
from rankscope.experiments.advice._norms import norms
from rankscope.experiments.advice._prices import Price as Price
from rankscope.experiments.advice._prices import context_share as context_share
from rankscope.experiments.advice._prices import parameter_count as parameter_count
from rankscope.experiments.advice._skips import skips
from rankscope.experiments.advice._standing import CRITERIA as CRITERIA
from rankscope.experiments.advice._standing import Spread as Spread
from rankscope.experiments.advice._standing import Standing as Standing
from rankscope.experiments.advice._trial import Trial as Trial
from rankscope.experiments.advice._trial import best_of_each_kind as best_of_each_kind
from rankscope.experiments.advice._trial import helps as helps
from rankscope.experiments.advice._trial import is_better as is_better
from rankscope.experiments.advice._trial import ranked as ranked
from rankscope.experiments.advice._weights import weights
from rankscope.experiments.advice._words import sentences as sentences
from rankscope.experiments.advice._words import tried as tried

ALTERNATIVES: tuple[Callable[[Spec, int], Iterator[Change]], ...] = (
    skips,
    weights,
    norms,
    masks,
    centering,
    positions,
    heads,
    mlps,
    parallel_blocks,
)


def changes(spec: Spec, tokens: int) -> list[Change]:
    """Every alternative to a design on so many tokens, each once.

    >>> from rankscope import Spec
    >>> [each.words for each in changes(Spec.pure_attention(2, 1, 8), 4)][:2]
    ['skips added', 'weights × 0.5']
    """
    found: dict[Spec, Change] = {}
    for alternative in ALTERNATIVES:
        for change in alternative(spec, tokens):
            if change.spec != spec:
                found.setdefault(change.spec, replace(change, kind=alternative.__name__))
    return list(found.values())
