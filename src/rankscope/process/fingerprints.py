"""Fingerprints of values and folders, and software versions, for provenance."""

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
from rankscope.errors import KindError
from rankscope.version import __version__

_CHUNK, _CHUNKS = 2**16, 256
"""Size of a chunk in bytes, and number of chunks read of a large file."""
_LONG = 200
"""Texts longer than this are described by their beginning and their hash."""


def fingerprint(content: Any, *, digits: int = 12) -> str:
    """A hexadecimal fingerprint of a JSON value; use 16 digits for a million values.

    >>> fingerprint({"seed": 0, "layers": 2})
    '576f08532e20'
    """
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:digits]


def folder_fingerprint(folder: Path) -> str:
    """A fingerprint of the names, sizes and contents of the files in a folder, or of one file.

    Large files are sampled at even distances: this detects weights of another training, but not
    necessarily a single changed number.
    """
    digest = hashlib.sha256()
    paths = [folder] if folder.is_file() else folder.iterdir()
    for path in sorted(path for path in paths if path.is_file()):
        size = path.stat().st_size
        digest.update(repr((path.name, size)).encode())
        with path.open("rb") as file:
            for start in range(0, size, max(_CHUNK, size // _CHUNKS)):
                file.seek(start)
                digest.update(file.read(_CHUNK))
    return digest.hexdigest()[:12]


def stem(id_: str, digest: str = "") -> str:
    """The file name of a result, without suffix.

    >>> stem("D2", "0123456789ab")
    'd2-01234567'
    """
    named = f"{id_.lower()}-{digest[:8]}" if digest else id_.lower()
    return re.sub(r"[^\w-]+", "-", named) or "result"


def plain(value: Any) -> Any:
    """Convert a value of a configuration to JSON types; different values stay different.

    >>> plain((1, None, "full"))
    [1, None, 'full']

    A dataclass includes its type: two classes without fields would otherwise be equal. A
    ``describe`` method overrides its fields.
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
    try:
        return str(value)
    except Exception as error:  # of an object of the caller's
        raise KindError(
            f"a {type(value).__name__} cannot be recorded: str() of it raises "
            f"{type(error).__name__}."
        ) from error


@cache  # reading package metadata takes longer than a small trace
def _torch_version() -> str:
    return version("torch")


def versions() -> dict[str, str]:
    """The versions of the software."""
    python = platform.python_version()
    return {"rankscope": __version__, "torch": _torch_version(), "python": python}
