"""Every kind of random thing has numbers of its own, whatever else is drawn from the same seed."""

import ast
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel, ViTConfig, ViTModel

import rankscope
from rankscope.core import theory
from rankscope.core.masks import Random
from rankscope.core.network import Network, RelativeBias, Spec
from rankscope.errors import RankscopeError
from rankscope.experiments.claims import w3
from rankscope.experiments.claims.d1 import _draw as d1_draw
from rankscope.experiments.norm_cases import NormSetting, random_network
from rankscope.models.text import embed, passages
from rankscope.streams import global_stream, stream, stream_seed

WIDTH = 64


def matrices(prefix, module):
    """All weight matrices and all biases and gains that are not constant."""
    return {
        f"{prefix}: {name}": value
        for name, value in module.named_parameters()
        if value.std() > 0 and value.numel() > 100
    }


def drawn_from(seed):
    """Something of every kind the package draws from a seed, by what it is."""
    spec = Spec(3, 4, WIDTH, gated=True, mlp_ratio=2.0)
    found = matrices("network", Network.random(spec, seed=seed))
    found |= matrices("xavier", Network.random(Spec(1, 1, 32, init="xavier"), seed=seed + 1))
    found |= {"embedding of texts": embed(passages()[:4], WIDTH, seed=seed)[0]}
    config = BertConfig(
        vocab_size=50,
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=96,
    )
    found |= matrices("load", rankscope.load(BertModel(config), at_init=True, seed=seed).original)
    vit = ViTConfig(
        hidden_size=WIDTH, num_hidden_layers=1, num_attention_heads=2, image_size=32, patch_size=8
    )
    eyes = rankscope.load(ViTModel(vit), at_init=True, seed=seed)
    found |= matrices("vision", eyes.original)
    found |= {"noise images": eyes.noise_images(4, seed=seed)}
    kept = theory.residual_preserving_network(2, 16, kept=4, heads=2, seed=seed)
    for layer, block in enumerate(kept.blocks):
        found[f"kept {layer}: query"] = block.attention.query.weight
        found[f"kept {layer}: value"] = block.attention.value.weight
    net = Network.random(Spec(1, 1, 8, mlp_ratio=0, norm="sphere", norm_place="post"), seed=seed)
    found |= {"starts": theory._find_equilibria._draw_starts(net, 16, 8, seed)}
    w3_kinds = ("half-space", "opposite pairs")
    found |= {f"tokens, {kind}": w3.start(w3.Config(), kind, 32, seed) for kind in w3_kinds}
    found |= {"random mask": torch.from_numpy(Random(24, seed=seed).keys(64)).double()}
    found |= {"relative bias": RelativeBias(seed=seed).build(16, 8).table.weight}
    found |= {"claim D1's inputs": d1_draw(seed, "inputs", 2, 16, 32)}
    uneven = random_network(NormSetting(biases=1.0, gains=1.0, width=128), 2, seed)
    for name, value in uneven.named_parameters():
        if value.ndim == 1:
            found[f"biases and gains: {name}"] = value.log() if "gain" in name else value
    return {name: value.detach().double().flatten() for name, value in found.items()}


def largest_correlation(a, b):
    """Of two sequences over all shifts against each other, with its expected size if independent.

    The same numbers read from another place in a stream are found, whatever their scale.
    """
    a, b = ((v - v.mean()) / v.std() for v in (a[:20000], b[:20000]))
    size = len(a) + len(b)
    spectrum = torch.fft.rfft(a, n=size) * torch.fft.rfft(b, n=size).conj()
    sums = torch.fft.irfft(spectrum, n=size)
    return float(sums.abs().max()) / min(len(a), len(b)) ** 0.5


@pytest.fixture(scope="module")
def drawn():
    return drawn_from(0)


def test_nothing_is_correlated_with_anything_else(drawn):
    # Sums of n independent products have the size √n; of millions of shifts none comes near 8 √n,
    # and equal numbers reach √n · √n.
    assert len(drawn) > 40
    together = {
        (one, other): largest_correlation(drawn[one], drawn[other])
        for one, other in combinations(drawn, 2)
        if not (one.startswith("tokens") and other.startswith("tokens"))
    }
    worst = max(together, key=together.get)
    assert together[worst] < 8, worst


def test_the_test_sees_shared_numbers():
    numbers = torch.randn(3000, generator=stream(0, "shared"), dtype=torch.float64)
    assert largest_correlation(numbers[:1000], 0.02 * numbers[500:2000]) > 15
    bare = [torch.randn(1000, generator=torch.Generator().manual_seed(s)) for s in (0, 0)]
    assert largest_correlation(*bare) > 15


def test_other_seeds_draw_other_things(drawn):
    others = drawn_from(1)
    for name, value in drawn.items():
        if "xavier" not in name:
            assert largest_correlation(value, others[name]) < 8, name


def test_weights_and_plain_torch_seeds_have_nothing_in_common(drawn):
    plain = torch.randn(20000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for name, value in drawn.items():
        assert largest_correlation(value, plain) < 8, name


def test_a_layer_does_not_depend_on_the_others_or_on_the_mlp():
    small = Network.random(Spec(2, 2, 16), seed=7)
    for other in (
        Network.random(Spec(5, 2, 16), seed=7),
        Network.random(Spec(2, 2, 16, mlp_ratio=8.0), seed=7),
        Network.random(Spec(2, 2, 16, mlp_ratio=0.0), seed=7),
        Network.random(Spec(2, 2, 16, gated=True), seed=7),
    ):
        for mine, theirs in zip(small.blocks, other.blocks, strict=False):
            for name in ("query", "key", "value", "output"):
                weights = (getattr(block.attention, name).weight for block in (mine, theirs))
                assert torch.equal(*weights), name


def test_a_layer_of_a_residual_preserving_network_does_not_depend_on_the_others():
    few, many = (theory.residual_preserving_network(layers, 5, kept=2, seed=3) for layers in (2, 4))
    for mine, theirs in zip(few.blocks, many.blocks, strict=False):
        assert torch.equal(mine.attention.query.weight, theirs.attention.query.weight)
        assert torch.equal(mine.attention.value.weight, theirs.attention.value.weight)


def test_a_seed_is_one_network_in_every_number_format():
    spec = Spec(2, 2, 16, init="orthogonal")
    fine = Network.random(spec, seed=5, dtype=torch.float64)
    for dtype in (torch.float32, torch.bfloat16):
        coarse = Network.random(spec, seed=5, dtype=dtype)
        for a, b in zip(fine.parameters(), coarse.parameters(), strict=True):
            assert torch.equal(a.to(dtype), b)
    x, _ = embed(passages()[:1], 16, seed=5, dtype=torch.float64)
    assert torch.equal(x.float(), embed(passages()[:1], 16, seed=5)[0])


def test_seeds_beyond_32_bits_count():
    a, b = (stream(seed, "weights") for seed in (1, 1 + 2**32))
    assert not torch.equal(torch.randn(4, generator=a), torch.randn(4, generator=b))
    assert stream_seed(0, "a", "b") != stream_seed(0, "ab")
    assert stream_seed(0, "a", 1) != stream_seed(0, "a", "1")


def test_the_global_random_state_is_left_as_it_was():
    before = torch.random.get_rng_state()
    with global_stream(0, "original"):
        first = torch.randn(3)
    with global_stream(0, "original"):
        assert torch.equal(torch.randn(3), first)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_nobody_starts_a_generator_at_a_bare_seed():
    source = Path(rankscope.__file__).parent
    starting = {"manual_seed", "Generator", "SeedSequence", "default_rng", "RandomState"}
    for path in source.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if path.name != "streams.py" and isinstance(node, ast.Call):
                name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                assert name not in starting, f"{path.name}:{node.lineno} calls {name}"


def test_the_demo_is_that_of_independent_draws():
    """One layer of pure attention of BERT-base's width: 0.165 to 0.179 over independent seeds."""
    spec = Spec(1, 12, 768, mlp_ratio=0.0, norm_place="post", norm_eps=1e-12)
    x, token_mask = embed(passages()[:8], 768, seed=0)
    san = Network.random(spec, seed=0).without("skip")
    with torch.no_grad():
        size = rankscope.residual(san(x, token_mask), relative=True, token_mask=token_mask)
    assert 0.15 < float(np.mean(size.tolist())) < 0.2


@pytest.mark.parametrize("seed", [-1, True, 1.5, "1", None])
def test_only_whole_numbers_are_seeds(seed):
    for draw in (
        lambda: stream(seed, "weights"),
        lambda: Network.random(Spec(1, 1, 4), seed=seed),
        lambda: embed(passages()[:1], 4, seed=seed),
    ):
        with pytest.raises(RankscopeError, match="seed="):
            draw()
