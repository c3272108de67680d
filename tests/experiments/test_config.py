"""A run has the name of all it depends on."""

import json
from dataclasses import dataclass, replace

import pytest

from rankscope.experiments.config import Config, plain
from rankscope.network import ALiBi, Sink


@dataclass(frozen=True)
class Example(Config):
    layers: int = 3
    masks: tuple[str, ...] = ("full", "causal")
    texts: tuple[str, ...] | None = None


def test_a_digest_is_that_of_the_content():
    assert Example().digest("X") == Example(layers=3).digest("X")
    assert len(Example().digest("X")) == 12
    others = [
        Example().digest("Y"),
        Example(seed=1).digest("X"),
        Example(layers=4).digest("X"),
        Example(masks=("full",)).digest("X"),
        Example(masks=("causal", "full")).digest("X"),
        Example(texts=()).digest("X"),
    ]
    assert len({Example().digest("X"), *others}) == 7


def test_a_version_has_its_own_digests(monkeypatch):
    before = Example().digest("X")
    monkeypatch.setattr("rankscope.experiments.config.__version__", "another")
    assert Example().digest("X") != before


def test_long_texts_are_told_by_their_hash_and_differ_all_the_same():
    long, other = "a" * 300, "a" * 299 + "b"
    assert len(plain(long)) < 100
    assert plain(long) != plain(other)
    assert plain("a" * 200) == "a" * 200


def test_records_without_fields_are_told_apart():
    assert plain(Sink()) != plain(ALiBi())
    assert plain(ALiBi())["type"] == "ALiBi"


@pytest.mark.parametrize("value", [{"a": (1, None)}, (True, 2.5), ALiBi(), {1, 2}])
def test_every_value_can_be_written(value):
    assert json.loads(json.dumps(plain(value), allow_nan=False)) == plain(value)


def test_provenance_says_what_gives_the_same_numbers_again():
    config = replace(Example(), seed=7)
    found = config.provenance("X")
    assert found["experiment"] == "X"
    assert found["digest"] == config.digest("X")
    assert found["seed"] == 7
    assert found["config"] == {"seed": 7, "layers": 3, "masks": ["full", "causal"], "texts": None}
    assert "torch" in found["versions"]
