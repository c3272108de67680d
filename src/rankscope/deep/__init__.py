"""Hidden states as ``1xᵀ + eˢR``, and how each part of a block acts on them."""

from rankscope.deep.attention import attended
from rankscope.deep.lifted import Lifted
from rankscope.deep.mlp import activated, fed_forward
from rankscope.deep.norms import normalised
from rankscope.deep.run import deep_states
from rankscope.deep.scaled import Scaled, added, mapped
from rankscope.deep.trace import deep_trace

__all__ = [
    "Lifted",
    "Scaled",
    "activated",
    "added",
    "attended",
    "deep_states",
    "deep_trace",
    "fed_forward",
    "mapped",
    "normalised",
]
