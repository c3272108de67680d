"""How queries and keys become attention matrices: the seam for rotary, sparse and other scores.

Logits are ``scale · q'ᵢ · k'ⱼ + biasᵢⱼ``: a score changes queries and keys before the product
(rotary embeddings, Gaussian kernels), adds a bias after it (relative biases, ALiBi, sinks, XLNet),
or both. A softmax makes weights of logits, and then all of it runs on the fused attention kernel;
a score that makes them in another way (sparsemax, linear attention) overrides ``weights``. Whatever
the score, each row of weights is nonnegative and sums to one, which is all that paths and metrics
of attention ask for.

A kind that users put into a ``Spec`` is a frozen value (``Sink``), which builds the module that
computes (``SinkScores``); beside them stands their ``ScoreEntry``. Tokens are known by their
positions, which count real tokens, so padding changes nothing.
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
    """The plain dot product; other scores override one method or more.

    ``fused`` says that ``prepare``, ``bias`` and a softmax are all there is; a score with
    ``weights`` of its own never is, or the fused kernel would pass them by. ``sparse`` says that
    keys a query sees may get no weight at all, which a softmax never does.
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
        """What is added to the logits after scaling; None for nothing."""
        del query, key, positions
        return None

    def weights(self, logits: Pairs, visibility: Visibility) -> Pairs:
        """The attention matrices: rows that sum to one, zero where a token may not look."""
        return visibility.hide(logits).softmax(-1)


@runtime_checkable
class ScoreKind(Protocol):
    """A frozen, hashable description of a score, as held by a ``Spec``."""

    def build(self, heads: Count, head_width: Count) -> Scores:
        """A fresh module for one layer."""
        ...


@dataclass(frozen=True)
class ScoreEntry:
    """A score, and what other packages need to know about it.

    ``module`` computes it. If a ``Spec`` can hold it, ``name`` is its name in
    ``rankscope.core.names`` and ``usual`` its description with usual settings. ``rule`` names the
    rule by which scaled arithmetic (``rankscope.core.deep``) does it. ``bounds`` are derived for
    the softmax of plain products alone.
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
