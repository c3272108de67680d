"""Attention of our own network as scores: the matrices it stands for are the network's."""

import pytest
import torch

from rankscope import Spec
from rankscope.core import metrics
from rankscope.core.masks import Full
from rankscope.core.network import (
    ALiBi,
    CappedScores,
    GaussianKernel,
    LinearKernel,
    Linformer,
    RelativeBias,
    Rotary,
    Sink,
    Sparsemax,
    Visibility,
)
from rankscope.core.tracing._attention_reading import network_scores
from rankscope.errors import InputError

from .. import loaded_parts

KINDS = {
    "plain": None,
    "rotary": Rotary(),
    "relative": RelativeBias(),
    "alibi": ALiBi(),
    "sink": Sink(tokens=1, strength=2.0),
    "gaussian": GaussianKernel(bandwidth=2.0),
    "linear": LinearKernel(),
    "linformer": Linformer(segments=2),
    "sparsemax": Sparsemax(),
}
PADDING = torch.tensor([[True] * 5, [False, False, True, True, True]])


@pytest.mark.parametrize("token_mask", [None, PADDING], ids=["whole", "padded"])
@pytest.mark.parametrize("mask", ["full", "causal"])
@pytest.mark.parametrize("kind", KINDS)
def test_scores_stand_for_the_pattern(kind, mask, token_mask, lively, tokens) -> None:
    if kind == "linformer" and (mask == "causal" or token_mask is not None):
        mask = "full"
    options = {} if KINDS[kind] is None else {"scores": KINDS[kind]}
    net = lively(Spec(1, 4, 8, mask=mask, init="lecun", **options))
    x, attention = tokens(2, 5, 8), net.blocks[0].attention
    seen = Visibility.of(net.spec.mask, 5, token_mask, x.device)
    scores = network_scores(attention, x, seen, token_mask)
    pattern = attention.pattern(x, seen).detach()
    real = torch.ones(2, 5).bool() if token_mask is None else token_mask
    assert scores.is_matrix == (kind in ("linear", "linformer", "sparsemax"))
    assert torch.allclose(scores.matrix(), pattern * real[:, None, :, None], atol=1e-12)
    for name in ("attention_entropy", "dobrushin", "second_singular_value", "high_pass_ratio"):
        expected = getattr(metrics, name)(pattern, token_mask=token_mask)
        assert torch.allclose(getattr(metrics, name)(scores), expected, atol=1e-12), name
    if kind == "sparsemax" and mask == "causal":
        with pytest.raises(InputError, match="omit"):
            metrics.score_gamma(scores)


@pytest.mark.parametrize("token_mask", [None, PADDING], ids=["whole", "padded"])
@pytest.mark.parametrize(
    "name", [name for name in loaded_parts.PARTS if name.startswith(("capped", "learned sinks"))]
)
def test_caps_and_sinks_stay_what_they_are(name, token_mask, lively, tokens) -> None:
    """Rows of sinks sum below one; as a matrix they would be taken for rows that sum to one."""
    attention = loaded_parts.network(name, lively).blocks[0].attention
    x = tokens(2, 5, 8)
    seen = Visibility.of(Full(), 5, token_mask, x.device)
    scores = network_scores(attention, x, seen, token_mask)
    pattern = attention.pattern(x, seen).detach()
    real = torch.ones(2, 5).bool() if token_mask is None else token_mask
    assert not scores.is_matrix
    assert torch.allclose(scores.matrix(), pattern * real[:, None, :, None], atol=1e-12)
    rest = (1 - pattern.sum(-1, keepdim=True)).clamp(min=0.0)
    outcomes = torch.cat((pattern, rest), -1)
    rows = -torch.special.xlogy(outcomes, outcomes.clamp(min=1e-300)).sum(-1) * real[:, None]
    expected = rows.sum(-1) / real.sum(-1, keepdim=True)
    assert torch.allclose(metrics.attention_entropy(scores), expected, atol=1e-9)


def test_a_cap_over_biases_is_a_matrix(lively, tokens) -> None:
    """A cap bends the products alone where metrics know it; here it bends the biases, too."""
    net, x = lively(Spec(1, 4, 8, init="lecun", scores=ALiBi())), tokens(1, 5, 8)
    attention = net.blocks[0].attention
    attention = attention.replaced(scores=CappedScores(0.5, attention.scores))
    seen = Visibility.of(Full(), 5, None, x.device)
    scores = network_scores(attention, x, seen)
    assert scores.is_matrix
    assert torch.allclose(scores.matrix(), attention.pattern(x, seen), atol=1e-12)
