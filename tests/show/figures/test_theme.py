"""Colours and shapes."""

import re

import pytest

from rankscope.show.figures import adaptive, dark_variables
from rankscope.show.figures._theme import (
    DARK,
    FOLLOWING_COLOURS,
    INK,
    SINGLE_COLOUR,
    VARIANT_COLOURS,
    colours,
    shapes,
)

SERIES = [*VARIANT_COLOURS.values(), *FOLLOWING_COLOURS, SINGLE_COLOUR]


def luminance(colour):
    """Relative luminance (WCAG 2)."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_what_it_should_be():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)


@pytest.mark.parametrize("colour", SERIES)
def test_curves_stand_out_on_light_and_on_dark_paper(colour):
    assert contrast(colour, INK["paper"]) > 2.9
    assert contrast(DARK[colour], DARK[INK["paper"]]) > 4


@pytest.mark.parametrize("name", ["strong", "text", "muted"])
def test_words_can_be_read_on_light_and_on_dark_paper(name):
    assert contrast(INK[name], INK["paper"]) >= 4.5
    assert contrast(DARK[INK[name]], DARK[INK["paper"]]) >= 4.5


def test_every_colour_has_its_partner_for_dark_pages():
    assert set(DARK) == {*SERIES, *INK.values()}


def test_the_four_variants_have_colours_of_their_own():
    assert list(VARIANT_COLOURS) == ["SAN", "SAN+MLP", "SAN+skip", "transformer"]
    assert len(set(SERIES)) == len(SERIES)


def test_other_variants_get_the_next_colour_and_a_free_shape():
    names = ["x", "SAN", "y"]
    assert colours(names) == {
        "x": FOLLOWING_COLOURS[0],
        "SAN": VARIANT_COLOURS["SAN"],
        "y": FOLLOWING_COLOURS[1],
    }
    assert len(set(shapes(names).values())) == 3
    assert shapes(names)["SAN"] == shapes(["SAN"])["SAN"] == "circle"


def test_more_variants_than_colours_differ_in_shape():
    names = [f"variant {n}" for n in range(20)]
    looks = set(zip(colours(names).values(), shapes(names).values(), strict=True))
    assert len(looks) == 20


def test_colours_become_variables_and_data_stay():
    spec = {
        "config": {"title": {"color": "#1b2430"}},
        "range": ["#c0312b", "red"],
        "data": {"values": [{"variant": "#c0312b"}]},
        "datasets": {"d": [{"variant": "#1b2430"}]},
        "layer": [{"data": {"values": [{"x": "#ffffff"}]}, "mark": {"fill": "#ffffff"}}],
    }
    assert adaptive(spec) == {
        "config": {"title": {"color": "var(--on-1b2430, #1b2430)"}},
        "range": ["var(--on-c0312b, #c0312b)", "red"],
        "data": spec["data"],
        "datasets": spec["datasets"],
        "layer": [
            {"data": spec["layer"][0]["data"], "mark": {"fill": "var(--on-ffffff, #ffffff)"}}
        ],
    }


def test_dark_variables_name_what_adaptive_uses():
    declared = dict(re.findall(r"(--[\w-]+): (#\w{6});", dark_variables()))
    assert declared["--on-1b2430"] == DARK["#1b2430"]
    assert len(declared) == len(DARK)
