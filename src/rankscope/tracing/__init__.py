"""Record any model's layers while it runs.

The room is called ``tracing`` because ``rankscope.trace`` is the function. ``chosen`` is an earlier
name of ``choose_measures``.
"""

from rankscope.tracing._blocks import find_blocks
from rankscope.tracing._capture import captured_input, captured_states, with_replaced_state
from rankscope.tracing._measures import DEFAULT_METRICS, MEASURES, choose_measures
from rankscope.tracing._measures import Metrics as Metrics
from rankscope.tracing._modes import evaluating
from rankscope.tracing._provenance import Provenance
from rankscope.tracing._provenance import digest as digest
from rankscope.tracing._recorder import Columns as Columns
from rankscope.tracing._run import trace, trace_in_batches
from rankscope.tracing._soundness import refuse_broken as refuse_broken
from rankscope.tracing._trace import Trace

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
