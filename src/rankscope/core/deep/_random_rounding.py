"""Arithmetic whose every result is rounded at random, to see which digits of an outcome hold.

Discrete stochastic arithmetic (Vignes 1993: CESTAC): run the same code again with every result off
by a random part of its last digit. Digits that move are made of rounding, wherever they were lost.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_ULP = 2.0**-52

# A sum is off by the rounding of its terms, which may be far larger than it: which argument those
# come from.
_SUMMED = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1, "sum": 0, "mean": 0, "cumsum": 0}
_SUMMED["addcmul"] = 1
_ROUNDED = (
    _SUMMED.keys()
    | {"add", "sub", "rsub", "mul", "div", "reciprocal", "square", "pow", "sqrt", "rsqrt"}
    | {
        "exp",
        "expm1",
        "_softmax",
        "log",
        "log1p",
        "logaddexp",
        "_log_softmax",
        "erfc",
        "sigmoid",
        "tanh",
    }
    | {"linalg_vector_norm"}
)


class RandomRounding(TorchDispatchMode):
    """Inside this context float64 results are off by up to one unit of their last digit.

    >>> from rankscope.core.deep._random_rounding import RandomRounding
    >>> from rankscope.streams import stream
    >>> one = torch.ones(3, dtype=torch.float64)
    >>> with RandomRounding(stream(0, "rounding")):
    ...     third = one / 3
    >>> bool((third != 1 / 3).any()), bool(torch.allclose(third, one / 3, rtol=1e-15))
    (True, True)

    Selections, comparisons and copies round nothing and stay as they are.
    """

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._generator = generator

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        spelled: str = func.overloadpacket.__name__  # type: ignore[attr-defined]
        name = spelled.removesuffix("_")
        if name in _SUMMED:
            args = [*args]
            args[_SUMMED[name]] = self._round(args[_SUMMED[name]])
        terms = [args[0].clone(), *args[1:]] if spelled != name else args
        out = func(*args, **(kwargs or {}))
        if name not in _ROUNDED or not isinstance(out, Tensor) or out.dtype != torch.float64:
            return out
        rounded = torch.where(_is_exact(name, terms, out), out, self._round(out))
        return out.copy_(rounded) if spelled != name else rounded

    def _round(self, value: Tensor) -> Tensor:
        if value.dtype != torch.float64:
            return value
        return value * (1 + _ULP * self._noise(value))

    def _noise(self, like: Tensor) -> Tensor:
        noise = torch.rand(like.shape, generator=self._generator, dtype=torch.float64)
        return (2 * noise - 1).to(like.device)


def _is_exact(name: str, terms: Sequence[Any], out: Tensor) -> Tensor:
    """Where an operation rounds nothing, as the difference of equal numbers or a product with 1."""
    if name in ("add", "sub"):
        one, other = (torch.as_tensor(term, dtype=out.dtype) for term in terms[:2])
        other = other if name == "add" else -other
        part = out - one  # Knuth's TwoSum: what the sum has lost
        return (one - (out - part)) + (other - part) == 0
    if name in ("mul", "div"):
        exact = _is_power_of_two(terms[1], out)
        return exact | _is_power_of_two(terms[0], out) if name == "mul" else exact
    return torch.zeros_like(out, dtype=torch.bool)


def _is_power_of_two(value: Any, like: Tensor) -> Tensor:
    return torch.frexp(torch.as_tensor(value, dtype=like.dtype)).mantissa.abs() == 0.5
