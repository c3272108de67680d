"""What is in values that can change while they stay the same object."""

from collections.abc import Iterable
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rankscope.core.tracing._described import closed_over, parts_of

_DEPTH = 6
OPAQUE = "numbers inside"
"""Stands in a snapshot for tensors and arrays in a value, which words cannot follow."""
_FIXED = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, np.generic)
_LEAVES = (nn.Module, type, BuiltinFunctionType)


def snapshot(value: Any) -> str | None:
    """What is in a value, changed whenever what is ``described`` of it is; None if nothing can be.

    Cheaper than a description: a function's code never changes, so what is known by its identity
    is not read again.
    """
    if isinstance(value, (*_FIXED, *_LEAVES, Tensor)):
        return None
    if hasattr(type(value), "to_dict"):  # the configuration of a model of transformers
        return repr(vars(value) if hasattr(value, "__dict__") else value.to_dict())
    found = _inside(value, _DEPTH)
    return None if _is_fixed(value, found) else repr(found)


def _is_fixed(value: Any, found: Any) -> bool:
    """Whether a function or a value nobody looks into holds nothing that can change."""
    if isinstance(value, FunctionType):
        return not value.__closure__ and not any(map(_may_change, found[1]))
    if isinstance(value, MethodType):
        return _is_fixed(value.__func__, found[0]) and not _may_change(found[1])
    return not _may_change(found)


def _may_change(found: Any) -> bool:
    return isinstance(found, list) or found == OPAQUE


def _inside(value: Any, depth: int) -> Any:
    if isinstance(value, _FIXED):
        return repr(value)
    if isinstance(value, Tensor | np.ndarray):
        return OPAQUE
    parts = None if depth == 0 or isinstance(value, _LEAVES) else _parts(value)
    if parts is None:
        return id(value)
    return [_inside(each, depth - 1) for each in parts]


def _parts(value: Any) -> Iterable[Any] | None:
    """The parts that ``described`` looks at and that can change; None where there is none."""
    if isinstance(value, FunctionType):
        kept = [*(value.__defaults__ or ()), value.__kwdefaults__, *closed_over(value)]
        return [id(value), kept]
    parts = parts_of(value)
    if parts is None and callable(value):
        return [id(value), getattr(value, "__dict__", {})]
    return parts
