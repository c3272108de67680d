"""The transformer of rankscope: spec, blocks, scores, and variants that share weights.

Names in ``__all__`` are public; the others that can be imported from here are for the rest of
rankscope.
"""

from rankscope.core.names import ABLATIONS as ABLATIONS
from rankscope.core.names import NormPlace as NormPlace
from rankscope.core.network._activations import ACTIVATIONS as ACTIVATIONS
from rankscope.core.network._activations import Activation
from rankscope.core.network._activations import PiecewiseLinear as PiecewiseLinear
from rankscope.core.network._activations import SelfGated as SelfGated
from rankscope.core.network._activations import Squared as Squared
from rankscope.core.network._activations import activation as activation
from rankscope.core.network._block import Block, Branch, Step
from rankscope.core.network._content_scores import (
    GaussianKernel,
    LinearKernel,
    Linformer,
    Sparsemax,
)
from rankscope.core.network._content_scores import GaussianKernelScores as GaussianKernelScores
from rankscope.core.network._content_scores import LinformerScores as LinformerScores
from rankscope.core.network._content_scores import log_positive_feature as log_positive_feature
from rankscope.core.network._content_scores import sparsemax as sparsemax
from rankscope.core.network._fields import Init
from rankscope.core.network._fields import MatrixName as MatrixName
from rankscope.core.network._network import Network
from rankscope.core.network._network import drawable as drawable
from rankscope.core.network._norms import NORMS as NORMS
from rankscope.core.network._norms import NormKind as NormKind
from rankscope.core.network._norms import NormRule, Sphere
from rankscope.core.network._norms import OffsetNorm as OffsetNorm
from rankscope.core.network._norms import build_norm as build_norm
from rankscope.core.network._norms import norm_rule as norm_rule
from rankscope.core.network._norms import share_gain as share_gain
from rankscope.core.network._parts import MLP, Attention
from rankscope.core.network._parts import BareMLP as BareMLP
from rankscope.core.network._parts import Joined as Joined
from rankscope.core.network._parts import Latent as Latent
from rankscope.core.network._parts import PartlyShared as PartlyShared
from rankscope.core.network._parts import Projection as Projection
from rankscope.core.network._parts import Stack as Stack
from rankscope.core.network._parts import View as View
from rankscope.core.network._parts import make_linear as make_linear
from rankscope.core.network._position_scores import ALiBi, RelativeBias, Rotary, Sink
from rankscope.core.network._position_scores import ALiBiScores as ALiBiScores
from rankscope.core.network._position_scores import BucketedBiasScores as BucketedBiasScores
from rankscope.core.network._position_scores import ChangingRotary as ChangingRotary
from rankscope.core.network._position_scores import RotaryScores as RotaryScores
from rankscope.core.network._position_scores import RotaryTable as RotaryTable
from rankscope.core.network._score_table import SCORES as SCORES
from rankscope.core.network._score_table import CappedScores as CappedScores
from rankscope.core.network._score_table import Described
from rankscope.core.network._score_table import DisentangledScores as DisentangledScores
from rankscope.core.network._score_table import LearnedSinks as LearnedSinks
from rankscope.core.network._score_table import Lent as Lent
from rankscope.core.network._score_table import NormedHeads as NormedHeads
from rankscope.core.network._score_table import SinusoidKeys as SinusoidKeys
from rankscope.core.network._score_table import score_entry as score_entry
from rankscope.core.network._scores import ScoreKind, Scores
from rankscope.core.network._spec import Spec
from rankscope.core.network._visibility import Visibility

__all__ = [
    "MLP", "ALiBi", "Activation", "Attention", "Block", "Branch", "Described", "GaussianKernel",
    "Init", "LinearKernel", "Linformer", "Network", "NormRule", "RelativeBias", "Rotary",
    "ScoreKind", "Scores", "Sink", "Sparsemax", "Spec", "Sphere", "Step", "Visibility",
]  # fmt: skip
