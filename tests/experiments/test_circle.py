"""The released circle network: against torch's own modules, and its training step by step."""

import math

import pytest
import torch
from torch import nn

from rankscope.experiments.circle import (
    CircleNetworks,
    SeededDropout,
    Training,
    step_errors,
    train,
    trajectories,
)
from rankscope.process.progress import silent
from rankscope.streams import stream

SMALL = Training(points=40, epochs=3, batch=6, learning_rate=1e-3, dropout=0.0)


class Reference(nn.Module):
    """One network of torch's modules, with the weights of one seed of a stack."""

    def __init__(self, stack, seed, width=8):
        super().__init__()
        self.embed, self.readout = nn.Linear(2, width), nn.Linear(width, 2)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.up, self.down = nn.Linear(width, width), nn.Linear(width, width)
        self.norms = nn.ModuleDict(
            {name: nn.LayerNorm(width, eps=1e-12) for name in ("embed", "attention", "mlp")}
        )
        self.mlp = stack.mlp
        linear = {"embed": self.embed, "readout": self.readout}
        linear |= {"output": self.attention.out_proj, "up": self.up, "down": self.down}
        with torch.no_grad():
            for name, module in linear.items():
                if name in stack.weights:
                    module.weight.copy_(stack.weights[name][seed].T)
                    module.bias.copy_(stack.biases[name][seed, 0])
            three = ("query", "key", "value")
            self.attention.in_proj_weight.copy_(
                torch.cat([stack.weights[name][seed].T for name in three])
            )
            self.attention.in_proj_bias.copy_(
                torch.cat([stack.biases[name][seed, 0] for name in three])
            )
            for name in stack.gains:
                self.norms[name].weight.copy_(stack.gains[name][seed, 0])
                self.norms[name].bias.copy_(stack.shifts[name][seed, 0])

    def forward(self, places):
        h = self.norms["embed"](self.embed(places))
        h = self.norms["attention"](self.attention(h, h, h, need_weights=False)[0] + h)
        if self.mlp:
            h = self.norms["mlp"](self.down(nn.functional.gelu(self.up(h))) + h)
        return self.readout(h)


def stack(*, mlp=False, seeds=(3, 5), width=8):
    return CircleNetworks(width, 2, mlp=mlp, seeds=seeds)


@pytest.mark.parametrize("mlp", [False, True])
def test_a_stack_is_torchs_own_network_for_every_seed(mlp):
    networks = stack(mlp=mlp)
    with torch.no_grad():
        for number, each in enumerate(networks.parameters()):
            each.add_(torch.randn(each.shape, generator=stream(0, "more", number)), alpha=0.3)
    places = torch.randn(2, 5, 2, 2, generator=stream(1, "places"))
    outputs = networks(places)
    for seed in range(2):
        expected = Reference(networks, seed)(places[seed])
        assert torch.allclose(outputs[seed], expected, atol=1e-5)


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("mlp", [False, True])
def test_training_is_that_of_one_network_by_itself(mlp, skip):
    """Batches in order; with a skip the batch before is added, none before the first."""
    networks = stack(mlp=mlp)
    alone = [Reference(networks, seed) for seed in range(2)]
    train(networks, SMALL, skip=skip, seeds=(3, 5), on_step=silent)
    angle = [2 * math.pi * at / 40 for at in range(40)]
    circle = torch.tensor([[0.3 * math.cos(a), 0.3 * math.sin(a)] for a in angle])
    for seed, network in enumerate(alone):
        optimiser = torch.optim.Adam(network.parameters(), lr=1e-3)
        for _ in range(3):
            before = torch.zeros(6, 2, 2)
            for at in range(0, 19, 6):
                rows = range(at, min(at + 6, 19))
                now = torch.stack([circle[[row, row + 19]] for row in rows])
                then = torch.stack([circle[[row + 1, row + 20]] for row in rows])
                read = now + before[: len(now)] if skip else now
                optimiser.zero_grad()
                (network(read) - then).square().sum().backward()
                optimiser.step()
                before = now
        places = torch.randn(1, 4, 2, 2, generator=stream(2, "places"))
        outputs = networks.float()(places.expand(2, 4, 2, 2))
        assert torch.allclose(outputs[seed], network(places[0]), atol=2e-4)


def test_the_released_options():
    """Of the README's command and the script: 1,000 points make 499 pairs in 17 batches."""
    training = Training()
    assert (training.epochs, training.batch) == (70, 30)
    assert (training.learning_rate, training.dropout) == (1e-5, 0.1)
    pairs = training.pairs()
    assert pairs.shape == (500, 2, 2)
    assert len(training.read(skip=False).split(30)) == 17
    assert torch.allclose(torch.linalg.vector_norm(pairs, dim=-1), torch.tensor(0.3).double())
    assert pairs[0, 0].tolist() == [0.3, 0.0]
    assert torch.linalg.vector_norm(pairs[0, 0] - pairs[0, 1]) == pytest.approx(0.6, abs=1e-5)


def test_weights_start_as_in_the_released_model():
    wide = stack(mlp=True, width=256).requires_grad_(False)
    for name in ("query", "key", "up", "down"):
        assert float(wide.weights[name].std()) == pytest.approx(0.02, rel=0.02)
    for name in ("value", "output"):
        assert float(wide.weights[name].abs().max()) == pytest.approx(1 / 16, rel=1e-3)
        assert float(wide.weights[name].std()) == pytest.approx(1 / 16 / 3**0.5, rel=0.02)
    assert all(not each.any() for each in wide.biases.values())


def test_dropout_keeps_the_mean_and_draws_by_seed():
    drop = SeededDropout(0.25, [stream(seed, "dropout") for seed in (0, 1)])
    dropped = drop(torch.ones(2, 20_000))
    assert dropped.unique().tolist() == pytest.approx([0.0, 4 / 3])
    assert dropped.mean(1).tolist() == pytest.approx([1.0, 1.0], abs=0.02)
    alone = SeededDropout(0.25, [stream(1, "dropout")])
    assert torch.equal(alone(torch.ones(1, 20_000))[0], dropped[1])


def test_a_seed_trained_with_others_is_the_one_trained_alone():
    training = Training(points=40, epochs=2, batch=6, learning_rate=1e-3)
    both, single = stack(), stack(seeds=(5,))
    train(both, training, skip=False, seeds=(3, 5), on_step=silent)
    train(single, training, skip=False, seeds=(5,), on_step=silent)
    for name, weight in single.weights.items():
        assert torch.allclose(both.weights[name][1], weight[0], atol=1e-6)


@pytest.mark.parametrize("skip", [False, True])
def test_trajectories_are_outputs_of_outputs_or_of_their_sum(skip):
    networks = stack()
    places = trajectories(networks, SMALL, 3, skip=skip)
    assert places.shape == (2, 4, 2, 2)
    assert torch.equal(places[:, 0], SMALL.pairs()[0].expand(2, 2, 2))
    reference = Reference(networks, 1).double()
    state = SMALL.pairs()[:1]
    for step in range(1, 4):
        output = reference(state)
        assert torch.allclose(places[1, step], output[0], atol=1e-9)
        state = state + output if skip else output


def test_errors_are_in_steps_of_the_circle():
    networks = stack()
    for name in networks.weights:
        networks.weights[name].data.zero_()
    # An output of zero misses every point of the circle by its radius.
    assert step_errors(networks, SMALL, skip=False).tolist() == pytest.approx(
        [0.3 / (2 * math.pi * 0.3 / 40)] * 2
    )
