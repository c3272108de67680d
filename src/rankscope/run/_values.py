"""Values of a grid: what JSON has, and nothing that no experiment could use."""

import math
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from rankscope.errors import InputError, KindError

MOST_RUNS = 1_000_000
"""Of a grid, and hence values of an axis."""
_MOST = 2**63
"""Beyond the whole numbers that a table can hold."""
_DEEPEST = 32
"""Tables and lists inside each other; more is a mistake, or a list that holds itself."""


def as_json(value: Any, key: str, depth: int = 0) -> Any:
    """A value in what JSON has; ``key`` is where it stands, for the error that refuses it."""
    if depth > _DEEPEST:
        raise InputError(f"{key}: tables and lists lie more than {_DEEPEST} deep in each other.")
    if hasattr(value, "tolist"):  # numbers of NumPy and torch
        value = value.tolist()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        if not -_MOST <= value < _MOST:
            raise InputError(f"{key}: got a whole number beyond 64 bits, expected a smaller one.")
        return int(value)  # a member of an enumeration could not be sent to another process
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InputError(f"{key}: got {value}, expected a finite number.")
        return float(value)
    if isinstance(value, str | PurePath):
        return _text(str(value), key)
    if isinstance(value, Mapping):
        return {_name(k, key): as_json(v, dotted(key, str(k)), depth + 1) for k, v in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        if len(value) > MOST_RUNS:  # a range says so without holding them
            raise InputError(f"{key}: got {len(value):,} items, expected {MOST_RUNS:,} at most.")
        return [as_json(each, f"{key}[{i}]", depth + 1) for i, each in enumerate(value)]
    raise KindError(
        f"{key}: got a {type(value).__name__}, expected text, a number, true or false, a list or a "
        "table."
    )


def dotted(key: str, name: str) -> str:
    """Where a name stands below a key, as TOML writes it.

    >>> dotted("axes", "heads"), dotted("axes", "layers, width")
    ('axes.heads', 'axes."layers, width"')
    """
    written = name if name.replace("_", "").replace("-", "").isalnum() else f'"{name}"'
    return f"{key}.{written}" if key else written


def _name(name: Any, key: str) -> str:
    if not isinstance(name, str):
        raise KindError(f"{key}: got the name {name!r}, expected text.")
    return _text(name, key)


def _text(text: str, key: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(f"{key}: got text with half of a surrogate pair.") from None
    return text
