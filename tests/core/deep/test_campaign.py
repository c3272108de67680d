"""The campaign against mpmath, in short; ``make campaign`` runs all of it."""

import math

import pytest
import torch

from rankscope.core.deep import _doubts

from . import campaign
from .hard_networks import draw

HARD = [number for number in range(44) if number % 11 != 6]  # forty layers take their time


@pytest.fixture(scope="module")
def judged():
    return [campaign.judge(2, number, keep=True) for number in HARD]


def test_nothing_is_silently_wrong(judged):
    each = [one.verdict for one in judged]
    assert [one for one in judged if one.verdict == "silent"] == []
    assert each.count("false alarm") <= 1
    assert {"flagged", "right"} <= set(each)


def test_the_campaign_sees_what_is_not_doubted(judged, monkeypatch):
    wrong = [one.number for one in judged if one.verdict == "flagged"]
    monkeypatch.setattr(_doubts, "MOVED", math.inf)
    assert {campaign.judge(2, number, keep=True).verdict for number in wrong} == {"silent"}


@pytest.mark.parametrize(
    ("seed", "number", "verdict"),
    [
        (0, 592, "flagged"),  # tokens that became equal by underflow
        (0, 1937, "flagged"),
        (1, 2993, "flagged"),
        (11, 869, "flagged"),
        (11, 1952, "flagged"),  # measured tokens that agree more than others
        (1, 2856, "flagged"),  # a branch that became zero beside a skip
        (0, 608, "flagged"),  # linear kernels whose sums showed nothing
        (0, 1983, "flagged"),
        (3, 40, "right"),  # logits beyond all floats in sparsemax
    ],
)
def test_networks_that_once_were_silently_wrong(seed, number, verdict):
    assert campaign.judge(seed, number, keep=True).verdict == verdict


def test_errors_are_relative_where_logarithms_are_large():
    assert campaign.off_by(-1000.0, -1000.001, -math.inf) == pytest.approx(1e-6, rel=1e-3)
    assert campaign.off_by(-0.1, -0.2, -math.inf) == pytest.approx(0.1)
    assert campaign.off_by(-math.inf, -3.0, -math.inf) == math.inf
    assert campaign.off_by(-50.0, math.nan, -900.0) == math.inf
    assert campaign.off_by(-950.0, math.nan, -900.0) == 0.0
    assert math.isnan(campaign.off_by(-math.inf, math.nan, -900.0))


def test_equal_tokens_that_mpmath_cannot_settle_are_not_called_right():
    assert campaign.Judged(0, "sparsemax").verdict == "right"
    assert campaign.Judged(0, "sparsemax", unknown=True).verdict == "unsettled"
    assert campaign.Judged(0, "sparsemax", unknown=True, silent=1.0).verdict == "silent"
    assert campaign.Judged(0, "sparsemax", unknown=True, doubted=True).verdict == "undecided"


def test_residuals_are_taken_in_every_way_and_of_real_tokens_only():
    cases = [draw(2, number) for number in range(120)]
    assert {case.norm for case in cases} == {"composite", "one", "inf", "fro"}
    assert {case.center for case in cases} == {"mean", "median"}
    chosen = [case for case in cases if case.measured is not None]
    assert chosen
    for case in chosen:
        assert case.measured.sum(1).min() >= 2
        if case.token_mask is not None:
            assert not (case.measured & ~case.token_mask).any()


def test_a_network_does_not_depend_on_how_it_is_measured():
    """Numbers of networks are written down, here and elsewhere: they must stay what they are."""
    case = draw(0, 592)
    drawn = torch.cat(
        [case.x.flatten(), *(p.detach().flatten() for p in case.network.parameters())]
    )
    assert drawn.double().sum().item() == pytest.approx(17.65085943574865, rel=1e-12)


def test_counts_and_bars_are_told(capsys):
    some = [
        campaign.Judged(0, "saturated"),
        campaign.Judged(1, "saturated", flagged=1.0, doubted=True),
        campaign.Judged(2, "sparsemax", doubted=True, unknown=True),
        campaign.Judged(3, "sparsemax", refused="too large"),
    ]
    assert campaign.report(some, 4)
    told = capsys.readouterr().out
    assert "3 compared; 0 silent errors; 0.00% false alarms, at most 33.33% if" in told
    assert not campaign.report([*some, campaign.Judged(4, "sparsemax", doubted=True)], 5)
    assert not campaign.report([*some, campaign.Judged(4, "sparsemax", silent=1e-5)], 5)
    assert "number 4, sparsemax, off by 1e-05" in capsys.readouterr().out
