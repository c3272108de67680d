"""What a run asks, worked out from its fields: enough to name it, estimate it and run it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from rankscope.ask import Cost
from rankscope.errors import InputError
from rankscope.experiments.catalogue import Entry
from rankscope.run._run import run_key
from rankscope.run._values import nearest

Reader = Callable[[Any], Any]
"""From a value of a grid to what a field holds; raises an error that names the field."""


@dataclass(frozen=True)
class Asked:
    """An experiment, what its numbers depend on, its configuration, and what it will cost.

    ``configure`` makes the configuration to run, which for a question draws or loads the network;
    ``cost`` is None where it is not known.
    """

    entry: Entry
    depends_on: Any
    configure: Callable[[], Any]
    cost: Callable[[], Cost | None]

    @property
    def key(self) -> str:
        """What the result is filed under."""
        return run_key(self.entry.id, self.depends_on)


def read_fields(
    entry: Entry, readers: Mapping[str, Reader], fields: Mapping[str, Any]
) -> dict[str, Any]:
    """Fields as their readers read them; one that the experiment does not have is refused."""
    for name in fields:
        if name not in readers:
            raise InputError(f"{name} is no field of {entry.id}; {nearest(name, tuple(readers))}")
    return {
        name: readers[name](value)
        if isinstance(value, list | Mapping)
        else _read(readers[name], type(value).__name__, value)
        for name, value in fields.items()
    }


@lru_cache(maxsize=4096)
def _read(reader: Reader, kind: str, value: Any) -> Any:
    """One value, read once for all runs that have it; 1, 1.0 and True are three."""
    del kind
    return reader(value)
