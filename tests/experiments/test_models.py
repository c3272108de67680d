"""Models by their sources: what they are called, and what they read."""

from pathlib import Path

import pytest

from rankscope.errors import InputError
from rankscope.experiments.models import Case, at_initialisation, by_name, inputs

from ..models.families.conftest import minilm
from .tiny import Tiny

__all__ = ["minilm"]


def test_a_case_says_whether_it_is_trained():
    assert Case("bert-base").name == "bert-base (init)"
    assert Case("folder/mini", trained=True).name == "mini (pretrained)"
    assert Case("folder/mini", trained=True, label="Mini").name == "Mini (pretrained)"


def test_cases_called_alike_are_numbered():
    alike = [Case(f"{folder}/mini", trained=True) for folder in "abc"]
    named = by_name([*alike, Case("mini")])
    assert list(named) == [
        "mini (pretrained)",
        "mini (pretrained) 2",
        "mini (pretrained) 3",
        "mini (init)",
    ]
    assert list(named.values())[:3] == alike


def test_no_model_and_unknown_models_are_refused():
    with pytest.raises(InputError, match="no model to try"):
        by_name([])
    with pytest.raises(InputError, match="nonsense is not built in; choose bert-base"):
        at_initialisation("bert-base", "nonsense")


def test_a_folder_is_loaded_with_its_weights_or_with_random_ones(minilm: Path):
    trained, fresh, other = (
        case.load(seed=seed).network.blocks[0].attention.query.weight
        for case, seed in (
            (Case(str(minilm), trained=True), 0),
            (Case(str(minilm)), 0),
            (Case(str(minilm)), 1),
        )
    )
    assert not trained.equal(fresh)
    assert not fresh.equal(other)


def test_models_read_bundled_passages_unless_given_texts():
    loaded = Tiny("bert").load()
    x, token_mask = inputs(loaded, None, 6, samples=3)
    assert x.shape[:2] == token_mask.shape == (3, 6)
    x, token_mask = inputs(loaded, ["one", "one two three"], 6)
    assert token_mask.sum(1).tolist() == [1, 3]


def test_a_model_that_sees_takes_noise_and_no_texts():
    loaded = Tiny("vit").load()
    first, other = (inputs(loaded, None, 6, samples=2, seed=seed)[0] for seed in (0, 1))
    assert len(first) == 2
    assert not first.equal(other)
    with pytest.raises(InputError, match="takes images, not texts"):
        inputs(loaded, ["one"], 6)
