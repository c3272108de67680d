"""How the contraction constant moves: by powers that are known."""

import math

import pytest

from rankscope.errors import InputError
from rankscope.experiments.studies.widths import ENTRY, Config

from ..shown import can_be_shown, steps_of

SCALES = (("init_scale", (0.125, 0.25)),)


def test_it_finds_the_power_of_the_initialisation() -> None:
    """C goes like the product of four weight matrices: the fourth power of their scale."""
    found, seen = steps_of(ENTRY.run, Config(sweeps=SCALES, draws=2))
    settings = found.summary.sort("setting")["mean"].to_list()
    assert (settings[1] - settings[0]) / math.log10(2) == pytest.approx(4, abs=0.2)
    assert len(found.table) == len(seen) == 4
    (sentence,) = found.sentences
    assert sentence.startswith("Init scale moves C most: by a factor of ")
    ((name, low, high, power, factor),) = found.listings[0].rows
    assert (name, low, high) == ("init scale", 0.125, 0.25)
    slope = float(power)
    assert factor in sentence
    assert float(factor) == pytest.approx(2**slope, rel=0.1)
    assert slope == pytest.approx((settings[1] - settings[0]) / math.log10(2), abs=0.01)
    can_be_shown(found)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (Config(sweeps=(("nonsense", (1,)),)), "no 'nonsense' to vary; choose among tokens"),
        (Config(sweeps=(("heads", (1.5,)),)), "heads=1.5 cannot be built"),
        (Config(sweeps=(("tokens", (0,)),)), "tokens=0 cannot be built"),
        (Config(sweeps=()), "leave nothing to measure"),
    ],
)
def test_what_cannot_be_varied_is_refused(config, words) -> None:
    with pytest.raises(InputError, match=words):
        steps_of(ENTRY.run, config)
