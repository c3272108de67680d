"""Plain text as HTML."""

import pytest

from rankscope.report.prose import inline, paragraphs


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("a < b & c", "a &lt; b &amp; c"),
        ("**bold** and `code`", "<strong>bold</strong> and <code>code</code>"),
        ("`**not bold** <i>`", "<code>**not bold** &lt;i&gt;</code>"),
        ("2 ** 3 ** 4", "2 ** 3 ** 4"),
        ("a lone ` or **", "a lone ` or **"),
        ("**a `b` c**", "**a <code>b</code> c**"),
    ],
)
def test_inline(text, html):
    assert inline(text) == html


def test_empty_lines_part_paragraphs():
    assert paragraphs(" one\nstill one \n\n \n two") == "<p>one\nstill one</p>\n<p>two</p>"
    assert paragraphs("") == paragraphs(" \n\n ") == ""
