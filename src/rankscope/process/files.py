"""Files that are whole or not there, whatever happens while they are written."""

import os
import re
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rankscope.errors import InputError

_UNFINISHED: set[Path] = set()
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def is_path(name: str, folder: str | Path = "") -> bool:
    """Whether a name that may be a Hub id is a path: it is written as one, or begins as one.

    >>> is_path("./model"), is_path("google/vit"), is_path("a/b/c")
    (True, False, True)

    ``google/vit`` is one where there is a folder ``google``.
    """
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        return True
    first, _, rest = name.partition("/")
    return bool(rest) and Path(folder, first).is_dir()


@contextmanager
def whole_file(path: str | Path, *, follow_link: bool = True) -> Iterator[Path]:
    """A path to write to, which becomes ``path`` when all is written, and is gone otherwise.

    >>> with whole_file("figures.txt") as unfinished:
    ...     _ = unfinished.write_text("1.5")
    >>> Path("figures.txt").read_text()
    '1.5'

    A file of that name stays as it was until then, and the new one gets its permissions. Only a
    regular file is replaced: a folder, pipe or device of that name is an error. A symbolic link
    stays, and the file it leads to is replaced; without ``follow_link`` the link itself is. If two
    programs write the same file, the last one's stays.
    """
    path = Path(path)
    if not path.name:
        raise InputError(f"{str(path)!r} names no file to write; give it a name.")
    try:
        target = path.resolve() if follow_link and path.is_symlink() else path
        before = _regular(target, follow_link=follow_link)
        target.parent.mkdir(parents=True, exist_ok=True)
    except InputError:
        raise
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, or no path at all
        raise _unwritable(path, error) from error
    writer = f"{os.getpid()}-{threading.get_ident() % 10**6}"
    unfinished = target.with_name(f".{target.stem}-{writer}{target.suffix}")
    _UNFINISHED.add(unfinished)
    try:
        unfinished.unlink(missing_ok=True)
        # Nothing that stands there is written through, and what others may not read, they may not
        # read while it is being written either.
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
        os.close(os.open(unfinished, flags, 0o666 if before is None else 0o600))
        yield unfinished
        with unfinished.open("rb") as file:
            os.fsync(file.fileno())
        if before is not None:
            _copy_permissions(before, unfinished)
        unfinished.replace(target)
        settle(target.parent)
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        _discard(unfinished)


def _regular(path: Path, *, follow_link: bool) -> os.stat_result | None:
    """The file that will be replaced, if there is one; an error if it is no regular file."""
    try:
        found = path.stat(follow_symlinks=follow_link)
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(found.st_mode):
        return None
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "something else")
        raise InputError(f"{path} is {kind}, not a regular file; choose another name.")
    return found


def _copy_permissions(before: os.stat_result, path: Path) -> None:
    """Owner, as far as this user may, and mode; the owner first, which clears some of the mode."""
    made = path.stat()
    if hasattr(os, "chown") and (made.st_uid, made.st_gid) != (before.st_uid, before.st_gid):
        with suppress(OSError):
            os.chown(path, before.st_uid, before.st_gid)
    path.chmod(stat.S_IMODE(before.st_mode))


def _unwritable(path: Path, error: Exception) -> InputError:
    words = getattr(error, "strerror", None) or error
    return InputError(f"{path} cannot be written: {words}.")


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
