"""What stands where in a model: known by identity, and held so that the model can be freed."""

import weakref
from collections.abc import Callable, Sequence
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any

from torch import nn

from rankscope.core.tracing._changeable import OPAQUE, snapshot
from rankscope.core.tracing._structure import attributes, foreign_hooks, is_ours

_VALUES = (bool, int, float, complex, str, bytes, type(None))
"""What has no identity to speak of: two that are of one kind and read alike are the same."""
_PARTS = tuple(map(attrgetter, ("_parameters", "_buffers", "_modules")))


class _Reader:
    """Reads what stands in all modules, and under which names; its loops run outside of Python.

    Of a module's attributes those are read that it had at first. Another one shows in their number.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        # Those of ours find things out while they run, and keep them aside.
        self._ours = [is_ours(module) for module in modules]
        self._getters = [_getter(_names(module)) for module in modules]

    def read(self, modules: Sequence[nn.Module]) -> tuple[list[Any], list[Any]]:
        """Names and numbers of what stands there, and then that itself."""
        own = [module.__dict__ for module in modules]
        parts = [part for get in _PARTS for part in map(get, modules)]
        sizes = [0 if ours else len(each) for ours, each in zip(self._ours, own, strict=True)]
        attributes_ = (get(each) for get, each in zip(self._getters, own, strict=True))
        values = [
            *map(type, modules),
            *chain.from_iterable(attributes_),
            *chain.from_iterable(map(dict.values, parts)),
            *foreign_hooks(modules),
        ]
        return [*sizes, *chain.from_iterable(parts)], values


def _names(module: nn.Module) -> list[str]:
    """Attributes that matter: the mode, which a compiled module has elsewhere, and its own."""
    mode = ["training"] if "training" in vars(module) else []
    return [*mode, *attributes(module)]


def _getter(names: Sequence[str]) -> Callable[[dict[str, Any]], tuple[Any, ...]]:
    """What gives the values under some names, always as a tuple."""
    if len(names) > 1:
        return itemgetter(*names)
    return lambda held: tuple(held[name] for name in names)


class Standing:
    """Whether the same objects stand in the same places of a model, and hold the same.

    Nothing is asked whether it equals another: True equals 1, one number in bfloat16 equals it in
    float32, and a class may answer what it likes. Values are held weakly where they can be: methods
    and modules point back at their model, which would never be freed.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._gone: list[Any] = []
        self._modules = [weakref.ref(module, self._gone.append) for module in modules]
        self._reader = _Reader(modules)
        self._names, values = self._reader.read(modules)
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
        try:
            names, values = self._reader.read(modules)
        except KeyError:  # an attribute is gone
            return False
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
