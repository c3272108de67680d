"""Two points on arcs: the folded step is the step in the plane, in both arithmetics."""

import math

import mpmath
import pytest
import torch

from rankscope import Spec
from rankscope.experiments.claims.d6 import (
    arcs,
    as_tokens,
    deep_distances,
    folded,
    log10_distances,
    next_places,
    trajectory,
)
from rankscope.models.training import SequenceModel
from rankscope.streams import stream

KINDS = {
    "pure": ({"mlp_ratio": 0.0}, False),
    "MLP": ({"mlp_ratio": 1.0}, False),
    "skip": ({"mlp_ratio": 0.0}, True),
}


def made(kind, seed=0):
    """A model with biases that count and a readout that neither blows up nor goes out at once."""
    more, skip = KINDS[kind]
    spec = Spec(1, 2, 8, norm="none", skip=False, init="xavier", **more)
    model = SequenceModel.random(spec, outputs=2, coordinates=2, seed=seed)
    with torch.no_grad():
        for number, each in enumerate(model.parameters()):
            if each.ndim == 1:
                each.add_(
                    torch.randn(each.shape, generator=stream(seed, "bias", number)), alpha=0.1
                )
        model.readout.weight.mul_(0.5)
    return model, skip


def test_arcs_start_where_the_paper_starts_and_meet_at_the_other_end():
    places = arcs(4)
    assert places.shape == (5, 2, 2)
    assert torch.allclose(places[0], torch.tensor([[-0.3, 0.0], [0.3, 0.0]]).double())
    assert torch.allclose(places[2], torch.tensor([[0.0, -0.3], [0.0, 0.3]]).double())
    assert torch.allclose(places[-1], places[0].flip(0))
    assert torch.allclose(torch.linalg.vector_norm(places, dim=-1), torch.tensor(0.3).double())


def test_examples_lead_from_each_place_to_the_next():
    plain, skipping = (next_places(4, skip=skip) for skip in (False, True))
    places = arcs(4).float()
    assert torch.equal(plain.targets, places[1:])
    assert torch.allclose(skipping.inputs + skipping.targets, places[1:], atol=1e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_the_folded_layer_is_the_step_in_the_plane(kind):
    model, skip = made(kind)
    exact = model.double()
    network = folded(model, skip=skip)
    now = torch.randn(3, 2, 2, generator=stream(1, "places"), dtype=torch.float64)
    then = exact(now) + (now if skip else 0.0)
    assert torch.allclose(network(as_tokens(now, 8)), as_tokens(then, 8), atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_scaled_distances_are_those_of_plain_arithmetic_where_that_resolves_them(kind):
    model, skip = made(kind)
    places = trajectory(model, 12, skip=skip)
    plain = torch.linalg.vector_norm(places[:, 0] - places[:, 1], dim=-1).log10().tolist()
    scaled = log10_distances(deep_distances(model, 12, skip=skip))
    assert scaled[0] == pytest.approx(math.log10(0.6), abs=1e-12)
    compared = [(one, other) for one, other in zip(scaled, plain, strict=True) if other > -9]
    assert len(compared) >= 3
    for one, other in compared:
        assert one == pytest.approx(other, abs=1e-5)


def test_distances_far_below_floats_are_those_of_many_digits():
    """The pure step once more, in 1,200 digits."""
    model, _ = made("pure")
    exact = model.double()
    scaled = log10_distances(deep_distances(model, 6, skip=False))
    assert scaled[-1] < -40
    with mpmath.workdps(1200):

        def as_mp(tensor):
            return mpmath.matrix(tensor.tolist())

        attention = exact.network.blocks[0].attention
        encode, decode = exact.encoder, exact.readout

        def linear(rows, module):
            bias = module.bias.tolist()
            out = rows * as_mp(module.weight).T
            for i in range(out.rows):
                for j in range(out.cols):
                    out[i, j] += bias[j]
            return out

        rows = as_mp(arcs(1)[0])
        for expected in scaled[1:]:
            hidden = linear(rows, encode)
            query, key, value = (
                linear(hidden, each) for each in (attention.query, attention.key, attention.value)
            )
            mixed = mpmath.zeros(2, 8)
            for head in range(2):
                own = range(4 * head, 4 * head + 4)
                for i in range(2):
                    logits = [
                        attention.scale * mpmath.fsum(query[i, c] * key[j, c] for c in own)
                        for j in range(2)
                    ]
                    total = mpmath.fsum(map(mpmath.exp, logits))
                    for c in own:
                        mixed[i, c] = mpmath.fsum(
                            mpmath.exp(logits[j]) / total * value[j, c] for j in range(2)
                        )
            rows = linear(linear(mixed, attention.output), decode)
            apart = mpmath.sqrt(sum((rows[0, c] - rows[1, c]) ** 2 for c in range(2)))
            assert expected == pytest.approx(float(mpmath.log10(apart)), rel=1e-9)
