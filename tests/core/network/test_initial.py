"""How weights are drawn: the statistics of each rule, and that seeds and nothing else decide."""

import math

import pytest
import torch

from rankscope.core.network import Init, Network, Spec
from rankscope.errors import KindError, SpecError

WIDTH = 128  # wide enough that a standard deviation is known to about one per cent


def wide(init, **options):
    net = Network.random(Spec(1, 4, WIDTH, init=init, **options), dtype=torch.float64)
    return net.blocks[0].attention, net.blocks[0].mlp


def linears(attention, mlp):
    return {
        "query": attention.query,
        "key": attention.key,
        "value": attention.value,
        "output": attention.output,
        "up": mlp.up,
        "gate": mlp.gate,
        "down": mlp.down,
    }


# What each rule promises: the variance of a weight matrix, from its inputs and outputs.
VARIANCES = {
    "bert": lambda _i, _o: 0.02**2,
    0.1: lambda _i, _o: 0.1**2,
    "lecun": lambda i, _o: 1 / i,
    "xavier": lambda i, o: 2 / (i + o),
    "orthogonal": lambda i, _o: 1 / i,  # of value and output too, which are square here
    Init("lecun", 3.0): lambda i, _o: 9 / i,
    Init("xavier", 0.5): lambda i, o: 0.25 * 2 / (i + o),
}


@pytest.mark.parametrize("init", VARIANCES, ids=str)
def test_mean_and_variance_of_every_matrix(init):
    for name, linear in linears(*wide(init, gated=True)).items():
        outputs, inputs = linear.weight.shape
        expected = VARIANCES[init](inputs, outputs)
        count = linear.weight.numel()
        # Five standard errors of the variance of normal numbers: σ²·√(2/count).
        assert linear.weight.var().item() == pytest.approx(expected, rel=5 * math.sqrt(2 / count))
        assert abs(linear.weight.mean().item()) < 5 * math.sqrt(expected / count), name


@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_xavier_is_uniform_between_its_bounds(scale):
    _, mlp = wide(Init("xavier", scale))
    outputs, inputs = mlp.up.weight.shape
    assert outputs != inputs
    bound = scale * math.sqrt(6 / (inputs + outputs))
    largest = mlp.up.weight.abs().max().item()
    assert 0.99 * bound < largest <= bound


@pytest.mark.parametrize("init", ["bert", "lecun"])
def test_normal_rules_have_normal_tails(init):
    _, mlp = wide(init)
    z = mlp.up.weight / mlp.up.weight.std()
    assert (z.abs() > 2).double().mean().item() == pytest.approx(0.0455, abs=0.005)


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_orthogonal_values_and_outputs_only(scale):
    attention, mlp = wide(Init("orthogonal", scale))
    eye = scale**2 * torch.eye(WIDTH, dtype=torch.float64)
    for linear in (attention.value, attention.output):
        torch.testing.assert_close(linear.weight @ linear.weight.T, eye, rtol=0, atol=1e-12)
    for linear in (attention.query, attention.key, mlp.up):
        gram = linear.weight @ linear.weight.T
        eye = scale**2 * torch.eye(len(gram), dtype=torch.float64)
        assert not torch.allclose(gram, eye, atol=0.1 * scale**2)


def test_orthogonal_with_fewer_value_heads_has_orthonormal_rows():
    attention, _ = wide("orthogonal", kv_heads=2)
    rows = attention.value.weight @ attention.value.weight.T
    torch.testing.assert_close(rows, torch.eye(WIDTH // 2).double(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("init", ["bert", "xavier", "lecun", "orthogonal", 0.3])
@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_biases_start_at_zero_and_gains_at_one(norm, init):
    net = Network.random(Spec(2, 2, 8, init=init, norm=norm, norm_place="both"))
    names = dict(net.named_parameters())
    assert all(not p.any() for name, p in names.items() if name.endswith("bias"))
    gains = [p for name, p in names.items() if ".norms." in name and name.endswith("weight")]
    assert len(gains) == 8
    assert all((p == 1).all() for p in gains)


@pytest.mark.parametrize("bias", [True, False])
def test_bias_false_means_no_bias_anywhere(bias):
    net = Network.random(Spec(1, 2, 8, bias=bias, gated=True))
    found = sum(name.endswith("bias") for name, _ in net.named_parameters())
    assert found == (4 + 3 + 2) * bias


@pytest.mark.parametrize("init", ["bert", "xavier", "lecun", "orthogonal"])
def test_the_seed_decides(init):
    spec = Spec(2, 2, 8, init=init)
    first, again = Network.random(spec, seed=3), Network.random(spec, seed=3)
    other = Network.random(spec, seed=4)
    for name, weight in first.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name])
        if name.endswith("weight") and ".norms." not in name:
            assert not torch.equal(weight, other.state_dict()[name])
    assert (first.seed, other.seed) == (3, 4)


def test_no_two_matrices_are_alike():
    """One generator for all layers and parts: none starts anew."""
    net = Network.random(Spec(3, 2, 8, mlp_ratio=1, gated=True, init="lecun"))
    weights = [p.flatten() for p in net.parameters() if p.ndim == 2]
    assert len({tuple(w.tolist()) for w in weights}) == len(weights) == 21


def test_the_global_random_state_is_neither_read_nor_changed():
    spec = Spec(2, 2, 8, init="orthogonal", gated=True)
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    first = Network.random(spec, seed=1).state_dict()
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(12345)
    second = Network.random(spec, seed=1).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    ("written", "init"),
    [
        ("bert", Init("normal", 0.02)),
        ("xavier", Init("xavier", 1.0)),
        ("lecun", Init("lecun")),
        ("orthogonal", Init("orthogonal")),
        (0.5, Init("normal", 0.5)),
        (1, Init("normal", 1.0)),
        (Init("xavier", 2.0), Init("xavier", 2.0)),
    ],
    ids=str,
)
def test_ways_to_write_an_init(written, init):
    assert Spec(1, 1, 2, init=written).init == init


@pytest.mark.parametrize(
    "init",
    [
        "he", "normal", "", -0.1, math.nan, math.inf, None, [0.02],
        ("kaiming", 1.0), ("lecun", -1.0), ("lecun", math.inf), ("lecun", "big"), (None, 1.0),
    ],
    ids=repr,
)  # fmt: skip
def test_wrong_inits(init):
    with pytest.raises((SpecError, KindError), match="init"):
        Spec(1, 1, 2, init=Init(*init) if isinstance(init, tuple) else init)
