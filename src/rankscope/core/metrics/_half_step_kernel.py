"""All of half a step but its product, in one Triton kernel: a program for every start."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankscope.core.metrics._kernels import power_of_two, start
from rankscope.core.metrics._mean_split import Side

_HERE = "_half_step_kernel"
_BLOCK = 8192  # entries of a vector that a program holds at once


def finish_half_step(
    found: Tensor,
    unit: Tensor,
    s: Tensor,
    along: Tensor,
    behind: Side | None,
    factor: Tensor | None,
    *,
    to_tokens: bool,
) -> tuple[Side, Tensor]:
    """From the products with both pieces to unit vectors, their lengths and their pieces."""
    batch, starts, size = found.shape[0], found.shape[1] // 2, found.shape[2]
    rest = torch.empty(batch, starts, size, dtype=torch.float32, device=found.device)
    split = torch.empty(batch, 2 * starts, size, dtype=torch.bfloat16, device=found.device)
    numbers = torch.empty(2, batch, starts, dtype=torch.float32, device=found.device)
    block = min(_BLOCK, power_of_two(size))
    # Of the first half step there is nothing behind; any tensor stands in.
    other = found if behind is None else behind.rest
    along_other = along if behind is None else behind.along.contiguous()
    tensors = (
        found, unit.contiguous(), s.contiguous(), along.contiguous(), other, along_other,
        along if factor is None else factor.contiguous(), rest, split, *numbers.unbind(),
    )  # fmt: skip
    options = (factor is None, to_tokens, size <= block, block)
    warps = max(4, min(16, block // 256))
    start(f"{_HERE}._kernel", (batch * starts,), tensors, (size, starts), options, warps=warps)
    return Side(numbers[0], rest, split), numbers[1]


@triton.jit
def _kernel(
    found,
    unit,
    s,
    along,
    behind,
    behind_along,
    factor,
    rest,
    split,
    new_along,
    length,
    size,
    starts,
    FIRST: tl.constexpr,
    TO_TOKENS: tl.constexpr,
    WHOLE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    matrix = row // starts
    high = (matrix * 2 * starts + row % starts) * size
    low = high + starts * size
    lanes = tl.arange(0, BLOCK)
    along_here = tl.load(s + matrix) * tl.load(along + row)
    less = 0.0
    if not FIRST:
        less = tl.load(factor + row)
        along_here -= less * tl.load(behind_along + row)
    if WHOLE:  # everything is read once, and stays in registers
        ok = lanes < size
        y = tl.load(found + high + lanes, ok, 0.0) + tl.load(found + low + lanes, ok, 0.0)
        u = tl.load(unit + matrix * size + lanes, ok, 0.0)
        dot = tl.sum(y * u, 0)
        y -= dot * u
        if not FIRST:
            y -= less * tl.load(behind + row * size + lanes, ok, 0.0)
        total = tl.sum(y * y, 0)
    else:
        dots = tl.zeros([BLOCK], dtype=tl.float32)
        for begin in range(0, size, BLOCK):
            at = begin + lanes
            ok = at < size
            y = tl.load(found + high + at, ok, 0.0) + tl.load(found + low + at, ok, 0.0)
            dots += y * tl.load(unit + matrix * size + at, ok, 0.0)
        dot = tl.sum(dots, 0)
        squares = tl.zeros([BLOCK], dtype=tl.float32)
        for begin in range(0, size, BLOCK):
            at = begin + lanes
            ok = at < size
            y = tl.load(found + high + at, ok, 0.0) + tl.load(found + low + at, ok, 0.0)
            y -= dot * tl.load(unit + matrix * size + at, ok, 0.0)
            if not FIRST:
                y -= less * tl.load(behind + row * size + at, ok, 0.0)
            tl.store(rest + row * size + at, y, ok)
            squares += y * y
        total = tl.sum(squares, 0)
        tl.debug_barrier()
    if not TO_TOKENS:
        along_here += dot
    total = tl.sqrt(total + along_here * along_here)
    scale = tl.where(total > 0, 1.0 / total, 0.0)
    along_here *= scale
    tl.store(length + row, total)
    tl.store(new_along + row, along_here)
    if WHOLE:
        _store(
            y * scale,
            u,
            along_here,
            rest + row * size,
            split + high,
            split + low,
            lanes,
            ok,
            TO_TOKENS,
        )
    else:
        for begin in range(0, size, BLOCK):
            at = begin + lanes
            ok = at < size
            y = tl.load(rest + row * size + at, ok, 0.0) * scale
            u = tl.load(unit + matrix * size + at, ok, 0.0)
            _store(
                y, u, along_here, rest + row * size, split + high, split + low, at, ok, TO_TOKENS
            )


@triton.jit
def _store(y, u, along_here, rest, high, low, at, ok, TO_TOKENS: tl.constexpr):
    """Unit vectors, and the two pieces of what the next product is taken of."""
    tl.store(rest + at, y, ok)
    if not TO_TOKENS:  # the next product is with R(v + v_c ĉ)
        y += along_here * u
    first = y.to(tl.bfloat16)
    tl.store(high + at, first, ok)
    tl.store(low + at, (y - first.to(tl.float32)).to(tl.bfloat16), ok)
