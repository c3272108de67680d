"""Estimates: counted by hand where that is easy, and honest about what does not fit."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from rankscope import Network, Spec
from rankscope.ask import Cost, Model, Subject, ask
from rankscope.ask import _estimates as estimates
from rankscope.core.tracing import MEASURES
from rankscope.errors import InputError
from rankscope.experiments.catalogue import CATALOGUE, entries

SPEC = Spec(3, 2, 8, mlp_ratio=4.0)
SUBJECT = Subject(Network.random(SPEC), torch.zeros(5, 7, 8))


def test_the_numbers_of_a_network_are_counted() -> None:
    for spec in (
        SPEC,
        Spec(2, 4, 8, kv_heads=2, head_width=3),
        Spec(2, 2, 8, gated=True, activation="silu"),
        Spec.pure_attention(2, 2, 8),
    ):
        matrices = [each for each in Network.random(spec).parameters() if each.ndim == 2]
        assert Cost.of_weights(spec, 1).bytes == sum(each.numel() for each in matrices)


def test_a_pass_is_its_matrix_products() -> None:
    maps = 5 * 3 * 7 * (4 * 8 * 8 + 2 * 8 * 32)
    mixing = 5 * 3 * 2 * 7**2 * 2 * 4  # q·k and P·v, four features a head
    assert Cost.of_forward(SUBJECT).products == maps + mixing


def test_costs_add_up_in_the_memory_of_the_largest() -> None:
    assert Cost(1, 2, 3) + Cost(10, 20, 2) == Cost(11, 22, 3)
    assert Cost(1, 2, 3).times(4) == Cost(4, 8, 3)


COMMANDS = {
    "trace": ({}, 3.576e11, 1.510e8, 4.9),
    "trace, every metric": ({"metrics": list(MEASURES)}, 5.363e11, 8.003e9, 28),
    "trace, README": (
        {"metrics": list(MEASURES), "without": "skip", "layers": 24}, 1.068e12, 1.601e10, 55,
    ),
    "diagnose": ({}, 1.261e12, 1.042e10, 35),
    "paths": ({}, 2.682e12, 1.132e9, 39),
    "paths, by head": ({"by_head": True, "samples": 4}, 3.553e12, 1.501e9, 48),
    "deep": ({}, 9.422e10, 2.265e8, 2.0),
    "deep, best center": ({"center": "optimal", "samples": 1}, 2.356e10, 1.472e9, 3.3),
    "bounds": ({}, 9.422e10, 7.889e9, 18.5),
    "masks": ({}, 5.653e11, 2.038e9, 9.0),
    "masks, README": (
        {"masks": ["full", "causal", "window:16"], "depth": 64}, 1.508e12, 5.436e9, 25,
    ),
    "masks, one head": (
        {"layers": 32, "width": 64, "heads": 1, "length": 48, "samples": 2}, 2.491e9, 3.185e7, 2.0,
    ),
    "predict": ({}, 8.184e10, 1.019e9, 4.2),
    "predict, gradients": ({"gradients": True}, 3.814e11, 3.964e9, 18.9),
    "advise": ({"without": "skip"}, 4.676e11, 1.447e10, 34.5),
}  # fmt: skip
"""The README's commands and others: what was said, multiplications, numbers touched, seconds.

Seconds are CPU time, of the main thread or of all threads over two, whichever is more, in a run
with two threads that wait passively: wall time on two idle cores, measured on a busy machine.
Idle, ``diagnose`` of all-MiniLM-L6-v2 took 15.5 s (estimated: 13) and a forward pass of BERT-base
on 8 × 128 tokens 1.0 s (1.2). Where a design lacks nothing, ``advise`` takes a fifth of it.
"""


@pytest.mark.parametrize("command", COMMANDS)
def test_an_estimate_is_right_within_a_factor_of_two(command) -> None:
    said, products, touched, seconds = COMMANDS[command]
    cost = ask(CATALOGUE[command.partition(",")[0]], said).cost()
    assert cost.products == pytest.approx(products, rel=1e-3)
    assert cost.touched == pytest.approx(touched, rel=1e-3)
    assert 0.5 < cost.seconds / seconds < 2
    estimates.refuse_unasked(replace(cost, bytes=0.0), "--length")  # whatever else the machine does


@pytest.mark.parametrize("entry", entries("question").values(), ids=lambda each: each.id)
def test_every_question_says_what_it_costs_and_more_for_more(entry) -> None:
    def cost(samples: int, tokens: int) -> Cost:
        subject = Subject(Network.random(SPEC), torch.randn(samples, tokens, 8))
        fields: dict[str, Any] = {"subject": subject}
        if entry.id == "compare":
            fields = {"models": (Model(subject, label="a"), Model(subject, label="b"))}
        found: Cost = entry.module().cost(entry.configuration(**fields))
        return found

    small, many, long = cost(1, 8), cost(4, 8), cost(1, 32)
    assert small.products > 0
    assert many.products == pytest.approx(4 * small.products)
    assert long.products > 4 * small.products
    assert long.bytes > small.bytes


def test_what_is_long_or_large_is_not_run_unasked(monkeypatch) -> None:
    monkeypatch.setattr(estimates, "available_memory", lambda: 2**30)
    estimates.refuse_unasked(Cost.lasting(299) + Cost(bytes=2**29), "--length")
    with pytest.raises(InputError, match="about 57 minutes and 0 GiB of memory; say --yes"):
        estimates.refuse_unasked(Cost.lasting(3400), "--length")
    with pytest.raises(
        InputError, match=r"about 4 GiB of memory, and 1 GiB are available; .*--length"
    ):
        estimates.refuse_unasked(Cost(bytes=2**32), "--length")
    monkeypatch.setattr(estimates, "available_memory", lambda: None)
    estimates.refuse_unasked(Cost(bytes=2**70), "--length")


def test_a_network_without_end_is_refused_before_it_is_built() -> None:
    with pytest.raises(InputError, match="make the network smaller"):
        estimates.refuse_impossible(Spec(10**9, 1, 8), torch.float32)
