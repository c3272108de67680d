"""The Triton kernels for hidden states give what the definitions give in float64."""

import json
from pathlib import Path

import pytest
import torch

from rankscope.core.metrics import _fused, _statistics
from rankscope.core.metrics._fused import has_kernels_for

from ...scripts import output_of

SCRIPT = Path(__file__).with_name("fused_interpreted.py")
NUMBER_OF_CASES = {
    "shapes": 7, "real_sizes": 2, "masks": 7, "strides": 6, "kinds": 3, "sizes": 13, "public": 5
}  # fmt: skip


@pytest.fixture(scope="module")
def found():
    """What the script prints; Triton's interpreter is for a process of its own."""
    return json.loads(output_of(SCRIPT))


@pytest.mark.parametrize("part", NUMBER_OF_CASES)
def test_figures_are_those_of_the_definitions(part, found) -> None:
    assert len(found[part]) == NUMBER_OF_CASES[part]
    assert {name: far for name, far in found[part].items() if not far < 1e-6} == {}


def test_states_keep_their_order_whatever_they_are_and_however_many(found) -> None:
    assert len(found["several"]) == 7
    assert max(found["several"]) < 1e-6


def test_nothing_is_left_of_equal_tokens(found) -> None:
    assert found["equal"] == {"rest": [0.0, 0.0], "cosine": pytest.approx([1, 1], abs=1e-6)}


def test_results_agree_to_the_last_bit(found) -> None:
    assert found["repeated"] is True


def test_the_mean_comes_at_once(found) -> None:
    assert found["center"] < 1e-6


def test_a_token_that_is_no_number_is_named(found) -> None:
    words = found["faults"]
    assert (words.pop("sound"), len(words)) == ("", 5)
    assert "overflows torch.float32" in words.pop("sums")
    for case, text in words.items():
        assert f"not finite at [1, {case[-1]}] (sample, token)" in text


def test_tokens_too_far_apart_are_refused(found) -> None:
    assert set(found["doubts"]) == {"larger", "smaller", "alike"}
    for words in found["doubts"].values():
        assert "15 orders of magnitude" in words
        assert words.endswith("measure in float64.")


def test_largest_entries_are_gathered(found) -> None:
    assert found["gathered"] == {"largest": True}


def test_the_kernels_are_for_cuda_alone() -> None:
    assert not has_kernels_for(torch.zeros(1, 2, 3))


class Started:
    """Stands in for the start of kernels, and for what starts them again; notes what it is told."""

    def __init__(self):
        self.first, self.again = [], []

    def __call__(self, kernel, _grid, tensors, numbers, options, *, free, **_):
        name = kernel.removeprefix("_fused_kernels.")
        self.first.append((name, (*tensors, *free, *numbers, *options)))
        return lambda *given: self.again.append((name, given))

    def addresses(self, call):
        name, arguments = self.first[call]
        return name, [x.data_ptr() if isinstance(x, torch.Tensor) else x for x in arguments]


def test_kernels_are_started_again_by_address(monkeypatch) -> None:
    started, states = Started(), torch.randn(4, 2, 5, 8)
    monkeypatch.setattr(_fused, "start", started)
    statistics = _fused.FusedStatistics(4)
    mask = torch.tensor([[True] * 4 + [False]] * 2)
    for state, hidden in ((0, None), (1, None), (2, mask), (3, mask)):
        statistics.add(states[state], hidden)
    assert [name for name, _ in started.first] == ["mean_and_rows", "rest_and_columns"] * 2
    assert len(started.again) == 4
    for call, (name, given) in enumerate(started.again):
        known, before = started.addresses(call)
        state = 2 * (call // 2)
        moved = {states[state].data_ptr(): states[state + 1].data_ptr()}
        layer = {"mean_and_rows": 11, "rest_and_columns": 10}[name]
        assert (name, before[layer]) == (known, state)
        before[layer] = state + 1
        assert list(given) == [moved.get(each, each) for each in before]


def test_queries_are_looked_at_again_by_address(monkeypatch) -> None:
    started, both = Started(), torch.randn(2, 2, 1, 3, 5, 8)
    monkeypatch.setattr(_statistics, "start", started)
    monkeypatch.setattr(_statistics, "can_fuse", lambda _: True)
    peaks = _statistics.GatheredPeaks()
    for query, key in both:
        peaks.add(query, key)
    (name, given), (known, before) = started.again[0], started.addresses(0)
    assert (name, len(started.first), len(started.again)) == (known, 1, 1)
    assert list(given[:2]) == [each.data_ptr() for each in both[1]]
    assert given[2:4] == (before[2], 1)
    assert list(given[4:]) == before[4:]
