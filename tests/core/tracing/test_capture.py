"""Hidden states themselves: the right ones, at the cost of no more than was asked."""

import pytest
import torch
from torch import nn

from rankscope.core.tracing import captured_input, captured_states
from rankscope.errors import RankscopeError


class Adding(nn.Module):
    """A block that adds its number, in place if told to, and counts its calls."""

    def __init__(self, number, *, in_place=False):
        super().__init__()
        self.number, self.in_place, self.calls = number, in_place, 0

    def forward(self, x):
        self.calls += 1
        return x.add_(self.number) if self.in_place else x + self.number


def stack(*numbers, in_place=False):
    return nn.Sequential(*(Adding(number, in_place=in_place) for number in numbers))


def hooks(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def embedded(model):
    """A run with something before the blocks, as an embedding is."""
    return lambda: model(torch.full((1, 2, 3), 5.0))


def numbers(states):
    return [state.unique().tolist() for state in states]


def test_states_are_the_input_and_every_output():
    model = stack(1.0, 10.0, 100.0)
    assert numbers(captured_states(list(model), embedded(model))) == [[5], [6], [16], [116]]
    assert hooks(model) == 0


def test_a_block_used_again_is_another_state():
    block = Adding(1.0)
    states = captured_states([block, block], lambda: block(block(torch.zeros(1, 1, 1))))
    assert numbers(states) == [[0], [1], [2]]


@pytest.mark.parametrize("in_place", [False, True])
def test_states_are_what_they_were_when_they_passed(in_place):
    """Models may work in place; what was captured must not change under our hands."""
    model = stack(1.0, 10.0, in_place=in_place)
    assert numbers(captured_states(list(model), embedded(model))) == [[5], [6], [16]]
    model = stack(1.0, 10.0, in_place=in_place)
    assert captured_input([model[1]], embedded(model)).unique().tolist() == [6]


def test_input_ends_the_run_at_the_first_block():
    model = stack(1.0, 10.0, 100.0)
    found = captured_input([model[1], model[2]], embedded(model))
    assert found.unique().tolist() == [6]
    assert [block.calls for block in model] == [1, 0, 0]
    assert hooks(model) == 0


@pytest.mark.parametrize("capture", [captured_input, captured_states])
def test_hooks_are_removed_after_an_error(capture):
    model = stack(1.0)

    def run():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        capture(list(model), run)
    assert hooks(model) == 0


@pytest.mark.parametrize("capture", [captured_input, captured_states])
def test_no_gradients(capture):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    found = capture([model[1]], embedded(model))
    assert not any(state.requires_grad for state in (found if isinstance(found, list) else [found]))
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("capture", [captured_input, captured_states])
def test_blocks_that_never_run(capture):
    with pytest.raises(RankscopeError, match="ran none of the blocks"):
        capture([Adding(1.0)], lambda: None)
