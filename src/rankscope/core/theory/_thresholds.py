"""From where on something counts as collapse: every threshold of diagnosis and prediction.

All are conventions, chosen so that networks built to collapse in a known way are told by that way
and that ordinary trained models are not; docs/diagnose.md says why each is where it is.
"""

from collections.abc import Sequence
from typing import Final, Literal

COLLAPSED_RESIDUAL: Final = 1e-3
"""Relative residual, or dispersion, under which tokens count as alike: a thousandth of their size.
"""
SHRUNK_RESIDUAL: Final = 0.1
"""Part of an earlier relative residual under which a collapse counts as under way: of the largest
so far in a diagnosis, of the input's in a prediction."""
HALVED_RESIDUAL: Final = 0.5
"""What a single layer leaves of the relative residual, below which that alone counts so, too."""
RISEN_RESIDUAL: Final = 1.1
"""What the relative dispersion is of the input's, above which tokens move apart."""
ONE_HOT_ENTROPY: Final = 0.1
"""Share of even attention's entropy under which a layer counts as one-hot."""
SHARP_ENTROPY: Final = 0.25
"""The same, for a layer on its way there, and for predictions: of 32 keys a query then sees about
two, of 128 three."""
EVEN_ENTROPY: Final = 0.95
"""The same share, above which attention hardly distinguishes keys."""
SINK_WEIGHT: Final = 0.5
"""Weight on the first token from which a head counts as a sink."""
IDLE_TURN: Final = 0.05
"""Turn of the median token, in radians, under which a layer counts as the identity."""
IDLE_LAYERS: Final = 0.25
"""Part of the layers that must be idle."""
GROWN_NORM: Final = 3.0
"""Growth of the tokens in one layer that is told as the reason."""
GIANT_NORM: Final = 10.0
"""Length of a token, in median lengths, beyond which the others are judged without it."""
CONE_COSINE: Final = 0.5
"""Mean cosine from which tokens lie in a cone, an angle of 60 degrees."""
CONE_TOKENS: Final = 4
"""Tokens of a sample below which a mean cosine says nothing about a cone."""
MERGED_DISTANCE: Final = 1e-3
"""Distance between two tokens, in lengths of the longer, below which they count as one."""
FULL_RANK_SHARE: Final = 0.9
"""Part of the largest possible rank that counts as full."""
WIDTH_EXPONENT: Final = -0.25
"""Half of the −1/2 with which attention at initialisation loses dispersion as the context grows,
if the tokens share a direction; orthogonal ones lose none (claim P6, beyond)."""
WIDTH_HINT_EXPONENT: Final = -0.125
"""The same, for a network that may be on its way there."""
VANISHED_GRADIENT: Final = 0.1
EXPLODED_GRADIENT: Final = 10.0
"""The gradient of the input as a part of that of the last layer: outside of these it does not
stay."""
STARVED_GRADIENT: Final = 0.01
"""The larger gradient of queries and keys as a part of that of values, below which those two
hardly learn."""
DECIDING_SAMPLES: Final = 0.5
"""Part of the samples that decides a diagnosis."""
SURE_NETWORKS: Final = 0.9
"""Part of the networks drawn that has to agree: with less, the 10 to 90 % band straddles."""
DEAD_SUBLAYER: Final = 0.01
"""What differs from token to token in the output of attention, an MLP or a norm, over the same in
the other layers and in the untrained twin, below which it counts as dead."""
DOMINANT_SUBLAYER: Final = 10.0
"""Size of the output over that in the other layers and in the untrained twin, above which it counts
as dominating."""
NARROW_SUBLAYER: Final = 0.15
"""Directions of a matrix that an output passes through over those in the other layers and in the
untrained twin, below which it counts as narrow."""
NARROW_DIRECTIONS: Final = 4.0
"""Directions from which on no matrix counts so."""
UNUSUAL_WEIGHT: Final = 10.0
"""Factor between a matrix and those of the other layers and of the untrained twin (in size, or in
directions), from which on it is noted whatever it does to the tokens."""
UNUSUAL_ALONE: Final = 30.0
"""The same for gains and biases, which differ more from layer to layer in trained models, and for
embeddings and shared blocks, which are held against the twin alone."""
UNUSUAL_EVERYWHERE: Final = 100.0
"""The same for all layers at once: what starts small, such as the last matrices of GPT-2's
branches, grows by tens in training."""
FEW_OTHERS: Final = 0.1
"""What differs from token to token in a sublayer's output, over the same in the twin, below which
it counts as dead where there is only one other layer to hold it against."""
DOMINANT_WEIGHT: Final = 3.0
"""Factor between a weight of a sublayer and usual ones, without which its output does not count as
dominating: the first MLP of trained decoders outgrows their small embeddings."""
FAINT_LOGITS: Final = 0.01
"""Scale of the logits over that in the other layers, below which attention looks at all tokens
alike."""
SHARP_LOGITS: Final = 10.0
"""The same, also over that in the twin, above which entropy collapse is under way if the logits are
large enough to condense (claim P1)."""
ALIKE_TEXTS: Final = 0.01
"""Relative dispersion of whole texts under which they count as alike: a hundredth of their size, a
mean cosine of 0.9999."""
SHRUNK_TEXTS: Final = 0.1
"""The same, as a part of that of the untrained twin, from which on a collapse is under way."""
LEAST_TEXTS: Final = 4
"""Texts below which nothing is said about what they have in common."""
EQUAL_ROWS: Final = 1e-3
"""Relative dispersion of the rows of an embedding table under which words count as equal."""
REMEDY_FACTOR: Final = 1.5
"""By how much the lowest residual must be larger for a change to be told."""
BLAMED_DECADES: Final = 0.005
"""Decades, about one per cent, below which a loss is not told."""
NOISE_EPSILONS: Final = 32
"""Relative residuals within this many units of the dtype's epsilon are rounding noise."""


def fate_of(residuals: Sequence[float]) -> tuple[Literal["collapse", "slow", "holds"], int]:
    """What becomes of a relative residual over the layers, and in which layer that is seen first.

    >>> fate_of([1.0, 0.5, 0.09]), fate_of([1.0, 0.2, 0.0005]), fate_of([0.9, 0.7, 0.8])
    (('slow', 2), ('collapse', 2), ('holds', 1))

    The rule of depth collapse for a single curve; a layer that leaves less than half on its own is
    not asked about. What holds is told with its lowest layer.
    """
    largest, slow = 0.0, None
    for layer, residual in enumerate(residuals):
        largest = max(largest, residual)
        if residual < SHRUNK_RESIDUAL * largest:
            if residual < COLLAPSED_RESIDUAL:
                return "collapse", layer
            slow = layer if slow is None else slow
    if slow is not None:
        return "slow", slow
    return "holds", min(range(len(residuals)), key=residuals.__getitem__)
