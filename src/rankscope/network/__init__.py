"""The one transformer we own: spec, blocks, masks, and variants that share weights.

Names in ``__all__`` are for users; the others that can be imported from here are what the rest of
rankscope is built with. ``Sight`` and ``sight`` are earlier names of ``Visibility`` and
``Visibility.of``.
"""

from rankscope.masks import Causal, Explicit, Full, Mask, Window
from rankscope.network._activations import ACTIVATIONS as ACTIVATIONS
from rankscope.network._activations import Activation
from rankscope.network._activations import PiecewiseLinear as PiecewiseLinear
from rankscope.network._activations import SelfGated as SelfGated
from rankscope.network._activations import activation as activation
from rankscope.network._activations import scaled_form as scaled_form
from rankscope.network._attention import Attention
from rankscope.network._block import Block, Branch, Step
from rankscope.network._construct import build_scores as build_scores
from rankscope.network._fields import NormPlace as NormPlace
from rankscope.network._initialisation import Init
from rankscope.network._linear import ColumnSlice as ColumnSlice
from rankscope.network._linear import HeadAxis as HeadAxis
from rankscope.network._linear import Interleaved as Interleaved
from rankscope.network._linear import Projection as Projection
from rankscope.network._linear import Stack as Stack
from rankscope.network._linear import View as View
from rankscope.network._mlp import MLP
from rankscope.network._mlp import IdentityMLP as IdentityMLP
from rankscope.network._network import ABLATIONS as ABLATIONS
from rankscope.network._network import Network
from rankscope.network._network import drawable as drawable
from rankscope.network._norms import NORMS as NORMS
from rankscope.network._norms import NormKind as NormKind
from rankscope.network._norms import NormRule, Sphere
from rankscope.network._norms import build_norm as build_norm
from rankscope.network._norms import norm_rule as norm_rule
from rankscope.network._norms import share_gain as share_gain
from rankscope.network._scores.alibi import ALiBi
from rankscope.network._scores.alibi import ALiBiScores as ALiBiScores
from rankscope.network._scores.alibi import alibi_slopes as alibi_slopes
from rankscope.network._scores.base import Described, ScoreKind, Scores
from rankscope.network._scores.base import Lent as Lent
from rankscope.network._scores.base import hide as hide
from rankscope.network._scores.gaussian_kernel import GaussianKernel
from rankscope.network._scores.gaussian_kernel import GaussianKernelScores as GaussianKernelScores
from rankscope.network._scores.linear_kernel import LinearKernel
from rankscope.network._scores.linear_kernel import LinearKernelScores as LinearKernelScores
from rankscope.network._scores.linear_kernel import log_positive_feature as log_positive_feature
from rankscope.network._scores.linear_kernel import positive_feature as positive_feature
from rankscope.network._scores.linformer import Linformer
from rankscope.network._scores.linformer import LinformerScores as LinformerScores
from rankscope.network._scores.linformer import pooling as pooling
from rankscope.network._scores.normed_heads import NormedHeads as NormedHeads
from rankscope.network._scores.relative_bias import BucketedBiasScores as BucketedBiasScores
from rankscope.network._scores.relative_bias import RelativeBias
from rankscope.network._scores.rotary import Rotary
from rankscope.network._scores.rotary import RotaryScores as RotaryScores
from rankscope.network._scores.sink import Sink
from rankscope.network._scores.sink import SinkScores as SinkScores
from rankscope.network._scores.sinusoid_keys import SinusoidKeys as SinusoidKeys
from rankscope.network._scores.sparsemax import Sparsemax
from rankscope.network._scores.sparsemax import SparsemaxScores as SparsemaxScores
from rankscope.network._scores.sparsemax import sparsemax as sparsemax
from rankscope.network._scores.table import SCORES as SCORES
from rankscope.network._scores.table import require_score as require_score
from rankscope.network._scores.table import score_entry as score_entry
from rankscope.network._spec import Spec
from rankscope.network._visibility import Visibility

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
