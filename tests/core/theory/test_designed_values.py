"""Designed values: the tokens come back, also in 60 digits, or a sentence says why not."""

import copy

import mpmath
import pytest
import torch
from torch import nn

from rankscope.core.masks import Causal, Explicit
from rankscope.core.network import Network, Spec, Sphere
from rankscope.core.theory import design_values, norm_preimage, step_jacobian
from rankscope.errors import InputError, KindError, ShapeError, SpecError, UnsupportedModelError


def in_range(net, x):
    """Tokens that the net's steps can return."""
    step = net.blocks[0].steps[0]
    with torch.no_grad():
        inside = step.branches[0].inside(x.unsqueeze(0))
        return step.after(inside)[0]


CASES = {
    "sphere": {"norm": "sphere", "norm_place": "post", "skip": False},
    "sphere, skip": {"norm": "sphere", "norm_place": "post", "skip": 0.5, "heads": 2},
    "layer norm": {"norm": "layer", "norm_place": "post", "heads": 2},
    "layer norm, large eps": {"norm": "layer", "norm_place": "post", "norm_eps": 1e-2},
    "layer norm, no eps": {"norm": "layer", "norm_place": "post", "norm_eps": 0.0},
    "rms, grouped heads": {"norm": "rms", "norm_place": "post", "heads": 4, "kv_heads": 2},
    "wide heads, grouped": {"norm": "none", "heads": 2, "head_width": 8, "kv_heads": 1},
    "wider than the network": {"norm": "none", "head_width": 11, "bias": False},
    "narrow heads": {"norm": "none", "heads": 4, "head_width": 2, "skip": False},
    "silent head": {"norm": "none", "heads": 2, "head_width": 8, "removed_heads": [(0, 0)]},
    "pre-norm": {"norm": "layer", "norm_place": "pre", "heads": 2},
    "sandwich": {"norm": "layer", "norm_place": "both", "skip": False},
    "parallel MLP": {"norm": "rms", "norm_place": "pre", "parallel": True, "mlp_ratio": 2.0},
    "three layers": {"norm": "sphere", "norm_place": "post", "layers": 3, "heads": 2},
    "shared layers": {"norm": "none", "layers": 2, "shared_layers": True},
    "full mask": {"norm": "sphere", "norm_place": "post", "mask": "full"},
}


@pytest.mark.parametrize("case", CASES)
def test_the_tokens_come_back_from_every_kind_of_block(case, lively, tokens):
    options = {"mlp_ratio": 0.0, "mask": "causal", "init": "lecun"} | CASES[case]
    layers, heads = options.pop("layers", 1), options.pop("heads", 1)
    net = lively(Spec(layers, heads, 8, **options))
    x = in_range(net, tokens(5, 8))
    before = copy.deepcopy(net.state_dict())
    designed = design_values(net, x)
    for state in designed.states(x.unsqueeze(0)):
        assert torch.allclose(state[0], x, atol=1e-11)
    assert not torch.allclose(net(x.unsqueeze(0))[0], x, atol=1e-3)
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    kept = designed.state_dict()
    untouched = [name for name in before if ".value." not in name and ".output.weight" not in name]
    assert untouched
    assert all(torch.equal(before[name], kept[name]) for name in untouched)
    assert designed.seed is None


def test_one_head_gets_the_theorys_matrix(tokens):
    """``W = X⁻¹A⁻¹diag(c)X``, with A from the softmax written out."""
    query_key = tokens(1, 1, 4, 4, seed=1)
    net = Network.from_matrices(
        query_key, torch.zeros_like(query_key), head_width=4, norm="sphere", mask="causal"
    )
    x = in_range(net, tokens(4, 4))
    c = torch.tensor([0.5, 1.0, 2.0, 3.0], dtype=torch.float64)
    logits = (x @ query_key[0, 0] @ x.T / 2).masked_fill(~Causal().matrix(4), -torch.inf)
    expected = x.inverse() @ logits.softmax(-1).inverse() @ torch.diag(c) @ x
    attention = design_values(net, x, c=c).blocks[0].attention
    designed = attention.value.weight.T @ attention.output.weight.T
    assert torch.allclose(designed, expected, rtol=1e-10)


def test_several_heads_get_the_solution_of_least_norm(tokens):
    query_key = tokens(1, 2, 4, 4, seed=1)
    net = Network.from_matrices(query_key, torch.zeros_like(query_key), head_width=4)
    x = tokens(3, 4)
    stacked = torch.cat([(x @ q @ x.T / 2).softmax(-1) @ x for q in query_key[0]], 1)
    expected = torch.linalg.pinv(stacked) @ x
    assert torch.allclose(design_values(net, x).blocks[0].attention.output.weight.T, expected)


def test_the_scales_move_the_jacobian_but_not_the_equilibrium(tokens):
    net = Network.from_matrices(
        tokens(1, 1, 3, 3), torch.zeros(1, 1, 3, 3).double(), head_width=3, norm="sphere"
    )
    x = in_range(net, tokens(3, 3, seed=4))
    designed = [design_values(net, x, c=c) for c in (1.0, torch.tensor([1.0, 2.0, 3.0]))]
    assert all(torch.allclose(each(x[None])[0], x, atol=1e-12) for each in designed)
    one, other = (step_jacobian(each, x) for each in designed)
    assert not torch.allclose(one, other, rtol=0.1)


def test_sixty_digits_agree(tokens):
    """The step itself, in mpmath: softmax, mixing, sphere; nothing of the network's code."""
    query_key = 0.3 * tokens(1, 1, 3, 3, seed=1)
    net = Network.from_matrices(
        query_key, torch.zeros_like(query_key), head_width=1, norm="sphere", mask="causal"
    )
    x = in_range(net, tokens(3, 3, seed=5))
    attention = design_values(net, x, c=2.0).blocks[0].attention
    weights = (attention.value.weight.T @ attention.output.weight.T).detach()
    with mpmath.workdps(60):
        state, w, q = (mpmath.matrix(each.tolist()) for each in (x, weights, query_key[0, 0]))
        logits = state * q * state.T
        for i in range(3):
            e = [mpmath.exp(logits[i, j]) for j in range(i + 1)]
            row = sum((e[j] / sum(e) * state[j, :] * w for j in range(i + 1)), mpmath.zeros(1, 3))
            length = mpmath.norm(row, 2)
            assert abs(length - 2) < 1e-13
            assert mpmath.norm(row / length - state[i, :], 2) < 1e-14


def test_preimages_by_hand():
    gain = nn.LayerNorm(2, eps=3.0, bias=False, dtype=torch.float64)
    with torch.no_grad():
        gain.weight.copy_(torch.tensor([2.0, 4.0]))
    # (1, -1) has variance 1, hence standardises to ±1/√(1 + 3) = ±½.
    before = norm_preimage(gain, torch.tensor([[1.0, -2.0]], dtype=torch.float64))
    assert torch.allclose(before, torch.tensor([[1.0, -1.0]], dtype=torch.float64))
    # (3, 1) has mean square 5, and 5 + 4 = 3².
    rms = nn.RMSNorm(2, eps=4.0, dtype=torch.float64)
    x = torch.tensor([[1.0, 1 / 3]], dtype=torch.float64)
    expected = torch.tensor([[3.0, 1.0]], dtype=torch.float64)
    assert torch.allclose(norm_preimage(rms, x), expected)


def test_a_norm_that_only_inherits_is_refused():
    """What a subclass computes is not known, so no inverse of its parent's rule is tried."""

    class Doubled(nn.LayerNorm):
        def forward(self, x):
            return 2 * super().forward(x)

    for norm in (Doubled(4), type("Other", (Sphere,), {})()):
        with pytest.raises(UnsupportedModelError, match="is not supported"):
            norm_preimage(norm, torch.eye(4))


def test_tokens_of_mean_square_one_pass_for_what_the_norm_returns():
    """With an eps they would have come from infinitely far; in float64, far enough is as good."""
    norm = nn.RMSNorm(2, eps=1e-5, dtype=torch.float64)
    x = torch.ones(1, 2, dtype=torch.float64)
    before = norm_preimage(norm, x)
    assert bool((before > 1e4).all())
    assert torch.allclose(norm(before), x, atol=1e-14)


def test_heads_at_least_as_wide_as_the_network_get_identity_values(lively, tokens):
    net = lively(Spec(1, 2, 3, mlp_ratio=0, norm="none", head_width=4))
    value = design_values(net, tokens(3, 3)).blocks[0].attention.value
    one_head = torch.eye(4, 3, dtype=torch.float64)
    assert torch.equal(value.weight, torch.cat([one_head, one_head]))
    assert not value.bias.any()


def test_tokens_outside_the_range_of_the_norm_are_refused(lively, tokens):
    net = lively(Spec(1, 1, 4, mlp_ratio=0, norm="sphere", norm_place="post"))
    with pytest.raises(InputError, match=r"token \d is not in the range of Sphere.*apply the norm"):
        design_values(net, 2 * in_range(net, tokens(3, 4)))
    layer = lively(Spec(1, 1, 4, mlp_ratio=0, norm="layer", norm_place="post"))
    x = in_range(layer, tokens(3, 4))
    with pytest.raises(InputError, match="ties c to the size of the token"):
        design_values(layer, x, c=0.1)
    with pytest.raises(InputError, match="apply the norm first"):
        design_values(layer, x + 1, c=0.1)


def test_what_cannot_be_designed_says_why(lively, tokens):
    net = lively(Spec(1, 1, 4, mlp_ratio=0, norm="none"))
    flat = tokens(1, 4).repeat(3, 1)
    with pytest.raises(InputError, match=r"condition number .*x has rank 1"):
        design_values(net, flat)
    with pytest.raises(InputError, match=r"5 tokens have condition number ∞ \(4 columns"):
        design_values(net, tokens(5, 4))
    zero = torch.zeros(1, 1, 4, 4, dtype=torch.float64)
    with pytest.raises(InputError, match="attention that is invertible"):
        design_values(Network.from_matrices(zero, zero, head_width=4), tokens(3, 4))
    with pytest.raises(SpecError, match=r"without\(\"mlp\"\)"):
        design_values(lively(Spec(1, 1, 4)), tokens(3, 4))
    two_masks = Spec(
        2, 1, 4, mlp_ratio=0, norm="none", shared_layers=True, layer_masks=["full", "causal"]
    )
    with pytest.raises(SpecError, match="shares its weights with a layer under another mask"):
        design_values(lively(two_masks), tokens(3, 4))
    with pytest.raises(InputError, match="omit c"):
        design_values(net, tokens(3, 4), c=1.0)


def test_bad_arguments_are_answered_with_sentences(lively, tokens):
    net = lively(Spec(1, 1, 4, mlp_ratio=0, norm="sphere", norm_place="post"))
    x = in_range(net, tokens(3, 4))
    with pytest.raises(KindError, match="c='2' is a str"):
        design_values(net, x, c="2")
    with pytest.raises(ShapeError, match="one number for each of 3 tokens"):
        design_values(net, x, c=torch.ones(2))
    for bad in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match="out of range"):
            design_values(net, x, c=bad)
    with pytest.raises(ShapeError, match="batch of one"):
        design_values(net, x.repeat(2, 1, 1))
    with pytest.raises(KindError, match="expected a Network"):
        design_values(nn.Linear(4, 4), x)
    with pytest.raises(UnsupportedModelError, match="the norm Linear is not supported"):
        norm_preimage(nn.Linear(4, 4), x)
    with pytest.raises(InputError, match="nan at"):
        design_values(net, x * float("nan"))
    assert torch.equal(design_values(net, x[None])(x[None]), design_values(net, x)(x[None]))


def test_the_sphere_and_masks_of_one_length_work(tokens):
    """A window mask makes attention banded, and still invertible with a strong diagonal."""
    mask = Explicit.of(torch.eye(3, dtype=torch.bool) | torch.eye(3).roll(1, 0).bool())
    query_key = 3 * torch.eye(3, dtype=torch.float64)[None, None]
    net = Network.from_matrices(
        query_key, torch.zeros_like(query_key), head_width=1, norm="sphere", mask=mask
    )
    x = Sphere()(tokens(1, 3, 3))
    assert torch.allclose(design_values(net, x)(x), x, atol=1e-12)
