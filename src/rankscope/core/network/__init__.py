"""The one transformer we own: spec, blocks, masks, and variants that share weights.

Names in ``__all__`` are for users; the others that can be imported from here are what the rest of
rankscope is built with. ``Sight`` and ``sight`` are earlier names of ``Visibility`` and
``Visibility.of``.
"""

from rankscope.core.masks import Causal, Explicit, Full, Mask, Window
from rankscope.core.network._activations import ACTIVATIONS as ACTIVATIONS
from rankscope.core.network._activations import Activation
from rankscope.core.network._activations import PiecewiseLinear as PiecewiseLinear
from rankscope.core.network._activations import SelfGated as SelfGated
from rankscope.core.network._activations import activation as activation
from rankscope.core.network._activations import scaled_form as scaled_form
from rankscope.core.network._attention import Attention
from rankscope.core.network._block import Block, Branch, Step
from rankscope.core.network._construct import build_scores as build_scores
from rankscope.core.network._fields import NormPlace as NormPlace
from rankscope.core.network._initialisation import Init
from rankscope.core.network._linear import ColumnSlice as ColumnSlice
from rankscope.core.network._linear import HeadAxis as HeadAxis
from rankscope.core.network._linear import Interleaved as Interleaved
from rankscope.core.network._linear import Projection as Projection
from rankscope.core.network._linear import Stack as Stack
from rankscope.core.network._linear import View as View
from rankscope.core.network._mlp import MLP
from rankscope.core.network._mlp import IdentityMLP as IdentityMLP
from rankscope.core.network._network import ABLATIONS as ABLATIONS
from rankscope.core.network._network import Network
from rankscope.core.network._network import drawable as drawable
from rankscope.core.network._norms import NORMS as NORMS
from rankscope.core.network._norms import NormKind as NormKind
from rankscope.core.network._norms import NormRule, Sphere
from rankscope.core.network._norms import build_norm as build_norm
from rankscope.core.network._norms import norm_rule as norm_rule
from rankscope.core.network._norms import share_gain as share_gain
from rankscope.core.network._scores.alibi import ALiBi
from rankscope.core.network._scores.alibi import ALiBiScores as ALiBiScores
from rankscope.core.network._scores.alibi import alibi_slopes as alibi_slopes
from rankscope.core.network._scores.base import Described, ScoreKind, Scores
from rankscope.core.network._scores.base import Lent as Lent
from rankscope.core.network._scores.base import hide as hide
from rankscope.core.network._scores.gaussian_kernel import GaussianKernel
from rankscope.core.network._scores.gaussian_kernel import (
    GaussianKernelScores as GaussianKernelScores,
)
from rankscope.core.network._scores.linear_kernel import LinearKernel
from rankscope.core.network._scores.linear_kernel import LinearKernelScores as LinearKernelScores
from rankscope.core.network._scores.linear_kernel import (
    log_positive_feature as log_positive_feature,
)
from rankscope.core.network._scores.linear_kernel import positive_feature as positive_feature
from rankscope.core.network._scores.linformer import Linformer
from rankscope.core.network._scores.linformer import LinformerScores as LinformerScores
from rankscope.core.network._scores.linformer import pooling as pooling
from rankscope.core.network._scores.normed_heads import NormedHeads as NormedHeads
from rankscope.core.network._scores.relative_bias import BucketedBiasScores as BucketedBiasScores
from rankscope.core.network._scores.relative_bias import RelativeBias
from rankscope.core.network._scores.rotary import Rotary
from rankscope.core.network._scores.rotary import RotaryScores as RotaryScores
from rankscope.core.network._scores.sink import Sink
from rankscope.core.network._scores.sink import SinkScores as SinkScores
from rankscope.core.network._scores.sinusoid_keys import SinusoidKeys as SinusoidKeys
from rankscope.core.network._scores.sparsemax import Sparsemax
from rankscope.core.network._scores.sparsemax import SparsemaxScores as SparsemaxScores
from rankscope.core.network._scores.sparsemax import sparsemax as sparsemax
from rankscope.core.network._scores.table import SCORES as SCORES
from rankscope.core.network._scores.table import require_score as require_score
from rankscope.core.network._scores.table import score_entry as score_entry
from rankscope.core.network._spec import Spec
from rankscope.core.network._visibility import Visibility

__all__ = [
    "MLP",
    "ALiBi",
    "Activation",
    "Attention",
    "Block",
    "Branch",
    "Causal",
    "Described",
    "Explicit",
    "Full",
    "GaussianKernel",
    "Init",
    "LinearKernel",
    "Linformer",
    "Mask",
    "Network",
    "NormRule",
    "RelativeBias",
    "Rotary",
    "ScoreKind",
    "Scores",
    "Sink",
    "Sparsemax",
    "Spec",
    "Sphere",
    "Step",
    "Visibility",
    "Window",
]

Sight = Visibility
sight = Visibility.of
