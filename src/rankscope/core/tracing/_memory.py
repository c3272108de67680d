"""What was found out about a model the last time, for as long as it is the same.

Weights and structure are read in full once. After that a model is recognised: no module, attribute,
hook, parameter or buffer was put in another's place, nothing changed inside what can be looked
into, PyTorch counted no write to a tensor, and bytes from all over each tensor are still what they
were, which notices most of what goes past PyTorch's count (``.data``, NumPy), though not every
single number. What does not pass is read again.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from rankscope.core.tracing._samples import Samples
from rankscope.core.tracing._standing import Standing
from rankscope.core.tracing._structure import attributes, structure_of
from rankscope.core.weights import named_tensors, tensor_digests

_MOST = 4
"""Models that are remembered: a tensor that points back at its model would keep it alive."""
_lock = threading.RLock()
_memories: "WeakKeyDictionary[nn.Module, Memory]" = WeakKeyDictionary()

Found = TypeVar("Found")


@dataclass
class Memory:
    """A model as it was when it was last looked at; the model itself is not kept alive."""

    structure: str
    tensors: dict[str, Tensor]
    digests: dict[str, str]
    samples: Samples
    _standing: Standing
    _loose: list[Tensor]
    """Tensors that are neither parameters nor buffers."""
    _are_hidden: bool
    """Whether weights lie where no module has them, as those that wait in main memory do."""
    _is_settled: bool | None = None
    """Whether a run leaves the model as it was, so far as is known."""
    _counts: list[tuple[Any, ...]] = field(default_factory=list)
    _facts: dict[Any, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, model: nn.Module) -> "Memory":
        """Look at a model in full."""
        tensors = named_tensors(model)
        modules = list(model.modules())
        values = (value for module in modules for value in attributes(module).values())
        loose = [value for value in values if isinstance(value, Tensor)]
        seen = {id(each) for each in (*model.parameters(), *model.buffers())}
        memory = cls(
            structure=structure_of(model),
            tensors=tensors,
            digests=tensor_digests(tensors),
            samples=Samples([*tensors.values(), *loose]),
            _standing=Standing(modules),
            _loose=loose,
            _are_hidden=any(id(each) not in seen for each in tensors.values()),
        )
        if memory.can_be_kept:
            memory._counts = memory._counted()
        return memory

    def modules(self) -> list[nn.Module]:
        """The model and every module in it."""
        return self._standing.modules()

    def fits(self, model: nn.Module) -> bool:
        """Whether the model is still what it was, as far as can be told without reading weights."""
        return (
            self._standing.holds()
            and self.modules()[0] is model  # and not one that says it is equal
            and self._counted() == self._counts
            and not (self._are_hidden and _ids(named_tensors(model)) != _ids(self.tensors))
        )

    def settle(self, model: nn.Module) -> None:
        """See, after the first run, whether it has left the model as it was."""
        if self._is_settled is None and not self.samples.are_at_hand:
            self._is_settled = self.fits(model)

    @property
    def can_wait(self) -> bool:
        """Whether it may be asked after a run if it fits: a device works meanwhile, no run has
        changed the model, and PyTorch has counted no write to a weight."""
        return self._is_settled is True and self._counted() == self._counts

    def once(self, name: Any, find: Callable[[], Found]) -> Found:
        """What is found out about the model alone: it is found once."""
        if name not in self._facts:
            self._facts[name] = find()
        found: Found = self._facts[name]
        return found

    @property
    def can_be_kept(self) -> bool:
        """Whether all that may change can be seen to have changed."""
        return self.samples.are_complete and self._standing.is_seen

    def _counted(self) -> list[tuple[Any, ...]]:
        """How often PyTorch has seen each tensor written to, and where and how its numbers lie."""
        return [
            (each._version, each.data_ptr(), each.shape, each.stride(), each.dtype)
            for each in (*self.tensors.values(), *self._loose)
        ]


def remembered(model: nn.Module) -> Memory:
    """What is known of a model: as remembered, if it fits, or as it is found now.

    ``samples.agree`` must be asked once the model has run: a device is not waited for here.
    """
    with _lock:
        memory = _memories.get(model)
    if memory is not None and memory.fits(model):
        memory.samples.compare()
        if not memory.samples.are_at_hand or memory.samples.agree():
            return memory
    return memorised(model)


def at_hand(model: nn.Module) -> Memory | None:
    """What is known of a model, if that may be made sure of after it has run: it must be asked
    then whether it ``fits`` and its ``samples.agree``."""
    with _lock:
        memory = _memories.get(model)
    if memory is None or not memory.can_wait:
        return None
    memory.samples.compare()
    return memory


def memorised(model: nn.Module) -> Memory:
    """A model looked at in full, and remembered where it will be recognised."""
    memory = Memory.of(model)
    with _lock:
        forget(model)
        if memory.can_be_kept:
            while len(_memories) >= _MOST:
                del _memories[next(iter(_memories))]
            _memories[model] = memory
    return memory


def forget(model: nn.Module) -> None:
    """Read a model in full the next time."""
    with _lock:
        _memories.pop(model, None)


def _ids(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    return {name: id(each) for name, each in tensors.items()}
