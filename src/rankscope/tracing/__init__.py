"""Record any model's layers while it runs.

The room is called ``tracing`` because ``rankscope.trace`` is the function.
"""

from rankscope.tracing.blocks import find_blocks
from rankscope.tracing.capture import captured_input, captured_states, with_replaced_state
from rankscope.tracing.measures import DEFAULT_METRICS, MEASURES, chosen
from rankscope.tracing.result import Provenance, Trace
from rankscope.tracing.run import evaluating, trace, trace_in_batches

__all__ = [
    "DEFAULT_METRICS",
    "MEASURES",
    "Provenance",
    "Trace",
    "captured_input",
    "captured_states",
    "chosen",
    "evaluating",
    "find_blocks",
    "trace",
    "trace_in_batches",
    "with_replaced_state",
]
