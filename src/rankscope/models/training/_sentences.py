"""Sentences out of a file: tab-separated columns, or plain text."""

from pathlib import Path

from rankscope.arguments import checked
from rankscope.errors import InputError


@checked
def read_sentences(path: str | Path) -> tuple[str, ...]:
    """The sentences of a file in UTF-8, in order.

    Of a ``.tsv`` file these are the columns whose name, in its first row, begins with "sentence".
    Of any other file each line that is not empty.
    """
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not in UTF-8: {error}; convert it first.") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from error
    found = _from_columns(path, lines) if path.suffix.lower() == ".tsv" else lines
    sentences = tuple(each.strip() for each in found if each.strip())
    if not sentences:
        raise InputError(f"{path} has no sentence in it.")
    return sentences


def _from_columns(path: Path, lines: list[str]) -> list[str]:
    """Row by row, what stands in the columns of sentences."""
    header, *rows = [line.split("\t") for line in lines if line.strip()] or [[]]
    chosen = [at for at, name in enumerate(header) if name.strip().lower().startswith("sentence")]
    if not chosen:
        raise InputError(
            f"{path} has no column whose name begins with 'sentence', so it is not known which "
            "columns to read, nor whether its first row is one; name them, or give a text file."
        )
    if not rows:
        raise InputError(f"{path} has no row below its header.")
    for number, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise InputError(
                f"{path}, row {number}: {len(row)} columns where the header has {len(header)}; "
                "columns are separated by tabs."
            )
    return [row[at] for row in rows for at in chosen]
