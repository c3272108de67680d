"""Plain text as HTML."""

import pytest

from rankscope.show.report._prose import inline, paragraphs, sentences, without_marks


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("a < b & c", "a &lt; b &amp; c"),
        ("**bold** and `code`", "<strong>bold</strong> and <code>code</code>"),
        ("`**not bold** <i>`", "<code>**not bold** &lt;i&gt;</code>"),
        ("2 ** 3 ** 4", "2 ** 3 ** 4"),
        ("a lone ` or **", "a lone ` or **"),
        ("**a `b` c**", "**a <code>b</code> c**"),
        ("to 10^-3,641.5.", "to 10<sup>−3,641.5</sup>."),
        ("10^−5.9e46 to", "10<sup>−5.9e46</sup> to"),
        ("10^−7, 10^6", "10<sup>−7</sup>, 10<sup>6</sup>"),
        ("−5.1e−4, 6e-4, 2e7", "−5.1·10<sup>−4</sup>, 6·10<sup>−4</sup>, 2·10<sup>7</sup>"),
        ("a 1e4b, #3e5, x2e3, 12e3", "a 1e4b, #3e5, x2e3, 12e3"),
        ("110^2, 10^x, `10^2`", "110^2, 10^x, <code>10^2</code>"),
    ],
)
def test_inline(text, html):
    assert inline(text) == html


def test_empty_lines_part_paragraphs():
    assert paragraphs(" one\nstill one \n\n \n two") == "<p>one\nstill one</p>\n<p>two</p>"
    assert paragraphs("") == paragraphs(" \n\n ") == ""


def test_lines_with_dashes_are_a_list():
    assert paragraphs("- a\n- <b>") == "<ul>\n<li>a</li>\n<li>&lt;b&gt;</li>\n</ul>"
    assert paragraphs("- a\nb") == "<p>- a\nb</p>"


def test_long_lists_are_set_in_columns():
    assert 'class="many"' not in paragraphs("\n".join("- x" for _ in range(6)))
    assert 'class="many"' in paragraphs("\n".join("- x" for _ in range(7)))


def test_marks_can_be_taken_away():
    assert without_marks("**bold** and 2 ** 3") == "bold and 2 ** 3"


def test_what_findings_say_is_not_said_twice(diagnosis):
    assert sentences(diagnosis) == ["Both were seen."]
