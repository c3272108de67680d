"""Originals at the precision of their weights: casts to float32 inside are left out in float64."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class _FullPrecision(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if args and isinstance(args[0], Tensor) and args[0].dtype == torch.float64:
            if func is Tensor.float:
                return args[0]
            args = tuple(torch.float64 if value is torch.float32 else value for value in args)
            kwargs = {
                name: torch.float64 if value is torch.float32 else value
                for name, value in kwargs.items()
            }
        return func(*args, **kwargs)


@contextmanager
def full_precision() -> Iterator[None]:
    """Let a float64 model compute in float64 throughout.

    Originals step down to float32 inside norms, softmaxes and routers, also in a float64 model;
    ours do not, and in float64 the difference, not the conversion, would be what is compared.
    """
    with _FullPrecision():
        yield
