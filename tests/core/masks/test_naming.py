"""Masks by name: every name, combinations, and what cannot be read."""

import pytest
import torch

from rankscope.core.masks import (
    NAMES,
    BigBird,
    BlockLocal,
    Causal,
    Dilated,
    Explicit,
    Fixed,
    Full,
    Prefix,
    Random,
    Star,
    Strided,
    Window,
    as_mask,
    intersection,
    union,
    window,
)
from rankscope.errors import KindError, SpecError

WRITTEN = {
    "full": Full(),
    "causal": Causal(),
    "window:8": Window(before=8, after=8),
    "window:0": Window(before=0, after=0),
    "window:8:2": Window(before=8, after=2),
    "causal-window:8": Window(before=8, after=0),
    "dilated:8:2": Dilated(reach=8, step=2),
    "causal-dilated:8:2": Dilated(reach=8, step=2, causal=True),
    "strided:8": Strided(8),
    "causal-strided:8": Strided(8, causal=True),
    "fixed:8": Fixed(8),
    "block:16": BlockLocal(16),
    "star:1": Star(1),
    "random:2": Random(2),
    "random:2:7": Random(2, seed=7),
    "bigbird:3:1:2": BigBird(window=3, hubs=1, random=2),
    "bigbird:3:1:2:7": BigBird(window=3, hubs=1, random=2, seed=7),
    "prefix:4": Prefix(4),
    "window:8|star:1": window(8) | Star(1),
    " causal & window:8 | star:1 ": (Causal() & window(8)) | Star(1),
    "star:1 | causal & window:8": (Causal() & window(8)) | Star(1),
    "causal&causal": Causal(),
}


@pytest.mark.parametrize("written", WRITTEN)
def test_names(written):
    assert as_mask(written) == WRITTEN[written]


def test_every_name_is_tried():
    assert {written.split(":")[0] for written in WRITTEN} >= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_usage_a_name_shows_can_be_read(name):
    assert as_mask(NAMES[name].usage.split(" ")[0]) is not None


def test_masks_and_matrices_stay_what_they_are():
    assert as_mask(Star(2)) == Star(2)
    assert as_mask(torch.eye(2).bool()) == Explicit.of(torch.eye(2).bool())


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("windows:8", "mask='windows:8' is unknown; expected full, causal, window:8, "),
        ("", "mask='' is unknown"),
        ("Full", "mask='Full' is unknown"),
        ("full |", "mask='full |': '' is unknown"),
        ("full & half", "mask='full & half': 'half' is unknown"),
        ("(full)", "is unknown"),
        ("window", "'window' cannot be read; write window:8"),
        ("window:", "cannot be read"),
        ("window:-1", "cannot be read"),
        ("window:1.5", "cannot be read"),
        ("window:²", "cannot be read"),
        ("window:1:2:3", "cannot be read"),
        ("full:1", "cannot be read; write full"),
        ("dilated:8", r"write dilated:8:2 \(reach, step\)"),
        ("bigbird:3:1", r"write bigbird:3:1:2 \(window, hubs, random keys"),
        ("dilated:8:0", "mask='dilated:8:0': Dilated step=0 is out of range"),
        ("block:0", "size=0"),
        ("window:99999999999", "expected 0 to 2147483647"),
    ],
)
def test_what_cannot_be_read(written, words):
    with pytest.raises(SpecError, match=words):
        as_mask(written)


@pytest.mark.parametrize("thing", [3, None, [[True]]], ids=["number", "none", "list"])
def test_things_that_are_no_mask(thing):
    with pytest.raises(KindError, match=r"expected a str or a Mask or a torch.Tensor"):
        as_mask(thing)


def test_a_seed_is_for_random_masks_that_name_none():
    assert as_mask("random:2", seed=5) == Random(2, 5)
    assert as_mask("random:2:7", seed=5) == Random(2, 7)
    assert as_mask("bigbird:2:1:2", seed=5) == BigBird(2, 1, 2, 5)
    assert as_mask("bigbird:2:1:2:0", seed=5) == BigBird(2, 1, 2, 0)
    assert as_mask("random:2 | random:3:1 & causal", seed=5) == union(
        Random(2, 5), intersection(Random(3, 1), Causal())
    )
    for name in ("random:2", "bigbird:2:1:2"):
        assert as_mask(name) == as_mask(name, seed=0) != as_mask(name, seed=1)
    for name, form in NAMES.items():
        if not form.drawn:
            written = ":".join([name, *["2"] * form.least])
            assert as_mask(written, seed=5) == as_mask(written)
    assert as_mask(Random(2), seed=5) == Random(2)


@pytest.mark.parametrize("seed", [-1, 1.0, None, True])
def test_seeds_that_are_none(seed):
    with pytest.raises((SpecError, KindError), match="seed="):
        as_mask("random:2", seed=seed)
