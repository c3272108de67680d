"""What was found out about a model the last time, for as long as it is the same.

Weights and structure are read in full once. After that a model is recognised: no module, attribute,
parameter or buffer was put in another's place, no container or configuration changed, PyTorch
counted no write to a tensor, and bytes from all over each tensor are still what they were, which
notices most of what goes past PyTorch's count (``.data``, NumPy), though not every single number.
What does not pass is read again.
"""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FunctionType, SimpleNamespace
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from rankscope.tracing._described import described
from rankscope.tracing._samples import Samples
from rankscope.tracing._structure import PYTORCHS, structure_of
from rankscope.weights import named_tensors, tensor_digests

_MOST = 4
"""Models that are remembered: a module that points back at its model would keep it alive."""
_lock = threading.RLock()
_memories: "WeakKeyDictionary[nn.Module, Memory]" = WeakKeyDictionary()

Found = TypeVar("Found")
Held = tuple[dict[str, Any], ...]
"""Attributes, parameters, buffers and modules of a module."""


@dataclass
class Memory:
    """A model as it was when it was last looked at; the model itself is not kept alive."""

    structure: str
    tensors: dict[str, Tensor]
    digests: dict[str, str]
    samples: Samples
    _root: Held
    _others: list[tuple[nn.Module, Held]]
    _inside: list[tuple[Any, str]]
    """Values that can change while they stay the same object, and what was in them."""
    _loose: list[Tensor]
    """Tensors that are neither parameters nor buffers."""
    _versions: list[tuple[int, int]] = field(default_factory=list)
    _facts: dict[Any, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, model: nn.Module) -> "Memory":
        """Look at a model in full."""
        tensors = named_tensors(model)
        modules = list(model.modules())
        values = [value for module in modules for value in _values(module)]
        loose = [value for value in values if isinstance(value, Tensor)]
        memory = cls(
            structure=structure_of(model),
            tensors=tensors,
            digests=tensor_digests(tensors),
            samples=Samples([*tensors.values(), *loose]),
            _root=_copied(model),
            _others=[(module, _copied(module)) for module in modules[1:]],
            _inside=[(value, words) for value in values if (words := _words(value)) is not None],
            _loose=loose,
        )
        if memory.can_be_kept:
            memory._versions = memory._counted()
        return memory

    def modules(self, model: nn.Module) -> list[nn.Module]:
        """The model and every module in it."""
        return [model, *(module for module, _ in self._others)]

    def fits(self, model: nn.Module) -> bool:
        """Whether the model is still what it was, as far as can be told without reading weights."""
        try:
            return (
                _parts(model) == self._root
                and all(_parts(module) == held for module, held in self._others)
                and all(_words(value) == words for value, words in self._inside)
                and self._counted() == self._versions
            )
        except (RuntimeError, ValueError, TypeError):  # two tensors are not simply equal or not
            return False

    def once(self, name: Any, find: Callable[[], Found]) -> Found:
        """What is found out about the model alone: it is found once."""
        if name not in self._facts:
            self._facts[name] = find()
        found: Found = self._facts[name]
        return found

    @property
    def can_be_kept(self) -> bool:
        """Whether all that may change can be seen to have changed."""
        return self.samples.are_complete and all(_HIDDEN not in words for _, words in self._inside)

    def _counted(self) -> list[tuple[int, int]]:
        """How often PyTorch has seen each tensor written to, and where its numbers are."""
        every = (*self.tensors.values(), *self._loose)
        return [(tensor._version, tensor.data_ptr()) for tensor in every]


def remembered(model: nn.Module) -> Memory:
    """What is known of a model: as remembered, if it fits, or as it is found now.

    ``samples.agree`` must be asked once the model has run.
    """
    with _lock:
        memory = _memories.get(model)
    if memory is not None and memory.fits(model):
        memory.samples.compare()
        return memory
    return memorised(model)


def memorised(model: nn.Module) -> Memory:
    """A model looked at in full, and remembered where it will be recognised."""
    memory = Memory.of(model)
    with _lock:
        _memories.pop(model, None)
        if memory.can_be_kept:
            while len(_memories) >= _MOST:
                del _memories[next(iter(_memories))]
            _memories[model] = memory
    return memory


_HIDDEN = "a tensor inside"
"""Stands in the words of a container that has a tensor in it, which words cannot follow."""


def _parts(module: nn.Module) -> Held:
    own = module.__dict__
    parts = (own["_parameters"], own["_buffers"], own["_modules"])
    if _is_ours(module):  # which find things out while they run, and keep them aside
        return {name: each for name, each in own.items() if name[0] != "_"}, *parts
    return own, *parts


def _is_ours(module: nn.Module) -> bool:
    return type(module).__module__.startswith("rankscope.")


def _copied(module: nn.Module) -> Held:
    return tuple(dict(part) for part in _parts(module))


def _values(module: nn.Module) -> Iterator[Any]:
    """The attributes that are part of a structure; what ours keep aside is no part of it."""
    ours = _is_ours(module)
    for name, value in vars(module).items():
        if name not in PYTORCHS and not (ours and name.startswith("_")):
            yield value


def _words(value: Any) -> str | None:
    """What is in a value that can change while it stays the same object; None for others."""
    if hasattr(value, "to_dict"):  # the configuration of a model of transformers
        return repr(vars(value))
    if isinstance(value, list | tuple | dict | set | SimpleNamespace) or _is_open(value):
        return repr(_plain(described(value)))
    return None


def _is_open(value: Any) -> bool:
    """Whether a function has a closure, or a dataclass can be written to."""
    if isinstance(value, FunctionType):
        return bool(value.__closure__)
    frozen = getattr(getattr(type(value), "__dataclass_params__", None), "frozen", True)
    return not frozen


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return _HIDDEN
    return [_plain(each) for each in value] if isinstance(value, list) else value
