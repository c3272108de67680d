"""What stands where in a model: known by identity, and held so that the model can be freed."""

import weakref
from collections.abc import Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

from torch import nn

from rankscope.tracing._changeable import OPAQUE, snapshot
from rankscope.tracing._structure import attributes, foreign_hooks, is_ours

_VALUES = (bool, int, float, complex, str, bytes, type(None))
"""What has no identity to speak of: two that are of one kind and read alike are the same."""
_PARTS = tuple(map(attrgetter, ("_parameters", "_buffers", "_modules")))


class _Places(NamedTuple):
    """What stands in all modules, and under which names; loops over it run outside of Python."""

    names: list[Any]
    values: list[Any]

    @classmethod
    def of(cls, modules: Sequence[nn.Module]) -> "_Places":
        parts = [*map(_own, modules), *(part for get in _PARTS for part in map(get, modules))]
        hooks = foreign_hooks(modules)
        values = chain.from_iterable(map(dict.values, parts))
        return cls(list(chain.from_iterable(parts)), [*map(type, modules), *values, *hooks])


class Standing:
    """Whether the same objects stand in the same places of a model, and hold the same.

    Nothing is asked whether it equals another: True equals 1, one number in bfloat16 equals it in
    float32, and a class may answer what it likes. Values are held weakly where they can be: methods
    and modules point back at their model, which would never be freed.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._gone: list[Any] = []
        self._modules = [weakref.ref(module, self._gone.append) for module in modules]
        self._names, values = _Places.of(modules)
        self._ids = list(map(id, values))
        self._plain = {at: value for at, value in enumerate(values) if type(value) in _VALUES}
        self._kept: list[Any] = []
        for value in {id(each): each for each in values if type(each) not in _VALUES}.values():
            self._hold(value)
        self._changeable = [
            (at, name)
            for at, module in enumerate(modules)
            for name, value in attributes(module).items()
            if snapshot(value) is not None
        ]
        self._inside = self._snapshots(modules)
        configs = (getattr(module, "config", None) for module in modules)
        known = set(self._ids)
        self.is_seen = all(
            id(each) in known or not hasattr(each, "to_dict") for each in configs
        ) and not any(OPAQUE in words for words in self._inside)
        """Whether all that may change can be seen to have changed."""

    def modules(self) -> list[nn.Module]:
        """All of them that are still there."""
        found = (each() for each in self._modules)
        return [module for module in found if module is not None]

    def holds(self) -> bool:
        """Whether everything is as it was."""
        modules = self.modules()
        if self._gone or len(modules) != len(self._modules):
            return False
        names, values = _Places.of(modules)
        if names != self._names or len(values) != len(self._ids):
            return False
        ids = list(map(id, values))
        if ids != self._ids and not self._reads_alike(values):
            return False
        return self._snapshots(modules) == self._inside

    def _reads_alike(self, values: Sequence[Any]) -> bool:
        """Whether all that is another object is a plain value that reads as the one before."""
        return all(
            type(value) is type(before := self._plain.get(at, self)) and repr(value) == repr(before)
            for at, (value, identity) in enumerate(zip(values, self._ids, strict=True))
            if id(value) != identity
        )

    def _hold(self, value: Any) -> None:
        """Keep another from getting this one's identity; what is in containers is compared."""
        try:
            self._kept.append(weakref.ref(value, self._gone.append))
        except TypeError:
            if not isinstance(value, list | dict | tuple | set):
                self._kept.append(value)

    def _snapshots(self, modules: Sequence[nn.Module]) -> list[str]:
        """What is in each value that can change; a configuration is shared by many modules."""
        known: dict[int, str] = {}
        found = []
        for at, name in self._changeable:
            value = vars(modules[at])[name]
            if id(value) not in known:
                known[id(value)] = snapshot(value) or ""
            found.append(known[id(value)])
        return found


def _own(module: nn.Module) -> dict[str, Any]:
    own = module.__dict__
    if is_ours(module):  # which find things out while they run, and keep them aside
        return {name: each for name, each in own.items() if name[0] != "_"}
    return own
