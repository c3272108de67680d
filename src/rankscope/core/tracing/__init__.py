"""Record any model's layers while it runs.

The package is called ``tracing`` because ``rankscope.trace`` is the function.
"""

from rankscope.core.tracing._attention_reading import network_scores as network_scores
from rankscope.core.tracing._blocks import ModuleCall as ModuleCall
from rankscope.core.tracing._blocks import (
    activations,
    captured_calls,
    captured_input,
    captured_states,
    find_blocks,
    with_replaced_state,
)
from rankscope.core.tracing._described import digest as digest
from rankscope.core.tracing._figures import DEFAULT_METRICS, MEASURES, choose_measures
from rankscope.core.tracing._figures import Columns as Columns
from rankscope.core.tracing._figures import Metrics as Metrics
from rankscope.core.tracing._provenance import Provenance
from rankscope.core.tracing._temporary_changes import evaluating
from rankscope.core.tracing._trace import Trace, trace, trace_in_batches
from rankscope.core.weights import refuse_broken as refuse_broken

__all__ = [
    "DEFAULT_METRICS", "MEASURES", "Provenance", "Trace", "activations", "captured_calls",
    "captured_input", "captured_states", "choose_measures", "evaluating", "find_blocks", "trace",
    "trace_in_batches", "with_replaced_state",
]  # fmt: skip
