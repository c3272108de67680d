"""What functions and attributes are, in plain values and tensors that can be digested."""

import dataclasses
from collections import deque
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import islice
from types import CodeType, FunctionType, MethodType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_DEPTH = 6
_MOST = 10_000
"""How far a container is followed; what lies beyond is known by its length alone."""
_PLAIN = (bool, int, float, str, type(None), Tensor)


def described(value: Any, depth: int = _DEPTH) -> Any:
    """A value as plain values, tensors, and containers of them, the same in every process.

    Functions are their code, defaults and closures; modules and objects of classes of one's own
    only their class, unless they are dataclasses. What functions read from globals is not seen.
    """
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, np.ndarray) and value.dtype != object:
        return torch.from_numpy(np.ascontiguousarray(value))
    if isinstance(value, torch.dtype | torch.device | complex | bytes | np.generic):
        return repr(value)
    kind = _name(value if isinstance(value, type) else type(value))
    if depth == 0 or isinstance(value, nn.Module | type):
        return kind
    return [kind, [described(each, depth - 1) for each in _inside(value)]]


def _inside(value: Any) -> Iterable[Any]:
    """The parts of a value in a fixed order; nothing for what cannot be looked into."""
    if isinstance(value, CodeType):
        return [value.co_code, value.co_names, *value.co_consts]
    if isinstance(value, FunctionType):
        kept = [value.__defaults__, value.__kwdefaults__, closed_over(value)]
        return [value.__qualname__, value.__code__, *kept]
    parts = parts_of(value)
    if parts is not None:
        return parts
    return [_name(value), getattr(value, "__dict__", {})] if callable(value) else []


def parts_of(value: Any) -> Iterable[Any] | None:
    """The parts of a container, or of what holds others, in a fixed order; None for others."""
    if isinstance(value, Mapping):
        return [len(value), *islice(([str(key), each] for key, each in value.items()), _MOST)]
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    if isinstance(value, list | tuple | deque):
        return [len(value), *islice(value, _MOST)]
    if isinstance(value, MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, SimpleNamespace):
        return [vars(value)]
    if dataclasses.is_dataclass(value):
        return [[one.name, getattr(value, one.name, None)] for one in dataclasses.fields(value)]
    return None


def closed_over(function: FunctionType) -> list[Any]:
    """What a function closes over; a cell that is not filled yet holds nothing."""
    return [_content(cell) for cell in function.__closure__ or ()]


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _name(value: Any) -> str:
    named = value if hasattr(value, "__qualname__") or hasattr(value, "__name__") else type(value)
    name = getattr(named, "__qualname__", None) or getattr(named, "__name__", "")
    return f"{getattr(named, '__module__', '')}.{name}"
