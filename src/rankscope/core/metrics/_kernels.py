"""Where Triton kernels may stand in for plain PyTorch, and how they are started."""

from collections.abc import Callable, Sequence
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
    kernel: str,
    grid: tuple[int, ...],
    tensors: Sequence[Tensor],
    numbers: tuple[int, ...],
    options: tuple[bool | int, ...],
    *,
    free: tuple[int, ...] = (),
    warps: int = 1,
) -> Again | None:
    """Start a kernel, named by its file and itself: ``_fused_kernels.mean_and_rows``.

    It takes tensors, numbers of which it knows nothing when it is compiled (``free``), other
    numbers, and options. Triton looks at every argument of every call, which takes longer than the
    kernel; one that was compiled for arguments like these is started without that. Given back is
    what starts it again; None where kernels are interpreted, which nothing compiles.
    """
    whole = (*grid, 1, 1)[:3]
    addresses = [each.data_ptr() for each in tensors]
    kinds = [(each.dtype, place % 16) for each, place in zip(tensors, addresses, strict=True)]
    key = (kernel, tensors[0].device, *kinds, numbers, options, warps)
    found = _compiled.get(key)
    if found is None:
        file, _, name = kernel.partition(".")
        function = getattr(import_module(f"rankscope.core.metrics.{file}"), name)
        found = function[whole](*tensors, *free, *numbers, *options, num_warps=warps)
        _compiled[key] = found
        return None if found is None else cast(Again, found[whole])
    again: Again = found[whole]
    again(*addresses, *free, *numbers, *options)
    return again


def power_of_two(number: int) -> int:
    """The next one that is no smaller."""
    return 1 << (number - 1).bit_length()
