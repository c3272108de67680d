"""Short names for values: equal for equal ones, in every process."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rankscope.core.tracing._caches import is_cache
from rankscope.core.tracing._described import described
from rankscope.core.weights import tensor_digests


def function_name(function: Callable[..., Any]) -> str:
    """What a function is called, and a digest of its code, its defaults and its closure."""
    called = getattr(function, "__qualname__", type(function).__name__)
    return f"{called}, {digest(described(function))[:8]}"


def digest(value: Any) -> str:
    """Twelve hex digits that name tensors and plain values, however they are nested."""
    leaves = dict(_leaves(value))
    tensors = {name: leaf for name, leaf in leaves.items() if isinstance(leaf, Tensor)}
    plain = {name: leaf for name, leaf in leaves.items() if name not in tensors}
    content = json.dumps([plain, tensor_digests(tensors)], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:12]


def _leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Tensor | str | int | float | None):
        yield place, value
    elif isinstance(value, np.ndarray) and value.dtype != object:
        yield place, torch.from_numpy(np.ascontiguousarray(value))
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _leaves(inner, f"{place}.{name}")
    elif isinstance(value, Sequence):
        for number, inner in enumerate(value):
            yield from _leaves(inner, f"{place}[{number}]")
    elif is_cache(value):
        yield from _leaves({"": type(value).__name__, **vars(value)}, place)
    else:  # its repr may hold an address, which differs from run to run
        yield place, type(value).__name__
