"""Where a result came from, in words."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

_MOST: Final = 16
"""Entries above which only the first few of a list are shown."""
_FIRST: Final = 3
_LONGEST: Final = 500


def in_words(provenance: Mapping[str, Any]) -> dict[str, str]:
    """Each entry as a line of text; what is not known, empty or said twice is left out.

    >>> in_words({"seed": 0, "spec": None, "config": {"seed": 0, "heads": [1, 2], "width": 8}})
    {'seed': '0', 'config': 'heads 1, 2; width 8'}
    """
    once = {
        key: {k: v for k, v in value.items() if k not in provenance or provenance[k] != v}
        if isinstance(value, Mapping)
        else value
        for key, value in provenance.items()
    }
    return {key: _cut(text) for key, text in _entries(once)}


def _cut(text: str) -> str:
    """What is too long to be read, as its beginning; files and JSON have all of it."""
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST].rsplit(' ', 1)[0]} … (in full in the table's file)"


def _entries(values: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    for key, value in values.items():
        text = _words(value)
        if text:
            yield key.replace("_", " "), text


def _words(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        pairs = _pairs(value)
        return _join([_inner(each) for each in value]) if pairs is None else _words(pairs)
    if isinstance(value, Mapping):
        inner = {key: _inner(each) for key, each in value.items()}
        return _join([f"{key} {text}" for key, text in _entries(inner)])
    return str(value)


def _inner(value: Any) -> str:
    """A value inside another: what has names of its own stands in parentheses."""
    text = _words(value)
    named = isinstance(value, Mapping) or _pairs(value) is not None
    return f"({text})" if named and text else text


def _pairs(value: Any) -> dict[str, Any] | None:
    """A list of names and values as what it stands for."""
    is_list = isinstance(value, list | tuple) and len(value) > 0
    if is_list and all(
        isinstance(each, list | tuple) and len(each) == 2 and isinstance(each[0], str)
        for each in value
    ):
        return dict(value)
    return None


def _join(texts: Iterable[str]) -> str:
    kept = [each for each in texts if each]
    between = "; " if any(", " in each for each in kept) else ", "
    if len(kept) > _MOST:
        kept = [*kept[:_FIRST], f"… ({len(kept)} in all)"]
    return between.join(kept)
