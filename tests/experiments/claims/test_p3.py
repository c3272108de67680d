"""The curse of depth: its recursion against sums by hand, scaled norms, each outcome."""

from dataclasses import replace

import polars as pl
import pytest
import torch

from rankscope import tables
from rankscope.core.network import Network
from rankscope.errors import InputError
from rankscope.experiments import kit
from rankscope.experiments.claims import p3
from rankscope.experiments.claims._overlapping import overlapping_tokens
from rankscope.process.progress import silent

from ..shown import can_be_shown, steps_of

SMALL = p3.Config(layers=8, tokens=4, width=16, heads=2, scales=(1.0, 2.0), draws=2, networks=2)


@pytest.mark.parametrize("scaled", [False, True])
def test_tokens_that_agree_make_the_variance_a_sum(scaled: bool) -> None:
    """Attention then adds 1 and the MLP 1/2, in layer ℓ over ℓ if its norms are scaled."""
    config = replace(SMALL, overlap=1 - 1e-9, width=128, draws=32)
    chained = p3._chain(config, 1.0, scaled=scaled)
    added = [1.5 / layer if scaled else 1.5 for layer in range(1, 9)]
    by_hand = [1 + sum(added[:layer]) for layer in range(9)]
    assert chained == pytest.approx(by_hand, rel=0.03)


def test_scaled_gains_are_what_the_scaled_spec_says() -> None:
    x = overlapping_tokens(4, 16, 0.1, 0).unsqueeze(0)
    gained, weighted = (
        Network.random(SMALL.spec(1.5, 1, at=at), seed=4, dtype=torch.float64) for at in (1, 9)
    )
    with torch.no_grad():
        for gain in gained.blocks[0].norms.parameters():
            gain.mul_(1 / 3)
    assert torch.allclose(gained(x), weighted(x), atol=1e-10)


def test_layers_are_counted_from_one() -> None:
    network = Network.random(SMALL.spec(1.0, 4), seed=0)
    with torch.no_grad():
        p3.scale_norms(network)
    gains = [float(next(iter(block.norms.parameters()))[0].detach()) for block in network.blocks]
    assert gains == pytest.approx([1, 2**-0.5, 3**-0.5, 0.5])


def test_a_step_is_what_the_stream_gains() -> None:
    """Over many networks the step's square and the growth of the square are the same."""
    config = replace(SMALL, width=64, networks=1)
    off = []
    for seed in range(40):
        sizes, shares = p3._network(config, 1.0, seed, scaled=False)
        off.append([s - o for s, o in zip(shares, p3._shares(sizes), strict=True)])
    mean = torch.tensor(off).mean(0)
    assert float(mean.abs().max()) < 0.05


def test_it_runs_small_and_can_be_shown() -> None:
    found, _ = steps_of(p3.ENTRY.run, SMALL)
    can_be_shown(found)
    tiny = replace(SMALL, scales=(1.0,), draws=1, networks=1)
    one, same, other = (p3.ENTRY.run(replace(tiny, seed=seed), silent).table for seed in (0, 0, 1))
    assert one.equals(same)
    assert not one.equals(other)
    for wrong in ({"layers": 7}, {"scales": ()}):
        with pytest.raises(InputError, match="8 layers or more"):
            p3.ENTRY.run(replace(SMALL, **wrong), silent)


def made_up(
    growth: float, slowed: float, share: float, last: float, *, exponential: bool = False
) -> pl.DataFrame:
    """Powers of the layer; ``last`` is the share of the last layer with scaled norms."""
    rows = []
    for name, power in ((p3.PLAIN, growth), (p3.SCALED, slowed)):
        for source in (p3.CHAINED, p3.MEASURED):
            label = ("LeCun × 1", f"{name}, {source}")
            for layer in range(33):
                size = 1.3**layer if exponential and name == p3.PLAIN else 1 + layer**power
                rows.append((*label, layer, 0, "stream_variance", size))
                if layer:
                    changed = layer**share if name == p3.PLAIN else last
                    rows.append((*label, layer, 0, "layer_share", changed))
    return tables.from_rows(("model", "variant", "layer", "sample", "metric", "value"), rows)


EXPONENTIAL, LINEAR, IDENTITY, SLOWER = (
    "exponential growth",
    "growth at least linear (the lemma's lower end)",
    "deep layers that tend to the identity",
    "slower growth with norms × 1/√ℓ",
)


@pytest.mark.parametrize(
    ("laws", "against"),
    [
        ((1.0, 0.3, -1.0, 0.05), [EXPONENTIAL]),
        ((2.0, 0.3, -1.0, 0.05), [EXPONENTIAL]),
        ((0.8, 0.3, -1.0, 0.05), [EXPONENTIAL, LINEAR]),
        ((1.0, 1.2, -1.0, 0.05), [EXPONENTIAL, SLOWER]),
        ((1.0, 0.3, -0.4, 0.1), [EXPONENTIAL, IDENTITY]),
        ((0.8, 1.0, -0.2, 1e-6), [EXPONENTIAL, LINEAR, IDENTITY, SLOWER]),
    ],
)
def test_each_question_has_two_sides(
    laws: tuple[float, float, float, float], against: list[str]
) -> None:
    answer = p3.judge(SMALL, made_up(*laws))
    assert answer.stated is not None
    assert [question for question, held in answer.stated.items() if not held] == against
    result = kit.conclude(p3.ENTRY, SMALL, made_up(*laws))
    assert result.verdict == ("fails" if len(against) == 4 else "depends")
    if result.verdict == "depends":
        assert f"not for {', '.join(against)}" in str(result.judgement)
        assert "trained models not tested" in result.judgement.domain
    assert all(sentence.endswith(".") for sentence in result.sentences)


def test_an_exponential_passes_for_one() -> None:
    answer = p3.judge(SMALL, made_up(0.0, 0.3, -1.0, 0.05, exponential=True))
    assert answer.stated is not None
    assert all(answer.stated.values())
    assert answer.key_figures["steadiness of the growth, norms × 1"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("laws", "against"),
    [
        ((1.0, 0.3, -1.0, 0.05), []),
        ((2.1, 0.3, -1.0, 0.05), ["growth at most quadratic"]),
        ((1.0, 0.3, -0.8, 0.1), ["a layer's share falls as 1/ℓ"]),
        ((1.0, 0.3, -1.0, 0.01), ["1/√ℓ lets the last layer change more"]),
    ],
)
def test_what_is_ours_lies_beyond(
    laws: tuple[float, float, float, float], against: list[str]
) -> None:
    beyond = p3.judge(SMALL, made_up(*laws)).beyond
    assert beyond is not None
    assert [name for name, held in beyond.items() if not held] == [
        f"LeCun × 1, {name}" for name in against
    ]


def test_with_weights_of_one_size_the_stream_grows_by_a_bounded_step() -> None:
    """A normed token has length √16, and no branch makes it longer than its spectral norms do."""
    network = Network.random(SMALL.spec(2.0, 8), seed=3, dtype=torch.float64)
    x = overlapping_tokens(4, 16, 0.1, 0).unsqueeze(0)
    with torch.no_grad():
        sizes = [float(state.norm(dim=-1).max()) for state in (x, *network.states(x))]

    def norm(weight: torch.Tensor) -> float:
        return float(torch.linalg.matrix_norm(weight.detach(), 2))

    for layer, block in enumerate(network.blocks):
        attention, mlp = block.attention, block.mlp
        branches = 2**0.5 * norm(attention.value.weight) * norm(attention.output.weight)
        branches += norm(mlp.up.weight) * norm(mlp.down.weight)
        assert sizes[layer + 1] - sizes[layer] <= 4 * branches
