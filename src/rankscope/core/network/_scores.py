"""Scores: how queries and keys become attention matrices.

Logits are ``scale · q'ᵢ · k'ⱼ + biasᵢⱼ``: a score changes queries and keys before the product
(rotary embeddings, Gaussian kernels), adds a bias after it (relative biases, ALiBi, sinks, XLNet),
or both. If the weights are the softmax of the logits, the fused attention kernel is used; a score
with other weights (sparsemax, linear attention) overrides ``weights``. Each row of weights is
nonnegative and sums to one, which is all that paths and attention metrics need.

A kind that users put into a ``Spec`` is a frozen value (``Sink``) that builds the module
(``SinkScores``); their ``ScoreEntry`` is next to them. Positions count only real tokens, so padding
has no effect.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor, nn

from rankscope.arguments import Count
from rankscope.core.network._visibility import Bias, Visibility

Heads = Float[Tensor, "batch head token head_width"]
Positions = Int[Tensor, "rows token"]
Pairs = Float[Tensor, "batch head query key"]


class Scores(nn.Module):
    """The dot product; other scores override one or more methods.

    >>> from rankscope.core.network import Scores
    >>> class Flat(Scores):
    ...     def prepare(self, query, key, positions):
    ...         return 0 * query, key
    >>> Flat().fused
    True

    ``fused`` means that the score consists of ``prepare``, ``bias`` and a softmax; it must be False
    if ``weights`` is overridden, which the fused kernel would ignore. ``sparse`` means that visible
    keys may get zero weight, which a softmax never gives.
    """

    fused: ClassVar[bool] = True
    sparse: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.weights is not Scores.weights:
            cls.fused = False

    def prepare(self, query: Heads, key: Heads, positions: Positions) -> tuple[Heads, Heads]:
        """Queries and keys as they enter the product."""
        del positions
        return query, key

    def bias(self, query: Heads, key: Heads, positions: Positions) -> Bias | None:
        """The bias added to the logits after scaling; None if there is none."""
        del query, key, positions
        return None

    def weights(self, logits: Pairs, visibility: Visibility) -> Pairs:
        """The attention matrices: rows sum to one and are zero at hidden keys."""
        return visibility.hide(logits).softmax(-1)


@runtime_checkable
class ScoreKind(Protocol):
    """A frozen, hashable description of a score, as held by a ``Spec``.

    >>> from rankscope.core.network import ALiBi, ScoreKind
    >>> isinstance(ALiBi(), ScoreKind)
    True
    """

    def build(self, heads: Count, head_width: Count) -> Scores:
        """A new module for one layer."""
        ...


@dataclass(frozen=True)
class ScoreEntry:
    """A score, and what other packages need to know about it.

    ``module`` computes it. If a ``Spec`` can hold it, ``name`` is its name in
    ``rankscope.core.names`` and ``usual`` its description with default settings. ``rule`` names the
    rule of scaled arithmetic (``rankscope.core.deep``) for it. ``bounds`` are derived only for the
    softmax of plain products.
    """

    words: str
    module: type[Scores]
    name: str = ""
    usual: ScoreKind | None = None
    rule: str = ""
    bounds: bool = False

    @property
    def kind(self) -> type[ScoreKind] | None:
        """The class that describes it in a ``Spec``; None if it is not built from one."""
        return None if self.usual is None else type(self.usual)

    @property
    def deep(self) -> Literal["scaled", "plain"] | None:
        """How scaled arithmetic does it: by a rule, or from plain logits where a softmax makes the
        weights, as long as positions tell the queries apart; else not at all.
        """
        if self.rule:
            return "scaled"
        return "plain" if self.module.fused else None
