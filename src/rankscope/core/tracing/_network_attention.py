"""Attention of our own network as scores, without its matrices where a softmax makes them."""

from torch import Tensor

from rankscope.core.metrics import AttentionScores, from_matrix
from rankscope.core.network import Attention, Visibility


def network_scores(
    attention: Attention, x: Tensor, visibility: Visibility, token_mask: Tensor | None = None
) -> AttentionScores:
    """What a layer's weights are made of for this input.

    Weights that no softmax makes (sparsemax, linear kernels, Linformer) are taken as the matrices
    that they are.
    """
    if not attention.scores.fused:
        return from_matrix(attention.pattern(x, visibility), token_mask)
    query, key = attention.query_key(x, visibility)
    return AttentionScores(
        query=query,
        key=key,
        scale=attention.scale,
        bias=attention.scores.bias(query, key, visibility.positions),
        mask=visibility.allowed,
        token_mask=token_mask,
    )
