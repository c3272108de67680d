"""The figures of a probe beside matrices in float64, written out here."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rankscope.core.metrics import AttentionProbe, AttentionScores, probe_attention
from rankscope.core.metrics import _attention_probe as module

NAMES = ("entropy", "max_logit", "deviation", "sink")
TOKENS = 23
Parts = dict[str, object]


def draw(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator)


def real(left: bool) -> Tensor:
    """Samples of 23, 11 and 1 real tokens."""
    places = torch.arange(TOKENS)
    mask = torch.stack([places < length for length in (TOKENS, 11, 1)])
    return mask.flip(1) if left else mask


def attention(**parts: object) -> AttentionScores:
    fixed = {"query": 1.5 * draw(3, 4, TOKENS, 8), "key": draw(3, 4, TOKENS, 8), "scale": 0.4}
    return AttentionScores(**{**fixed, **parts})  # type: ignore[arg-type]


def visibility(scores: AttentionScores) -> Tensor:
    """Which keys each query may see, ``(batch, head, query, key)``, padding left out."""
    _, _, queries, keys = scores.shape
    visible = torch.ones(scores.shape, dtype=torch.bool)
    for i in range(queries):
        for j in range(keys):
            ahead = j - (i + keys - queries)
            if scores.causal and ahead > 0:
                visible[:, :, i, j] = False
            if scores.window is not None and abs(ahead) >= scores.window:
                visible[:, :, i, j] = False
    if scores.mask is not None:
        visible &= scores.mask
    if scores.bias is not None:
        visible &= scores.bias > torch.finfo(scores.bias.dtype).min / 2
    if scores.token_mask is not None:
        mask = scores.token_mask.expand(scores.shape[0], keys)
        visible &= mask[:, None, None, :] & mask[:, None, keys - queries :, None]
    return visible


def logits_of(scores: AttentionScores) -> Tensor:
    sharing = scores.query.shape[1] // scores.key.shape[1]
    key = scores.key.double().repeat_interleave(sharing, 1)
    logits = scores.scale * scores.query.double() @ key.mT
    if scores.softcap is not None:
        logits = scores.softcap * torch.tanh(logits / scores.softcap)
    return logits if scores.bias is None else logits + scores.bias.double()


def by_hand(scores: AttentionScores, rows: Callable[[int], list[int]] | None = None) -> Tensor:
    """The four figures of every sample and head, query by query; of some rows if given."""
    logits, visible = logits_of(scores), visibility(scores)
    batch, heads, queries, keys = scores.shape
    figures = torch.full((4, batch, heads), torch.nan, dtype=torch.float64)
    for b in range(batch):
        mask = torch.ones(keys, dtype=torch.bool)
        if scores.token_mask is not None:
            mask = scores.token_mask.expand(batch, keys)[b]
        first = int(mask.int().argmax())
        own = [i for i in range(queries) if mask[keys - queries + i]]
        own = own if rows is None else [own[place] for place in rows(len(own))]
        for h in range(heads):
            of_rows = []
            for i in own:
                seen = visible[b, h, i]
                if not seen.any():
                    continue
                outcomes = logits[b, h, i].masked_fill(~seen, -math.inf)
                if scores.sinks is not None:
                    outcomes = torch.cat((outcomes, scores.sinks[h].double()[None]))
                p = outcomes.softmax(0)
                sink = p[first] + (p[-1] if scores.sinks is not None else 0.0)
                x = logits[b, h, i][seen]
                entropy = -torch.special.xlogy(p, p).sum()
                of_rows.append(torch.stack((entropy, x.abs().max(), x.std(correction=0), sink)))
            if of_rows:
                stacked = torch.stack(of_rows, 1)
                figures[:, b, h] = stacked.mean(1)
                figures[1, b, h] = stacked[1].max()
    return figures


def spread(rows: int) -> Callable[[int], list[int]]:
    """The middle of ``rows`` equal stretches of some tokens; all if there are no more."""

    def places(tokens: int) -> list[int]:
        if tokens <= rows:
            return list(range(tokens))
        return [math.floor((place + 0.5) * tokens / rows) for place in range(rows)]

    return places


def stacked(probe: AttentionProbe) -> Tensor:
    return torch.stack([getattr(probe, name) for name in NAMES])


def assert_equal(probe: AttentionProbe, expected: Tensor, tolerance: float = 2e-6) -> None:
    torch.testing.assert_close(
        stacked(probe).double(), expected, rtol=tolerance, atol=tolerance, equal_nan=True
    )


def hiding_bias() -> Tensor:
    bias = 2 * draw(1, 4, TOKENS, TOKENS)
    bias[:, :, :, 3] = -math.inf
    bias[:, :, 5, 4:] = torch.finfo(torch.float32).min
    bias[:, 1, 7] = -math.inf  # a query that sees nothing, in one head
    return bias


def blind_mask() -> Tensor:
    mask = draw(3, 1, TOKENS, TOKENS) > 0
    mask[:, :, 4] = False
    mask[2] = False  # a sample of which no query sees a key
    return mask


CASES: dict[str, Parts] = {
    "full": {},
    "causal": {"causal": True},
    "causal window": {"causal": True, "window": 5},
    "window to both sides": {"window": 4},
    "padding right": {"token_mask": real(left=False), "mask": real(left=False)[:, None, None]},
    "padding left": {"token_mask": real(left=True), "causal": True},
    "padding that is not masked": {"token_mask": real(left=False)},
    "padding hidden by -10,000": {
        "token_mask": real(left=True),
        "bias": -1e4 * (~real(left=True)).float()[:, None, None],
    },
    "one token mask for all samples": {"token_mask": real(left=True)[1:2]},
    "no real token": {"token_mask": real(left=True) & (torch.arange(3) != 1)[:, None]},
    "grouped heads": {"key": draw(3, 2, TOKENS, 8), "causal": True},
    "learned sinks": {"sinks": torch.tensor([-2.0, 0.0, 3.0, -math.inf]), "causal": True},
    "huge sinks": {"sinks": torch.tensor([-200.0, 200.0, 90.0, 0.0])},
    "softcap": {"softcap": 1.5, "causal": True},
    "bias": {"bias": hiding_bias()},
    "bias of each sample": {"bias": draw(3, 1, TOKENS, TOKENS), "softcap": 2.0},
    "bias of keys": {"bias": draw(3, 4, 1, TOKENS)},
    "mask that hides all from some": {"mask": blind_mask()},
    "mask of queries": {"mask": (torch.arange(TOKENS) % 3 > 0)[None, None, :, None]},
    "cached keys": {"query": draw(3, 4, 9, 8), "causal": True},
    "cached keys, window, padding": {
        "query": draw(3, 4, 9, 8), "causal": True, "window": 6, "token_mask": real(left=True),
    },
    "cached keys, padding right": {"query": draw(3, 4, 9, 8), "token_mask": real(left=False)},
    "everything": {
        "key": draw(3, 2, TOKENS, 8), "causal": True, "window": 9, "softcap": 1.0,
        "bias": hiding_bias(), "sinks": draw(4), "token_mask": real(left=True),
        "mask": draw(1, 1, TOKENS, TOKENS) > -0.5,
    },
    "one query": {"query": draw(3, 4, 1, 8), "causal": True},
    "one token": {"query": draw(3, 4, 1, 8), "key": draw(3, 4, 1, 8)},
    "negative logits": {"bias": torch.full((1, 1, 1, 1), -300.0)},
    "float64": {"query": draw(3, 4, TOKENS, 8).double(), "key": draw(3, 4, TOKENS, 8).double()},
}  # fmt: skip


@pytest.fixture
def sampling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(module._MOST_WEIGHTS, "cpu", 0)


@pytest.mark.parametrize("chunk", [1, 4000, 8 << 20], ids=["row by row", "chunks", "at once"])
@pytest.mark.parametrize("name", CASES)
def test_it_equals_the_matrices(name: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(module._CHUNK_BYTES, "cpu", chunk)
    scores = attention(**CASES[name])
    probe = probe_attention(scores)
    assert not probe.sampled
    assert probe.entropy.dtype == scores.dtype
    assert_equal(probe, by_hand(scores), 1e-5 if name == "negative logits" else 2e-6)


@pytest.mark.parametrize("name", CASES)
def test_entropy_and_sink_of_the_kernel_are_taken_where_there_is_one(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``summary`` stands in for the kernel, which runs on CUDA alone."""
    taken = []

    def hide_padding(scores: AttentionScores, token_mask: Tensor | None) -> AttentionScores:
        taken.append(scores)
        return hide(scores, token_mask)

    hide = module._hide_padding
    monkeypatch.setattr(module, "_hide_padding", hide_padding)
    monkeypatch.setattr(module, "fused_here", lambda _: True)
    scores = attention(**CASES[name])
    assert_equal(probe_attention(scores), by_hand(scores), 1e-4)
    assert len(taken) == 1


@pytest.mark.usefixtures("sampling")
@pytest.mark.parametrize("rows", [1, 4, 15, 22])
@pytest.mark.parametrize("name", CASES)
def test_sampled_queries_equal_the_matrices_of_these_queries(name: str, rows: int) -> None:
    scores = attention(**CASES[name])
    probe = probe_attention(scores, rows=rows)
    assert probe.sampled == (scores.shape[2] > rows)
    places = spread(rows) if probe.sampled else None
    assert_equal(probe, by_hand(scores, places), 1e-5)


def test_places_of_sampled_queries() -> None:
    assert spread(4)(23) == [2, 8, 14, 20]
    scores = attention(token_mask=real(left=True))  # 23, 11 and 1 real tokens
    middle = torch.full((4,), module.STEPS // 2)
    chosen = module.select_queries(scores, middle).query
    assert torch.equal(chosen[0], scores.query[0, :, [2, 8, 14, 20]])
    assert torch.equal(chosen[1], scores.query[1, :, [12 + 1, 12 + 4, 12 + 6, 12 + 9]])
    assert torch.equal(chosen[2, :, 0], scores.query[2, :, -1])


def test_large_attention_is_sampled() -> None:
    side = math.isqrt(module._MOST_WEIGHTS["cpu"] // 8) + 1  # of the first that is too large
    query = torch.zeros(1, 8, 1, 1).expand(1, 8, side, 1)
    probe = probe_attention(AttentionScores(query=query, key=query[:, :1], scale=1.0), rows=2)
    assert probe.sampled
    torch.testing.assert_close(probe.entropy, torch.full((1, 8), math.log(side)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    query, key = (6 * draw(3, 4, TOKENS, 8)).to(dtype), draw(3, 4, TOKENS, 8, seed=1).to(dtype)
    scores = attention(query=query, key=key, sinks=draw(4).to(dtype))
    probe = probe_attention(scores)
    assert probe.entropy.dtype == torch.float32
    assert_equal(probe, by_hand(scores))


def test_autocast_does_not_lower_the_precision() -> None:
    scores = attention()
    with torch.autocast("cpu", torch.bfloat16):
        probe = probe_attention(scores)
    assert_equal(probe, by_hand(scores))


@pytest.mark.parametrize(("size", "error"), [(1.0, 1e-6), (10.0, 1e-5), (100.0, 1e-4)])
def test_error_of_large_logits(size: float, error: float) -> None:
    query, key = draw(1, 2, 96, 64), draw(1, 2, 96, 64, seed=1)
    scores = AttentionScores(query=size * query, key=key, scale=0.125)
    expected = by_hand(scores)
    assert expected[1].min() > 2.5 * size
    probe = probe_attention(scores)
    assert float((probe.entropy - expected[0]).abs().max()) < min(error, 1e-5)
    assert_equal(probe, expected, 1e-5)


def test_deviation_of_logits_that_are_far_from_zero() -> None:
    """The mean of the squares less the square of the mean would have no digits left."""
    bias = 1000.0 + 0.01 * draw(1, 4, TOKENS, TOKENS)
    scores = attention(query=torch.zeros(3, 4, TOKENS, 8), bias=bias)
    expected = by_hand(scores)[2]
    torch.testing.assert_close(
        probe_attention(scores).deviation.double(), expected, rtol=1e-5, atol=0.0
    )


@pytest.mark.usefixtures("sampling")
@pytest.mark.parametrize("rows", [4, 64])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("part", ["query", "key"])
def test_what_is_not_finite_shows_in_its_sample_and_head_alone(
    part: str, bad: float, rows: int
) -> None:
    scores = attention(causal=True)
    clean = stacked(probe_attention(scores, rows=rows))
    # The 9th token is sampled, and later queries see it.
    getattr(scores, part)[1, 2, 8] = bad
    broken = stacked(probe_attention(scores, rows=rows))
    finite = broken.isfinite()
    assert not finite[:, 1, 2].any()
    finite[:, 1, 2] = True
    assert finite.all()
    broken[:, 1, 2] = clean[:, 1, 2]
    assert torch.equal(broken, clean)


class Operations(TorchDispatchMode):
    """Records the names of all operations."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("most", [0, 1 << 30], ids=["sampled", "exact"])
def test_no_value_is_read_by_the_host(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, each of these operations would wait for all that is queued."""
    monkeypatch.setitem(module._MOST_WEIGHTS, "cpu", most)
    scores = attention(**CASES["everything"])
    with Operations() as seen:
        assert probe_attention(scores, rows=4).sampled == (most == 0)
    assert "bmm" in seen.names
    assert not seen.names & {"_local_scalar_dense", "nonzero", "masked_select", "equal", "index"}


def test_the_scores_are_left_as_they_were() -> None:
    scores = attention(**CASES["everything"])
    names = ("query", "key", "bias", "mask", "sinks", "token_mask")
    before = {name: getattr(scores, name).clone() for name in names}
    probe_attention(scores)
    assert all(torch.equal(getattr(scores, name), before[name]) for name in names)
