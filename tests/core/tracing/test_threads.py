"""Several threads and one model: each trace records its own pass, and the model is put back."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from rankscope.core.network import Network, Spec
from rankscope.core.tracing import captured_states, evaluating, trace
from rankscope.errors import InputError

WAIT = 10.0
"""Seconds until a thread that waits for another gives up; far more than any takes."""


def small():
    return Network.random(Spec(3, 2, 8), seed=0, dtype=torch.float64)


class Meeting(nn.Module):
    """A block after which two threads wait for each other, so that their passes interleave."""

    def __init__(self, barrier):
        super().__init__()
        self.linear = nn.Linear(8, 8, dtype=torch.float64)
        self.barrier = barrier

    def forward(self, x):
        if self.barrier is not None:
            self.barrier.wait(WAIT)
        return torch.tanh(self.linear(x))


def meeting(parties):
    torch.manual_seed(0)
    barrier = threading.Barrier(parties)
    return nn.Sequential(*(Meeting(barrier) for _ in range(3)))


def alone(model, x):
    """The trace of the same model with nobody to wait for."""
    barriers = [block.barrier for block in model]
    for block in model:
        block.barrier = None
    found = trace(model, x)
    for block, barrier in zip(model, barriers, strict=True):
        block.barrier = barrier
    return found


def test_two_traces_that_interleave_are_both_right(tokens):
    model = meeting(2).train()
    inputs = [tokens(2, 5, 8, seed=seed) for seed in range(2)]
    expected = [alone(model, x).columns for x in inputs]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda x: trace(model, x).columns, inputs))
    assert found == expected
    assert all(module.training for module in model.modules())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_a_forward_pass_of_another_thread_is_not_recorded(tokens):
    model = meeting(2).eval()
    x, other = tokens(2, 5, 8), tokens(4, 6, 8, seed=1)
    with ThreadPoolExecutor(2) as pool:
        passing = pool.submit(model, other)
        found = pool.submit(trace, model, x).result(2 * WAIT)
        passing.result(2 * WAIT)
    assert found.columns == alone(model, x).columns


def test_captured_states_are_those_of_their_own_thread(tokens):
    model = meeting(2).eval()
    inputs = [tokens(2, 5, 8, seed=seed) for seed in range(2)]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda x: captured_states(list(model), lambda: model(x)), inputs))
    for x, states in zip(inputs, found, strict=True):
        assert len(states) == 4
        assert torch.equal(states[0], x)


def test_many_traces_of_one_network(tokens):
    net = small().train()
    inputs = [tokens(2, 5, 8, seed=seed) for seed in range(24)]
    expected = [trace(net, x) for x in inputs]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda x: trace(net, x), inputs))
    assert [each.columns for each in found] == [each.columns for each in expected]
    assert [each.provenance for each in found] == [each.provenance for each in expected]
    assert all(module.training for module in net.modules())


def test_the_last_to_leave_puts_the_modes_back():
    net = small().train()
    net.blocks[1].eval()
    modes = [module.training for module in net.modules()]
    first, second = evaluating(net), evaluating(net)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not any(module.training for module in net.modules())
    second.__exit__(None, None, None)
    assert [module.training for module in net.modules()] == modes


def test_variants_that_share_modules_are_put_back_too(tokens):
    net = small().train()
    with evaluating(net.without("skip")):
        trace(net, tokens(1, 4, 8))
        assert not net.blocks[0].attention.training
    assert all(module.training for module in net.modules())


def test_blocks_that_run_in_other_threads(tokens):
    class Elsewhere(nn.Module):
        """As DataParallel runs its replicas."""

        def __init__(self):
            super().__init__()
            self.module = meeting(1).eval()

        def forward(self, x):
            with ThreadPoolExecutor(1) as pool:
                return pool.submit(self.module, x).result()

    with pytest.raises(InputError, match=r"in other threads, as in DataParallel.*model\.module"):
        trace(Elsewhere(), tokens(2, 5, 8))


def test_dataparallel_on_one_device(tokens):
    net, x = small(), tokens(2, 5, 8)
    assert trace(nn.DataParallel(net), x).columns == trace(net, x).columns


def test_random_states_are_put_back_by_the_last_to_leave():
    before = torch.get_rng_state()
    first, second = evaluating(small()), evaluating(small())
    first.__enter__()
    torch.rand(1)
    second.__enter__()
    torch.rand(1)
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert torch.equal(torch.get_rng_state(), before)
