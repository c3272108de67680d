"""Networks built to collapse in a known way are told by that way and that layer."""

import math

import pytest
import torch

from rankscope.core.network import Network, Spec
from rankscope.experiments.diagnosis._tokens import turn

from .built import LAYERS, TOKENS, judged, network_of, tokens_of

PLACES = ("pre", "post")
SEEDS = (0, 11)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("place", PLACES)
def test_ordinary_networks_do_not_collapse_in_depth(place: str, seed: int) -> None:
    found, _ = judged(network_of(place, seed=seed), tokens_of(32, seed=seed + 100))
    for kind in ("depth collapse", "width collapse", "entropy collapse", "merged last token"):
        assert found[kind].fate == "absent", found[kind].sentence


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("place", PLACES)
def test_a_skipless_stack_collapses_in_depth_by_attention(place: str, seed: int) -> None:
    network = network_of(place, seed=seed).without("skip", "mlp")
    found, loss = judged(network, tokens_of(32, seed=seed + 100))
    depth = found["depth collapse"]
    assert (depth.fate, depth.part, depth.found_in) == ("collapse", "attention", 3)
    assert 1 <= depth.layer == loss.layer <= 4


@pytest.mark.parametrize("layer", [2, 5])
@pytest.mark.parametrize("place", PLACES)
def test_a_layer_with_huge_values_is_named(place: str, layer: int) -> None:
    network = network_of(place, seed=3)
    with torch.no_grad():
        network.blocks[layer - 1].attention.value.weight.mul_(1e5)
    found, loss = judged(network, tokens_of(32, seed=5))
    assert (loss.layer, loss.part) == (layer, "attention")
    depth, idle = found["depth collapse"], found["layer collapse"]
    assert depth.fate in ("slow", "collapse")
    assert (depth.layer, depth.part) == (layer, "attention")
    assert f"layer {layer}" in depth.sentence
    if place == "pre":  # later layers add little to so long a stream
        assert idle.fate == "collapse"
        assert f"layer {layer} makes the tokens" in idle.sentence
        assert idle.layer == layer


@pytest.mark.parametrize("layer", [1, 6])
@pytest.mark.parametrize("place", PLACES)
def test_one_hot_attention_is_entropy_collapse(place: str, layer: int) -> None:
    network = network_of(place, seed=3)
    with torch.no_grad():
        network.blocks[layer - 1].attention.query.weight.mul_(1e4)
    found, _ = judged(network, tokens_of(32, seed=5))
    entropy = found["entropy collapse"]
    assert (entropy.fate, entropy.layer, entropy.part) == ("collapse", layer, "attention")


def test_a_duplicated_last_token_is_last_token_collapse() -> None:
    x = tokens_of(32, seed=5)
    x[:, -1] = x[:, 7]
    found, _ = judged(network_of("pre", seed=3), x)
    last = found["merged last token"]
    assert (last.fate, last.layer) == ("collapse", 0)
    assert "token 7" in last.sentence


def test_a_long_run_of_one_token_is_last_token_collapse_under_a_causal_mask() -> None:
    """Only its first token differs: the longer the run, the less tells the last two apart."""
    x = tokens_of(32, seed=5)
    x[:, 1:] = x[:, :1]
    x[:, 0] = tokens_of(32, seed=8)[:, 0]
    found, _ = judged(network_of("pre", seed=3, mask="causal"), x)
    last = found["merged last token"]
    assert last.fate == "collapse"
    assert 0.0 < last.figure < 1e-3


def test_one_duplicate_among_few_samples_is_counted() -> None:
    x = tokens_of(32, seed=5)
    x[1, -1] = x[1, 7]
    found, _ = judged(network_of("pre", seed=3), x)
    last = found["merged last token"]
    assert (last.fate, last.found_in) == ("slow", 1)
    assert "in 1 of 3 samples" in last.sentence


@pytest.mark.parametrize("place", PLACES)
def test_a_cone_is_told_with_its_rank(place: str) -> None:
    common = 3 * torch.randn(1, 1, 32, generator=torch.Generator().manual_seed(9))
    found, _ = judged(network_of(place, seed=3), tokens_of(32, seed=5) + common)
    assert found["cone"].fate == "noted"
    assert found["cone"].figure > 0.5
    assert found["depth collapse"].fate == "absent"


def test_layers_that_do_nothing_are_layer_collapse() -> None:
    network = network_of("pre", seed=3)
    with torch.no_grad():
        for block in network.blocks[4:6]:
            block.attention.output.weight.zero_()
            block.mlp.down.weight.zero_()
            block.mlp.down.bias.zero_()
            block.attention.output.bias.zero_()
    found, _ = judged(network, tokens_of(32, seed=5))
    idle = found["layer collapse"]
    assert (idle.fate, idle.layer) == ("collapse", 5)
    assert "layers 5 to 6" in idle.sentence
    assert LAYERS == 8


def test_attention_over_many_tokens_collapses_in_width() -> None:
    """Even attention without a skip leaves of T independent tokens their mean, of length T^-1/2.

    Beside a bias that all tokens get, the differences are what is left of it: a causal mask keeps
    them, and every longer context averages over more.
    """
    network = Network.random(
        Spec(1, 1, 64, skip=0.0, mlp_ratio=0.0, norm="none", init="lecun", mask="causal"), seed=0
    )
    with torch.no_grad():
        network.blocks[0].attention.query.weight.zero_()
        network.blocks[0].attention.output.bias.fill_(1.0)
    found, _ = judged(network, tokens_of(64, seed=5, tokens=256))
    width = found["width collapse"]
    assert width.fate == "collapse"
    assert -0.65 < width.figure < -0.3  # theory: -1/2, up to the logarithm of the harmonic sum


def test_a_giant_token_neither_idles_the_layers_nor_hides_a_collapse() -> None:
    x = tokens_of(32, seed=5)
    x[:, 0] *= 1e7
    healthy, _ = judged(network_of("pre", seed=3), x)
    assert healthy["layer collapse"].fate == "absent"
    assert healthy["depth collapse"].fate == "absent"
    network = network_of("pre", seed=3)
    with torch.no_grad():  # the same large vector is added to every token
        network.blocks[3].mlp.down.bias.fill_(1e4)
    hidden, _ = judged(network, x)
    assert hidden["depth collapse"].fate == "collapse"


def test_a_layer_that_reverses_all_tokens_is_not_the_identity() -> None:
    x = tokens_of(32, seed=5).double()
    counted = torch.ones(x.shape[:2], dtype=torch.bool)
    assert turn(x, -x, counted).tolist() == pytest.approx([math.pi] * 3)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_no_verdict_and_no_number_of_a_token(side: str) -> None:
    x = tokens_of(32, seed=5)
    x[:, -1] = x[:, 7]
    noise = torch.full((3, 10, 32), 7.0)
    mask = torch.ones(3, 50, dtype=torch.bool)
    if side == "left":
        padded = torch.cat([noise, x], 1)
        mask[:, :10] = False
    else:
        padded = torch.cat([x, noise], 1)
        mask[:, 40:] = False
    plain, _ = judged(network_of("pre", seed=3), x)
    found, _ = judged(network_of("pre", seed=3), padded, mask)
    assert {kind: each.fate for kind, each in found.items()} == {
        kind: each.fate for kind, each in plain.items()
    }
    assert "token 7 of its text" in found["merged last token"].sentence


@pytest.mark.parametrize("equal", [True, False])
def test_tokens_that_are_alike_from_the_start_cannot_be_told(equal: bool) -> None:
    x = torch.ones(2, 5 if equal else 1, 32)
    found, _ = judged(network_of("pre", seed=3), x)
    assert found["depth collapse"].fate == "unknown"


def test_short_texts_among_long_ones_leave_the_width_to_the_others() -> None:
    mask = torch.ones(3, TOKENS, dtype=torch.bool)
    mask[1, 20:] = False
    found, _ = judged(network_of("pre", seed=3), tokens_of(32, seed=5), mask)
    assert (found["width collapse"].fate, found["width collapse"].samples) == ("absent", 2)
