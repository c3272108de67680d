"""Which paths carry the differences, over samples, lengths and heads."""

import math

import polars as pl
import pytest
import torch

from rankscope.ask import Subject
from rankscope.core.metrics import residual
from rankscope.core.network import Network, Spec
from rankscope.core.paths import head_shares, path_lengths
from rankscope.experiments import path_study
from rankscope.experiments.questions.paths import Config, _exactness, run
from rankscope.numerals import short

from ..shown import can_be_shown, steps_of

NETWORK = Network.random(Spec(3, 2, 8, init="lecun"), dtype=torch.float64)
KEYS = ["layer", "length", "sample", "metric"]


@pytest.fixture
def found(tokens):
    subject = Subject(NETWORK, tokens(3, 5, 8), batch_size=2)
    return steps_of(run, Config(subject, by_head=True))[0]


def test_by_length_and_by_head_are_one_table(found, tokens) -> None:
    can_be_shown(found)
    x = tokens(3, 5, 8)
    by_head = pl.col("head").is_not_null()
    lengths = found.table.filter(~by_head).sort(KEYS)
    expected = path_lengths(NETWORK, x).table.sort(KEYS)
    assert lengths.select(KEYS).equals(expected.select(KEYS))
    assert lengths["value"].to_list() == pytest.approx(expected["value"].to_list())
    heads = found.table.filter(by_head).sort("layer", "head", "sample", "metric")
    expected = head_shares(NETWORK, x).table.sort("layer", "head", "sample", "metric")
    assert heads["value"].to_list() == pytest.approx(expected["value"].to_list())
    assert heads["length"].null_count() == len(heads)


def test_heads_do_not_change_the_share_of_the_biases(found, tokens) -> None:
    """Neither has a length, and a summary tells them apart."""
    alone = path_study(NETWORK, tokens(3, 5, 8), batch_size=2)
    shares = [
        each.summary.filter(pl.col("length").is_null(), metric="residual_share", layer=3)
        for each in (found, alone)
    ]
    assert shares[0].filter(heads=0)["mean"].to_list() == shares[1]["mean"].to_list()
    assert shares[0]["heads"].to_list() == [0, 2]


def test_the_most_and_the_exactness_are_told(found) -> None:
    last = found.summary.filter(metric="projection", layer=3)
    parts = last.filter(pl.col("length").is_not_null()).sort("length")["median"].to_list()
    most = parts.index(max(parts))
    first, second = found.sentences
    assert first.startswith(f"Paths of length {most} contribute most to the residual")
    assert first.endswith(f"the longest added up (3) {short(parts[-1], digits=2)}.")
    assert second.startswith(
        "The sum of all 27 attention paths and the biases reconstructs every layer"
    )
    assert found.key_figures["paths"] == 27
    assert found.key_figures["reconstruction_error"] < 1e-12
    assert found.provenance["config"] == {"count": "attention", "max_length": None, "by_head": True}


def test_long_paths_may_be_left_out(tokens) -> None:
    found = path_study(NETWORK, tokens(1, 5, 8), max_length=1)
    assert found.table["length"].max() == 1
    assert found.sentences[1] == "There are 27 paths; the longest were left out."
    assert math.isnan(found.key_figures["reconstruction_error"])
    assert found.provenance["config"]["max_length"] == 1
    assert len(found.drawings) == 1


def test_more_paths_than_floats_can_count_are_counted() -> None:
    said = _exactness(10**320, math.nan, complete=False)
    assert said == "There are 10^320 paths; the longest were left out."


def test_shares_are_those_of_the_tokens_that_count(tokens) -> None:
    """The network sees all tokens; each batch has its own part of ``measured``."""
    x = tokens(3, 5, 8)
    measured = torch.tensor([[False, *[True] * 4], [True, False, True, True, True], [True] * 5])
    found = path_study(NETWORK, x, measured=measured, heads=True, batch_size=2)
    lengths, heads = path_lengths(NETWORK, x), head_shares(NETWORK, x)
    shares = found.table.filter(metric="residual_share", layer=3).drop_nulls("length")
    assert shares.height == 3 * 4
    for length, sample, share in shares.select("length", "sample", "value").iter_rows():
        part, whole = (
            residual(each[sample, measured[sample]][None]).item()
            for each in (lengths.contributions[length], lengths.output)
        )
        assert share == pytest.approx(part / whole)
    by_head = found.table.filter(metric="residual_share", layer=3, head=1).sort("sample")
    expected = [
        (residual(part[kept][None]) / residual(whole[kept][None])).item()
        for part, whole, kept in zip(heads.contributions[2, 1], heads.output, measured, strict=True)
    ]
    assert by_head["value"].to_list() == pytest.approx(expected)
    assert found.provenance["special tokens"] == "left out of the figures"
