"""Each formula against brute force or a value worked out by hand."""

import math
from dataclasses import replace

import mpmath
import pytest
import torch

from rankscope.core.metrics import matrix_norm
from rankscope.core.network import ACTIVATIONS, MLP, BareMLP, Spec
from rankscope.core.theory._layer_bounds import (
    SCORE_LIMIT,
    CenteredTokens,
    CubicBound,
    HeadWeights,
    LogParts,
    a_priori_bound,
    chain_cubic_bounds,
    chain_data_bounds,
    chain_norm_bounds,
    data_bound,
    find_best_center,
    gamma,
    gated_gain,
    head_weights,
    log_beta,
    log_differences,
    log_mean_cost,
    log_paper_beta,
    norm_bound,
    output_center,
    row_gain,
    sharp_bound,
    slope_range,
)
from rankscope.errors import InputError

BOUNDED = [name for name, record in ACTIVATIONS.items() if record.slopes is not None]
PURE = {"mlp_ratio": 0.0, "skip": False, "norm": "none"}


def centered(x, center=None, log_scale=0.0, token_mask=None):
    center = x.new_zeros(len(x), x.shape[-1]) if center is None else center
    rest = x - center.unsqueeze(1)
    if token_mask is not None:
        rest = torch.where(token_mask.unsqueeze(-1), rest, 0.0)
    return CenteredTokens(center, rest, torch.full((len(x),), log_scale).double(), token_mask)


def weights(query_key, values, *, scale=1.0):
    heads, width = query_key.shape[:2]
    return HeadWeights(
        query_key, values, torch.zeros(heads, width).double(), torch.zeros(width).double(), scale
    )


def composite(m):
    return float(matrix_norm(m, "composite"))


def test_the_limit_is_where_the_exponential_crosses_its_chord():
    with mpmath.workdps(30):
        root = -mpmath.mpf(1) / 2 - mpmath.lambertw(-mpmath.exp(-mpmath.mpf(1) / 2) / 2, -1).real
        assert mpmath.almosteq(mpmath.exp(root), 1 + 2 * root)
        assert float(root) == SCORE_LIMIT


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"kv_heads": 1, "head_width": 3},
        {"removed_heads": [(0, 1)], "score_scale": 0.3},
        {"bias": False},
    ],
)
def test_head_weights_rebuild_the_layer(lively, tokens, options):
    """``Σ_h softmax((X W_QK + 1 b_Q W_Kᵀ) Xᵀ · scale) X W_h + b`` is what the network computes."""
    net = lively(Spec(1, 2, 4, **PURE, **options))
    x, made = tokens(2, 5, 4), head_weights(net.blocks[0].attention)
    total = made.bias.expand(2, 5, 4)
    for query_key, values, bias in zip(made.query_key, made.values, made.key_bias, strict=True):
        p = (made.scale * (x @ query_key + bias) @ x.mT).softmax(-1)
        total = total + p @ x @ values
    torch.testing.assert_close(total, net(x).detach(), rtol=1e-12, atol=1e-12)


def test_differences_by_looking_at_all_pairs(lively, tokens):
    made = head_weights(lively(Spec(1, 2, 3, head_width=2, **PURE)).blocks[0].attention)
    x = tokens(2, 5, 3)
    mask = torch.tensor([[True] * 5, [False, True, True, True, False]])
    found = log_differences(made, centered(x, token_mask=mask, log_scale=-3000.0))
    for sample in range(2):
        rows = x[sample, mask[sample]]
        for head in range(2):
            scores = (made.scale * rows @ made.query_key[head] @ rows.T).tolist()
            want = [math.log(max(abs(a - b) for a in row for b in row)) - 6000 for row in scores]
            got = found[sample, head, mask[sample]].tolist()
            assert got == pytest.approx(want, rel=1e-12)
    assert bool(found[1, :, [0, 4]].isneginf().all())


@pytest.mark.parametrize(
    ("differences", "expected"),
    [
        ([1.0, 1.0, 1.0, 1.0], 2.0),
        ([3.0, 0.0, 0.0], 1.0),
        ([0.0, 0.0], 1.0),
        ([4.0, 1.0], 1.25**0.5),
    ],
)
@pytest.mark.parametrize("log_size", [0.0, -5000.0])
def test_gamma_by_hand(differences, expected, log_size):
    log = torch.tensor(differences).double().log()[None, None] + log_size
    assert gamma(log).item() == pytest.approx(expected, rel=1e-12)


def test_bounds_of_one_head_by_hand():
    """Width 1, tokens 1, 0, −1 about 0, W_QK = ½, W = 3, scale 0.1.

    E = 0.05·R Rᵀ, so D = (0.1, 0, 0.1), ΣD = 0.2, ‖R‖₁ = 2, ‖R‖∞ = 1; γ = √2. The range of RW is 6,
    and so is the largest distance.
    """
    made = weights(
        torch.full((1, 1, 1), 0.5).double(), torch.full((1, 1, 1), 3.0).double(), scale=0.1
    )
    at = centered(torch.tensor([[[1.0], [0.0], [-1.0]]]).double())
    assert data_bound(made, at).one.exp().item() == pytest.approx(2 * 0.2 * 2 * 3)
    assert data_bound(made, at).inf.exp().item() == pytest.approx(2 * 0.1 * 1 * 3)
    size = math.sqrt(2)
    assert a_priori_bound(made, at).exp().item() == pytest.approx(
        4 * math.sqrt(2) * 0.5 * 3 * 0.1 * size**3
    )
    assert sharp_bound(made, at).one.exp().item() == pytest.approx(2 * math.tanh(0.025) * 6)
    assert sharp_bound(made, at).inf.exp().item() == pytest.approx(math.tanh(0.025) * 6)
    by_norm = norm_bound(made, at.norms, at.counts)  # D ≤ 2·0.1·0.5·2·1 = 0.2
    assert by_norm.one.exp().item() == pytest.approx(3 * math.tanh(0.05) * 2 * 3)
    assert by_norm.inf.exp().item() == pytest.approx(2 * math.tanh(0.05) * 1 * 3)


def test_heads_are_added_before_the_root():
    """One head writes both features into one, the other one into both: norms (2, 1) and (1, 2).

    ``√((2+1)(1+2)) = 3``, while βH of Dong et al. 2021 is ``2·√2``.
    """
    values = torch.tensor([[[1.0, 0.0], [1.0, 0.0]], [[1.0, 1.0], [0.0, 0.0]]]).double()
    made = weights(torch.eye(2).double().expand(2, 2, 2), values)
    assert log_beta(made).exp().item() == pytest.approx(3.0)
    assert log_paper_beta(made).exp().item() == pytest.approx(2 * math.sqrt(2))
    silent = replace(made, values=values * torch.tensor([1.0, 0.0]).double()[:, None, None])
    assert log_paper_beta(silent).exp().item() == pytest.approx(math.sqrt(2))
    at = centered(torch.tensor([[[0.1, 0.0], [0.0, 0.1]]]).double())  # D = 0.01 for both queries
    parts = data_bound(made, at)
    assert parts.one.exp().item() == pytest.approx(2 * 0.02 * 0.1 * 3)
    assert parts.inf.exp().item() == pytest.approx(2 * 0.01 * 0.1 * 3)
    assert parts.composite.exp().item() == pytest.approx(2 * 0.01 * 0.1 * 3 * math.sqrt(2))


def test_the_center_is_what_a_query_at_the_inputs_center_gets(lively, tokens):
    net = lively(Spec(1, 2, 4, **PURE))
    x, c = tokens(3, 5, 4), tokens(3, 4, seed=1)
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2, [False] + [True] * 4])
    found = output_center(head_weights(net.blocks[0].attention), centered(x, c, token_mask=mask))
    for sample in range(3):
        attention, keys = net.blocks[0].attention, x[sample, mask[sample]]
        split = (2, 2)
        query = attention.query(c[sample]).view(split)
        key, value = (part(keys).view(-1, *split) for part in (attention.key, attention.value))
        p = (torch.einsum("hw,jhw->hj", query, key) * attention.scale).softmax(-1)
        want = attention.output(torch.einsum("hj,jhw->hw", p, value).flatten())
        torch.testing.assert_close(found[sample], want.detach(), rtol=1e-12, atol=1e-12)


def test_the_order_of_the_bounds_whatever_the_condition(lively, tokens):
    """measured at c' ≤ sharp ≤ 0.177 data ≤ 0.177 a priori, and sharp ≤ norm bound; parts too."""
    over = 0
    for seed in range(60):
        net = lively(Spec(1, 1 + seed % 3, 3, head_width=2, init=0.5, **PURE), seed=seed)
        made = head_weights(net.blocks[0].attention)
        x = (0.2 + seed % 7) * tokens(4, 6, 3, seed=seed)
        at = centered(x, tokens(4, 3, seed=seed + 99))
        over += int((log_differences(made, at).amax((1, 2)).exp() > SCORE_LIMIT).sum())
        rest = net(x).detach() - output_center(made, at).unsqueeze(1)
        sharp, data = sharp_bound(made, at), data_bound(made, at)
        by_norm = norm_bound(made, at.norms, at.counts)
        for part, name in zip(("one", "inf"), ("one", "inf"), strict=True):
            measured = matrix_norm(rest, name).log()
            assert bool((measured <= getattr(sharp, part) + 1e-9).all())
            assert bool((getattr(sharp, part) <= getattr(by_norm, part) + 1e-9).all())
        assert bool((sharp.composite <= data.composite - math.log(32) / 2 + 1e-9).all())
        assert bool((data.composite <= a_priori_bound(made, at) + 1e-9).all())
    assert over > 50  # the order was asked for beyond the condition, too


def test_total_variation_reaches_its_bound_and_no_more():
    """The lemma behind ``sharp_bound``: ``max |P_j − q_j|`` over q, one logit raised by D."""
    for d in (0.01, 1.0, 6.0):
        q = torch.linspace(1e-4, 1 - 1e-4, 20_001).double()
        raised = q * math.exp(d) / (1 - q + q * math.exp(d))
        assert float((raised - q).max()) == pytest.approx(math.tanh(d / 4), rel=1e-6)


def test_all_bounds_follow_the_cubic_law_far_below_any_float(lively, tokens):
    made = head_weights(lively(Spec(1, 2, 4, **PURE)).blocks[0].attention)
    x = 1e-4 * tokens(2, 5, 4)
    near, far = centered(x), centered(x, log_scale=-50_000.0)
    for bound in (
        a_priori_bound,
        lambda *a: data_bound(*a).composite,
        lambda *a: sharp_bound(*a).composite,
    ):
        shift = bound(made, far) - bound(made, near)
        assert shift.tolist() == pytest.approx([-150_000.0] * 2, abs=1e-6)


def test_padding_changes_nothing(lively, tokens):
    made = head_weights(lively(Spec(1, 2, 4, **PURE)).blocks[0].attention)
    x = tokens(1, 5, 4)
    padded = torch.cat(
        [torch.full((1, 2, 4), 7.0).double(), x, torch.full((1, 1, 4), -9.0).double()], 1
    )
    mask = torch.tensor([[False] * 2 + [True] * 5 + [False]])
    far = torch.full((1, 4), 5.0).double()  # so that padding, at the center, would be the farthest
    one, other = centered(x, far), centered(padded, far, token_mask=mask)
    for bound in (data_bound, sharp_bound):
        for got, want in zip(bound(made, other), bound(made, one), strict=True):
            torch.testing.assert_close(got, want)
    torch.testing.assert_close(a_priori_bound(made, other), a_priori_bound(made, one))
    assert other.counts.tolist() == [5]


def test_what_does_not_vary_has_bounds_of_zero(lively):
    made = head_weights(lively(Spec(1, 2, 4, **PURE)).blocks[0].attention)
    same = find_best_center(
        torch.ones(1, 4).double(),
        torch.zeros(1, 3, 4).double(),
        torch.full((1,), -math.inf).double(),
    )
    assert same.slack.tolist() == [0.0]
    for bound in (
        a_priori_bound(made, same.tokens),
        data_bound(made, same.tokens).composite,
        sharp_bound(made, same.tokens).composite,
    ):
        assert bound.tolist() == [-math.inf]
    blind = weights(torch.zeros(1, 4, 4).double(), torch.ones(1, 4, 4).double())
    assert a_priori_bound(blind, centered(torch.eye(4).double()[None])).tolist() == [-math.inf]


def test_the_best_center_knows_how_far_it_may_be_from_the_best(tokens):
    x = tokens(3, 6, 2)
    found = find_best_center(torch.zeros(3, 2).double(), x, torch.zeros(3).double())
    rest = found.tokens.mantissa
    torch.testing.assert_close(rest + found.tokens.center.unsqueeze(1), x)
    grid = torch.linspace(-2, 2, 161).double()
    for sample in range(3):
        least = min(
            composite(x[sample] - torch.stack([a, b])) for a in grid[::4] for b in grid[::4]
        )
        assert composite(rest[sample]) * math.exp(-float(found.slack[sample])) <= least
        assert composite(rest[sample]) <= least * (1 + 1e-4)
    assert float(found.slack.max()) < 2e-4


def test_the_mean_costs_what_is_said_and_can_cost_it():
    n = 5
    column = torch.zeros(n, 1).double()
    column[0] = 1.0
    row = -torch.ones(n, 1).double()
    row[0] = 1.0
    cost = log_mean_cost(torch.tensor([n])).exp().item()
    assert cost == pytest.approx(2 - 2 / n)
    for rest, norm in ((column, "one"), (row, "inf")):
        moved = rest - rest.mean(0)
        assert float(matrix_norm(moved, norm) / matrix_norm(rest, norm)) == pytest.approx(cost)
    assert log_mean_cost(torch.tensor([1, 2])).tolist() == [0.0, 0.0]


def test_parts_multiply_like_norms(tokens):
    r, m = tokens(1, 4, 3), tokens(3, 3, seed=1)
    parts = LogParts(matrix_norm(r, "one").log(), matrix_norm(r, "inf").log()).times(m)
    assert composite(r[0] @ m) <= parts.composite.exp().item()
    assert parts.one.item() == pytest.approx(
        float(matrix_norm(r[0], "one").log() + matrix_norm(m, "one").log())
    )


mp = mpmath.mp.clone()
mp.dps = 40


def exact(name):
    root = mp.sqrt(2 / mp.pi)
    return {
        "gelu": lambda z: z * mp.ncdf(z),
        "gelu_tanh": lambda z: z * (1 + mp.tanh(root * (z + mp.mpf("0.044715") * z**3))) / 2,
        "silu": lambda z: z / (1 + mp.exp(-z)),
    }[name]


@pytest.mark.parametrize(
    ("name", "near"), [("gelu", "1.4142"), ("gelu_tanh", "1.41"), ("silu", "2.4")]
)
def test_slopes_are_the_extremes_to_all_digits(name, near):
    """The oracle solves ``φ'' = 0`` in 40 digits."""
    phi = exact(name)
    place = mp.findroot(lambda z: mp.diff(phi, z, 2), mp.mpf(near))
    low, high = slope_range(name)
    assert high == pytest.approx(float(mp.diff(phi, place)), rel=1e-15)
    assert low == pytest.approx(float(mp.diff(phi, -place)), rel=1e-13)


def test_the_known_constants():
    assert slope_range("gelu")[1] == pytest.approx(
        float((1 + mp.erf(1)) / 2 + mp.exp(-1) / mp.sqrt(mp.pi)), rel=1e-15
    )
    assert slope_range("relu") == (0.0, 1.0)


BOUNDED = [name for name, record in ACTIVATIONS.items() if record.slopes is not None]


def test_an_activation_of_any_slope_has_no_range():
    assert set(ACTIVATIONS) - set(BOUNDED) == {"relu2"}
    with pytest.raises(InputError, match="slopes of the activation 'relu2' are unknown"):
        slope_range("relu2")


@pytest.mark.parametrize("name", BOUNDED)
def test_no_slope_of_what_the_network_runs_lies_outside(name):
    z = torch.linspace(-12, 12, 200_001, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(ACTIVATIONS[name](z).sum(), z)
    low, high = slope_range(name)
    assert low - 1e-12 <= float(slope.min()) < low + 1e-6
    assert high + 1e-12 >= float(slope.max()) > high - 1e-6


def test_an_unbounded_slope_is_refused():
    assert set(ACTIVATIONS) - set(BOUNDED) == {"relu2"}
    with pytest.raises(InputError, match="slopes of the activation 'relu2' are unknown"):
        slope_range("relu2")


def test_an_unknown_activation_is_answered_with_a_sentence():
    with pytest.raises(InputError, match="sine"):
        slope_range("sine")


def made(width, hidden, name, *, gated=False, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)

    def linear(inputs, outputs):
        layer = torch.nn.Linear(inputs, outputs, dtype=torch.float64)
        for parameter in layer.parameters():
            parameter.data.normal_(0.0, scale, generator=generator)
        return layer.requires_grad_(False)

    return MLP(
        up=linear(width, hidden),
        down=linear(hidden, width),
        gate=linear(width, hidden) if gated else None,
        activation=name,
    )


@pytest.mark.parametrize("name", BOUNDED)
@pytest.mark.parametrize("skip", [0.0, 0.7])
def test_gains_bound_every_entry_and_are_not_the_plain_product(tokens, name, skip):
    worst = 0.0
    for seed in range(20):
        mlp = made(3, 4, name, seed=seed)
        gain = row_gain(mlp, width=3, skip=skip)
        x, c = 3 * tokens(40, 5, 3, seed=seed), tokens(40, 1, 3, seed=seed + 50)
        moved = (skip * (x - c) + mlp(x) - mlp(c)).abs()
        allowed = (x - c).abs() @ gain
        assert bool((moved <= allowed * (1 + 1e-12)).all())
        worst = max(worst, float((moved / allowed).max()))
        plain = max(map(abs, slope_range(name))) * (mlp.up.weight.T.abs() @ mlp.down.weight.T.abs())
        assert bool((gain <= plain + skip * torch.eye(3).double() + 1e-12).all())
    assert worst > 0.8  # so the check has teeth: a gain a fifth smaller would have failed


def test_a_gain_worked_out_by_hand():
    """ReLU: slopes ½ ± ½, so ``M = |½ W₁W₂| + ½ |W₁||W₂|`` = |½(6 − 4)| + ½(6 + 4) = 6."""
    mlp = made(1, 2, "relu")
    mlp.up.weight.copy_(torch.tensor([[2.0], [-1.0]]))
    mlp.down.weight.copy_(torch.tensor([[3.0, 4.0]]))
    assert row_gain(mlp, width=1).item() == 6.0
    # With a skip: |1 + ½·2| + 5.
    assert row_gain(mlp, width=1, skip=1.0).item() == 7.0


def test_parts_without_weights_have_the_gain_of_the_identity():
    assert torch.equal(row_gain(None, width=2, skip=0.5), torch.eye(2).double())
    assert torch.equal(row_gain(BareMLP(), width=2, skip=0.5), 1.5 * torch.eye(2).double())
    gain = row_gain(BareMLP("relu"), width=2, skip=0.5)  # slopes 0 to 1 beside a half
    assert torch.equal(gain, 1.5 * torch.eye(2).double())
    low, high = slope_range("gelu")  # below zero, and above one
    assert row_gain(BareMLP("gelu"), width=1, skip=-0.5).item() == pytest.approx(0.5 - low)
    assert row_gain(BareMLP("gelu"), width=1).item() == pytest.approx(high)
    assert row_gain(made(2, 3, "silu", gated=True), width=2) is None


def test_the_spectral_norm_would_be_no_bound_in_this_norm():
    """Four tokens, R = I, a Hadamard matrix: the residual grows fourfold, the 2-norm says 2."""
    h = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    hadamard = torch.kron(h, h)
    assert float(torch.linalg.matrix_norm(hadamard, 2)) == pytest.approx(2.0)
    assert float(matrix_norm(torch.eye(4).double() @ hadamard, "composite")) == pytest.approx(4.0)


@pytest.mark.parametrize("name", BOUNDED)
def test_gated_gains_hold_inside_their_ball(tokens, name):
    worst = 0.0
    for seed in range(20):
        mlp = made(3, 4, name, gated=True, seed=seed)
        center, step = tokens(30, 3, seed=seed), tokens(30, 6, 3, seed=seed + 50)
        radius = torch.logspace(-6, 1, 30, dtype=torch.float64)
        step = step / step.abs().sum(-1, keepdim=True) * radius[:, None, None]
        gain = gated_gain(mlp, center, radius, skip=0.3)
        rows = center.unsqueeze(1) + step
        moved = (0.3 * step + mlp(rows) - mlp(center.unsqueeze(1))).abs()
        allowed = step.abs() @ gain
        assert bool((moved <= allowed * (1 + 1e-9) + 1e-14).all())
        worst = max(worst, float((moved / allowed).max()))
    assert worst > 0.5


def test_a_gated_mlp_outgrows_every_gain_outside_its_ball():
    """``φ(g)u`` grows like a square: what holds near the center cannot hold far away."""
    mlp = made(1, 1, "relu", gated=True)
    for part in (mlp.up, mlp.gate, mlp.down):
        part.weight.fill_(1.0)
        part.bias.zero_()
    center, radius = torch.zeros(1, 1).double(), torch.ones(1).double()
    gain = gated_gain(mlp, center, radius).item()
    assert gain == 1.0
    assert mlp(torch.full((1, 1, 1), 1.0).double()).item() == 1.0
    assert mlp(torch.full((1, 1, 1), 2.0).double()).item() == 4.0 > 2 * gain


BARE = {"skip": False, "norm": "none", "init": 0.3}


def test_the_closed_form_is_the_recursion():
    factors, start = [0.3, -1.0, 0.7], torch.tensor([-2.0, 0.4]).double()
    layers = [CubicBound(torch.full((2,), k).double(), torch.ones(2).bool()) for k in factors]
    found = chain_cubic_bounds(layers, start)
    for depth in (1, 2, 3):
        value = start
        for _ in range(depth):
            value = max(factors[:depth]) + 3 * value
        torch.testing.assert_close(found[depth - 1], value)


def test_no_depth_is_too_deep_for_the_theorem():
    one = CubicBound(torch.tensor([1.0, 1.0, -math.inf, 1.0]).double(), torch.ones(4).bool())
    found = chain_cubic_bounds([one] * 1000, torch.tensor([-3.0, 3.0, 3.0, -math.inf]).double())[-1]
    assert found[0] < -1e299
    assert found[1] > 1e299
    assert found[2:].tolist() == [-math.inf, -math.inf]


def test_a_condition_that_fails_once_ends_the_chain():
    good, bad = torch.ones(1).bool(), torch.zeros(1).bool()
    layers = [CubicBound(torch.zeros(1).double(), condition) for condition in (good, bad, good)]
    found = chain_cubic_bounds(layers, torch.full((1,), -1.0).double())
    assert found[0].tolist() == [-3.0]
    assert all(bool(value.isnan()) for value in found[1:])
    nan, one = torch.full((1,), math.nan).double(), torch.ones(1).double()
    chained = chain_data_bounds([one, nan, one], [0 * one, one, one], one)
    assert [value.item() for value in chained][:1] == [2.0]
    assert all(bool(value.isnan()) for value in chained[1:])


def test_chains_by_hand(lively):
    one = torch.ones(1).double()
    assert [v.item() for v in chain_data_bounds([2 * one, 3 * one], [0 * one, 0.5 * one], one)] == [
        3.0,
        6.5,
    ]
    weights = [
        head_weights(b.attention) for b in lively(Spec(2, 2, 3, head_width=2, **BARE)).blocks
    ]
    norms, count = LogParts(-one, -2 * one), torch.tensor([4])
    gain = 2 * torch.eye(3).double()
    step = norm_bound(weights[0], norms, count)
    twice = norm_bound(weights[1], LogParts(step.one + math.log(2), step.inf + math.log(2)), count)
    found = chain_norm_bounds([(weights[0], gain), (weights[1], gain)], norms, count)
    torch.testing.assert_close(found[1], twice.composite + math.log(2))
