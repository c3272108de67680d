"""``"window:{radius}"``: text of a grid into which the value of an axis goes."""

import re
from collections.abc import Mapping
from typing import Any

from rankscope.ask import nearest
from rankscope.errors import InputError

_PLACE = re.compile(r"\{\{|\}\}|\{([^{}]+)\}")
_BRACES = {"{{": "{", "}}": "}"}


def names_in(value: Any) -> set[str]:
    """The axes that a value, a table or a list refers to.

    >>> sorted(names_in({"kind": "lecun", "scale": "{scale}", "other": ["{a}:{b}", "{{c}}"]}))
    ['a', 'b', 'scale']
    """
    if isinstance(value, str):
        return {name.strip() for name in _PLACE.findall(value) if name}
    if isinstance(value, Mapping):
        return set().union(*map(names_in, value.values()))
    return set().union(*map(names_in, value)) if isinstance(value, list) else set()


def has_braces(value: Any) -> bool:
    """Whether filling in changes a value: braces that are written twice become one."""
    if isinstance(value, str):
        return "{" in value or "}" in value
    inner = value.values() if isinstance(value, Mapping) else value
    return any(map(has_braces, inner)) if isinstance(value, Mapping | list) else False


def fill(value: Any, settings: Mapping[str, Any]) -> Any:
    """The value with the settings in their places; text that is one place alone becomes its value.

    >>> fill(["window:{r}", "{r}", "{{r}}"], {"r": 2})
    ['window:2', 2, '{r}']
    """
    if isinstance(value, Mapping):
        return {name: fill(inner, settings) for name, inner in value.items()}
    if isinstance(value, list):
        return [fill(inner, settings) for inner in value]
    if not isinstance(value, str):
        return value
    alone = _PLACE.fullmatch(value)
    if alone and alone.group(1) is not None:
        return settings[alone.group(1).strip()]
    return _PLACE.sub(lambda found: _written(found, settings), value)


def check_names(key: str, value: Any, axes: tuple[str, ...]) -> None:
    """Raise if a value refers to something that is no axis."""
    for name in sorted(names_in(value) - set(axes)):
        known = nearest(name, axes) if axes else "the grid has no axes."
        raise InputError(
            f'{key}: "{{{name}}}" is no axis; {known} Text with braces is written {{{{ and }}}}.'
        )


def _written(found: re.Match[str], settings: Mapping[str, Any]) -> str:
    name = found.group(1)
    return _BRACES[found.group()] if name is None else str(settings[name.strip()])
