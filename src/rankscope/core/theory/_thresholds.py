"""The thresholds of diagnosis and prediction.

All are conventions, chosen so that networks built to collapse in a known way are diagnosed
correctly and ordinary trained models are not flagged; docs/rules.md gives the reason for each.
"""

from collections.abc import Sequence
from typing import Final, Literal

COLLAPSED_RESIDUAL: Final = 1e-3
"""Relative residual or dispersion below which tokens count as equal."""
SHRUNK_RESIDUAL: Final = 0.1
"""Fraction of an earlier relative residual below which a collapse is under way: of the largest so
far in a diagnosis, of the input in a prediction."""
HALVED_RESIDUAL: Final = 0.5
"""Factor of a single layer on the relative residual below which a collapse is under way, too."""
RISEN_RESIDUAL: Final = 1.1
"""Relative dispersion over that of the input above which tokens move apart."""
ONE_HOT_ENTROPY: Final = 0.1
"""Fraction of the entropy of uniform attention below which a layer counts as one-hot."""
SHARP_ENTROPY: Final = 0.25
"""The same for a collapse under way, and for predictions: a query then attends to about two of 32
keys, or three of 128."""
EVEN_ENTROPY: Final = 0.95
"""The same fraction above which attention is nearly uniform."""
SINK_WEIGHT: Final = 0.5
"""Weight on the first token above which a head counts as an attention sink."""
IDLE_TURN: Final = 0.05
"""Rotation of the median token, in radians, below which a layer counts as the identity."""
IDLE_LAYERS: Final = 0.25
"""Fraction of the layers that must be close to the identity."""
GROWN_NORM: Final = 3.0
"""Growth of token norms in one layer that is reported as the cause."""
GIANT_NORM: Final = 10.0
"""Norm of a token, relative to the median, above which the others are judged without it."""
CONE_COSINE: Final = 0.5
"""Mean cosine above which tokens lie in a cone, an angle of 60 degrees."""
CONE_TOKENS: Final = 4
"""Tokens of a sample below which a mean cosine is not evidence of a cone."""
MERGED_DISTANCE: Final = 1e-3
"""Distance of two tokens, relative to the larger norm, below which they count as equal."""
FULL_RANK_SHARE: Final = 0.9
"""Fraction of the largest possible rank that counts as full."""
WIDTH_EXPONENT: Final = -0.25
"""Half of the exponent −1/2 with which attention at initialisation loses dispersion as the sequence
length grows, if the tokens share a direction; orthogonal tokens lose none (claim P6)."""
WIDTH_HINT_EXPONENT: Final = -0.125
"""The same for a width collapse under way."""
VANISHED_GRADIENT: Final = 0.1
EXPLODED_GRADIENT: Final = 10.0
"""Gradient at the input over that at the last layer; outside this range it vanishes or explodes."""
STARVED_GRADIENT: Final = 0.01
"""Larger gradient of queries and keys over that of values below which both hardly learn."""
DECIDING_SAMPLES: Final = 0.5
"""Fraction of the samples that decides a diagnosis."""
SURE_NETWORKS: Final = 0.9
"""Fraction of the networks that must agree; with less, the 10% to 90% band crosses a threshold."""
DEAD_SUBLAYER: Final = 0.01
"""Variation between tokens in the output of attention, an MLP or a norm, relative to the other
layers and the untrained twin, below which it counts as dead."""
DOMINANT_SUBLAYER: Final = 10.0
"""Size of the output relative to the other layers and the untrained twin above which it counts as
dominating."""
NARROW_SUBLAYER: Final = 0.15
"""Directions of a matrix relative to those in the other layers and the untrained twin below which
it counts as narrow."""
NARROW_DIRECTIONS: Final = 4.0
"""Number of directions above which no matrix counts as narrow."""
UNUSUAL_WEIGHT: Final = 10.0
"""Factor between a matrix and those of the other layers and the untrained twin (in size or
directions) above which it is noted, whatever its effect on the tokens."""
UNUSUAL_ALONE: Final = 30.0
"""The same for gains and biases, which differ more from layer to layer in trained models, and for
embeddings and shared blocks, which are compared with the twin alone."""
UNUSUAL_EVERYWHERE: Final = 100.0
"""The same for all layers at once: what starts small, such as the last matrices of GPT-2's
branches, grows by tens in training."""
FEW_OTHERS: Final = 0.1
"""What differs from token to token in a sublayer's output, over the same in the twin, below which
it counts as dead where there is only one other layer to compare it with."""
DOMINANT_WEIGHT: Final = 3.0
"""Factor between a weight of a sublayer and usual ones, without which its output does not count as
dominating: the first MLP of trained decoders outgrows their small embeddings."""
FAINT_LOGITS: Final = 0.01
"""Scale of the logits relative to the other layers below which attention is nearly uniform."""
SHARP_LOGITS: Final = 10.0
"""The same, also relative to the twin, above which entropy collapse is under way if the logits are
large enough to condense (claim P1)."""
ALIKE_TEXTS: Final = 0.01
"""Relative dispersion of whole texts below which they count as equal: 0.01, a mean cosine of
0.9999."""
SHRUNK_TEXTS: Final = 0.1
"""The same relative to the untrained twin below which a collapse is under way."""
RESTORED_RANK: Final = 0.5
"""Effective rank of texts without a common direction, relative to unrelated vectors treated in the
same way, from which on that direction explains why they are alike."""
LEAST_TEXTS: Final = 4
"""Number of texts below which collapse between texts is not judged."""
EQUAL_ROWS: Final = 1e-3
"""Relative dispersion of the rows of an embedding table below which words count as equal."""
REMEDY_FACTOR: Final = 1.5
"""Factor by which a change must raise the lowest residual to be reported."""
BLAMED_DECADES: Final = 0.005
"""Decades, about one per cent, below which a loss is not reported."""
NOISE_EPSILONS: Final = 32
"""Relative residuals within this many units of the dtype's epsilon are rounding noise."""


def fate_of(residuals: Sequence[float]) -> tuple[Literal["collapse", "slow", "holds"], int]:
    """The fate of a relative residual over the layers, and the first layer that shows it.

    >>> fate_of([1.0, 0.5, 0.09]), fate_of([1.0, 0.2, 0.0005]), fate_of([0.9, 0.7, 0.8])
    (('slow', 2), ('collapse', 2), ('holds', 1))

    The rule of depth collapse for a single curve; the loss of single layers is not considered. A
    residual that holds is reported with its lowest layer.
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
