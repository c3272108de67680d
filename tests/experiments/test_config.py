"""A run has the name of all it depends on."""

import json
import math
from dataclasses import dataclass, replace

import pytest

from rankscope.core.network import ALiBi, Sink
from rankscope.errors import InputError, KindError
from rankscope.experiments.config import Config, plain


@dataclass(frozen=True)
class Example(Config):
    layers: int = 3
    masks: tuple[str, ...] = ("full", "causal")
    texts: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Numbers(Example):
    tolerance: float = 1e-6
    sizes: tuple[int, ...] = (1, 2)


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


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        ({"layers": 0}, InputError, "layers=0 is out of range; expected 1 to 1000000"),
        ({"layers": 2**40}, InputError, "layers=1099511627776 is out of range"),
        ({"layers": None}, KindError, "Numbers: layers=None is a NoneType"),
        ({"seed": -1}, InputError, "seed=-1"),
        ({"seed": 1.0}, KindError, "seed=1.0 is a float"),
        ({"masks": "full"}, KindError, "masks='full' is a str, expected a sequence"),
        ({"masks": ("full", 3)}, KindError, r"masks\[1\]=3 is a int"),
        ({"tolerance": math.nan}, InputError, "tolerance=nan"),
        ({"tolerance": "small"}, KindError, "tolerance='small' is a str"),
        ({"sizes": (1, -1)}, InputError, "sizes=-1 is out of range"),
        ({"texts": "abc"}, KindError, "texts='abc' is a str"),
    ],
)
def test_what_makes_no_sense_in_a_configuration_is_refused_when_it_is_made(wrong, error, words):
    with pytest.raises(error, match=words):
        Numbers(**wrong)


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
