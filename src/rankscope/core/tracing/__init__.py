"""Record any model's layers while it runs.

The room is called ``tracing`` because ``rankscope.trace`` is the function. ``chosen`` is an earlier
name of ``choose_measures``.
"""

from rankscope.core.tracing._blocks import find_blocks
from rankscope.core.tracing._capture import captured_input, captured_states, with_replaced_state
from rankscope.core.tracing._measures import DEFAULT_METRICS, MEASURES, choose_measures
from rankscope.core.tracing._measures import Metrics as Metrics
from rankscope.core.tracing._modes import evaluating
from rankscope.core.tracing._provenance import Provenance
from rankscope.core.tracing._provenance import digest as digest
from rankscope.core.tracing._recorder import Columns as Columns
from rankscope.core.tracing._run import trace, trace_in_batches
from rankscope.core.tracing._soundness import refuse_broken as refuse_broken
from rankscope.core.tracing._trace import Trace

__all__ = [
    "DEFAULT_METRICS",
    "MEASURES",
    "Provenance",
    "Trace",
    "captured_input",
    "captured_states",
    "choose_measures",
    "evaluating",
    "find_blocks",
    "trace",
    "trace_in_batches",
    "with_replaced_state",
]

chosen = choose_measures
