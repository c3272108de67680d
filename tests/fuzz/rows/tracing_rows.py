"""Tracing."""

import torch
from table import add
from things import MASK, NET, X

from rankscope.core import tracing

TRACE = tracing.trace(NET, X)
BLOCKS = list(NET.blocks)
add(
    "tracing.trace",
    tracing.trace,
    model=NET,
    inputs=X,
    metrics=("residual",),
    token_mask=MASK,
    measured=MASK,
    blocks="blocks",
    layout="batch token feature",
    stream="x",
)
add(
    "tracing.attach",
    tracing.attach,
    model=NET,
    blocks="blocks",
    layout="batch token feature",
    stream="x",
)
add(
    "tracing.Session.trace",
    tracing.attach(NET).trace,
    inputs=X,
    metrics=("residual",),
    token_mask=MASK,
    measured=MASK,
)
add(
    "tracing.trace_in_batches",
    tracing.trace_in_batches,
    model=NET,
    x=X,
    batch_size=1,
    metrics=("residual",),
    token_mask=MASK,
    measured=None,
)
add("tracing.find_blocks", tracing.find_blocks, model=NET, named="blocks")
add("tracing.choose_measures", tracing.choose_measures, metrics=("residual", "dispersion"))
add("tracing.evaluating", tracing.evaluating, model=NET)
add("tracing.activations", tracing.activations, model=NET, inputs=X, names="blocks.*.attention")
add("tracing.captured_input", tracing.captured_input, blocks=BLOCKS, run=lambda: NET(X))
add("tracing.captured_states", tracing.captured_states, blocks=BLOCKS, run=lambda: NET(X))
add(
    "tracing.with_replaced_state",
    tracing.with_replaced_state,
    blocks=BLOCKS,
    state=torch.zeros_like(X),
    run=lambda: NET(X),
)
add("tracing.Trace", tracing.Trace, columns=TRACE.columns, provenance=TRACE.provenance)
add("tracing.Trace.noted", TRACE.noted, notes={"a": "b"})
add("tracing.Trace.save", TRACE.save, path="trace.parquet")
add("tracing.Trace.load", tracing.Trace.load, path=TRACE.save("kept.parquet"))
add("tracing.Trace.joined", tracing.Trace.joined, traces=[TRACE, TRACE])
add("tracing.Provenance", tracing.Provenance, **vars(TRACE.provenance))
add("tracing.Provenance.joined", tracing.Provenance.joined, parts=[TRACE.provenance] * 2)
add("tracing.Provenance.of", tracing.Provenance.of, model=NET)
