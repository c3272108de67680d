"""Print lists and JSON to standard output, and errors to standard error; no heavy imports."""

import json
import re
import sys
import textwrap
from collections.abc import Mapping
from shutil import get_terminal_size
from typing import Any, TextIO

_CONTROLS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")


def print_json(value: Any) -> None:
    """Print JSON on one line."""
    json.dump(value, sys.stdout, allow_nan=False)
    sys.stdout.write("\n")
    sys.stdout.flush()


def print_list(lines: Mapping[str, str]) -> None:
    """Print names and descriptions, one per line; in a terminal, descriptions wrap in a column."""
    margin = max(map(len, lines)) + 2
    for name, words in lines.items():
        print(_wrapped(f"{name:<{margin}}{words}", sys.stdout, margin))


def print_error(sentence: str, *notes: str) -> None:
    """Print a sentence to standard error, with notes below; it wraps between words only."""
    print(_wrapped(f"rankscope: {sentence}", sys.stderr), file=sys.stderr)
    for note in notes:
        print(f"  {without_controls(note)}", file=sys.stderr)


def without_controls(line: str) -> str:
    r"""Replace control characters, so that names and file contents cannot control the terminal.

    >>> without_controls("a\x1b[31mb")
    'a�[31mb'
    """
    return _CONTROLS.sub("�", line)


def _wrapped(line: str, stream: TextIO, margin: int = 0) -> str:
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
