"""A text as its paragraphs."""

import re


def paragraphs(text: str) -> list[str]:
    """The paragraphs of a text, told apart by blank lines, each on one line.

    >>> paragraphs("A rose\\nis a rose.\\n \\n\\nSo they say.")
    ['A rose is a rose.', 'So they say.']
    """
    found = [" ".join(part.split()) for part in re.split(r"\n\s*\n", text)]
    return [part for part in found if part]
