"""Parts that only loaded models have: each by hand, and all under what every network must bear."""

import copy
import math

import pytest
import torch
from torch import nn

from rankscope.core.masks import Full
from rankscope.core.network import (
    ACTIVATIONS,
    MLP,
    Attention,
    CappedScores,
    DisentangledScores,
    Joined,
    Latent,
    LearnedSinks,
    Network,
    NormedHeads,
    OffsetNorm,
    PartlyShared,
    RotaryScores,
    RotaryTable,
    Scores,
    Sparsemax,
    Spec,
    View,
    Visibility,
    activation,
    build_norm,
    make_linear,
    norm_rule,
    share_gain,
)
from rankscope.errors import InputError, KindError, SpecError, UnsupportedModelError

from ..loaded_parts import PARTS, AsStored, Router, drawn, latent, matrix, network, parameter

parts = pytest.mark.parametrize("name", PARTS)


def float64(values):
    return torch.tensor(values, dtype=torch.float64)


def close(got, expected, atol=1e-12):
    torch.testing.assert_close(got, expected, rtol=0, atol=atol)


def everything(tokens, mask=None):
    return Visibility.of(Full(), tokens, mask, torch.device("cpu"))


# Projections.


@pytest.mark.parametrize(
    ("scale", "expected"),
    [(1.0, [14.0, 25.0]), (0.5, [7.0, 12.5]), (parameter(float64([2.0, -1.0])), [28.0, -25.0])],
    ids=["one", "number", "by feature"],
)
def test_a_scale_multiplies_matrix_and_bias(scale, expected):
    stored = make_linear(float64([[1.0, 2.0], [3.0, 4.0]]), float64([9.0, 14.0]))
    view = View(stored, AsStored(), scale=scale)
    assert view(float64([1.0, 2.0])).tolist() == expected
    assert (view.weight @ float64([1.0, 2.0]) + view.bias).tolist() == expected
    with torch.no_grad():
        stored.weight.zero_()
    assert view(float64([1.0, 2.0])).tolist() == view.bias.tolist()  # read anew, not copied
    assert View(make_linear(torch.eye(2)), AsStored(), scale=0.5).bias is None


def test_the_scale_of_each_feature_is_a_weight_like_others():
    scale = parameter(float64([2.0, -1.0]))
    view = View(make_linear(float64([[1.0, 2.0], [3.0, 4.0]])), AsStored(), scale=scale)
    view(float64([1.0, 2.0])).sum().backward()
    assert scale.grad.tolist() == [5.0, 11.0]
    assert view.source.weight.grad.tolist() == [[2.0, 4.0], [-1.0, -2.0]]
    assert {"scale", "source.weight"} == set(view.state_dict())


def test_joined_projections_side_by_side_and_summed():
    one = make_linear(float64([[1.0, 2.0]]), float64([5.0]))
    two = make_linear(float64([[3.0, 4.0], [0.0, 1.0]]))
    beside = Joined(one, two)
    assert beside(float64([1.0, 10.0])).tolist() == [26.0, 43.0, 10.0]
    assert beside.bias.tolist() == [5.0, 0.0, 0.0]
    assert Joined(two, two).bias is None
    into = Joined(
        make_linear(float64([[1.0], [2.0]]), float64([5.0, 6.0])), two.double(), summed=True
    )
    assert into.weight.tolist() == [[1.0, 3.0, 4.0], [2.0, 0.0, 1.0]]
    assert into(float64([1.0, 10.0, 100.0])).tolist() == [436.0, 108.0]
    both = Joined(one, make_linear(float64([[1.0]]), float64([2.0])), summed=True)
    assert both.bias.tolist() == [7.0]


def test_latent_projections_normalise_between_two_matrices():
    down = make_linear(float64([[1.0, 0.0], [0.0, 2.0]]))
    norm = nn.RMSNorm(2, eps=0.0, dtype=torch.float64)
    with torch.no_grad():
        norm.weight.copy_(float64([1.0, 3.0]))
    up = make_linear(float64([[1.0, 1.0]]), float64([0.5]))
    # (3, 2) → (3, 4) → (3, 4·3)/√12.5 → their sum + 0.5
    assert Latent(down, norm, up)(float64([3.0, 2.0])).item() == pytest.approx(
        15 / math.sqrt(12.5) + 0.5
    )
    assert Latent(down, norm, up).weight.tolist() == [[1.0, 6.0]]
    assert Latent(down, nn.Identity(), up).weight.tolist() == [[1.0, 2.0]]


def test_partly_shared_keys_are_own_features_and_then_shared_ones(tokens):
    norm = nn.LayerNorm(3, dtype=torch.float64)
    own, shared = latent(4, norm, seed=1), matrix(2, 8, seed=9)
    x = tokens(2, 5, 8)
    each, common = own(x), shared(x)
    expected = torch.cat((each[..., :2], common, each[..., 2:], common), -1)
    projection = PartlyShared(2, own, shared)
    close(projection(x), expected)
    plain = PartlyShared(2, Latent(own.down, nn.Identity(), own.up), shared)
    close(plain(x), x @ plain.weight.T)


@pytest.mark.parametrize(
    "make",
    [
        lambda inside, plain: Joined(plain, inside),
        lambda inside, plain: attention(plain, plain, plain, inside),
        lambda inside, plain: attention(plain, plain, PartlyShared(1, inside, plain), plain),
        lambda inside, plain: MLP(up=inside, down=plain, gate=None, activation="relu"),
        lambda inside, plain: MLP(up=plain, down=inside, gate=None, activation="relu"),
        lambda inside, plain: MLP(up=plain, down=plain, gate=inside, activation="relu"),
    ],
    ids=["joined", "output", "shared values", "up", "down", "gate"],
)
def test_a_norm_inside_is_refused_where_one_matrix_is_used(make):
    """Paths and scaled arithmetic would take ``weight`` for the whole projection."""
    inside = latent(8, nn.RMSNorm(3), seed=1)
    with pytest.raises(SpecError, match="has a norm inside; only queries, keys"):
        make(inside, make_linear(torch.eye(8)))


def attention(query, key, value, output, *, heads=1, kv_heads=1, scores=None, **more):
    projections = {"query": query, "key": key, "value": value, "output": output}
    more = {"scale": 0.5, "heads": heads, "kv_heads": kv_heads, **more}
    return Attention(**projections, scores=scores or Scores(), **more)


# Gates, routers, norms, activations.


@pytest.mark.parametrize("removed", [frozenset(), frozenset({1, 2})])
@pytest.mark.parametrize("name", ["gates of entries", "gates of heads"])
def test_gates_multiply_the_outputs_of_heads(name, removed, lively, tokens):
    gated = network(name, lively).blocks[0].attention
    removed = frozenset(head for head in removed if head < gated.heads)
    gated, x = gated.replaced(removed=removed), tokens(1, 5, 8)
    pattern = gated.pattern(x, everything(5))[0]
    values = gated.value(x)[0].unflatten(-1, (gated.kv_heads, -1))
    factors = 1 / (1 + (-x[0] @ gated.gate.weight.T - gated.gate.bias).exp())
    expected = torch.zeros(5, gated.heads, values.shape[-1], dtype=torch.float64)
    for head in set(range(gated.heads)) - removed:
        mixed = pattern[head] @ values[:, head * gated.kv_heads // gated.heads]
        for entry in range(values.shape[-1]):
            gate = head if name == "gates of heads" else head * values.shape[-1] + entry
            expected[:, head, entry] = mixed[:, entry] * factors[:, gate]
    close(gated(x, everything(5))[0], gated.output(expected.flatten(1)))


@pytest.mark.parametrize("name", ["experts", "gated experts"])
def test_a_routed_mlp_is_the_weighted_sum_of_its_experts(name, lively, tokens):
    mlp = network(name, lively).blocks[0].mlp
    units, x = mlp.router.units, tokens(1, 5, 8)
    phi = activation(mlp.activation)
    for token in x[0]:
        scores = mlp.router.choose(token)
        best = sorted(range(4), key=lambda expert: -scores[expert])[:2]
        total = scores[best].exp().sum()
        expected = mlp.down.bias.detach().clone()
        for expert in best:
            rows = slice(expert * units, (expert + 1) * units)
            up = mlp.up.weight[rows] @ token + mlp.up.bias[rows]
            if mlp.gate is None:
                hidden = phi(up)
            else:
                hidden = phi(mlp.gate.weight[rows] @ token + mlp.gate.bias[rows]) * up
            expected = expected + scores[expert].exp() / total * (mlp.down.weight[:, rows] @ hidden)
        close(mlp(token.view(1, 1, 8))[0, 0], expected)
    assert mlp.replaced(router=None).routing(x) is None


def test_offset_norms_by_hand():
    x, offset = float64([[[1.0, 7.0]]]), parameter(float64([0.0, 1.0]))
    rms = OffsetNorm(centers=False, eps=0.0, offset=offset)
    assert rms(x)[0].tolist() == [pytest.approx([1 / 5, 14 / 5])]  # the mean square is 25
    layer = OffsetNorm(centers=True, eps=7.0, offset=offset, bias=parameter(float64([10.0, 20.0])))
    assert layer(x)[0].tolist() == [pytest.approx([10 - 3 / 4, 20 + 6 / 4])]  # variance 9
    shifted = OffsetNorm(centers=False, eps=0.0, offset=offset, bias=layer.bias)
    assert shifted(x)[0].tolist() == [pytest.approx([10.2, 22.8])]
    for norm in (rms, layer, shifted):
        rule = norm_rule(norm, torch.float64)
        by_rule = rule.factor(x) * (x - x.mean() if rule.centers else x)
        close(by_rule if rule.bias is None else by_rule + rule.bias, norm(x))
    rms(x).sum().backward()
    assert offset.grad.tolist() == pytest.approx([1 / 5, 7 / 5])


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize("centers", [True, False])
def test_another_norm_shares_an_offset_and_a_bias_if_both_have_one(centers, kind, bias, tokens):
    own = parameter(drawn(4, seed=2)) if centers else None
    old = OffsetNorm(centers=centers, eps=0.1, offset=parameter(drawn(4)), bias=own)
    new = share_gain(build_norm(kind, 4, eps=0.1, bias=bias), old)
    assert isinstance(new, OffsetNorm)
    assert (new.centers, new.eps, new.offset is old.offset) == (kind == "layer", 0.1, True)
    if kind == "rms" or not bias:
        assert new.bias is None
    else:
        assert (new.bias is own) == centers
    plain = build_norm(kind, 4, eps=0.1, bias=bias).double()
    with torch.no_grad():
        plain.weight.copy_(1 + old.offset)
        if new.bias is not None:
            plain.bias.copy_(new.bias)
    close(new.double()(tokens(2, 4)), plain(tokens(2, 4)))


def test_new_activations_by_hand():
    z = float64([-2.0, 0.0, 3.0])
    assert activation("relu2")(z).tolist() == [0.0, 0.0, 9.0]
    quick = [v / (1 + math.exp(-1.702 * v)) for v in z.tolist()]
    assert activation("quick_gelu")(z).tolist() == pytest.approx(quick, rel=1e-15)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_records_of_activations_agree_with_their_functions(name):
    record = activation(name)
    z = torch.linspace(-6, 6, 1001, dtype=torch.float64).requires_grad_()
    (slope,) = torch.autograd.grad(record(z).sum(), z)
    close(slope, float64([record.derivative(v) for v in z.tolist()]))
    near = float64(-1e-9)  # the gate of a ReLU is that of its left side
    assert float(record(near) / near) == pytest.approx(record.limit_at_zero, abs=1e-8)
    if record.slopes is None:
        assert slope.max() > 5  # unbounded
    else:
        low, high = record.slopes
        assert low - 1e-12 <= slope.min() <= low + 1e-3
        assert high - 1e-3 <= slope.max() <= high + 1e-12


# Scores.


def weights_of(scores, query, key, scale=0.5):
    """``P_h`` of one sample from queries and keys ``(head, token, width)``."""
    heads, count, width = query.shape
    flat = make_linear(torch.eye(heads * width, dtype=query.dtype))
    part = attention(
        flat, flat, flat, flat, heads=heads, kv_heads=heads, scores=scores, scale=scale
    )
    seen = everything(count)
    prepared = scores.prepare(query[None], key[None], seen.positions)
    bias = scores.bias(*prepared, seen.positions)
    logits = prepared[0] @ prepared[1].mT * part.scale
    return scores.weights(logits if bias is None else logits + bias, seen)[0]


def test_caps_bound_the_logits(tokens):
    query, key = 3 * tokens(2, 4, 3), 3 * tokens(2, 4, 3, seed=1)
    logits = (query @ key.mT) * 0.5
    expected = (2 * (logits / 2).tanh()).softmax(-1)
    assert logits.abs().max() > 4
    close(weights_of(CappedScores(2.0, Scores()), query, key), expected)
    assert not CappedScores.fused


def test_sinks_take_their_share_of_each_row(tokens):
    query, key, sinks = tokens(2, 4, 3), tokens(2, 4, 3, seed=1), float64([0.3, -1.0])
    logits = (query @ key.mT) * 0.5
    each = logits.exp()
    expected = each / (each.sum(-1, keepdim=True) + sinks.exp()[:, None, None])
    got = weights_of(LearnedSinks(sinks, Scores()), query, key)
    close(got, expected)
    assert got.sum(-1).max() < 1
    close(weights_of(LearnedSinks(sinks - 1e3, Scores()), query, key), logits.softmax(-1))


def test_what_has_other_weights_is_not_composed():
    for make in (
        lambda then: CappedScores(1.0, then),
        lambda then: LearnedSinks(torch.zeros(2), then),
        lambda then: NormedHeads(nn.RMSNorm(2), nn.RMSNorm(2), then),
    ):
        with pytest.raises(SpecError, match="needs a score with softmax weights; SparsemaxScores"):
            make(Sparsemax().build(2, 2))


@pytest.mark.parametrize("last", [False, True])
def test_norms_of_heads_before_and_after_rotation(last, tokens):
    query, key = tokens(2, 4, 4), tokens(2, 4, 4, seed=1)
    norms = [nn.LayerNorm(4, eps=0.1, dtype=torch.float64) for _ in range(2)]
    with torch.no_grad():
        for seed, norm in enumerate(norms):
            norm.weight.copy_(1 + 0.5 * drawn(4, seed=seed))
    turn = RotaryScores(torch.tensor([1.0, 0.3]))
    positions = torch.arange(4)[None]
    a, b = query[None], key[None]
    for step in ("turn", "norm") if last else ("norm", "turn"):
        a, b = turn.prepare(a, b, positions) if step == "turn" else (norms[0](a), norms[1](b))
    expected = ((a @ b.mT) * 0.5).softmax(-1)[0]
    close(weights_of(NormedHeads(*norms, turn, last=last), query, key), expected)
    other = weights_of(NormedHeads(*norms, turn, last=not last), query, key)
    assert not torch.allclose(other, expected, atol=1e-3)


def test_norms_of_all_heads_side_by_side_count_shared_keys_once(tokens):
    """Four query heads, two key heads: the norm of queries is 8 wide, that of keys 4 wide."""
    norms = [nn.RMSNorm(width, eps=0.1, dtype=torch.float64) for width in (8, 4)]
    with torch.no_grad():
        for seed, norm in enumerate(norms):
            norm.weight.copy_(1 + 0.5 * drawn(len(norm.weight), seed=seed))
    projections = matrix(8, 8), matrix(4, 8, seed=2), matrix(4, 8, seed=4), matrix(8, 8, seed=6)
    part = attention(*projections, heads=4, kv_heads=2, scores=NormedHeads(*norms, Scores()))
    x = tokens(1, 5, 8)
    query, key = norms[0](part.query(x))[0], norms[1](part.key(x))[0]
    pattern = part.pattern(x, everything(5))[0]
    for head in range(4):
        of_query = query[:, 2 * head : 2 * head + 2]
        of_key = key[:, 2 * (head // 2) : 2 * (head // 2) + 2]
        close(pattern[head], (of_query @ of_key.T * 0.5).softmax(-1))


def test_interleaved_rotations_turn_neighbours_from_a_start_on(tokens):
    query, key, angles = tokens(1, 4, 6), tokens(1, 4, 6, seed=1), (1.0, 0.25)
    logits = torch.empty(4, 4, dtype=torch.float64)
    for i in range(4):
        for j in range(4):
            q, k = query[0, i].tolist(), key[0, j].tolist()
            total = q[0] * k[0] + q[5] * k[5]  # before the start, and after the pairs
            for pair, angle in enumerate(angles):
                first, second = 1 + 2 * pair, 2 + 2 * pair
                turn = complex(math.cos((i - j) * angle), math.sin((i - j) * angle))
                product = complex(q[first], q[second]) * complex(k[first], -k[second])
                total += (product * turn).real
            logits[i, j] = 0.5 * total
    scores = RotaryScores(torch.tensor(angles), interleaved=True, start=1)
    close(weights_of(scores, query, key)[0], logits.softmax(-1), atol=1e-6)  # float32 angles
    unit = torch.eye(6, dtype=torch.float64)[None, None, 1].expand(1, 1, 2, 6)
    turned, _ = scores.prepare(unit, unit, torch.tensor([[0, 1]]))
    there = [0.0, math.cos(1.0), math.sin(1.0), 0.0, 0.0, 0.0]  # each stays where it was
    close(turned[0, 0], float64([[0.0, 1.0, 0.0, 0.0, 0.0, 0.0], there]), atol=1e-6)


def test_a_table_rotates_the_last_tokens(tokens):
    query, key, angles = tokens(1, 4, 4), tokens(1, 4, 4, seed=1), drawn(3, 2)
    by_token = torch.cat((torch.zeros(1, 2).double(), angles))  # the class token stays

    def turned(x):
        pairs = torch.complex(x[..., :2], x[..., 2:])
        return pairs * torch.polar(torch.ones_like(by_token), by_token)

    products = (turned(query)[0] @ turned(key)[0].mH).real
    got = weights_of(RotaryTable(angles.cos(), angles.sin()), query, key)[0]
    close(got, (0.5 * products).softmax(-1))


def test_a_table_of_more_tokens_than_there_are_is_refused(lively, tokens):
    net, x = network("rotary of a grid", lively), tokens(2, 4, 8)
    with pytest.raises(InputError, match="rotations are for 3 tokens, got 2"):
        net(x[:, :2])
    with pytest.raises(InputError, match="rotations are for 3 tokens, got 2"):
        net(x, torch.tensor([[True] * 4, [True, True, False, False]]))


def test_disentangled_logits_by_hand(tokens):
    """Distances −2 to 1 have a row each; farther ones have that of the farthest."""
    rows, query, key = drawn(4, 3), tokens(2, 4, 2), tokens(2, 4, 2, seed=1)
    as_key, as_query = matrix(4, 3, seed=7), matrix(4, 3, seed=8, bias=True)
    far_key, far_query = (f(rows).unflatten(-1, (2, 2)).transpose(0, 1) for f in (as_key, as_query))
    fields = {"scale": 0.7, "span": 2, "buckets": 0, "farthest": 9}
    for with_key, with_query in ((1, 1), (1, 0), (0, 1)):
        logits = torch.empty(2, 4, 4, dtype=torch.float64)
        for h in range(2):
            for i in range(4):
                for j in range(4):
                    row = min(max(i - j + 2, 0), 3)
                    by_place = with_key * query[h, i] @ far_key[h, row]
                    by_place = by_place + with_query * key[h, j] @ far_query[h, row]
                    logits[h, i, j] = 0.5 * query[h, i] @ key[h, j] + 0.7 * by_place
        scores = DisentangledScores(
            lambda: rows,
            key=as_key if with_key else None,
            query=as_query if with_query else None,
            **fields,
        )
        close(weights_of(scores, query, key), logits.softmax(-1))


def test_embeddings_of_a_model_in_another_dtype(tokens):
    """They belong to the model, which casting a network leaves as it is."""
    rows = drawn(4, 3).float()
    scores = DisentangledScores(
        lambda: rows, key=matrix(4, 3), query=None, scale=0.7, span=2, buckets=0, farthest=9
    )
    query, positions = tokens(1, 2, 4, 2), torch.arange(4)[None]
    got = scores.bias(query, query, positions)
    assert got.dtype == torch.float64
    expected = 0.7 * query[0, 0, 3] @ (matrix(4, 3)(rows.double()))[2, :2]  # distance 0
    close(got[0, 0, 3, 3], expected)


def test_buckets_of_disentangled_distances():
    """Of 8 buckets half are for single distances; the others grow geometrically up to 16."""
    scores = DisentangledScores(
        lambda: torch.zeros(8, 2), key=None, query=None, scale=1.0, span=4, buckets=8, farthest=17
    )
    ahead = torch.tensor([0, 1, 3, 4, 5, 6, 7, 8, 10, 11, 16])
    expected = [0, 1, 3, 4, 5, 5, 6, 6, 6, 7, 7]  # ⌈3·log₄(d/4)⌉ + 4
    assert scores._bucket(ahead[None, None]).flatten().tolist() == expected
    assert scores._bucket(-ahead[None, None]).flatten().tolist() == [-each for each in expected]


# What every part must bear.


SIDES = {"right": [1] * 4 + [0] * 3, "left": [0] * 3 + [1] * 4, "both": [0, 1, 1, 1, 1, 0, 0]}


@parts
def test_padding_changes_nothing(name, lively, tokens):
    net, x = network(name, lively), tokens(2, 4, 8)
    alone = net(x)
    for side in SIDES.values():
        token_mask = torch.tensor(side).bool().expand(2, -1)
        wide = torch.full((2, 7, 8), 1e3, dtype=torch.float64)
        wide[token_mask] = x.flatten(0, 1)
        close(net(wide, token_mask)[token_mask].view_as(x), alone, atol=1e-10)


@parts
def test_the_fused_kernel_and_the_matrices_agree(name, lively, tokens):
    part, x = network(name, lively).blocks[0].attention, tokens(2, 5, 8)
    seen = everything(5, torch.tensor([[1, 1, 1, 1, 1], [0, 1, 1, 1, 0]]).bool())
    mixed = part.join(part.mixing(x, seen) @ part.split(part.value(x), part.kv_heads))
    gates = part.gates(x)
    close(part(x, seen), part.output(mixed if gates is None else mixed * gates))


@parts
def test_every_dtype(name, lively, tokens):
    net, x = network(name, lively), tokens(1, 5, 8)
    expected = net(x)
    single = net.float()
    assert {p.dtype for p in net.parameters()} == {torch.float64}  # itself unchanged
    torch.testing.assert_close(single(x.float()).double(), expected, rtol=1e-3, atol=1e-4)
    close(single.double()(x), expected, atol=1e-3)
    half = copy.deepcopy(net).to(torch.bfloat16)
    got = half(x.bfloat16())
    assert got.dtype == torch.bfloat16
    if "experts" not in name:  # rounding may choose others
        assert (got.double() - expected).norm() < 0.05 * expected.norm()


@parts
def test_copies_are_equal_and_apart(name, lively, tokens):
    net, x = network(name, lively), tokens(1, 5, 8)
    expected, twin = net(x), copy.deepcopy(net)
    assert torch.equal(twin(x), expected)
    assert not {p.data_ptr() for p in twin.parameters()} & {p.data_ptr() for p in net.parameters()}
    assert len(list(twin.parameters())) == len(list(net.parameters()))  # shared ones stay shared
    state = {key: value.clone() for key, value in net.state_dict().items()}
    with torch.no_grad():
        for weight in twin.parameters():
            weight.mul_(0.7)
    assert not torch.allclose(twin(x), expected, atol=1e-3)
    twin.load_state_dict(state)
    assert torch.equal(twin(x), expected)
    assert torch.equal(net(x), expected)


@parts
def test_gradients_are_those_of_small_steps(name, lively, tokens):
    net, x = network(name, lively, layers=1), tokens(1, 4, 8)
    weights = [x.requires_grad_(), *net.parameters()]
    along = [drawn(*weight.shape, seed=seed) for seed, weight in enumerate(weights)]
    gradients = torch.autograd.grad(net(x).square().sum(), weights)
    slope = sum((g * a).sum() for g, a in zip(gradients, along, strict=True))

    def moved(step):
        with torch.no_grad():
            for weight, a in zip(weights, along, strict=True):
                weight.add_(step * a)
            out = net(x).square().sum()
            for weight, a in zip(weights, along, strict=True):
                weight.sub_(step * a)
        return out

    by_steps = (moved(1e-6) - moved(-1e-6)) / 2e-6
    assert float(slope) == pytest.approx(float(by_steps), rel=1e-5)


@parts
def test_removed_heads_write_nothing(name, lively, tokens):
    net, x = network(name, lively), tokens(1, 5, 8)
    variant, by_weights = net.without_heads((0, 1)), copy.deepcopy(net)
    part = by_weights.blocks[0].attention
    weight = part.output.weight.detach().clone()
    width = weight.shape[1] // part.heads
    weight[:, width : 2 * width] = 0.0
    part.output = make_linear(weight, part.output.bias)
    close(variant(x), by_weights(x))
    assert not torch.allclose(variant(x), net(x), atol=1e-3)
    assert {id(p) for p in variant.parameters()} == {id(p) for p in net.parameters()}


@parts
def test_parts_replaced_by_themselves(name, lively, tokens):
    block, x = network(name, lively).blocks[0], tokens(1, 5, 8)
    for part in (block.attention, block.mlp):
        same = part.replaced()
        assert torch.equal(same(x, everything(5)), part(x, everything(5)))
        assert [id(p) for p in same.parameters()] == [id(p) for p in part.parameters()]
    assert block.attention.replaced(scale=0.0).scale == 0.0
    assert block.mlp.replaced(router=Router(1, 12)).router is not block.mlp.router


# What a spec does not describe.


def test_parts_that_no_spec_describes(lively):
    net = network("gates of heads", lively)
    assert "gates" in net.spec.describe()
    assert "undescribed=('gates',)" in repr(net.spec)
    assert net.without("skip").spec.undescribed == ("gates",)
    with pytest.raises(UnsupportedModelError, match="does not describe: gates"):
        Network.random(net.spec)
    assert net.spec != Spec(2, 4, 8, kv_heads=2, head_width=4)
    Spec(2, 2, 8).check_drawable()
    with pytest.raises(KindError, match="undescribed='gates' is not a sequence of texts"):
        Spec(2, 2, 8, undescribed="gates")
    assert Spec(1, 1, 2, undescribed=["a", "b", "a"]).undescribed == ("a", "b")
