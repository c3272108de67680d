"""The rules on figures made up by hand, on both sides of every threshold."""

import math
from dataclasses import replace

import pytest
import torch

from rankscope.experiments.diagnosis import _rules as rules
from rankscope.experiments.diagnosis._evidence import RuleEvidence, find_loss
from rankscope.experiments.diagnosis._measure import ModelFigures

from .built import made_up

EPS = 1e-7


def evidence(
    measured: ModelFigures, exponents: tuple[float, ...] = (), why_not: str = ""
) -> RuleEvidence:
    return RuleEvidence(measured, torch.tensor(exponents), why_not, EPS)


def width(*exponents: float, why_not: str = ""):
    return rules.width.finding(evidence(made_up([[1.0]] * 2), exponents, why_not))


def depth(residual: list[list[float]]):
    return rules.depth.finding(evidence(made_up(residual)))


@pytest.mark.parametrize(
    ("residual", "fate", "layer"),
    [
        ([[1.0], [0.9], [0.8]], "absent", 2),
        ([[1.0], [0.5], [0.09]], "slow", 2),
        ([[1.0], [0.5], [0.26]], "absent", 2),
        ([[1.0], [0.49], [0.48]], "slow", 1),  # one layer takes more than half
        ([[1.0], [0.2], [0.0009]], "collapse", 2),
        ([[1.0], [0.0009], [0.9]], "collapse", 1),  # a dip in between counts, whatever the end
        ([[0.05], [0.5], [0.9]], "absent", 0),  # what comes later was not lost
        ([[0.0], [0.0], [0.0]], "unknown", None),  # all alike from the start: nothing to lose
        ([[0.0009], [0.0009], [0.0009]], "unknown", None),
        ([[0.005], [0.005], [0.0004]], "collapse", 2),
        ([[0.0015], [0.0015], [0.0009]], "absent", 2),  # below a thousandth, but most was kept
    ],
)
def test_depth_looks_at_all_layers_and_at_what_there_was(residual, fate, layer) -> None:
    found = depth(residual)
    assert (found.fate, found.layer) == (fate, layer)
    assert found.part == ("" if fate in ("absent", "unknown") else "attention")


def test_a_recovery_is_said() -> None:
    assert "After the last layer it is 0.9 again." in depth([[1.0], [0.0009], [0.9]]).sentence


def test_rounding_is_said() -> None:
    assert "rounding" in depth([[1.0], [1e-7]]).sentence
    assert "rounding" not in depth([[1.0], [9e-4]]).sentence


@pytest.mark.parametrize(
    ("collapsed", "fate"), [(4, "collapse"), (2, "collapse"), (1, "slow"), (0, "absent")]
)
def test_samples_that_disagree_are_counted(collapsed: int, fate: str) -> None:
    found = depth([[1.0] * 4, [1e-4] * collapsed + [0.75] * (4 - collapsed)])
    assert (found.fate, found.found_in, found.samples) == (fate, collapsed, 4)
    if 0 < collapsed < 4:
        assert f"in {collapsed} of 4 samples" in found.sentence
        assert "0.75" in found.sentence  # what the others have


@pytest.mark.parametrize(
    ("exponent", "fate"), [(-0.5, "collapse"), (-0.2, "slow"), (-0.1, "absent"), (0.1, "absent")]
)
def test_width(exponent: float, fate: str) -> None:
    found = width(exponent, exponent)
    assert found.fate == fate
    assert f"{abs(exponent)}" in found.sentence


def test_samples_that_cannot_tell_the_width_are_not_counted() -> None:
    found = width(-0.5, math.nan, -0.6)
    assert (found.fate, found.found_in, found.samples) == ("collapse", 2, 2)


def test_what_cannot_be_told_says_why() -> None:
    found = width(*[math.nan] * 3, why_not="a text has 5 tokens")
    assert found.fate == "unknown"
    assert found.sentence == "Width collapse could not be determined: a text has 5 tokens."


def test_layer_and_part_are_those_of_the_samples_that_collapse() -> None:
    """One of four collapses, in layer 3; all of them lose a little in layer 1."""
    others = [1.0] * 3
    given = evidence(
        made_up([[1.0, *others], [0.7, 0.7, 0.7, 0.7], [0.7, 0.7, 0.7, 0.7], [1e-4, 0.7, 0.7, 0.7]])
    )
    found, loss = rules.depth.finding(given), given.loss
    assert (found.fate, found.layer, found.found_in, loss.layer) == ("slow", 3, 1, 3)
    assert "again" not in found.sentence  # the sample that collapses stays collapsed


@pytest.mark.parametrize(
    ("shares", "fate", "layer"),
    [
        ([0.8, 0.05, 0.9], "collapse", 2),
        ([0.8, 0.9, 0.2], "slow", 3),
        ([0.8, 0.3, 0.9], "absent", 2),
    ],
)
def test_entropy(shares: list[float], fate: str, layer: int) -> None:
    found = rules.entropy.finding(evidence(made_up([[1.0]] * 4, entropy=shares)))
    assert (found.fate, found.layer) == (fate, layer)


@pytest.mark.parametrize(
    ("turned", "fate", "layer"),
    [
        ([0.5, 0.01, 0.5, 0.5], "collapse", 2),
        ([0.5, 0.5, 0.01, 0.5, 0.5], "slow", 3),
        ([0.5, 0.06, 0.5, 0.5], "absent", 2),
    ],
)
def test_layers(turned: list[float], fate: str, layer: int) -> None:
    found = rules.layers.finding(evidence(made_up([[1.0]] * (len(turned) + 1), turned=turned)))
    assert (found.fate, found.layer) == (fate, layer)


def test_idle_layers_are_named_as_runs() -> None:
    measured = made_up([[1.0]] * 7, turned=[0.01, 0.5, 0.01, 0.01, 0.01, 0.5])
    assert (
        "layers 1 and 3 to 5 hardly turn the tokens"
        in rules.layers.finding(evidence(measured)).sentence
    )


@pytest.mark.parametrize(
    ("last", "fate", "layer"),
    [
        ([0.5, 0.5, 1e-4], "collapse", 2),
        ([0.0, 1e-4, 1e-4], "collapse", 0),
        ([0.0, 0.5, 0.5], "absent", 2),  # alike at the input, told apart since
        ([0.5, 1e-4, 0.5], "absent", 2),
    ],
)
def test_last_token(last: list[float], fate: str, layer: int) -> None:
    found = rules.last_token.finding(evidence(made_up([[1.0]] * 3, last=last)))
    assert (found.fate, found.layer) == (fate, layer)
    assert ("token 3" in found.sentence) == (fate == "collapse")


def test_last_token_of_tokens_that_are_all_alike_is_depth_collapse() -> None:
    collapsed = made_up([[1.0], [1e-6]], last=[0.5, 1e-6])
    assert rules.last_token.finding(evidence(collapsed)).fate == "unknown"


@pytest.mark.parametrize(("cosine", "fate"), [(0.49, "absent"), (0.5, "noted"), (0.99, "noted")])
def test_cone_is_no_loss_but_told(cosine: float, fate: str) -> None:
    assert rules.cone.finding(evidence(made_up([[1.0]] * 3, cosine=cosine))).fate == fate


def test_tokens_without_full_rank_are_no_cone() -> None:
    found = rules.cone.finding(evidence(made_up([[1.0]] * 3, cosine=0.9, rank=0.5)))
    assert found.fate == "unknown"
    assert "no full rank" in found.sentence


def test_cone_of_collapsed_tokens_cannot_be_told() -> None:
    assert rules.cone.finding(evidence(made_up([[1.0], [1e-6]], cosine=1.0))).fate == "unknown"


def test_most_is_lost_where_the_median_falls_most_before_tokens_are_alike() -> None:
    measured = made_up(
        [[1.0, 1.0, 1.0], [0.5, 0.2, 0.9], [0.1, 0.1, 0.1], [1e-5, 1e-5, 1e-5], [1e-20] * 3]
    )
    loss = find_loss(measured)
    assert (loss.layer, loss.part) == (3, "attention")
    assert loss.decades == pytest.approx(-4.0)
    assert loss.totals["attention"] == pytest.approx(-5.0)  # what comes after is not counted
    assert loss.agreeing == 3


def test_entropy_is_told_in_tokens() -> None:
    """Of 16 tokens, a fourth of the entropy of even attention is that of two: 16^(1/4)."""
    given = made_up([[1.0]] * 2, entropy=[0.2499])
    given = replace(given, tokens=torch.tensor([16]))
    words = rules.entropy.finding(evidence(given)).sentence
    assert words.endswith("as if a query attended to about 2 tokens.")


def test_nothing_lost_is_said() -> None:
    loss = find_loss(made_up([[0.5], [0.5], [0.6]]))
    assert loss.layer == 0
    assert loss.sentence == "No single layer makes a noticeable difference."


def test_lowest_is_the_lowest_of_the_medians_not_the_median_of_the_lowest() -> None:
    """Each sample is lowest in another layer, at 0.5; the medians are lowest at 0.7, in layer 2."""
    residual = [[1.0] * 3, [0.5, 0.8, 0.8], [0.7, 0.5, 0.7], [0.9, 0.9, 0.5]]
    found = depth(residual)
    assert (found.figure, found.layer) == (0.7, 2)
    assert "0.7 at its lowest (layer 2)" in found.sentence


def test_tokens_that_are_left_out_are_said_to_be() -> None:
    given = made_up([[1.0], [0.9]])
    assert "left out" not in rules.depth.finding(evidence(given)).sentence
    given.states["relative_residual"] = given.common / 2
    assert "are left out" in rules.depth.finding(evidence(given)).sentence
