"""What a command reads: the bundled passages, or the user's own text."""

import re
import sys
from pathlib import Path

from rankscope.errors import InputError
from rankscope.models.text import paragraphs, passages


def checked_count(count: int) -> int:
    """How many samples are read at most, if that is any."""
    if count < 1:
        raise InputError(f"--passages {count} leaves nothing to read; use 1 or more.")
    return count


def texts(path: Path | None, most: int) -> list[str]:
    """The texts to read: the bundled ones or the user's, no more than asked for."""
    found = passages() if path is None else _paragraphs(path)
    return found[: checked_count(most)]


def sentences(path: Path | None) -> tuple[str, ...]:
    """Sentences from a table or a text; standard input is a text, a sentence a line."""
    from rankscope.models.training import read_sentences

    assert path is not None  # it was written on the command line
    if str(path) != "-":
        return read_sentences(path)
    found = tuple(line.strip() for line in _text(path).splitlines() if line.strip())
    if not found:
        raise InputError("--text - holds no sentence.")
    return found


def token_ids(path: Path, most: int) -> list[list[int]]:
    """Token ids, a line of numbers per sample, commas and brackets ignored."""
    found = []
    for number, line in enumerate(_text(path, "--ids").split("\n"), start=1):
        written = re.sub(r"[\[\],]", " ", line).split()
        try:
            row = [int(each) for each in written]
        except ValueError:
            raise InputError(f"--ids {path}, line {number}: {line[:40]!r} is no ids.") from None
        if any(not 0 <= each < 2**31 for each in row):
            raise InputError(f"--ids {path}, line {number}: ids run from 0 to 2^31.")
        found += [row] if row else []
    if not found:
        raise InputError(f"--ids {path} holds no ids; give a line of numbers per sample.")
    return found[: checked_count(most)]


def _paragraphs(path: Path) -> list[str]:
    """The paragraphs of a text file, told apart by blank lines; '-' is standard input."""
    found = paragraphs(_text(path))
    if not found:
        raise InputError(f"--text {path} holds no text; give at least one paragraph.")
    return found


def _text(path: Path, option: str = "--text") -> str:
    try:
        return _bytes(path).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{option} {path} cannot be read as UTF-8 text: {error}.") from error


def _bytes(path: Path) -> bytes:
    if str(path) != "-":
        return path.read_bytes()
    if sys.stdin is None:
        raise InputError("'-' reads standard input, which is closed.")
    return sys.stdin.buffer.read()
