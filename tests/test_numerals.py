"""Numbers as text: one convention, whatever their size."""

import math

import pytest

from rankscope.numerals import (
    exponent_text,
    power_of_ten,
    power_of_ten_html,
    short,
    short_html,
)

INF = math.inf
POWERS = {
    -INF: "exactly 0",
    INF: "infinite",
    None: "none",
    0.0: "1",
    -2.0: "0.01",
    -0.0458: "0.9",
    -3.0: "0.001",
    -3.0001: "10^−3.0",
    2.3: "200",
    1.99999: "100",  # not 1e+02
    3.5: "3,162",
    5.9999: "999,770",
    -7.25: "10^−7.2",
    12.0: "10^12.0",
    -579.44: "10^−579",
    -47003.4: "10^−47,003",
    -5.14e47: "10^(−5.14·10⁴⁷)",
    1.79e308: "10^(1.79·10³⁰⁸)",
}


@pytest.mark.parametrize("log10", POWERS)
def test_a_power_of_ten_is_written_in_full_or_as_a_power(log10):
    text = POWERS[log10]
    assert power_of_ten(log10) == text
    raised = f"10<sup>{text[3:].strip('()')}</sup>" if text.startswith("10^") else text
    assert power_of_ten_html(log10) == raised


def test_undefined_is_none():
    assert power_of_ten(math.nan) == power_of_ten_html(math.nan) == "none"


def test_charts_tell_powers_to_a_digit_more():
    assert [power_of_ten(log10, digits=3) for log10 in (-6.3034, -579.44, 12.0, 2.9999)] == [
        "10^−6.30",
        "10^−579.4",
        "10^12.00",
        "1,000",
    ]


@pytest.mark.parametrize(
    ("value", "text", "html"),
    [
        (0.91234, "0.912", "0.912"),
        (1.0, "1", "1.00"),
        (0.99996, "1", "1.00"),
        (12.345, "12.3", "12.3"),
        (123.45, "123", "123"),
        (999.7, "1,000", "1,000"),
        (1234.5, "1,234", "1,234"),
        (9999.7, "1e4", "1.00·10<sup>4</sup>"),
        (0.0012345, "0.00123", "0.00123"),
        (0.00099996, "0.001", "0.00100"),
        (2.1345e-7, "2.13e−7", "2.13·10<sup>−7</sup>"),
        (-2.1345e-7, "−2.13e−7", "−2.13·10<sup>−7</sup>"),
        (-0.5, "−0.5", "−0.500"),
        (5e-324, "4.94e−324", "4.94·10<sup>−324</sup>"),
        (1e308, "1e308", "1.00·10<sup>308</sup>"),
        (0.0, "0", "0"),
        (-0.0, "0", "0"),
        (math.nan, "NaN", "NaN"),
        (INF, "∞", "∞"),
        (-INF, "−∞", "−∞"),
        (12, "12", "12"),
        (109482240, "109,482,240", "109,482,240"),
        (-3, "−3", "−3"),
    ],
)
def test_plain_numbers(value, text, html):
    assert short(value) == text
    assert short_html(value) == html


@pytest.mark.parametrize("digits", [1, 2, 3, 4])
@pytest.mark.parametrize("value", [1.05e-9, 0.0234, 7.0, 96.4, 2345.6, 4.2e11])
def test_what_is_written_reads_back_to_its_digits(value, digits):
    for text in (short(value, digits=digits), power_of_ten(math.log10(value), digits=digits)):
        plain = text.replace("−", "-").replace(",", "")
        if not plain.startswith("10^"):
            assert float(plain) == pytest.approx(value, rel=0.5 * 10 ** (1 - digits))
        assert "+" not in text
        assert "-" not in text


def test_exponents():
    assert exponent_text(-0.0) == exponent_text(-0.04, decimals=1) == "0"
    assert exponent_text(-40003.25, decimals=1) == "−40,003.2"
    assert exponent_text(-1e12) == "−1·10¹²"
