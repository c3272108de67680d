"""From what JSON has to what an annotation asks for: tuples, frozen records, numbers."""

import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass, replace
from functools import cache
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from rankscope.core.network import SCORES, ScoreKind
from rankscope.errors import InputError
from rankscope.run._axes import shown
from rankscope.run._values import nearest


def convert(kind: Any, value: Any, default: Any = None) -> Any:
    """A value as an annotation asks for it; what does not fit is left for its check to refuse.

    >>> convert(tuple[float, ...], [1, 2])
    (1.0, 2.0)

    Text alone stands for a list of it. A table makes a frozen record, on top of the ``default``
    where there is one.
    """
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return convert(inner[0], value, default)
    if origin in (Union, types.UnionType):
        return convert(_chosen(inner, value), value, default)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value) if abs(value) < 2**1023 else value
    if kind is ScoreKind:
        return _score(value)
    if is_dataclass(kind) and isinstance(value, Mapping):
        return _record(kind, value, default)
    if origin in (tuple, Sequence) and isinstance(value, list):
        each = inner[:1] * len(value) if inner[1:] in ((), (...,)) else inner
        rest = value[len(each) :]  # too many: the check says so
        return (*(convert(k, v) for k, v in zip(each, value, strict=False)), *rest)
    if origin is tuple and inner[0] is str and isinstance(value, str):
        return (value,)
    return value


def _chosen(kinds: tuple[Any, ...], value: Any) -> Any:
    """Which of several kinds a value is meant as."""
    if ScoreKind in kinds:
        return ScoreKind
    if isinstance(value, Mapping):
        return next((kind for kind in kinds if is_dataclass(kind)), None)
    if isinstance(value, list):
        return next((kind for kind in kinds if get_origin(kind) in (tuple, Sequence)), None)
    return float if float in kinds and int not in kinds else None


def _record(kind: Any, table: Mapping[str, Any], default: Any) -> Any:
    known = {each.name: each for each in fields(kind) if each.init}
    for name in table:
        if name not in known:
            raise InputError(
                f"{name} is no field of {kind.__name__}; {nearest(name, tuple(known))}"
            )
    base = default if isinstance(default, kind) else None
    made = {
        name: convert(hints(kind)[name], value, getattr(base, name, None))
        for name, value in table.items()
    }
    if base is not None:
        return replace(base, **made)
    for name, each in known.items():
        if name not in made and each.default is MISSING and each.default_factory is MISSING:
            raise InputError(f"got {shown(dict(table))}, expected also {name} ({kind.__name__}).")
    return kind(**made)


@cache
def hints(kind: Any) -> dict[str, Any]:
    """What the fields of a record are annotated with."""
    return get_type_hints(kind, include_extras=True)


def _score(value: Any) -> Any:
    """A score by its name, or by a table with its ``kind`` and its fields."""
    table = {"kind": value} if isinstance(value, str) else value
    if not isinstance(table, Mapping) or table.get("kind") == "dot":
        return value
    known = {_plain(entry.words): entry.kind for entry in SCORES.values() if entry.kind}
    name = _plain(str(table.get("kind", "")))
    if name not in known:
        listed = ", ".join(["dot", *known])
        raise InputError(
            f"got {shown(value)}, expected a score, or a table whose kind is {listed}."
        )
    return _record(known[name], {k: v for k, v in table.items() if k != "kind"}, None)


def _plain(words: str) -> str:
    """A name as every way of writing it has it: relative_bias, RelativeBias, relative bias."""
    return "".join(each for each in words.lower() if each.isalnum())
