"""Means over sampled queries beside those over all queries."""

import math
import weakref

import pytest
import torch
from torch import Tensor

from rankscope.core import metrics
from rankscope.core.metrics import (
    AttentionScores,
    SampledAttention,
    SampledRows,
    sample_attention,
)
from rankscope.core.metrics import _attention_rows as module
from rankscope.streams import stream

NAMES = SampledAttention._fields
TOKENS = 300


def attention(tokens: int = TOKENS, seed: int = 0, **parts: object) -> AttentionScores:
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(2, 4, tokens, 8, generator=generator)
    key = torch.randn(2, 2, tokens, 8, generator=generator)
    return AttentionScores(query=query, key=key, scale=8**-0.5, **parts)  # type: ignore[arg-type]


def real(lengths: tuple[int, int], *, left: bool, tokens: int = TOKENS) -> Tensor:
    mask = torch.stack([torch.arange(tokens) < length for length in lengths])
    return mask.flip(1) if left else mask


def hidden(mask: Tensor) -> dict[str, Tensor]:
    """Padding that the model hides."""
    return {"token_mask": mask, "mask": mask[:, None, None, :]}


CASES: dict[str, dict[str, object]] = {
    "full": {},
    "causal": {"causal": True},
    "window": {"causal": True, "window": 40},
    "learned sinks": {"sinks": torch.tensor([0.0, 1.0, 2.0, 3.0])},
    "padding on the right": hidden(real((300, 170), left=False)),
    "padding on the left": {"causal": True, **hidden(real((300, 170), left=True))},
}


@pytest.mark.parametrize("name", CASES)
def test_within_four_standard_errors_of_all_queries(name: str) -> None:
    """Eight heads on each of 8 seeds; single queries hold much of a sink mass."""
    for metric in NAMES:
        off = []
        for seed in range(8):
            scores = attention(seed=seed, **CASES[name])
            value, error = getattr(sample_attention(scores, seed=seed), metric)
            assert bool((error > 0).all())
            off.append((value - getattr(metrics, metric)(scores)).abs() / error)
        far = torch.stack(off) > 4
        assert far.sum() <= (2 if metric == "sink_mass" else 1), metric


@pytest.mark.parametrize("name", CASES)
def test_mean_of_many_draws_is_that_of_all_queries(name: str) -> None:
    """Unbiased, although 7 stretches of 300 or 170 queries begin within a query."""
    scores = attention(**CASES[name])
    draws = [sample_attention(scores, rows=7, seed=seed) for seed in range(600)]
    for metric in NAMES:
        values = torch.stack([getattr(draw, metric).value for draw in draws]).double()
        around = values.std(0) / math.sqrt(len(draws))
        exact = getattr(metrics, metric)(scores)
        assert bool(((values.mean(0) - exact).abs() < 4.5 * around).all()), metric


def test_error_is_the_deviation_of_independent_draws() -> None:
    """Without order among the queries, one from each stretch is an independent draw."""
    scores = attention(tokens=1024)
    draws = [sample_attention(scores, rows=16, seed=seed) for seed in range(300)]
    for metric in NAMES:
        estimates = [getattr(draw, metric) for draw in draws]
        spread = torch.stack([estimate.value for estimate in estimates]).std(0)
        errors = torch.stack([estimate.error for estimate in estimates]).square().mean(0).sqrt()
        assert torch.allclose(errors, spread, rtol=0.25), metric


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("tokens", [TOKENS, 400])
def test_as_many_rows_as_queries_are_exact(name: str, tokens: int) -> None:
    scores = attention(**CASES[name])
    sampled = sample_attention(scores, rows=tokens)
    for metric in NAMES:
        value, error = getattr(sampled, metric)
        assert torch.allclose(value, getattr(metrics, metric)(scores), atol=1e-6)
        assert bool((error == 0).all())


@pytest.mark.parametrize("left", [False, True])
def test_a_short_sample_beside_a_long_one_is_exact(left: bool) -> None:
    scores = attention(causal=True, **hidden(real((300, 50), left=left)))
    value, error = sample_attention(scores).attention_entropy
    exact = metrics.attention_entropy(scores)
    assert bool((error[0] > 0).all())
    assert bool((error[1] == 0).all())
    assert torch.allclose(value[1], exact[1], atol=1e-6)


@pytest.mark.parametrize("first", [0, 2])
def test_queries_are_drawn_equally_often(first: int) -> None:
    """17 real queries, 2 of them first, or none, on 5 stretches."""
    scores = attention(tokens=20, token_mask=real((20, 17), left=True, tokens=20))
    numbered = torch.arange(20.0)[:, None].expand(2, 4, 20, 8)
    scores = AttentionScores(
        query=numbered, key=scores.key, scale=1.0, token_mask=scores.token_mask
    )
    steps = torch.arange(0, module.STEPS, module.STEPS // 1000)[:, None].expand(-1, 5)
    drawn = [module.select_queries(scores, within, first).query[1, 0, :, 0] for within in steps]
    counts = torch.stack(drawn).long().flatten().bincount(minlength=20) / len(steps)
    assert torch.allclose(counts[3 + first :], torch.tensor(5 / (17 - first)), atol=0.01)
    assert counts[3 : 3 + first].tolist() == [1.0] * first
    assert counts[:3].tolist() == [0, 0, 0]
    assert all(bool((row.diff() >= 0).all()) for row in drawn)


def test_padding_that_is_attended_to_is_no_figure() -> None:
    scores = attention(token_mask=real((300, 170), left=False))
    value = sample_attention(scores).sink_mass.value
    assert bool(value[0].isfinite().all())
    assert bool(value[1].isnan().all())


def test_a_seed_draws_the_same_queries() -> None:
    first, again, other = (
        sample_attention(attention(), seed=seed).largest_weight.value for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_error_of_a_single_row_is_not_known() -> None:
    assert bool(sample_attention(attention(), rows=1).sink_mass.error.isinf().all())


def test_mean_and_error_by_hand() -> None:
    """8 of 12 queries: the first two for themselves, 6 others for ten."""
    scores = attention(tokens=12)
    weights = scores.matrix().amax(-1).double()
    within = torch.randint(module.STEPS, (6,), generator=stream(3, "attention rows"))
    drawn = [
        2 + int((place + step / module.STEPS) * 10 / 6)
        for place, step in enumerate(within.tolist())
    ]
    some = weights[..., drawn]
    value, error = sample_attention(scores, rows=8, seed=3).largest_weight
    expected = (weights[..., :2].sum(-1) + 10 * some.mean(-1)) / 12
    assert torch.allclose(value.double(), expected, atol=1e-6)
    assert torch.allclose(error.double(), 10 / 12 * some.std(-1) / math.sqrt(6), atol=1e-6)


def test_layers_have_the_figures_of_their_own_masks() -> None:
    """Masks that alternate, one that is written in place, and one whose writes are not counted."""
    gathered, alone = SampledRows(), []
    shared = torch.ones(1, 1, TOKENS, TOKENS, dtype=torch.bool).tril()
    with torch.inference_mode():
        uncounted = shared.clone()

    def add(layer: int, **more) -> None:
        scores = attention(seed=layer, **more)
        gathered.add(scores)
        alone.append(sample_attention(scores))

    for layer, width in enumerate((300, 5, 300, 20)):
        add(layer, causal=True, window=width)
        shared.copy_(torch.ones_like(shared).tril().triu(-width))
        add(10 + layer, mask=shared)
        with torch.inference_mode():
            uncounted.copy_(shared)
        add(20 + layer, mask=uncounted)
    for together, one in zip(gathered.finish(), alone, strict=True):
        for name in NAMES:
            for ours, expected in zip(getattr(together, name), getattr(one, name), strict=True):
                assert torch.equal(ours, expected), name


def test_few_masks_are_held() -> None:
    gathered, masks = SampledRows(), []
    for layer in range(5):
        mask = torch.ones(1, 1, TOKENS, TOKENS, dtype=torch.bool).tril(layer)
        masks.append(weakref.ref(mask))
        gathered.add(attention(seed=layer, mask=mask))
        del mask
    assert sum(mask() is not None for mask in masks) == 2
    assert len(gathered.finish()) == 5
