"""The Triton kernels for hidden states give what the definitions give in float64."""

import json
from pathlib import Path

import pytest
import torch

from rankscope.metrics._fused import has_kernels_for

from ..scripts import output_of

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
    assert "does not fit into torch.float32" in words.pop("sums")
    for case, text in words.items():
        assert f"not finite at [1, {case[-1]}] (sample, token)" in text


def test_tokens_too_far_apart_are_refused(found) -> None:
    assert set(found["doubts"]) == {"larger", "smaller", "alike"}
    for words in found["doubts"].values():
        assert "15 orders of magnitude" in words
        assert words.endswith("measure in float64.")


def test_largest_entries_and_words_are_gathered(found) -> None:
    names = ("largest", "read", "noticed", "a column")
    assert found["gathered"] == dict.fromkeys(names, True)


def test_the_kernels_are_for_cuda_alone() -> None:
    assert not has_kernels_for(torch.zeros(1, 2, 3))
