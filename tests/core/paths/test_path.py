"""Paths as values: how they print, how many there are, how they are drawn."""

import math
from collections import Counter

import pytest
import torch

from rankscope.core.network import Network, Spec
from rankscope.core.paths import (
    Path,
    count_paths,
    enumerate_paths,
    path_output,
    path_outputs,
    sample_paths,
)
from rankscope.errors import InputError, KindError


def test_a_path_prints_as_people_write_it() -> None:
    path = Path.of(2, None, 0)
    assert str(path) == "h2 → skip → h0"
    assert path.length == 2
    assert {path, Path((2, None, 0))} == {path}


def test_a_list_of_choices_becomes_a_value() -> None:
    assert {Path([0, None])} == {Path.of(0, None)}


@pytest.mark.parametrize("choices", [("h0",), (1.0,), (True,), None, 3, "01"])
def test_choices_of_the_wrong_kind(choices: tuple) -> None:
    with pytest.raises(KindError, match=r"choices.* expected a (sequence|whole number)"):
        Path(choices)


def test_negative_heads() -> None:
    with pytest.raises(InputError, match="a head on a path=-1 is out of range; expected 0 or more"):
        Path.of(-1)


def test_counts_by_hand_and_by_enumeration() -> None:
    assert count_paths(3, 2).counts == (1, 6, 12, 8)
    assert count_paths(3, 2).total == 27
    every = list(enumerate_paths(3, 2))
    assert len(set(every)) == 27
    assert Counter(path.length for path in every) == {0: 1, 1: 6, 2: 12, 3: 8}
    for length in range(4):
        some = list(enumerate_paths(3, 2, length=length))
        assert set(some) == {path for path in every if path.length == length}


def test_gpt3_does_not_overflow() -> None:
    found = count_paths(96, 96)
    assert found.total == 97**96
    assert sum(found.counts) == found.total
    assert sum(found.proportions) == pytest.approx(1.0, rel=1e-9)
    exact = [float(count * 10**30 // found.total) / 1e30 for count in found.counts]
    assert found.proportions[80:] == pytest.approx(exact[80:], rel=1e-9)
    assert math.isfinite(min(found.proportions))


def test_samples_have_the_length_and_are_uniform() -> None:
    generator = torch.Generator().manual_seed(0)
    drawn = sample_paths(3, 2, length=2, count=6000, generator=generator)
    counted = Counter(drawn)
    assert {path.length for path in drawn} == {2}
    assert len(counted) == 12
    expected = 6000 / 12
    chi_square = sum((got - expected) ** 2 / expected for got in counted.values())
    assert chi_square < 31.3  # the 0.999 quantile for 11 degrees of freedom


def test_sampling_touches_no_global_state_and_repeats() -> None:
    state = torch.random.get_rng_state()
    assert sample_paths(5, 4, length=3, count=4) == sample_paths(5, 4, length=3, count=4)
    assert torch.equal(state, torch.random.get_rng_state())


@pytest.mark.parametrize(
    "call",
    [
        lambda: count_paths(0, 2),
        lambda: list(enumerate_paths(2, 0)),
        lambda: list(enumerate_paths(2, 2, length=3)),
        lambda: sample_paths(2, 2, length=-1, count=1),
        lambda: sample_paths(2, 2, length=1, count=-1),
    ],
)
def test_impossible_questions(call) -> None:
    with pytest.raises(InputError):
        call()


@pytest.mark.parametrize("more", [{"mlp_ratio": 0.0}, {"mlp_ratio": 2.0}, {"skip": False}])
def test_paths_that_begin_alike_come_out_as_each_by_itself(more):
    """However many are asked for at once, and whether one is asked for twice."""
    network = Network.random(Spec(3, 2, 8, **more), seed=1, dtype=torch.float64)
    x = torch.randn(2, 5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    paths = [*enumerate_paths(3, 2), Path((0, None, 1)), Path((0, None, 1))]
    together = path_outputs(network, x, paths)
    for path, found in zip(paths, together, strict=True):
        alone = path_output(network, x, path)
        torch.testing.assert_close(found, alone, rtol=1e-13, atol=1e-15)
    assert path_outputs(network, x, []).shape == (0, 2, 5, 8)
