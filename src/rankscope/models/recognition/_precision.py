"""Originals under conditions in which readings differ: full precision, no trivial weights."""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from rankscope.streams import stream

_HALVES = (torch.float16, torch.bfloat16)
_NOISE = 0.3
"""The noise on constant weights, relative to usual sizes: large enough that no part vanishes."""


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


@contextmanager
def telling_weights(*modules: nn.Module, but: Iterable[nn.Module] = ()) -> Iterator[None]:
    """Replace weights that cannot tell readings apart, and restore them afterwards.

    Half precision becomes float32: its rounding hides a wrong scale or a wrong pairing of rotary
    coordinates. Constant parameters become random: zero output projections hide the order of
    the sums, gains of one hide whether norms come before rotations. Weights in ``but`` stay, except
    embeddings there, which other blocks may use.
    """
    others = {id(tensor) for module in but for part in _parts(module) for tensor in _stored(part)}
    stored = (t for module in modules for part in module.modules() for t in _stored(part))
    tensors = {id(t): t for t in stored if id(t) not in others}
    parts = (part for module in modules for part in _parts(module))
    noise = {id(p): size for part in parts for p, size in _constant(part) if id(p) not in others}
    kept = [(t, t.data) for t in tensors.values() if id(t) in noise or t.dtype in _HALVES]
    generator = stream(0, "telling weights")  # the same when a block runs and when it is read
    try:
        for tensor, data in kept:
            values = single_precision(data)
            if id(tensor) in noise:
                drawn = torch.randn(data.shape, generator=generator)
                values = values + noise[id(tensor)] * drawn.to(values)
            tensor.data = values
        yield
    finally:
        for tensor, data in kept:
            tensor.data = data


def _parts(module: nn.Module) -> Iterator[nn.Module]:
    return (part for part in module.modules() if not isinstance(part, nn.Embedding))


def _stored(part: nn.Module) -> Iterator[Tensor]:
    return chain(part.parameters(recurse=False), part.buffers(recurse=False))


def _constant(part: nn.Module) -> Iterator[tuple[nn.Parameter, float]]:
    """The parameters of a module whose entries are all equal, and how large their noise is.

    A bias is as large as the weights beside it: a larger one would hide what they do.
    """
    for parameter in part.parameters(recurse=False):
        values = parameter.flatten()
        if len(values) < 2 or values[0] != values[1] or not bool((values == values[0]).all()):
            continue
        weight = getattr(part, "weight", None)
        if parameter.ndim == 1 and isinstance(weight, Tensor) and weight.ndim > 1 and weight.any():
            yield parameter, float(weight.std())
        else:
            yield parameter, _NOISE / math.sqrt(math.prod(parameter.shape[1:]))


def single_precision(value: Any) -> Any:
    """A half-precision tensor as float32; anything else as it is."""
    return value.float() if isinstance(value, Tensor) and value.dtype in _HALVES else value
