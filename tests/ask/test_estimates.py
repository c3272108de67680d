"""Estimates: counted by hand where that is easy, and honest about what does not fit."""

from typing import Any

import pytest
import torch

from rankscope import Network, Spec
from rankscope.ask import Cost, Model, Subject
from rankscope.ask import _estimates as estimates
from rankscope.errors import InputError
from rankscope.experiments.catalogue import entries

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
    with pytest.raises(InputError, match=r"about 4 GiB of memory, and 1 GiB are there; .*--length"):
        estimates.refuse_unasked(Cost(bytes=2**32), "--length")
    monkeypatch.setattr(estimates, "available_memory", lambda: None)
    estimates.refuse_unasked(Cost(bytes=2**70), "--length")


def test_a_network_without_end_is_refused_before_it_is_built() -> None:
    with pytest.raises(InputError, match="make the network smaller"):
        estimates.refuse_impossible(Spec(10**9, 1, 8), torch.float32)


def test_memory_is_what_is_free_or_allowed(tmp_path, monkeypatch) -> None:
    info, limit = tmp_path / "meminfo", tmp_path / "memory.max"
    info.write_text("MemTotal: 99 kB\nMemAvailable:    4 kB\n")
    monkeypatch.setattr(estimates, "_MEMINFO", info)
    monkeypatch.setattr(estimates, "_CGROUP", limit)
    assert estimates.available_memory() == 4096
    limit.write_text("1000\n")
    assert estimates.available_memory() == 1000
    limit.write_text("max\n")
    assert estimates.available_memory() == 4096
    info.unlink()
    assert estimates.available_memory() > 2**20
