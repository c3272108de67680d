"""Stored answers of mpmath: they are mpmath's, and answer no other question."""

import math

import pytest
import torch

from .. import loaded_parts
from . import stored
from .cases import SPECS
from .oracle import Measure, settled

MEASURES = [Measure(), Measure(relative=True)]


@pytest.fixture
def question(lively, tokens):
    """One that mpmath answers at once."""
    return lively(SPECS["post-norm"]), tokens(1, 3, 4)


def test_what_is_kept_is_what_mpmath_says(question):
    net, x = question
    kept = stored.residuals(net, x, None, MEASURES, most=4000)
    for measure, expected in settled(net, x, None, MEASURES).items():
        assert torch.equal(kept[measure], expected)
    assert kept[MEASURES[0]].shape == (3, 1)


@pytest.mark.skipif(stored.DERIVE is not None, reason="all answers are derived anew")
def test_another_question_has_another_answer(question, monkeypatch):
    net, x = question
    x[0, 0, 0] = math.nextafter(x[0, 0, 0].item(), 9.0)
    asked = []
    monkeypatch.setattr(stored.oracle, "settled", lambda *_, **__: asked.append(1))
    with pytest.raises((LookupError, TypeError)):  # not kept; elsewhere mpmath would be asked
        stored.residuals(net, x, None, MEASURES, most=4000)
    assert bool(asked) != stored._SAME_NUMBERS


def test_a_digest_sees_every_bit_of_a_question(question):
    net, x = question
    same = stored.digest(net, x)
    with torch.no_grad():
        weight = net.blocks[1].mlp.down.weight
        weight[0, 0] = math.nextafter(weight[0, 0].item(), 9.0)
    assert stored.digest(net, x) != same
    assert stored.digest(net.with_mask("causal"), x) != stored.digest(net, x)
    assert stored.digest(x) != stored.digest(x.flatten())


def test_a_digest_sees_constants_of_every_part(lively):
    net = loaded_parts.network("scaled views", lively)
    before = stored.digest(net)
    net.blocks[1].attention.output.scale = 0.41
    assert stored.digest(net) != before
    net = loaded_parts.network("learned sinks, rotary", lively)
    before = stored.digest(net)
    net.blocks[0].attention.scores.then.start = 1
    assert stored.digest(net) != before
