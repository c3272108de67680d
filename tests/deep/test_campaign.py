"""The campaign against mpmath, in short; ``make campaign`` runs all of it."""

import math

import pytest

from rankscope.deep import _doubts

from . import campaign

HARD = [number for number in range(44) if number % 11 != 6]  # forty layers take their time


def verdicts(seed, numbers):
    found = [campaign.judge(seed, number) for number in numbers]
    return found, [one.verdict for one in found]


def test_nothing_is_silently_wrong():
    found, each = verdicts(2, HARD)
    assert [one for one in found if one.verdict == "silent"] == []
    assert each.count("false alarm") <= 1
    assert "flagged" in each


def test_the_campaign_sees_what_is_not_doubted(monkeypatch):
    wrong = [one.number for one in verdicts(2, HARD)[0] if one.verdict == "flagged"][:2]
    monkeypatch.setattr(_doubts, "MOVED", math.inf)
    assert set(verdicts(2, wrong)[1]) == {"silent"}


def test_errors_are_relative_where_logarithms_are_large():
    assert campaign.off_by(-1000.0, -1000.001, -math.inf) == pytest.approx(1e-6)
    assert campaign.off_by(-0.1, -0.2, -math.inf) == pytest.approx(0.1)
    assert campaign.off_by(-math.inf, -3.0, -math.inf) == math.inf
    assert campaign.off_by(-50.0, math.nan, -900.0) == math.inf
    assert campaign.off_by(-950.0, math.nan, -900.0) == 0.0
    assert math.isnan(campaign.off_by(-math.inf, math.nan, -900.0))
