"""Lists and JSON on standard output, and one sentence on standard error; imports nothing heavy."""

import json
import re
import sys
import textwrap
from collections.abc import Mapping
from shutil import get_terminal_size
from typing import Any, TextIO

_CONTROLS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")


def print_json(value: Any) -> None:
    """JSON on standard output, in one line."""
    json.dump(value, sys.stdout, allow_nan=False)
    sys.stdout.write("\n")
    sys.stdout.flush()


def print_list(lines: Mapping[str, str]) -> None:
    """Names and what they are, a line each; in a terminal, lines are broken beside the names."""
    margin = max(map(len, lines)) + 2
    for name, words in lines.items():
        print(_broken(f"{name:<{margin}}{words}", sys.stdout, margin))


def print_error(sentence: str) -> None:
    """A sentence on standard error; in a terminal, it is broken between words only."""
    print(_broken(f"rankscope: {sentence}", sys.stderr), file=sys.stderr)


def without_controls(line: str) -> str:
    r"""A line that cannot steer a terminal: what names and files bring along is only shown.

    >>> without_controls("a\x1b[31mb")
    'a�[31mb'
    """
    return _CONTROLS.sub("�", line)


def _broken(line: str, stream: TextIO, margin: int = 0) -> str:
    line = without_controls(line)
    if not stream.isatty():
        return line
    return textwrap.fill(
        line,
        get_terminal_size().columns,
        subsequent_indent=" " * margin,
        break_long_words=False,
        break_on_hyphens=False,
    )
