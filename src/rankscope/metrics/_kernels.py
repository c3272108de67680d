"""Where Triton kernels may stand in for plain PyTorch, and how they are started."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from os import environ
from typing import Any, cast

import torch
from torch import Tensor

FUSED_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
Again = Callable[..., None]
"""Starts a kernel once more, on the same grid: all its arguments, tensors as their addresses."""
_STATISTICS = "rankscope.metrics._fused_kernels"
_compiled: dict[tuple[Any, ...], Any] = {}


def can_fuse(x: Tensor) -> bool:
    """Whether a kernel can work on a tensor: on CUDA, where Triton is installed."""
    return x.is_cuda and triton_is_here()


@cache
def triton_is_here() -> bool:
    """Whether Triton can be imported."""
    return find_spec("triton") is not None


@cache
def interpreted() -> bool:
    """Whether Triton runs kernels on the CPU, one program after another, as our tests have it."""
    return environ.get("TRITON_INTERPRET") == "1" and triton_is_here()


def on(device: torch.device) -> AbstractContextManager[Any]:
    """Triton starts kernels on the current device."""
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(device)


def start(
    key: tuple[Any, ...],
    grid: tuple[int, ...],
    arguments: tuple[Any, ...],
    options: tuple[Any, ...],
    *,
    warps: int = 1,
) -> Again | None:
    """Start a kernel of the statistics by its name, which is the first part of the key.

    Triton looks at every argument of every call, which takes longer than the kernel; one that was
    compiled for arguments like these (the key) is started without that. Given back is what starts
    it again; None where kernels are interpreted, which nothing compiles.
    """
    whole = (*grid, 1, 1)[:3]
    found = _compiled.get(key)
    if found is None:
        kernel = getattr(import_module(_STATISTICS), key[0])
        found = _compiled[key] = kernel[whole](*arguments, *options, num_warps=warps)
        return None if found is None else cast(Again, found[whole])
    again: Again = found[whole]
    again(*arguments, *options)
    return again


def power_of_two(number: int) -> int:
    """The next one that is no smaller."""
    return 1 << (number - 1).bit_length()
