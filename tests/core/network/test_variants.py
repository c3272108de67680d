"""Variants share weights, change nothing in place, and are the networks one would write by hand."""

import copy
import itertools

import pytest
import torch
from torch import nn

from rankscope.core.masks import Causal, Full, Window
from rankscope.core.network import Network, Spec, Visibility
from rankscope.errors import KindError, SpecError

LAYERS = 2
VARIANTS = {
    "without-skip": lambda net: net.without("skip"),
    "without-attention-skip": lambda net: net.without("attention_skip"),
    "without-mlp-skip": lambda net: net.without("mlp_skip"),
    "without-mlp": lambda net: net.without("mlp"),
    "without-norm": lambda net: net.without("norm"),
    "causal": lambda net: net.with_mask("causal"),
    "window": lambda net: net.with_mask(Window(before=1, after=1)),
    "matrix": lambda net: net.with_mask(torch.eye(4).bool()),
    "rms": lambda net: net.with_norm("rms"),
    "sphere": lambda net: net.with_norm("sphere"),
    "no-norm": lambda net: net.with_norm("none"),
    "post": lambda net: net.with_norm("layer", place="post"),
    "sandwich": lambda net: net.with_norm("layer", place="both"),
    "twice": lambda net: net.repeat(2),
    "without-heads": lambda net: net.without_heads((1, 0)),
    "identity-mlp": lambda net: net.with_identity_mlp(),
    "activation-alone": lambda net: net.without("mlp_weights"),
}


def storages(net):
    return {parameter.data_ptr() for parameter in net.parameters()}


def pre_norm(**options):
    return Spec(LAYERS, 2, 8, init="lecun", mlp_ratio=2, **options)


@pytest.mark.parametrize("name", VARIANTS)
def test_variant_shares_storage_and_leaves_the_original_alone(name, lively, tokens):
    net, x = lively(pre_norm()), tokens(1, 4, 8)
    spec, before = net.spec, net(x)
    state = {key: value.clone() for key, value in net.state_dict().items()}
    variant = VARIANTS[name](net)

    fresh = storages(variant) - storages(net)
    assert len(fresh) == (4 * LAYERS if name == "sandwich" else 0)  # gain, bias of two inner norms
    out = variant(x)
    assert not torch.allclose(out, before, atol=1e-3), "this variant changes nothing"
    assert net.spec == spec
    assert torch.equal(net(x), before)
    assert all(torch.equal(value, state[key]) for key, value in net.state_dict().items())
    assert variant.seed == net.seed

    with torch.no_grad():
        net.blocks[1].attention.value.weight.mul_(2.0)
    assert not torch.allclose(variant(x), out, atol=1e-3)


@pytest.mark.parametrize("parts", [("mlp",), ("norm",), ("mlp", "norm")], ids="+".join)
def test_unused_parameters_leave_the_variant(parts, lively):
    """A variant without a part does not carry that part's weights around."""
    names = {name for name, _ in lively(pre_norm()).without(*parts).named_parameters()}
    for part in parts:
        assert not [name for name in names if f".{part}." in name or f".{part}s." in name]
    assert any("attention.query" in name for name in names)


def attend(net, layer, x):
    seen = Visibility.of(net.spec.mask, x.shape[1], None, x.device)
    return net.blocks[layer].attention(x, seen)


def norm(net, layer, name, x):
    return net.blocks[layer].norms[name](x)


def by_hand_without_mlp(net, x, place, skip):
    for layer in range(LAYERS):
        if place == "pre":
            x = skip * x + attend(net, layer, norm(net, layer, "attention", x))
        elif place == "post":
            x = norm(net, layer, "attention", skip * x + attend(net, layer, x))
        else:
            inner = attend(net, layer, norm(net, layer, "attention", x))
            x = skip * x + norm(net, layer, "attention_inside", inner)
    return x


@pytest.mark.parametrize("parallel", [False, True], ids=["sequential", "parallel"])
@pytest.mark.parametrize("place", ["pre", "post", "both"])
@pytest.mark.parametrize("skip", [1.0, 0.0, 0.5])
def test_without_mlp_by_hand(skip, place, parallel, lively, tokens):
    net, x = lively(pre_norm(norm_place=place, parallel=parallel, skip=skip)), tokens(2, 4, 8)
    expected = by_hand_without_mlp(net, x, place, skip)
    torch.testing.assert_close(net.without("mlp")(x), expected, rtol=0, atol=1e-12)


def test_without_mlp_keeps_the_attention_skip(lively, tokens):
    net, x = lively(pre_norm(attention_skip=0.5, mlp_skip=0.25)), tokens(1, 4, 8)
    assert net.without("mlp").spec.skips == (0.5, 0.5)
    expected = by_hand_without_mlp(net, x, "pre", 0.5)
    torch.testing.assert_close(net.without("mlp")(x), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("parts", "skips"),
    [
        (("skip",), (0.0, 0.0)),
        (("attention_skip",), (0.0, 0.25)),
        (("mlp_skip",), (0.5, 0.0)),
        (("attention_skip", "mlp_skip"), (0.0, 0.0)),
        (("norm",), (0.5, 0.25)),
    ],
    ids=str,
)
def test_which_skip_is_left(parts, skips, lively, tokens):
    net, x = lively(pre_norm(attention_skip=0.5, mlp_skip=0.25)), tokens(1, 4, 8)
    variant = net.without(*parts)
    assert variant.spec.skips == skips
    normed = "norm" not in parts
    for layer in range(LAYERS):
        x_in = norm(net, layer, "attention", x) if normed else x
        x = skips[0] * x + attend(net, layer, x_in)
        x_in = norm(net, layer, "mlp", x) if normed else x
        x = skips[1] * x + net.blocks[layer].mlp(x_in)
    torch.testing.assert_close(variant(tokens(1, 4, 8)), x, rtol=0, atol=1e-12)


PARTS = ("skip", "attention_skip", "mlp_skip", "mlp", "mlp_weights", "norm")


@pytest.mark.parametrize("count", [2, 3])
def test_order_and_number_of_calls_do_not_matter(count, lively, tokens):
    net, x = lively(pre_norm(attention_skip=0.5, mlp_skip=0.25)), tokens(1, 4, 8)
    for parts in itertools.combinations(PARTS, count):
        at_once = net.without(*parts)
        out = at_once(x)
        for order in itertools.permutations(parts):
            one_by_one = net
            for part in order:
                one_by_one = one_by_one.without(part)
            assert net.without(*order).spec == one_by_one.spec == at_once.spec, order
            assert torch.equal(net.without(*order)(x), out), order


@pytest.mark.parametrize("first", ["attention_skip", "mlp_skip"])
def test_order_does_not_matter_in_a_parallel_block(first, lively):
    """Without its MLP a parallel block has one part, whose skip may well be left out."""
    net = lively(pre_norm(parallel=True))
    assert net.without(first, "mlp").spec == net.without("mlp", first).spec


@pytest.mark.parametrize("part", ["attention_skip", "mlp_skip"])
def test_a_parallel_block_has_one_skip(part, lively):
    net = lively(pre_norm(parallel=True))
    with pytest.raises(SpecError, match="parallel block has one skip"):
        net.without(part)
    assert net.without("skip").spec.skips == (0.0, 0.0)


@pytest.mark.parametrize("part", ["attention", "skips", ""])
def test_unknown_part(part, lively):
    with pytest.raises(SpecError, match=r"no part .* choose among skip, attention_skip"):
        lively(pre_norm()).without(part)


def test_without_nothing_is_the_same_network(lively, tokens):
    net, x = lively(pre_norm()), tokens(1, 4, 8)
    assert net.without().spec == net.spec
    assert torch.equal(net.without()(x), net(x))


@pytest.mark.parametrize("place", ["pre", "post", "both"])
@pytest.mark.parametrize("other", ["layer", "rms"])
@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_with_norm_shares_gains(kind, other, place, lively, tokens):
    net = lively(pre_norm(norm=kind))
    variant = net.with_norm(other, place=place)
    assert variant.spec.norm_place == place
    for mine, theirs in zip(variant.blocks, net.blocks, strict=True):
        for name, module in mine.norms.items():
            assert isinstance(module, nn.LayerNorm if other == "layer" else nn.RMSNorm)
            if name in theirs.norms:
                assert module.weight.data_ptr() == theirs.norms[name].weight.data_ptr()
            else:
                assert torch.equal(module.weight, torch.ones_like(module.weight))
            if other == kind == "layer" and name in theirs.norms:
                assert module.bias.data_ptr() == theirs.norms[name].bias.data_ptr()
        assert len(mine.norms) == (4 if place == "both" else 2)
    assert variant(tokens(1, 4, 8)).dtype == torch.float64


# Heads that stay silent, and MLPs replaced by the identity.


def with_zeroed_heads(net, heads):
    """A copy in which what heads write is multiplied by zero: silent by their weights."""
    other = copy.deepcopy(net)
    width = net.spec.head_width
    with torch.no_grad():
        for layer, head in heads:
            other.blocks[layer].attention.output.weight[:, head * width : (head + 1) * width] = 0
    return other


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("heads", [[(0, 1)], [(1, 0), (0, 3)], [(1, h) for h in range(4)]], ids=str)
def test_removed_heads_write_nothing(heads, kv_heads, lively, tokens):
    net, x = lively(Spec(LAYERS, 4, 8, kv_heads=kv_heads, init="lecun")), tokens(2, 4, 8)
    variant = net.without_heads(*heads)
    assert variant.spec.removed_heads == tuple(sorted(heads))
    expected = with_zeroed_heads(net, heads)(x)
    torch.testing.assert_close(variant(x), expected, rtol=0, atol=1e-12)
    assert not torch.allclose(expected, net(x), atol=1e-3)


def test_heads_are_removed_one_after_the_other(lively, tokens):
    net, x = lively(pre_norm()), tokens(1, 4, 8)
    one_by_one = net.without_heads((0, 1)).without("skip").without_heads((1, 0))
    at_once = net.without_heads((1, 0), (0, 1)).without("skip")
    assert one_by_one.spec == at_once.spec
    assert torch.equal(one_by_one(x), at_once(x))
    assert torch.equal(one_by_one.with_mask("causal")(x), at_once.with_mask("causal")(x))


@pytest.mark.parametrize("shared", [False, True])
def test_heads_are_removed_from_one_layer_only(shared, lively, tokens):
    """Also where the layers share their weights."""
    net, x = lively(pre_norm(shared_layers=shared)), tokens(1, 4, 8)
    variant = net.without_heads((1, 0))
    first, second = (Network(Spec(1, 2, 8, init="lecun"), [b]) for b in variant.blocks)
    whole = Network(Spec(1, 2, 8, init="lecun"), [net.blocks[0]])
    assert torch.equal(first(x), whole(x))
    assert not torch.allclose(second(first(x)), net(x), atol=1e-3)
    assert torch.equal(variant(x), second(first(x)))
    assert storages(variant) == storages(net)


@pytest.mark.parametrize("head", [(2, 0), (0, 2), (-1, 0), (0, -1)])
def test_heads_that_do_not_exist(head, lively):
    with pytest.raises(SpecError, match="does not exist"):
        lively(pre_norm()).without_heads(head)


def test_identity_mlp_in_a_parallel_block_would_be_a_skip(lively):
    with pytest.raises(SpecError, match="second skip"):
        lively(pre_norm(parallel=True)).with_identity_mlp()


BARE = {
    "identity": (lambda net: net.with_identity_mlp(), lambda y: y),
    "activation": (lambda net: net.without("mlp_weights"), torch.nn.functional.gelu),
}
"""What may stay of an MLP without its matrices: the variant, and the same by hand."""


@pytest.mark.parametrize("place", ["pre", "post", "both"])
@pytest.mark.parametrize("skip", [1.0, 0.0, 0.5])
@pytest.mark.parametrize("form", BARE)
def test_bare_mlps_by_hand(form, skip, place, lively, tokens):
    net, x = lively(pre_norm(norm_place=place, skip=skip)), tokens(2, 4, 8)
    variant, phi = BARE[form][0](net), BARE[form][1]
    expected = x
    for layer in range(LAYERS):
        expected = by_hand_bare_mlp(net, layer, expected, place, skip, phi)
    torch.testing.assert_close(variant(x), expected, rtol=0, atol=1e-12)
    assert variant.spec.mlp_as == form
    assert not [name for name, _ in variant.named_parameters() if ".mlp.up" in name]
    assert torch.equal(variant.without("mlp")(x), net.without("mlp")(x))
    assert variant.without("mlp_weights").spec == variant.spec  # there are none left


def test_the_activation_alone_beside_attention(lively, tokens):
    net, x = lively(pre_norm(parallel=True, gated=True)), tokens(2, 4, 8)
    expected = x
    for layer in range(LAYERS):
        mlp = torch.nn.functional.gelu(norm(net, layer, "mlp", expected))
        attended = attend(net, layer, norm(net, layer, "attention", expected))
        expected = expected + attended + mlp
    torch.testing.assert_close(net.without("mlp_weights")(x), expected, rtol=0, atol=1e-12)


def by_hand_bare_mlp(net, layer, x, place, skip, phi):
    def branch(name, part, y):
        inner = part(y if place == "post" else norm(net, layer, name, y))
        return norm(net, layer, f"{name}_inside", inner) if place == "both" else inner

    def after(name, y):
        return norm(net, layer, name, y) if place == "post" else y

    attended = branch("attention", lambda y: attend(net, layer, y), x)
    x = after("attention", skip * x + attended)
    return after("mlp", skip * x + branch("mlp", phi, x))


@pytest.mark.parametrize(
    "options",
    [{"removed_heads": [(0, 1)]}, {"mlp_as": "identity"}, {"layer_masks": [Full(), Causal()]}],
    ids=str,
)
def test_a_random_network_is_what_its_spec_says(options, lively, tokens):
    """A spec with a part taken away describes the variant, however it came about."""
    net, x = lively(pre_norm()), tokens(1, 4, 8)
    described = lively(pre_norm(**options))
    by_variant = {
        "removed_heads": lambda: net.without_heads((0, 1)),
        "mlp_as": lambda: net.with_identity_mlp(),
        "layer_masks": lambda: Network(described.spec, net.blocks),
    }[next(iter(options))]()
    assert described.spec == by_variant.spec
    described.load_state_dict(by_variant.state_dict(), strict=False)
    assert torch.equal(described(x), by_variant(x))


# A mask for each layer.


@pytest.mark.parametrize("padded", [False, True])
def test_each_layer_under_its_own_mask(padded, lively, tokens):
    masks = (Window(before=1, after=0), Full())
    net, x = lively(pre_norm(layer_masks=masks)), tokens(2, 4, 8)
    token_mask = torch.tensor([[True] * 4, [False, True, True, True]]) if padded else None
    if padded:
        x[1, 0] = 0.0  # what the network makes of padding before anything else
    expected = x
    for mask, block in zip(masks, net.blocks, strict=True):
        expected = block(expected, Visibility.of(mask, 4, token_mask, x.device))
    assert torch.equal(net(x, token_mask), expected)
    assert not torch.allclose(net.with_mask("full")(x), net(x), atol=1e-3)
    assert net.with_mask("full").spec == pre_norm(mask="full")
    assert net.without("skip").spec.masks == masks


def test_repeat_repeats_masks_and_removed_heads(lively, tokens):
    net, x = lively(pre_norm(layer_masks=(Full(), Causal()))), tokens(1, 4, 8)
    net = net.without_heads((1, 0))
    again = net.repeat(2)
    assert again.spec.masks == (Full(), Causal(), Full(), Causal())
    assert again.spec.removed_heads == ((1, 0), (3, 0))
    assert torch.equal(again(x), net(net(x)))
    assert torch.equal(again.without("skip")(x), net.without("skip").repeat(2)(x))


def test_with_norm_there_and_back(lively, tokens):
    net, x = lively(pre_norm()), tokens(1, 4, 8)
    assert torch.equal(
        net.with_norm("layer", place="post").with_norm("layer", place="pre")(x), net(x)
    )


def test_with_mask_and_back(lively, tokens):
    net, x = lively(pre_norm()), tokens(1, 4, 8)
    assert net.with_mask("causal").spec.mask == Causal()
    assert torch.equal(net.with_mask("causal").with_mask("full")(x), net(x))


def test_causal_variant_does_not_look_ahead(lively, tokens):
    net, x = lively(pre_norm()).with_mask("causal"), tokens(1, 4, 8)
    changed = x.clone()
    changed[:, 2:] += 1
    assert torch.equal(net(changed)[:, :2], net(x)[:, :2])
    assert not torch.allclose(net(changed)[:, 2:], net(x)[:, 2:])


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("shared", [False, True])
def test_repeat_composes(shared, times, lively, tokens):
    net, x = lively(pre_norm(shared_layers=shared)), tokens(1, 4, 8)
    expected = x
    for _ in range(times):
        expected = net(expected)
    again = net.repeat(times)
    assert again.spec.layers == LAYERS * times == len(again.blocks)
    assert torch.equal(again(x), expected)
    assert storages(again) == storages(net)
    assert torch.equal(again.without("skip")(x), net.without("skip").repeat(times)(x))


@pytest.mark.parametrize("times", [0, -1, 1.5, True, "2"], ids=repr)
def test_repeat_refuses(times, lively):
    with pytest.raises((SpecError, KindError), match="times="):
        lively(pre_norm()).repeat(times)


def test_shared_layers_are_one_block(lively, tokens):
    net, x = lively(pre_norm(shared_layers=True)), tokens(1, 4, 8)
    one = lively(Spec(1, 2, 8, init="lecun", mlp_ratio=2))
    count = sum(p.numel() for p in net.parameters())
    assert count == sum(p.numel() for p in one.parameters())
    assert torch.equal(net(x), one(one(x)))
    for variant in (net.without("skip"), net.with_norm("rms"), net.double()):
        assert len({id(block) for block in variant.blocks}) == 1


def test_layers_not_shared_differ(lively):
    first, second = lively(pre_norm()).blocks
    assert not torch.equal(first.attention.query.weight, second.attention.query.weight)


@pytest.mark.parametrize(("name", "dtype"), [("double", torch.float64), ("float", torch.float32)])
def test_double_and_float_are_copies(name, dtype, tokens):
    net = Network.random(pre_norm())
    x = tokens(1, 4, 8)
    before = net(x.float())
    copy = getattr(net, name)()
    assert {p.dtype for p in copy.parameters()} == {dtype}
    assert {p.dtype for p in net.parameters()} == {torch.float32}
    assert copy.spec == net.spec
    assert storages(copy).isdisjoint(storages(net))
    assert torch.equal(net(x.float()), before)
    torch.testing.assert_close(copy(x.to(dtype)).float(), before, rtol=1e-5, atol=1e-5)
    assert copy.without("mlp")(x.to(dtype)).dtype == dtype
