"""Files that are whole or not there, whatever happens while they are written."""

import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from rankscope.errors import InputError, RankscopeError

_UNFINISHED: set[Path] = set()
_PREFIX = ".rankscope-"
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


def write_file(path: str | Path, content: bytes | memoryview, *, follow_link: bool = True) -> Path:
    """Write a file that is whole or not there, whatever happens meanwhile.

    >>> write_file("figures.txt", b"1.5").read_text()
    '1.5'

    A file of that name stays as it was until then, and the new one gets its owner and permissions.
    Only a regular file is replaced: a folder, pipe or device of that name is an error. A symbolic
    link stays, and the file it leads to is replaced; without ``follow_link`` the link itself is. If
    two programs write the same file, the last one's stays.
    """
    path = Path(path)
    if not path.name:
        raise InputError(f"{str(path)!r} names no file to write; give it a name.")
    try:
        target = path.resolve() if follow_link and path.is_symlink() else path
        before = _regular(target, follow_link=follow_link)
        target.parent.mkdir(parents=True, exist_ok=True)
        # A short name: one made from that of the file could be longer than a name may be.
        unfinished = target.with_name(f"{_PREFIX}{secrets.token_hex(8)}")
        _UNFINISHED.add(unfinished)
        try:
            _write_unfinished(unfinished, content, before)
            unfinished.replace(target)
            settle(target.parent)
        finally:
            _discard(unfinished)
    except InputError:
        raise
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, or no path at all
        words = getattr(error, "strerror", None) or error
        raise InputError(f"{path} cannot be written: {words}.") from error
    return path


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A folder to write to; when all is written, it moves into ``path``, which is new or empty.

    Whatever is raised before leaves nothing behind, and is told as an error about ``path``.
    """
    unfinished, is_new = path / f"{_PREFIX}{secrets.token_hex(8)}", not path.exists()
    try:
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise InputError(f"{path} is not empty, and nothing is overwritten; name a new folder.")
        unfinished.mkdir()
        yield unfinished
        for inside in tuple(unfinished.iterdir()):
            inside.rename(path / inside.name)
    except RankscopeError:
        raise
    except Exception as error:  # libraries have errors of their own for a full disk
        raise InputError(f"{path} cannot be written: {error}.") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
        if is_new:
            with suppress(OSError):  # it is not empty: all was written
                path.rmdir()


def _write_unfinished(
    path: Path, content: bytes | memoryview, before: os.stat_result | None
) -> None:
    """Write a new file, with the permissions of the one it will replace, and have it on the disk.

    Whoever may not read that one may not read the new one while it is being written, either.
    """
    make = partial(os.open, mode=0o666 if before is None else 0o600)
    with open(path, "xb", opener=make) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    if before is not None:
        _copy_permissions(before, path)


def _regular(path: Path, *, follow_link: bool) -> os.stat_result | None:
    """The file that will be replaced, if there is one; an error if it is no regular file."""
    try:
        status = path.stat(follow_symlinks=follow_link)
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(status.st_mode):
        return None
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "something else")
        raise InputError(f"{path} is {kind}, not a regular file; choose another name.")
    return status


def _copy_permissions(before: os.stat_result, path: Path) -> None:
    """Owner, as far as this user may, and mode; the owner first, which clears some of the mode."""
    mode = stat.S_IMODE(before.st_mode)
    if hasattr(os, "chown"):
        for owner in (-1, before.st_uid):
            with suppress(OSError):
                os.chown(path, owner, before.st_gid)
        if path.stat().st_gid != before.st_gid:  # another group may do what everybody may
            mode = mode & ~0o070 | (mode & 0o007) << 3
    path.chmod(mode)


def is_unfinished(path: Path) -> bool:
    """Whether a file is one that ``write_file`` was writing when its program was killed."""
    return path.name.startswith(_PREFIX) and path.is_file()


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
