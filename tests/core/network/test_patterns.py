"""Other attention patterns: by hand, against brute force, and with every tool there is."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn
from transformers.models.bloom.modeling_bloom import build_alibi_tensor

from rankscope.core import metrics
from rankscope.core.masks import Causal, Full, Window
from rankscope.core.network import (
    ALiBi,
    Attention,
    GaussianKernel,
    LinearKernel,
    Linformer,
    Network,
    ScoreKind,
    Sink,
    Sparsemax,
    Spec,
    Visibility,
    sparsemax,
)
from rankscope.core.paths import path_lengths
from rankscope.core.tracing import trace
from rankscope.errors import KindError, SpecError

KINDS = {
    "linear": LinearKernel(),
    "linformer": Linformer(segments=3),
    "gaussian": GaussianKernel(bandwidth=0.8),
    "sparsemax": Sparsemax(),
    "sink": Sink(tokens=2, strength=1.5),
    "alibi": ALiBi(),
}
MASKS = {"full": Full(), "causal": Causal(), "window": Window(before=1, after=2)}
PAIRS = [(kind, mask) for kind in KINDS for mask in MASKS if kind != "linformer" or mask == "full"]
LN2, LN3 = math.log(2), math.log(3)


def spec(kind, *, mask="full", **options):
    given = {"head_width": 3, "kv_heads": 2, "init": "lecun", "mlp_ratio": 1} | options
    return Spec(2, 4, 8, scores=KINDS[kind], mask=MASKS[mask], **given)


def pattern(kind, query, key, *, mask="full", scale=1.0, dtype=torch.float64):
    """The attention matrix of one head whose queries and keys are these, a row for each token."""
    x = torch.cat([torch.tensor(side, dtype=dtype) for side in (query, key)], -1)
    width = x.shape[-1] // 2
    take = [nn.Linear(2 * width, width, bias=False, dtype=dtype) for _ in range(2)]
    with torch.no_grad():
        for half, linear in enumerate(take):
            linear.weight.copy_(torch.eye(2 * width)[half * width : (half + 1) * width])
    attention = Attention(
        query=take[0], key=take[1], value=take[1], output=nn.Linear(width, 2 * width),
        scores=kind.build(1, width), heads=1, kv_heads=1, scale=scale,
    )  # fmt: skip
    return attention.pattern(x[None], Visibility.of(MASKS[mask], len(x), None, x.device))[
        0, 0
    ].detach()


def assert_near(got, expected, atol=1e-14):
    torch.testing.assert_close(got, torch.tensor(expected, dtype=got.dtype), rtol=0, atol=atol)


def test_linear_kernel_by_hand():
    """φ(q) = (1, 1), (2, ½); φ(k) = (1, 1), (½, 4); the scale cancels."""
    query, key = [[0.0, 0.0], [1.0, -LN2]], [[0.0, 0.0], [-LN2, 3.0]]
    got = pattern(LinearKernel(), query, key, scale=0.3)
    assert_near(got, [[4 / 13, 9 / 13], [5 / 11, 6 / 11]])
    got = pattern(LinearKernel(), query, key, mask="causal")
    assert_near(got, [[1.0, 0.0], [5 / 11, 6 / 11]])


def test_linear_kernel_keeps_small_features_apart():
    """In float32 elu(−30) + 1 is 0; e^−30 is not. Where even that is zero, keys are alike."""
    key = [[-30.0], [-30.0 - LN2]]
    small = pattern(LinearKernel(), [[0.0], [-30.0]], key, dtype=torch.float32)
    assert_near(small, [[2 / 3, 1 / 3]] * 2, atol=1e-6)
    gone = pattern(LinearKernel(), [[0.0], [0.0]], [[-200.0], [-300.0]], dtype=torch.float32)
    assert_near(gone, [[0.5, 0.5]] * 2)
    gone = pattern(LinearKernel(), [[0.0], [0.0]], key, mask="causal", scale=0.0)
    assert_near(gone, [[1.0, 0.0], [0.5, 0.5]])


def test_linformer_by_hand():
    """Tokens 0 and 1 are one segment, with mean key ln 2; token 2 is the other, with ln 6."""
    key = [[LN2 + 1], [LN2 - 1], [LN2 + LN3]]
    got = pattern(Linformer(segments=2), [[1.0], [0.0], [-1.0]], key)
    assert_near(got, [[1 / 8, 1 / 8, 3 / 4], [1 / 4, 1 / 4, 1 / 2], [3 / 8, 3 / 8, 1 / 4]])


def test_segments_are_shared_out_evenly():
    """Seven tokens, three segments: ⌊3p/7⌋ = 0 0 0 1 1 2 2; equal logits show the sizes."""
    zero = [[0.0]] * 7
    row = pattern(Linformer(segments=3), zero, zero)[0]
    assert_near(row, [1 / 9] * 3 + [1 / 6] * 4)


@pytest.mark.parametrize("segments", [5, 7, 64])
def test_linformer_with_a_segment_for_each_token_is_plain_attention(segments, lively, tokens):
    x = tokens(2, 5, 8)
    few = lively(Spec(2, 2, 8, scores=Linformer(segments=segments), init="lecun"))
    torch.testing.assert_close(few(x), lively(Spec(2, 2, 8, init="lecun"))(x), rtol=0, atol=1e-12)


def test_gaussian_kernel_by_hand():
    """scale/(2·bandwidth²) = 1/16 and squared distances 0 and 16 ln 3: weights 3 to 1."""
    at = [[0.0], [4 * math.sqrt(LN3)]]
    assert_near(
        pattern(GaussianKernel(bandwidth=2.0), at, at, scale=0.5), [[0.75, 0.25], [0.25, 0.75]]
    )


def test_gaussian_kernel_sees_distances_alone(tokens):
    query, key = tokens(5, 3), tokens(5, 3, seed=1)
    got = pattern(GaussianKernel(bandwidth=0.7), query.tolist(), key.tolist(), scale=0.4)
    expected = (-0.4 * torch.cdist(query, key).square() / (2 * 0.49)).softmax(-1)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


def test_sparsemax_by_hand():
    """Logits (½, ⅕, −5), (3/2, 3/5, −15), (−½, −⅕, 5): thresholds −0.15, 0.55, 4."""
    got = pattern(Sparsemax(), [[1.0], [3.0], [-1.0]], [[0.5], [0.2], [-5.0]])
    assert_near(got, [[0.65, 0.35, 0.0], [0.95, 0.05, 0.0], [0.0, 0.0, 1.0]])
    got = pattern(Sparsemax(), [[1.0], [-1.0], [1.0]], [[0.5], [0.2], [-5.0]], mask="causal")
    assert_near(got, [[1.0, 0.0, 0.0], [0.35, 0.65, 0.0], [0.65, 0.35, 0.0]])


def nearest_in_simplex(z):
    """The nearest probability vector, by trying every support."""
    best, least = None, math.inf
    finite = [i for i, value in enumerate(z) if math.isfinite(value)]
    for size in range(1, len(finite) + 1):
        for support in map(list, itertools.combinations(finite, size)):
            p = np.zeros(len(z))
            p[support] = z[support] - (z[support].sum() - 1) / size
            distance = np.square(p - z)[finite].sum()
            if p.min() >= 0 and distance < least:
                best, least = p, distance
    return best


def test_sparsemax_is_the_nearest_point_of_the_simplex(tokens):
    z = tokens(1, 1, 30, 6) * torch.logspace(-2, 1, 30, dtype=torch.float64)[:, None]
    z[..., 3, :] = 0.4  # all tied
    z[..., 20, 2:4] = z[..., 20, :].max()  # tied at the top
    z[..., 10:, 1] = -math.inf
    z[..., 25, 1:] = -math.inf
    expected = np.stack([nearest_in_simplex(row) for row in z[0, 0].numpy()])
    for shift in (0.0, 1e3):
        np.testing.assert_allclose(sparsemax(z + shift)[0, 0], expected, rtol=0, atol=1e-12)
    supports = (expected > 0).sum(-1)
    assert set(supports) >= {1, 2, 3, 6}  # so that the question was really asked


def test_sparsemax_of_half_precision_has_rows_that_sum_to_one(tokens):
    p = sparsemax(tokens(1, 1, 4, 500).mul(0.01).bfloat16())
    assert p.dtype == torch.bfloat16
    assert (p.double().sum(-1) - 1).abs().max() < 5e-3


def test_sparsemax_has_the_right_slopes(tokens):
    assert torch.autograd.gradcheck(sparsemax, tokens(1, 2, 3, 5).requires_grad_())


def test_sink_by_hand():
    zero = [[0.0]] * 3
    one, two = Sink(tokens=1, strength=LN3), Sink(tokens=2, strength=LN3)
    assert_near(pattern(one, zero, zero, scale=0.3), [[3 / 5, 1 / 5, 1 / 5]] * 3)
    assert_near(pattern(two, zero, zero), [[3 / 7, 3 / 7, 1 / 7]] * 3)
    causal = [[1.0, 0.0, 0.0], [3 / 4, 1 / 4, 0.0], [3 / 5, 1 / 5, 1 / 5]]
    assert_near(pattern(one, zero, zero, mask="causal"), causal)


def test_alibi_by_hand():
    """Half the weight for every step away."""
    zero, kind = [[0.0]] * 3, ALiBi(slopes=(LN2,))
    full = [[4 / 7, 2 / 7, 1 / 7], [1 / 4, 1 / 2, 1 / 4], [1 / 7, 2 / 7, 4 / 7]]
    assert_near(pattern(kind, zero, zero), full)
    causal = [[1.0, 0.0, 0.0], [1 / 3, 2 / 3, 0.0], [1 / 7, 2 / 7, 4 / 7]]
    assert_near(pattern(kind, zero, zero, mask="causal", scale=0.2), causal)


def test_each_head_has_its_own_slope():
    scores = ALiBi(slopes=(0.5, 2.0)).build(2, 3)
    nothing = torch.zeros(1, 2, 4, 3)
    bias = scores.bias(nothing, nothing, torch.arange(4)[None])
    assert bias[0, :, 0, 3].tolist() == [-1.5, -6.0]


def test_alibi_slopes_are_the_published_ones():
    def slopes(heads):
        return ALiBi().build(heads, 4).slopes

    assert slopes(1) == (2**-8,)
    assert slopes(8) == tuple(2.0**-h for h in range(1, 9))
    for heads in (2, 3, 6, 12, 16, 112):
        bloom = build_alibi_tensor(torch.ones(1, 2), heads, torch.float64)[:, 0, 1]
        np.testing.assert_allclose(slopes(heads), bloom, rtol=1e-6)
    assert ALiBi().build(3, 5).slopes == slopes(3)


@pytest.mark.parametrize(("kind", "mask"), PAIRS)
def test_rows_sum_to_one_and_forward_is_pattern_times_values(kind, mask, lively, tokens):
    net, x = lively(spec(kind, mask=mask)), tokens(2, 5, 8)
    attention = net.blocks[0].attention
    seen = Visibility.of(MASKS[mask], 5, None, x.device)
    p = attention.pattern(x, seen)
    assert p.shape == (2, 4, 5, 5)
    torch.testing.assert_close(p.sum(-1), torch.ones(2, 4, 5).double(), rtol=0, atol=1e-14)
    assert p.min() >= 0
    assert torch.all(p[..., ~MASKS[mask].matrix(5)] == 0)
    values = attention.value(x).unflatten(-1, (2, 3)).repeat_interleave(2, 2)
    mixed = torch.einsum("bhqk,bkhf->bqhf", p, values).flatten(2)
    torch.testing.assert_close(attention(x, seen), attention.output(mixed), rtol=0, atol=1e-13)
    silent = attention.replaced(removed=frozenset({1}))
    mixed[..., 3:6] = 0
    torch.testing.assert_close(silent(x, seen), attention.output(mixed), rtol=0, atol=1e-13)


SIDES = {
    "right": [1, 1, 1, 1, 1, 0, 0],
    "left": [0, 0, 1, 1, 1, 1, 1],
    "inside": [0, 1, 1, 0, 1, 1, 1],
}


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize(("kind", "mask"), PAIRS)
def test_outputs_do_not_depend_on_padding(kind, mask, side, lively, tokens):
    net, x = lively(spec(kind, mask=mask)), tokens(2, 5, 8)
    token_mask = torch.tensor(SIDES[side]).bool().expand(2, -1)
    wide = torch.full((2, 7, 8), 1e6, dtype=torch.float64)
    wide[token_mask] = x.flatten(0, 1)
    out = net(wide, token_mask)
    assert out.isfinite().all()
    torch.testing.assert_close(out[token_mask].view_as(x), net(x), rtol=0, atol=1e-11)


@pytest.mark.parametrize(("kind", "mask"), PAIRS)
def test_sequences_of_different_lengths_share_a_batch(kind, mask, lively, tokens):
    net, x, lengths = lively(spec(kind, mask=mask)), tokens(4, 7, 8), (7, 4, 2, 1)
    token_mask = torch.arange(7) < torch.tensor(lengths)[:, None]
    out = net(x, token_mask)
    for sample, length in enumerate(lengths):
        alone = net(x[sample : sample + 1, :length])
        torch.testing.assert_close(out[sample, :length], alone[0], rtol=0, atol=1e-11)


@pytest.mark.parametrize("place", ["pre", "post"])
@pytest.mark.parametrize(("kind", "mask"), PAIRS)
def test_paths_of_all_lengths_add_up_to_the_state(kind, mask, place, lively, tokens):
    net, x = lively(spec(kind, mask=mask, norm_place=place)), tokens(2, 5, 8)
    token_mask = torch.tensor([[1, 1, 1, 1, 1], [0, 1, 1, 1, 0]]).bool()
    lengths = path_lengths(net, x, token_mask=token_mask)
    out = net(x, token_mask)
    rebuilt = lengths.contributions.sum(0) + lengths.bias
    error = torch.linalg.vector_norm((rebuilt - out)[token_mask])
    assert error <= 1e-12 * torch.linalg.vector_norm(out[token_mask])
    assert lengths.reconstruction_error <= 1e-12


@pytest.mark.parametrize("kind", KINDS)
def test_attention_metrics_are_those_of_the_patterns(kind, lively, tokens):
    net, x = lively(spec(kind)), tokens(2, 5, 8)
    token_mask = torch.tensor([[1, 1, 1, 1, 1], [0, 1, 1, 1, 0]]).bool()
    names = ("attention_entropy", "dobrushin", "second_singular_value", "high_pass_ratio")
    table = trace(net, x, metrics=names, token_mask=token_mask).table
    block = net.blocks[0]
    clean, _ = net.prepare(x, token_mask)
    seen = Visibility.of(net.spec.mask, 5, token_mask, x.device)
    p = block.attention.pattern(block.norms["attention"](clean), seen).detach()
    for name in names:
        got = table.filter(layer=1, metric=name).sort("sample", "head")["value"].to_list()
        expected = getattr(metrics, name)(p, token_mask=token_mask)
        np.testing.assert_allclose(got, expected.flatten(), rtol=0, atol=1e-12)
    assert table["value"].is_finite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_variants_share_the_score(kind, lively, tokens):
    net, x = lively(spec(kind)), tokens(2, 5, 8)
    torch.testing.assert_close(net.repeat(2)(x), net(net(x)), rtol=0, atol=1e-12)
    pure = net.without("skip", "mlp", "norm")
    attentions = [block.attention for block in net.blocks]
    seen, y = Visibility.of(Full(), 5, None, x.device), x
    for attention in attentions:
        y = attention(y, seen)
    torch.testing.assert_close(pure(x), y, rtol=0, atol=1e-13)
    single = net.float()
    for out in (single(x.float()).double(), single.double()(x)):
        torch.testing.assert_close(out, net(x), rtol=0, atol=1e-4)
    if kind != "linformer":
        same = lively(spec(kind, mask="causal"))
        assert torch.equal(net.with_mask("causal")(x), same(x))
        last = net.with_mask("causal")(torch.cat((x, tokens(2, 1, 8, seed=3)), 1))
        torch.testing.assert_close(last[:, :5], same(x), rtol=0, atol=1e-12)  # nothing looks ahead


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("kind", "mask"), PAIRS)
def test_gradients_are_finite_and_reach_queries_and_keys(kind, mask, dtype, tokens):
    net = Network.random(spec(kind, mask=mask, init=0.5), dtype=dtype)
    x = tokens(2, 5, 8).to(dtype).requires_grad_()
    token_mask = torch.tensor([[1, 1, 1, 1, 1], [0, 1, 1, 1, 0]]).bool()
    out = net(x, token_mask)
    assert out.dtype == dtype
    out[token_mask].square().sum().backward()
    weights = [net.blocks[0].attention.query.weight, net.blocks[0].attention.key.weight]
    for given in (x, *net.parameters()):
        assert given.grad.isfinite().all()
    for weight in weights:
        assert weight.grad.abs().max() > 0


@pytest.mark.parametrize("kind", KINDS)
def test_scores_change_the_output_but_add_no_weights(kind, lively, tokens):
    net, x = lively(spec(kind)), tokens(2, 7, 8)
    plain = lively(Spec(2, 4, 8, head_width=3, kv_heads=2, init="lecun", mlp_ratio=1))
    assert not torch.allclose(net(x), plain(x), atol=1e-3)
    assert net.state_dict().keys() == plain.state_dict().keys()


@pytest.mark.parametrize("mask", ["causal", "window"])
def test_linformer_is_for_the_full_mask_alone(mask, lively, tokens):
    net = lively(spec("linformer")).with_mask(MASKS[mask])
    for token_mask in (None, torch.ones(1, 5).bool()):
        with pytest.raises(SpecError, match="mask='full'"):
            net(tokens(1, 5, 8), token_mask)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: Linformer(segments=0), SpecError, "segments=0 .* 1 or more"),
        (lambda: Linformer(segments=2.0), KindError, "segments=2.0 is a float"),
        (lambda: Linformer(segments=True), KindError, "segments=True is a bool"),
        (lambda: GaussianKernel(bandwidth=0), SpecError, "bandwidth=0 must be greater"),
        (lambda: GaussianKernel(bandwidth=-1.0), SpecError, "bandwidth=-1 must be greater"),
        (lambda: GaussianKernel(bandwidth="wide"), KindError, "bandwidth='wide' is a str"),
        (lambda: Sink(tokens=-1), SpecError, "tokens=-1"),
        (lambda: Sink(strength=math.inf), SpecError, "strength=inf .* finite"),
        (lambda: ALiBi(slopes=0.5), KindError, "slopes=0.5 is a float, expected a sequence"),
        (lambda: ALiBi(slopes=["steep"]), KindError, r"slopes\[0\]='steep' is a str"),
        (lambda: ALiBi(slopes=(1.0, 2.0)).build(4, 3), SpecError, "2 slopes for 4 heads"),
    ],
)
def test_wrong_descriptions(make, error, words):
    with pytest.raises(error, match=words):
        make()


def test_wrong_number_of_slopes_is_told_when_the_network_is_made():
    with pytest.raises(SpecError, match="2 slopes for 4 heads"):
        Network.random(Spec(2, 4, 8, scores=ALiBi(slopes=(1.0, 2.0))))


def test_descriptions_are_values():
    assert len({*KINDS.values()}) == len(KINDS)
    assert all(isinstance(kind, ScoreKind) for kind in KINDS.values())
    whole = Spec(1, 2, 8, scores=GaussianKernel(bandwidth=2)).digest()
    assert whole == Spec(1, 2, 8, scores=GaussianKernel(bandwidth=2.0)).digest()
    assert whole != Spec(1, 2, 8, scores=GaussianKernel(bandwidth=3.0)).digest()
    assert hash(ALiBi(slopes=[1, 2])) == hash(ALiBi(slopes=(1.0, 2.0)))
    assert [str(kind) for kind in KINDS.values()] == [
        "linear kernel",
        "linformer(3 segments)",
        "gaussian kernel(bandwidth 0.8)",
        "sparsemax",
        "sink(first 2, +1.5)",
        "alibi",
    ]
    assert str(ALiBi(slopes=(0.5, 1.0))) == "alibi(0.5, 1)"
