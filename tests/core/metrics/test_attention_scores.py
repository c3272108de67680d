"""Figures of attention without its matrix, against the plain formulas on the matrix."""

import dataclasses
import math
import weakref

import pytest
import torch
from torch import Tensor

from rankscope.core import metrics as m
from rankscope.core.metrics import _attention_scores as scores_module
from rankscope.core.metrics import _attention_sweeps as sweeps
from rankscope.errors import InputError, KindError, ShapeError

BATCH, HEADS, TOKENS, WIDTH = 2, 4, 11, 6
LEFT = torch.ones(BATCH, TOKENS, dtype=torch.bool)
LEFT[0, :3] = False
RIGHT = LEFT.flip(-1)


def draw(*shape: int, seed: int = 0, size: float = 1.0) -> Tensor:
    return size * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


SOME = draw(BATCH, 1, TOKENS, TOKENS, seed=5) > -0.5
SOME |= torch.eye(TOKENS, dtype=torch.bool)
CASES = {
    "full": {},
    "causal": {"causal": True},
    "window": {"causal": True, "window": 3},
    "window to both sides": {"window": 4},
    "cap": {"softcap": 0.8, "causal": True},
    "bias": {"bias": draw(1, HEADS, TOKENS, TOKENS, seed=3)},
    "bias of keys": {"bias": draw(BATCH, 1, 1, TOKENS, seed=3), "causal": True},
    "mask": {"mask": SOME},
    "sinks": {"sinks": draw(HEADS, seed=4, size=2.0), "causal": True},
    "everything": {
        "causal": True,
        "window": 5,
        "softcap": 2.0,
        "sinks": draw(HEADS, seed=4),
        "bias": draw(BATCH, HEADS, TOKENS, TOKENS, seed=3),
        "mask": SOME,
    },
}
PADDINGS = {"no padding": None, "left": LEFT, "right": RIGHT}
GROUPS = {"full": 4, "causal": 2, "window": 1, "everything": 2}


def make(case: str, padding: str = "no padding") -> m.AttentionScores:
    parts = dict(CASES[case])
    token_mask = PADDINGS[padding]
    if token_mask is not None:  # as models do: padding keys are hidden, a padding query sees itself
        hidden = token_mask[:, None, None, :] | torch.eye(TOKENS, dtype=torch.bool)
        parts["mask"] = hidden & parts.get("mask", torch.tensor(True))
    return m.AttentionScores(
        query=draw(BATCH, HEADS, TOKENS, WIDTH, seed=1, size=2.0) + 0.5,
        key=draw(BATCH, GROUPS.get(case, HEADS), TOKENS, WIDTH, seed=2),
        scale=0.7,
        token_mask=token_mask,
        **parts,
    )


def plain_scores(a: m.AttentionScores) -> tuple[Tensor, Tensor, Tensor]:
    """Products after the cap, the bias, and who sees whom, in float64, written out."""
    key = a.key.double().repeat_interleave(a.query.shape[1] // a.key.shape[1], 1)
    products = torch.einsum("bhiw,bhjw->bhij", a.query.double(), key) * a.scale
    if a.softcap is not None:
        products = a.softcap * (products / a.softcap).tanh()
    queries, keys = products.shape[-2:]
    i, j = torch.arange(queries)[:, None] + keys - queries, torch.arange(keys)[None]
    seen = torch.ones(products.shape, dtype=torch.bool)
    if a.causal:
        seen &= j <= i
    if a.window is not None:
        seen &= (i - j).abs() < a.window
    if a.mask is not None:
        seen &= a.mask
    bias = torch.zeros_like(products) if a.bias is None else a.bias.double().expand_as(products)
    return products, bias, seen


def oracle(a: m.AttentionScores) -> dict[str, Tensor]:
    """Every figure from its definition, one sample and head at a time."""
    products, bias, seen = plain_scores(a)
    logits = (products + bias).masked_fill(~seen, -math.inf)
    batch, heads, queries, keys = logits.shape
    real = torch.ones(batch, keys, dtype=torch.bool) if a.token_mask is None else a.token_mask
    sinks = torch.full((heads,), -math.inf) if a.sinks is None else a.sinks
    found: dict[str, list[Tensor]] = {}
    for sample in range(batch):
        asking = real[sample, keys - queries :]
        first = int(real[sample].nonzero()[0])
        for head in range(heads):
            extra = sinks[head].double().expand(queries, 1)
            whole = torch.cat((logits[sample, head], extra), -1).softmax(-1)[asking]
            p = whole[:, :-1]
            common = p.mean(0)
            sigma = torch.linalg.svdvals(p)
            values = {
                "attention_entropy": -torch.special.xlogy(whole, whole).sum(-1).mean(),
                "renyi_entropy": -whole.square().sum(-1).log().mean(),
                "largest_weight": p.amax(-1).mean(),
                "sink_mass": (p[:, first] + whole[:, -1]).mean(),
                "high_pass_ratio": (p - common).norm() / (len(p) ** 0.5 * common.norm()),
                "dobrushin": torch.cdist(whole, whole, p=1).max() / 2,
                "second_singular_value": sigma[1],
                "score_gamma": plain_gamma(
                    products[sample, head][asking], bias[sample, head][asking],
                    seen[sample, head][asking],
                ),
            }  # fmt: skip
            for name, value in values.items():
                found.setdefault(name, []).append(value)
    return {name: torch.stack(each).view(batch, heads) for name, each in found.items()}


def plain_gamma(products: Tensor, bias: Tensor, seen: Tensor) -> Tensor:
    tilt = (bias * seen).sum(0) / seen.sum(0).clamp(min=1)
    e = products - products.mean(0) + bias - tilt
    ranges = torch.stack([row[ok].max() - row[ok].min() for row, ok in zip(e, seen, strict=True)])
    return (ranges.sum() / ranges.max()).sqrt()


@pytest.fixture(params=[None, 3], ids=["one chunk", "chunks of three"])
def chunks(request, monkeypatch):
    if request.param:
        row = 4 * BATCH * HEADS * TOKENS
        monkeypatch.setitem(scores_module._CHUNK_BYTES, "cpu", request.param * row)


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("case", CASES)
def test_every_figure_is_that_of_the_matrix(case, padding) -> None:
    attention = make(case, padding)
    expected = oracle(attention)
    for name, value in expected.items():
        found = getattr(m, name)(attention)
        assert found.dtype == torch.float32
        assert torch.allclose(found.double(), value, rtol=1e-5, atol=1e-6), name
    for name, bounds in {
        "dobrushin": m.dobrushin_bounds(attention),
        "second_singular_value": m.second_singular_bounds(attention, seed=3),
    }.items():
        assert (bounds.lower <= expected[name] + 1e-6).all(), name
        assert (bounds.upper >= expected[name] - 1e-6).all(), name
    assert (m.dobrushin_upper(attention) <= 2 * m.dobrushin_lower(attention) + 1e-6).all()


@pytest.mark.parametrize("case", ["full", "causal"])
def test_a_matrix_and_its_scores_agree(case) -> None:
    attention = make(case)
    p = attention.matrix()
    for name in ("renyi_entropy", "largest_weight", "sink_mass", "dobrushin_lower"):
        assert torch.allclose(getattr(m, name)(p), getattr(m, name)(attention), atol=1e-6), name
    if case == "full":
        assert torch.allclose(m.score_gamma(p), m.score_gamma(attention), rtol=1e-4)
    else:
        with pytest.raises(InputError, match="pass AttentionScores"):
            m.score_gamma(p)
    several = p.unflatten(0, (1, BATCH))
    assert m.renyi_entropy(several).shape == (1, BATCH, HEADS)


@pytest.mark.usefixtures("chunks")
def test_queries_after_a_cache_are_the_last_keys() -> None:
    whole = make("window")
    late = dataclasses.replace(whole, query=whole.query[:, :, -4:])
    assert torch.allclose(late.matrix(), whole.matrix()[:, :, -4:], atol=1e-6)
    expected = oracle(late)
    for name in ("attention_entropy", "sink_mass", "high_pass_ratio", "score_gamma"):
        assert torch.allclose(getattr(m, name)(late).double(), expected[name], atol=1e-5), name


@pytest.mark.parametrize("least", [-math.inf, torch.finfo(torch.float32).min])
def test_a_mask_may_be_a_bias(least) -> None:
    """As eager attention has it; also for gamma, which must not take the mask for a score."""
    causal = make("causal")
    bias = torch.full((TOKENS, TOKENS), least).triu(1)[None, None]
    masked = dataclasses.replace(causal, causal=False, bias=bias)
    for name in ("attention_entropy", "score_gamma", "dobrushin", "high_pass_ratio"):
        assert torch.allclose(getattr(m, name)(masked), getattr(m, name)(causal), atol=1e-6), name


def test_queries_that_see_nothing_do_not_count() -> None:
    attention = make("causal")
    mask = torch.ones(1, 1, TOKENS, TOKENS, dtype=torch.bool)
    mask[..., 4, :] = False
    found = dataclasses.replace(attention, mask=mask)
    others = [i for i in range(TOKENS) if i != 4]
    p = attention.matrix()[:, :, others]
    assert torch.allclose(m.largest_weight(found), p.amax(-1).mean(-1), atol=1e-6)
    assert torch.allclose(
        m.attention_entropy(found), -torch.special.xlogy(p, p).sum(-1).mean(-1), atol=1e-6
    )


def test_a_token_mask_that_attention_does_not_heed_gives_nan() -> None:
    attention = dataclasses.replace(make("full"), token_mask=LEFT)
    for name in ("attention_entropy", "high_pass_ratio", "score_gamma", "dobrushin_upper"):
        found = getattr(m, name)(attention)
        assert found[0].isnan().all(), name
        assert found[1].isfinite().all(), name


def test_large_scores_keep_their_digits() -> None:
    """A common offset of all scores changes nothing, however large."""
    attention = make("full")
    moved = dataclasses.replace(attention, bias=torch.full((1, 1, 1, 1), 4096.0))
    assert torch.allclose(m.attention_entropy(moved), m.attention_entropy(attention), atol=2e-3)
    sharp = dataclasses.replace(attention, scale=1e4)
    assert m.attention_entropy(sharp).abs().max() < 1e-5
    assert torch.allclose(m.largest_weight(sharp), torch.ones(()))


def test_bounds_on_dobrushin_near_collapse_stay_close() -> None:
    """1 − Σ min is far above τ where many queries differ a little; the distances are not."""
    query, key = draw(1, 2, 120, 90, seed=1), draw(1, 2, 120, 90)
    attention = m.AttentionScores(query=query, key=key, scale=1e-3)
    p = attention.matrix()
    exact, bounds = oracle(attention)["dobrushin"], m.dobrushin_bounds(attention)
    assert (1 - p.amin(-2).sum(-1) > 2.5 * exact).all()
    assert (bounds.lower > 0.8 * exact).all()
    assert (bounds.lower < exact + 1e-6).all()
    assert (bounds.upper > exact - 1e-6).all()
    assert (bounds.upper < 2 * exact + 1e-6).all()


def test_bounds_on_singular_values_hold_where_vectors_have_not_converged() -> None:
    """Many singular values close to one another, which a few powers do not tell apart."""
    x = draw(1, 2, 60, 40)
    attention = m.AttentionScores(query=x, key=x, scale=0.25)
    exact = oracle(attention)["second_singular_value"]
    for seed in range(5):
        bounds = m.second_singular_bounds(attention, seed=seed)
        assert (bounds.lower < exact - 1e-5).all(), "or this tests nothing"
        assert (bounds.lower > 0.9 * exact).all()
        assert (bounds.upper > exact).all()


def test_half_precision_is_computed_in_float32() -> None:
    attention = make("causal")
    half = dataclasses.replace(
        attention, query=attention.query.bfloat16(), key=attention.key.bfloat16()
    )
    exact = oracle(half)
    assert torch.allclose(m.attention_entropy(half).double(), exact["attention_entropy"], rtol=1e-5)


def test_long_sequences_need_no_matrix() -> None:
    """As many keys as would make matrices of 4 GiB, for a handful of queries."""
    q, k = draw(1, 1, 3, 4), draw(1, 1, 32768, 4, seed=1)
    few = m.AttentionScores(query=q, key=k, scale=0.5, causal=True)
    assert m.attention_entropy(few).item() == pytest.approx(
        oracle(few)["attention_entropy"].item(), rel=1e-5
    )
    long = m.AttentionScores(query=k, key=k, scale=0.5, causal=True)
    with pytest.raises(InputError, match="use dobrushin_bounds"):
        m.dobrushin(long)
    with pytest.raises(InputError, match="use second_singular_bounds"):
        m.second_singular_value(long)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"query": draw(BATCH, 3, TOKENS, WIDTH)}, ShapeError, "divides"),
        ({"key": draw(BATCH, HEADS, 2, WIDTH)}, ShapeError, "at most as many queries as keys"),
        ({"bias": draw(3, 1, 1, TOKENS)}, ShapeError, "bias has shape"),
        ({"mask": draw(1, 1, 1, TOKENS)}, KindError, "mask is torch.float32"),
        ({"sinks": draw(3)}, ShapeError, "one for each of 4 heads"),
        ({"token_mask": LEFT[:, :4]}, ShapeError, "token_mask has shape"),
        ({"token_mask": LEFT[:, :1]}, ShapeError, "token_mask has shape"),
        ({"key": draw(BATCH, HEADS, TOKENS, WIDTH).long()}, KindError, "key is torch.int64"),
        ({"sinks": draw(HEADS) + 0j}, KindError, "sinks is torch.complex64"),
        ({"bias": draw(1, 1, 1, TOKENS).to(torch.float8_e5m2)}, KindError, "16 bits or more"),
    ],
)
def test_parts_that_do_not_fit_are_refused(changes, error, words) -> None:
    with pytest.raises(error, match=words):
        dataclasses.replace(make("bias"), **changes)


def test_a_second_token_mask_is_refused() -> None:
    with pytest.raises(InputError, match="hold their token mask"):
        m.renyi_entropy(make("full"), token_mask=LEFT)


def test_one_token_has_no_second_singular_value() -> None:
    alone = m.AttentionScores(query=draw(1, 2, 1, 4), key=draw(1, 2, 1, 4), scale=1.0)
    assert m.second_singular_bounds(alone).upper.tolist() == [[0.0, 0.0]]
    assert m.score_gamma(alone).tolist() == [[1.0, 1.0]]


def test_a_sink_that_takes_nothing_is_none() -> None:
    scores = make("full")
    closed = dataclasses.replace(scores, sinks=torch.full((HEADS,), -math.inf))
    assert torch.equal(m.attention_entropy(closed), m.attention_entropy(scores))


def test_a_head_that_is_not_finite_has_no_singular_values_and_spoils_no_other() -> None:
    scores = make("full")
    query = scores.query.clone()
    query[1, 2, 3] = math.inf
    broken = dataclasses.replace(scores, query=query)
    for figure in (m.second_singular_value, lambda each: m.second_singular_bounds(each).upper):
        found, sound = figure(broken), figure(scores)
        assert found.isnan().nonzero().tolist() == [[1, 2]]
        assert torch.equal(found[0], sound[0])


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("case", ["full", "window", "everything"])
@pytest.mark.parametrize("tokens", [1, 2, 4, 50])
def test_the_first_tokens_may_be_several(case, padding, tokens) -> None:
    attention = make(case, padding)
    p = attention.matrix(sink=True).double()
    real = torch.ones(BATCH, TOKENS, dtype=torch.bool)
    real = real if PADDINGS[padding] is None else PADDINGS[padding]
    expected = torch.zeros(BATCH, HEADS, dtype=torch.float64)
    for sample in range(BATCH):
        first = real[sample].nonzero().flatten()[:tokens]
        rows = p[sample][:, real[sample]]
        expected[sample] = rows[..., first].sum(-1).mean(-1) + rows[..., TOKENS:].sum(-1).mean(-1)
    found = m.sink_mass(attention, tokens=tokens)
    assert torch.allclose(found.double(), expected, rtol=1e-5)
    assert torch.equal(m.sink_mass(attention), m.sink_mass(attention, tokens=1))
    if attention.sinks is None:
        again = m.sink_mass(attention.matrix()[:1, :, real[0]][..., real[0]], tokens=tokens)
        assert torch.allclose(again[0].double(), expected[0], rtol=1e-5)


PASSES = {
    "summary": m.attention_entropy,
    "first tokens": lambda attention: m.sink_mass(attention, tokens=3),
    "products": lambda attention: sweeps._times(attention, draw(BATCH, HEADS, TOKENS, 2)),
    "ranges": sweeps.log_score_ranges,
}


@pytest.mark.parametrize("name", PASSES)
def test_one_chunk_of_weights_lives_at_a_time(name, monkeypatch) -> None:
    """Nor is anything kept that was made beside it, or memory grows with the matrix on a CPU."""
    made: list[weakref.ref[Tensor]] = []
    held: list[int] = []
    weights = m.AttentionScores.weights

    def followed(self, queries):
        held.append(sum(each() is not None for each in made))
        part = weights(self, queries)
        made.extend(map(weakref.ref, (part.p, part.shifted, part.counted)))
        return part

    monkeypatch.setattr(m.AttentionScores, "weights", followed)
    monkeypatch.setitem(scores_module._CHUNK_BYTES, "cpu", 3 * 4 * BATCH * HEADS * TOKENS)
    PASSES[name](make("causal", "left"))
    assert len(held) >= 4
    assert set(held) == {0}
