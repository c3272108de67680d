"""Scaled arithmetic."""

import torch
from table import add
from things import MASK, NET, X

from rankscope.core import deep
from rankscope.core.network import Visibility

TENSOR = deep.ScaledTensor.of(X.double(), torch.zeros(2, dtype=torch.float64))
STATE = deep.SplitState.of(X.double(), MASK)
DOUBLE = NET.double()
BLOCK = DOUBLE.blocks[0]
SEEN = Visibility.of(NET.spec.mask, 3, MASK, torch.device("cpu"))

add("deep.ScaledTensor", deep.ScaledTensor, mantissa=TENSOR.mantissa, log=TENSOR.log, lost=0.0)
add("deep.ScaledTensor.of", deep.ScaledTensor.of, **{"*0": X.double(), "*1": TENSOR.log})
add("deep.ScaledTensor.of[terms]", deep.ScaledTensor.of, values=X.double(), terms=TENSOR.log)
add("deep.ScaledTensor.times_exp", TENSOR.times_exp, log=TENSOR.log)
add("deep.ScaledTensor.select", TENSOR.select, chosen=torch.tensor([0]))
add("deep.ScaledTensor.join", TENSOR.join, other=TENSOR)
add("deep.SplitState.first", STATE.first, count=1)
add("deep.SplitState.select", STATE.select, chosen=torch.tensor([True, False]))
add("deep.SplitState.join", STATE.join, other=STATE)
add("deep.ScaledTensor.at", TENSOR.at, **{"*0": TENSOR.log})
add("deep.SplitState", deep.SplitState, common=STATE.common, deviation=STATE.deviation)
add("deep.SplitState.of", deep.SplitState.of, x=X.double(), token_mask=MASK)
add("deep.SplitState.log_residual", STATE.log_residual, norm="fro", center="mean")
add("deep.SplitState.log_norm", STATE.log_norm, norm="fro")
add("deep.SplitState.times", STATE.times, **{"*0": 0.5})
add("deep.add_states", deep.add_states, **{"*0": STATE, "*1": STATE})
add("deep.apply_activation", deep.apply_activation, **{"*0": "gelu", "*1": STATE})
add("deep.apply_linear", deep.apply_linear, **{"*0": STATE, "*1": BLOCK.attention.value.weight})
add("deep.apply_mlp", deep.apply_mlp, **{"*0": BLOCK.mlp, "*1": STATE})
add("deep.apply_norm", deep.apply_norm, **{"*0": BLOCK.steps[0].branches[0].before, "*1": STATE})
add("deep.attend", deep.attend, attention=BLOCK.attention, state=STATE, visibility=SEEN)
add("deep.deep_states", deep.deep_states, network=NET, x=X, token_mask=MASK)
add(
    "deep.deep_trace",
    deep.deep_trace,
    network=NET,
    x=X,
    norm="fro",
    center="mean",
    token_mask=MASK,
    measured=MASK,
)
add("deep.describe_doubts", deep.describe_doubts, columns=deep.deep_trace(NET, X).columns)
