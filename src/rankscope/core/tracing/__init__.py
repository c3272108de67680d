"""Record any model's layers while it runs.

The package is called ``tracing`` because ``rankscope.trace`` is the function.
"""

from rankscope.core.tracing._attention_reading import network_scores as network_scores
from rankscope.core.tracing._blocks import ModuleCall as ModuleCall
from rankscope.core.tracing._blocks import (
    activations,
    captured_input,
    captured_states,
    find_blocks,
    with_replaced_state,
)
from rankscope.core.tracing._blocks import calls_inside as calls_inside
from rankscope.core.tracing._blocks import captured_calls as captured_calls
from rankscope.core.tracing._described import digest as digest
from rankscope.core.tracing._figures import DEFAULT_METRICS, MEASURES, choose_measures
from rankscope.core.tracing._figures import Columns as Columns
from rankscope.core.tracing._figures import Metrics as Metrics
from rankscope.core.tracing._hidden_states import first_tensor as first_tensor
from rankscope.core.tracing._provenance import Provenance
from rankscope.core.tracing._recording import LayerRecord as LayerRecord
from rankscope.core.tracing._recording import LayerWatch as LayerWatch
from rankscope.core.tracing._recording import Recording as Recording
from rankscope.core.tracing._recording import record as record
from rankscope.core.tracing._session import Session, attach, trace, trace_in_batches
from rankscope.core.tracing._sublayers import Sublayer as Sublayer
from rankscope.core.tracing._sublayers import Sublayers as Sublayers
from rankscope.core.tracing._sublayers import find_sublayers as find_sublayers
from rankscope.core.tracing._sublayers import kind_of as kind_of
from rankscope.core.tracing._sublayers import part_of as part_of
from rankscope.core.tracing._temporary_changes import TemporaryChanges as TemporaryChanges
from rankscope.core.tracing._temporary_changes import before_compilation as before_compilation
from rankscope.core.tracing._temporary_changes import evaluating
from rankscope.core.tracing._temporary_changes import listen as listen
from rankscope.core.tracing._temporary_changes import (
    without_cudnn_attention as without_cudnn_attention,
)
from rankscope.core.tracing._trace import ModelParts as ModelParts
from rankscope.core.tracing._trace import Pass as Pass
from rankscope.core.tracing._trace import Trace
from rankscope.core.weights import refuse_broken as refuse_broken

__all__ = [
    "DEFAULT_METRICS", "MEASURES", "Provenance", "Session", "Trace", "activations", "attach",
    "captured_input", "captured_states", "choose_measures", "evaluating", "find_blocks", "trace",
    "trace_in_batches", "with_replaced_state",
]  # fmt: skip
