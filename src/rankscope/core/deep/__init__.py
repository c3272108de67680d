"""Hidden states as ``1xᵀ + eˢR``, and how each part of a block acts on them."""

from rankscope.core.deep._norms import apply_norm
from rankscope.core.deep._run import apply_activation, apply_mlp, attend, deep_states
from rankscope.core.deep._run import mix_heads as mix_heads
from rankscope.core.deep._run import multiply as multiply
from rankscope.core.deep._scaled_tensor import ScaledTensor
from rankscope.core.deep._scores import split_attention as split_attention
from rankscope.core.deep._split_state import SplitState, add_states, apply_linear
from rankscope.core.deep._trace import deep_trace, describe_doubts

__all__ = [
    "ScaledTensor", "SplitState", "add_states", "apply_activation", "apply_linear", "apply_mlp",
    "apply_norm", "attend", "deep_states", "deep_trace", "describe_doubts",
]  # fmt: skip
