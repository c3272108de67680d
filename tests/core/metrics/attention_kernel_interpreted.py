"""The kernel for attention in Triton's interpreter beside the chunked path: prints what differs.

Run by ``test_attention_kernel.py`` in a process of its own, since Triton reads the variable once.
"""

import json
import os

os.environ["TRITON_INTERPRET"] = "1"  # before Triton is loaded

import torch

from rankscope.core.metrics import AttentionScores
from rankscope.core.metrics._attention_kernel import row_figures as fused
from rankscope.core.metrics._attention_scores import row_figures as chunked

N = 100  # more than a block of queries and of keys, the last of them not full
GENERATOR = torch.Generator().manual_seed(0)


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=GENERATOR)


REAL = torch.ones(2, N, dtype=torch.bool)
REAL[0, :70] = False  # a whole block, and part of the next
SEEN = (draw(2, 1, N, N) > 0) | torch.eye(N, dtype=torch.bool)
SEEN[1, 0, 3] = False  # a query that sees nothing
HIDDEN = torch.zeros(1, 1, N, N).masked_fill(torch.ones(N, N).triu(1).bool(), -3.4e38)
HIDDEN[0, 0, 5] = -3.4e38  # a query that sees nothing
CASES = {
    "full": {},
    "causal": {"causal": True, "token_mask": REAL},
    "window": {"causal": True, "window": 33},
    "window to both sides": {"window": 50},
    "cap": {"softcap": 0.7},
    "bias": {"bias": 3 * draw(1, 2, N, N)},
    "hiding bias": {"bias": HIDDEN},
    "mask": {"mask": SEEN},
    "low sinks": {"sinks": torch.full((2,), -8.0), "causal": True},
    "closed sinks": {"sinks": torch.full((2,), -torch.inf), "causal": True},
    "sinks and a mask": {"sinks": 3 * draw(2), "mask": SEEN, "token_mask": REAL},
    "sharp": {"scale": 8.0, "causal": True},
}


def differ(scores: AttentionScores) -> float:
    found, sees = fused(scores)
    expected, counted = chunked(scores, scores)
    if not torch.equal(sees & scores.real_queries()[:, None], counted):
        return float("inf")
    return float(torch.where(counted, found - expected, 0.0).abs().max())


def main() -> None:
    query, key = 2 * draw(2, 2, N, 12), draw(2, 1, N, 12)
    apart = {}
    for name, parts in CASES.items():
        scores = AttentionScores(**{"query": query, "key": key, "scale": 0.3, **parts})
        apart[name] = differ(scores)
    late = query.transpose(1, 2).contiguous().transpose(1, 2)[:, :, -75:]
    apart["cache"] = differ(AttentionScores(query=late, key=key, scale=0.3, causal=True, window=50))
    # The interpreter multiplies bfloat16 as whole numbers: that is tried on a GPU alone.
    half = {"query": query.half(), "key": key.half()}
    apart["half"] = differ(AttentionScores(**half, scale=0.3, causal=True))
    print(json.dumps(apart))


main()
