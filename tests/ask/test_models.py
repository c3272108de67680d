"""Models by their sources: what they are called, and what they read."""

from pathlib import Path

import pytest

from rankscope.ask import Model, built_in, by_name, read_model
from rankscope.errors import InputError

from ..experiments.tiny import Tiny
from ..models.families.conftest import minilm

__all__ = ["minilm"]


def test_a_case_says_whether_it_is_trained():
    assert Model("bert-base", at_init=True).name == "bert-base (init)"
    assert Model("folder/mini").name == "mini (pretrained)"
    assert Model("folder/mini", label="Mini").name == "Mini (pretrained)"


def test_cases_called_alike_are_numbered():
    alike = [Model(f"{folder}/mini") for folder in "abc"]
    named = by_name([*alike, Model("mini", at_init=True)])
    assert list(named) == [
        "mini (pretrained)",
        "mini (pretrained) 2",
        "mini (pretrained) 3",
        "mini (init)",
    ]
    assert list(named.values())[:3] == alike


def test_no_model_and_unknown_models_are_refused():
    with pytest.raises(InputError, match="no models are given"):
        by_name([])
    with pytest.raises(InputError, match="nonsense is not built in; choose bert-base"):
        built_in("bert-base", "nonsense")


def test_a_folder_is_loaded_with_its_weights_or_with_random_ones(minilm: Path):
    trained, fresh, other = (
        case.load(seed=seed).network.blocks[0].attention.query.weight
        for case, seed in (
            (Model(str(minilm)), 0),
            (Model(str(minilm), at_init=True), 0),
            (Model(str(minilm), at_init=True), 1),
        )
    )
    assert not trained.equal(fresh)
    assert not fresh.equal(other)


def test_models_read_bundled_passages_unless_given_texts():
    loaded = Tiny("bert").load()
    (x, token_mask, _), check = read_model(loaded, length=6, samples=3)
    assert x.shape[:2] == token_mask.shape == (3, 6)
    assert check.samples == 3
    read, _ = read_model(loaded, ["one", "one two three"], length=6)
    assert read.token_mask.sum(1).tolist() == [1, 3]


def test_a_model_that_sees_takes_noise_and_no_texts():
    loaded = Tiny("vit").load()
    first, other = (read_model(loaded, samples=2, seed=seed)[0].x for seed in (0, 1))
    assert len(first) == 2
    assert not first.equal(other)
    with pytest.raises(InputError, match="sees images"):
        read_model(loaded, ["one"])
