"""The entropy bound: against search, its own derivation, and each outcome."""

import math
from dataclasses import replace

import polars as pl
import pytest
import torch

from rankscope import tables
from rankscope.errors import InputError
from rankscope.experiments import kit
from rankscope.experiments.claims import p5
from rankscope.experiments.claims.p5 import (
    best_level,
    entropies,
    entropy_bound,
    least_entropy_found,
    level_entropy,
)
from rankscope.process.progress import silent

from ..shown import can_be_shown, steps_of

SMALL = p5.Config(
    tokens=(8,), head_width=8, scales=(0.05, 2.0), networks=2, draws=2, keys=(2, 4), norms=(1.0,)
)


def published(norm: float, keys: int) -> float:
    """The formula as Zhai et al. 2023 write it."""
    small = math.exp(-norm * math.sqrt(keys / (keys - 1)))
    below = 1 + (keys - 1) * small
    return math.log(below) + norm * math.sqrt(keys * (keys - 1)) * small / below


@pytest.mark.parametrize("keys", [2, 3, 7, 100])
@pytest.mark.parametrize("norm", [0.0, 0.3, 4.0, 30.0])
def test_the_bound_is_the_published_one_and_the_entropy_of_its_logits(
    norm: float, keys: int
) -> None:
    assert entropy_bound(norm, keys) == pytest.approx(published(norm, keys), rel=1e-12)
    logits = torch.zeros(keys, dtype=torch.float64)
    logits[0] = norm * math.sqrt(keys / (keys - 1))  # centred, its norm is the norm
    centred = logits - logits.mean()
    assert float(centred.norm()) == pytest.approx(norm)
    assert entropy_bound(norm, keys) == pytest.approx(float(entropies(logits)), abs=1e-12)


def test_levels_are_entropies_of_two_valued_logits() -> None:
    logits = torch.tensor([3.0, 3.0, 3.0, 1.0, 1.0], dtype=torch.float64)
    norm = float((logits - logits.mean()).norm())
    assert level_entropy(norm, 5, 3) == pytest.approx(float(entropies(logits)), rel=1e-12)
    assert entropy_bound(2.0, 1) == 0.0


@pytest.mark.parametrize(("norm", "keys"), [(0.5, 3), (2.0, 4), (6.0, 5), (3.0, 30)])
def test_no_search_finds_less(norm: float, keys: int) -> None:
    bound = entropy_bound(norm, keys)
    assert least_entropy_found(norm, keys, 1) == pytest.approx(bound, rel=1e-6)
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5000, keys, generator=generator, dtype=torch.float64)
    logits = logits - logits.mean(-1, keepdim=True)
    drawn = entropies(norm * logits / logits.norm(dim=-1, keepdim=True))
    assert float(drawn.min()) >= bound
    assert p5.attaining_layer(norm, keys) == pytest.approx(bound, rel=1e-9)


def test_one_key_stands_out_at_every_size() -> None:
    norms = (0.01, 0.3, 1.0, 3.0, 6.0, 10.0, 30.0)
    assert {best_level(norm, keys) for norm in norms for keys in (2, 3, 4, 9, 50, 400)} == {1}


def test_it_runs_small_and_can_be_shown() -> None:
    found, _ = steps_of(p5.ENTRY.run, SMALL)
    can_be_shown(found)
    assert found.verdict == "holds", found.sentences
    assert found.beyond is not None
    assert str(found.beyond).startswith("Supported in part: the bound is informative")
    tiny = replace(SMALL, scales=(1.0,))
    one, same, other = (p5.ENTRY.run(replace(tiny, seed=seed), silent).table for seed in (0, 0, 1))
    assert one.equals(same)
    assert not one.equals(other)
    with pytest.raises(InputError, match="at least one length"):
        p5.ENTRY.run(replace(SMALL, keys=()), silent)


def made_up(**other: float) -> pl.DataFrame:
    value = {"found": 0.5, "attained": 0.5, "row": 1.0, "weights": 0.2, "logits": 0.9, "keys": 1}
    value |= other
    rows = [
        ("4 keys", p5.BOUND, 1.0, "attention_entropy", 0.5),
        ("4 keys", p5.FOUND, 1.0, "attention_entropy", value["found"]),
        ("4 keys", p5.ATTAINED, 1.0, "attention_entropy", value["attained"]),
        ("4 keys", p5.FOUND, 1.0, "upper_level_keys", value["keys"]),
        ("8 tokens", p5.SMALLEST, 1.0, "attention_entropy", value["row"]),
        ("8 tokens", p5.MEAN, 1.0, "attention_entropy", 2.0),
        ("8 tokens", p5.PREDICTED, 1.0, "attention_entropy", 2.0),
        ("8 tokens", p5.WEIGHTS, 1.0, "attention_entropy", value["weights"]),
        ("8 tokens", p5.LOGITS, 1.0, "attention_entropy", value["logits"]),
    ]
    return tables.from_rows(("model", "variant", "setting", "metric", "value"), rows)


@pytest.mark.parametrize(
    ("other", "verdict", "beyond"),
    [
        ({}, "holds", "holds"),
        ({"weights": 0.09}, "holds", "fails"),
        ({"row": 0.85}, "depends", "holds"),
        ({"weights": 1.1}, "depends", "holds"),
        ({"found": 0.49}, "depends", "holds"),
        ({"found": 0.51}, "depends", "holds"),
        ({"attained": 0.51}, "depends", "holds"),
        ({"keys": 2}, "depends", "holds"),
        ({"row": 0.5, "found": 0.4, "attained": 0.6, "keys": 2}, "fails", "holds"),
    ],
)
def test_each_outcome(other: dict[str, float], verdict: str, beyond: str) -> None:
    found = kit.conclude(p5.ENTRY, SMALL, made_up(**other))
    assert found.beyond is not None
    assert (found.verdict, found.beyond.verdict) == (verdict, beyond)
    assert all(sentence.endswith(".") for sentence in found.sentences)
