"""What a figure was made from: short names for values and folders, and versions."""

import hashlib
import json
import platform
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rankscope.arguments import python_number
from rankscope.version import __version__

_CHUNK, _PLACES = 2**16, 256
"""Bytes of a file that are read at once, and places of a large one where they are."""
_LONG = 200
"""Texts longer than this many characters are described by their beginning and their hash."""


def fingerprint(content: Any, *, digits: int = 12) -> str:
    """Hex digits that name a value of what JSON has; a million values need sixteen.

    >>> fingerprint({"seed": 0, "layers": 2})
    '576f08532e20'
    """
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:digits]


def folder_fingerprint(folder: Path) -> str:
    """Twelve hex digits that name the files of a folder: their names, sizes and contents.

    Large files are looked at in evenly spaced places: weights of another training are told apart, a
    single number that was changed may not be.
    """
    found = hashlib.sha256()
    for path in sorted(each for each in folder.iterdir() if each.is_file()):
        size = path.stat().st_size
        found.update(repr((path.name, size)).encode())
        with path.open("rb") as file:
            for start in range(0, size, max(_CHUNK, size // _PLACES)):
                file.seek(start)
                found.update(file.read(_CHUNK))
    return found.hexdigest()[:12]


def stem(id_: str, digest: str = "") -> str:
    """What the files of a result are called, up to the ending.

    >>> stem("D2", "0123456789ab")
    'd2-01234567'
    """
    named = f"{id_.lower()}-{digest[:8]}" if digest else id_.lower()
    return re.sub(r"[^\w-]+", "-", named) or "result"


def plain(value: Any) -> Any:
    """A value of a configuration in what JSON has; different values give different results.

    >>> plain((1, None, "full"))
    [1, None, 'full']

    A frozen record also gives its type: two kinds of scores without fields would otherwise look the
    same. One with a ``describe`` of its own knows what it depends on beside its fields.
    """
    value = python_number(value)
    if isinstance(value, str):
        if len(value) <= _LONG:
            return value
        return f"{value[:40]}… ({hashlib.sha256(value.encode()).hexdigest()[:16]})"
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if is_dataclass(value):
        describe = getattr(value, "describe", None)
        inside = describe() if describe else {f.name: getattr(value, f.name) for f in fields(value)}
        return {"type": type(value).__name__, **plain(inside)}
    return str(value)


@cache  # the files of an installed package take longer to read than a small trace
def _torch_version() -> str:
    return version("torch")


def versions() -> dict[str, str]:
    """The software a figure was made with."""
    python = platform.python_version()
    return {"rankscope": __version__, "torch": _torch_version(), "python": python}
