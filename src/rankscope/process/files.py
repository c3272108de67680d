"""Files that are whole or not there, whatever happens while they are written."""

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rankscope.errors import InputError

_UNFINISHED: set[Path] = set()


@contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """A place to write to, which becomes ``path`` when all is written, and is gone otherwise.

    >>> with whole_file("figures.txt") as unfinished:
    ...     _ = unfinished.write_text("1.5")
    >>> Path("figures.txt").read_text()
    '1.5'

    A file of that name stays as it was until then. Two programs that write the same file do not
    meet; the last one's stays.
    """
    path = Path(path)
    if not path.name:
        raise InputError(f"{str(path)!r} names no file to write; give it a name.")
    own = f"{os.getpid()}-{threading.get_ident() % 10**6}"
    unfinished = path.with_name(f".{path.stem}-{own}{path.suffix}")
    _UNFINISHED.add(unfinished)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield unfinished
        with unfinished.open("rb") as file:
            os.fsync(file.fileno())
        unfinished.replace(path)
        settle(path.parent)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}.") from error
    finally:
        _discard(unfinished)


def is_unfinished(path: Path) -> bool:
    """Whether a file is one that ``whole_file`` was writing when its program was killed."""
    return re.fullmatch(r"\..+-\d+-\d{1,6}", path.stem) is not None and path.is_file()


def settle(folder: Path) -> None:
    """Have a folder's names on the disk, so that no file in it is gone after a loss of power."""
    if os.name != "posix":  # elsewhere a folder cannot be opened, and need not be
        return
    names = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(names)
    finally:
        os.close(names)


def discard_unfinished() -> None:
    """Remove what is being written; for a program that ends without unwinding."""
    for path in tuple(_UNFINISHED):
        _discard(path)


def _discard(unfinished: Path) -> None:
    _UNFINISHED.discard(unfinished)
    with suppress(OSError):
        unfinished.unlink(missing_ok=True)
