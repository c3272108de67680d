"""Atomic writes of files and folders."""

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
    r"""Whether a name is a path rather than a Hub id.

    >>> is_path("./model"), is_path("google/vit"), is_path("a/b/c"), is_path(r"C:\model")
    (True, False, True, True)

    ``google/vit`` is a path if there is a folder ``google``.
    """
    if name.startswith((".", "/", "~")) or name.count("/") > 1 or "\\" in name or name[1:2] == ":":
        return True
    first, _, rest = name.partition("/")
    return bool(rest) and Path(folder, first).is_dir()


def write_file(path: str | Path, content: bytes | memoryview, *, follow_link: bool = True) -> Path:
    """Write a file atomically.

    >>> write_file("figures.txt", b"1.5").read_text()
    '1.5'

    An existing file stays unchanged until the new one is complete, which gets its owner and
    permissions. Only a regular file is replaced: a folder, pipe or device of that name is an error.
    If ``path`` is a symbolic link, its target is replaced, or without ``follow_link`` the link. If
    two programs write the same file, the last one wins.
    """
    path = Path(path)
    if not path.name:
        raise InputError(f"{str(path)!r} is not a file name.")
    try:
        target = path.resolve() if follow_link and path.is_symlink() else path
        before = _regular(target, follow_link=follow_link)
        target.parent.mkdir(parents=True, exist_ok=True)
        # A short name: one derived from the file's could exceed the maximum length.
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
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, or an invalid path
        words = getattr(error, "strerror", None) or error
        raise InputError(f"{path} cannot be written: {words}.") from error
    return path


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A temporary folder whose content moves to ``path``, which is new or empty, at the end.

    An exception leaves nothing behind, and is raised as an error about ``path``.
    """
    unfinished, is_new = path / f"{_PREFIX}{secrets.token_hex(8)}", not path.exists()
    try:
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise InputError(f"{path} is not empty; name a new folder.")
        unfinished.mkdir()
        yield unfinished
        for inside in tuple(unfinished.iterdir()):
            inside.rename(path / inside.name)
    except RankscopeError:
        raise
    except Exception as error:  # libraries have their own errors for a full disk
        raise InputError(f"{path} cannot be written: {error}.") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
        if is_new:
            with suppress(OSError):  # not empty: everything was written
                path.rmdir()


def _write_unfinished(
    path: Path, content: bytes | memoryview, before: os.stat_result | None
) -> None:
    """Write and sync a new file, with the permissions of the one it will replace.

    Users who cannot read the old file cannot read the new one while it is written, either.
    """
    make = partial(os.open, mode=0o666 if before is None else 0o600)
    with open(path, "xb", opener=make) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    if before is not None:
        _copy_permissions(before, path)


def _regular(path: Path, *, follow_link: bool) -> os.stat_result | None:
    """The status of the file to replace, if it exists; raises if it is not a regular file."""
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
    """Copy the owner, if permitted, and the mode; the owner first, which clears some mode bits."""
    mode = stat.S_IMODE(before.st_mode)
    if hasattr(os, "chown"):
        for owner in (-1, before.st_uid):
            with suppress(OSError):
                os.chown(path, owner, before.st_gid)
        if path.stat().st_gid != before.st_gid:  # another group: give it the permissions of others
            mode = mode & ~0o070 | (mode & 0o007) << 3
    path.chmod(mode)


def is_unfinished(path: Path) -> bool:
    """Whether a file was left by a program that was killed during ``write_file``."""
    return path.name.startswith(_PREFIX) and path.is_file()


def settle(folder: Path) -> None:
    """Sync a folder, so that its files survive a loss of power."""
    if os.name != "posix":  # other systems cannot open folders
        return
    names = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(names)
    finally:
        os.close(names)


def discard_unfinished() -> None:
    """Remove unfinished files; for a program that exits without unwinding."""
    for path in tuple(_UNFINISHED):
        _discard(path)


def _discard(unfinished: Path) -> None:
    _UNFINISHED.discard(unfinished)
    with suppress(OSError):
        unfinished.unlink(missing_ok=True)
