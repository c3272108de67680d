"""Where a result came from, in words."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

_MOST: Final = 8
_FIRST: Final = 3


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
    return dict(_entries(once))


def _entries(values: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    for key, value in values.items():
        told = _words(value)
        if told:
            yield key.replace("_", " "), told


def _words(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        told = [f"{key} {inner}" for key, inner in _entries(value)]
        return ("; " if any(", " in each for each in told) else ", ").join(told)
    if isinstance(value, list | tuple):
        return _several([each for each in map(_words, value) if each])
    return str(value)


def _several(told: list[str]) -> str:
    between = "; " if any(", " in each for each in told) else ", "
    if len(told) <= _MOST:
        return between.join(told)
    return f"{between.join(told[:_FIRST])}{between}… ({len(told)} in all)"
