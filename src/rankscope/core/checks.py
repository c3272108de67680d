"""Checks of arguments, whose errors name the argument, what was given and what was expected."""

import sys

import torch
from torch import Tensor

from rankscope.arguments import python_number, short
from rankscope.core.shapes import TokenMask, Tokens
from rankscope.errors import InputError, KindError, ShapeError

_HALVES = (torch.float16, torch.bfloat16)
_MOST_AXES = 32
_WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_REALS = (*_HALVES, torch.float32, torch.float64)


def whole(
    name: str,
    value: object,
    *,
    least: int | None = None,
    most: int | None = None,
    error: type[InputError] = InputError,
) -> int:
    """Check that ``value`` is an integer in a range; ``name`` appears in the error.

    >>> whole("count", 3, least=1)
    3
    """
    value = python_number(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise KindError(
            f"{name}{short(value)} is a {type(value).__name__}, expected a whole number."
        )
    if (least is not None and value < least) or (most is not None and value > most):
        if least is None or most is None:
            bounds = f"{most} or less" if least is None else f"{least} or more"
        else:
            bounds = f"{least} to {most}"
        raise error(f"{name}{short(value)} is out of range; expected {bounds}.")
    return value


def number(
    name: str, value: object, *, least: float | None = None, error: type[InputError] = InputError
) -> float:
    """A finite real number, as a float, or an error that names it."""
    value = python_number(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise KindError(f"{name}{short(value)} is a {type(value).__name__}, expected a number.")
    if abs(value) > sys.float_info.max or value != value or (least is not None and value < least):
        enough = "" if least is None else f" >= {least:g}"
        raise error(f"{name}{short(value)} is out of range; expected a finite number{enough}.")
    return float(value) + 0.0  # -0.0 becomes 0.0


def flag(name: str, value: object) -> bool:
    """True or False, or an error that names it; 0 and 1 are neither."""
    value = python_number(value)
    if not isinstance(value, bool):
        raise KindError(f"{name}{short(value)} is a {type(value).__name__}, expected a bool.")
    return value


def real_dtype(name: str, value: torch.dtype) -> torch.dtype:
    """Check that networks can run in this dtype."""
    if value not in _REALS:
        known = ", ".join(str(dtype) for dtype in _REALS)
        raise KindError(f"{name}={value} is not supported; expected one of {known}.")
    return value


def usable_device(name: str, value: str | torch.device | None) -> torch.device | None:
    """Check that tensors can be created on this device; None stays None."""
    try:
        device = torch.empty(0, device=value).device
    except (RuntimeError, AssertionError) as error:  # torch asserts if built without CUDA
        first = str(error).splitlines()[0]
        raise InputError(
            f"{name} {str(value)!a} is not available ({first.rstrip('.')}); available: "
            f"{', '.join(devices())}."
        ) from None
    if device.type == "meta":
        raise InputError(f"{name} {str(value)!r} holds no data; available: {', '.join(devices())}.")
    return None if value is None else device


def devices() -> list[str]:
    """The names of the available devices."""
    gpus = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    return ["cpu", *gpus, *(["mps"] if torch.backends.mps.is_available() else [])]


def measurable(x: Tensor, token_mask: Tensor | None) -> tuple[Tokens, TokenMask | None]:
    """Check ``x`` and its mask; return ``x`` in at least float32, with zeros in the padding.

    Padding may hold any values, including NaN.
    """
    x = real(x, name="x", axes="(..., token, feature)", least=2)
    if token_mask is not None:
        token_mask = valid_mask(token_mask, x.shape[:-1])
        x = torch.where(token_mask.unsqueeze(-1), x, x.new_zeros(()))
    finite(x, name="x")
    return x, token_mask


def stochastic(attention: Tensor, token_mask: Tensor | None) -> tuple[Tensor, TokenMask | None]:
    """Check attention matrices ``(..., head, query, key)`` and their ``(..., token)`` mask.

    Rows and columns of padding are set to zero; every other row must then sum to one.
    """
    p = real(attention, name="attention", axes="(..., head, query, key)", least=3)
    if p.shape[-1] != p.shape[-2]:
        raise ShapeError(
            f"attention has {p.shape[-2]} queries but {p.shape[-1]} keys (shape {tuple(p.shape)}); "
            "self-attention matrices are square."
        )
    rows = torch.ones_like(p[..., 0], dtype=torch.bool)
    if token_mask is not None:
        token_mask = valid_mask(token_mask, (*p.shape[:-3], p.shape[-1]))
        rows = token_mask.unsqueeze(-2).expand_as(rows)
        p = torch.where(rows.unsqueeze(-1) & rows.unsqueeze(-2), p, p.new_zeros(()))
    finite(p, name="attention")
    # Half-precision rows miss one by a few units of 2⁻⁸; larger errors are not rounding.
    off = ((p.sum(-1) - 1).abs() > 2e-2) & rows
    if bool(off.any()) or bool((p < 0).any()):
        where = (off if bool(off.any()) else (p < 0).any(-1)).nonzero()[0].tolist()
        raise InputError(
            f"attention row {where} is not a probability distribution over the valid tokens (sum "
            f"{p[tuple(where)].sum():.4g}, smallest {p[tuple(where)].min():.4g}); "
            "pass the matrix after the softmax, and the token mask used to compute it."
        )
    return p, token_mask


def real(x: Tensor, *, name: str, axes: str, least: int) -> Tensor:
    """Check that ``x`` is a real tensor with at least ``least`` non-empty axes; upcast halves."""
    check_real(x, name=name, axes=axes, least=least)
    return upcast(x)


def check_real(x: Tensor, *, name: str, axes: str, least: int) -> None:
    """Check dtype and shape only, without reading values, so there is no GPU synchronisation."""
    if not isinstance(x, Tensor):
        raise KindError(
            f"{name} is a {type(x).__name__}, expected a torch.Tensor {axes}; "
            f"wrap it: torch.as_tensor({name}, dtype=torch.float64)."
        )
    if x.dtype not in _REALS:
        raise KindError(
            f"{name} has dtype {x.dtype}, expected a real floating dtype of 16 bits or more; "
            f"token ids are not hidden states, and numbers can be cast: {name}.double()."
        )
    if not least <= x.ndim <= _MOST_AXES or 0 in x.shape[-least:]:
        raise ShapeError(f"{name} has shape {tuple(x.shape)}, expected {axes} with no empty axis.")


def upcast(x: Tensor) -> Tensor:
    """Convert 16-bit dtypes to float32."""
    return x.float() if x.dtype in _HALVES else x


def whole_numbers(name: str, x: Tensor, *, least: int, most: int) -> Tensor:
    """Check that ``x`` is an integer tensor with values in a range."""
    if x.dtype not in _WHOLE:
        raise KindError(f"{name} has dtype {x.dtype}, expected whole numbers: {name}.long().")
    if x.numel() and not least <= int(x.min()) <= int(x.max()) <= most:
        raise InputError(
            f"{name} holds {int(x.min())} to {int(x.max())}; expected {least} to {most}."
        )
    return x


def finite(x: Tensor, *, name: str) -> None:
    """Raise if ``x`` holds NaN or infinity; the error gives the first index."""
    # One cheap reduction almost always decides; if it is not finite, each entry is tested.
    if bool(torch.isfinite(x.detach().sum())):
        return
    bad = ~torch.isfinite(x)
    if bool(bad.any()):
        first = bad.nonzero()[0].tolist()
        raise InputError(
            f"{name} is {x[tuple(first)].item()} at {first} "
            f"({int(bad.sum())} of {x.numel()} entries are not finite); "
            "find the layer that overflows, or compute in a wider dtype."
        )


def valid_mask(
    token_mask: Tensor, shape: tuple[int, ...], *, name: str = "token_mask"
) -> TokenMask:
    """Check a boolean mask ``(..., token)`` against the shape of its tokens."""
    token_mask = mask_like(token_mask, shape, name=name)
    empty = ~token_mask.any(-1)
    if bool(empty.any()):
        where = f"sample {empty.nonzero()[0].tolist()}" if empty.ndim else "the sample"
        raise InputError(f"{name} leaves no token in {where}; drop empty sequences first.")
    return token_mask


def mask_like(token_mask: Tensor, shape: tuple[int, ...], *, name: str = "token_mask") -> TokenMask:
    """Check dtype and shape of a mask without GPU synchronisation, and expand it."""
    if not isinstance(token_mask, Tensor) or token_mask.dtype != torch.bool:
        got = token_mask.dtype if isinstance(token_mask, Tensor) else type(token_mask).__name__
        raise KindError(
            f"{name} is {got}, expected torch.bool (True = a token, False = padding); "
            "cast a 0/1 mask with attention_mask.bool()."
        )
    try:
        return token_mask.expand(shape)
    except RuntimeError:
        raise ShapeError(
            f"{name} has shape {tuple(token_mask.shape)}, expected {tuple(shape)}: "
            "one entry per token."
        ) from None


def measured_tokens(
    measured: Tensor | None, token_mask: TokenMask | None, shape: tuple[int, ...]
) -> TokenMask | None:
    """The tokens to measure: those in ``measured`` (None for all) that are not padding."""
    if measured is None:
        return token_mask
    measured = valid_mask(measured, shape, name="measured")
    if token_mask is None:
        return measured
    both = measured & token_mask.to(measured.device)
    return valid_mask(both, shape, name="measured without padding")


def valid_counts(x: Tokens, token_mask: TokenMask | None) -> Tensor:
    """The number of tokens of each sample, shape ``(...,)``, in the dtype of ``x``."""
    if token_mask is None:
        return x.new_full(x.shape[:-2], x.shape[-2])
    return token_mask.sum(-1).to(x.dtype)
