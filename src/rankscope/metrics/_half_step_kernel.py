"""All of half a step but its product, in one Triton kernel: a program for every start."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankscope.metrics._mean_split import Side

_BLOCK = 4096


def finish_half_step(
    found: Tensor,
    unit: Tensor,
    s: Tensor,
    along: Tensor,
    behind: Side,
    factor: Tensor | None,
    *,
    to_tokens: bool,
) -> tuple[Side, Tensor]:
    """From the products with both pieces to unit vectors, their lengths and their pieces."""
    batch, starts, size = found.shape[0], found.shape[1] // 2, found.shape[2]
    rest = torch.empty(batch, starts, size, dtype=torch.float32, device=found.device)
    split = torch.empty(batch, 2 * starts, size, dtype=torch.bfloat16, device=found.device)
    numbers = torch.empty(2, batch, starts, dtype=torch.float32, device=found.device)
    block = min(_BLOCK, triton.next_power_of_2(size))
    _kernel[(batch * starts,)](
        found,
        unit.contiguous(),
        s.contiguous(),
        along.contiguous(),
        behind.rest if factor is not None else found,
        behind.along.contiguous(),
        along if factor is None else factor.contiguous(),
        rest,
        split,
        numbers[0],
        numbers[1],
        size,
        starts,
        FIRST=factor is None,
        TO_TOKENS=to_tokens,
        BLOCK=block,
        num_warps=8 if block >= 2048 else 4,
    )
    return Side(numbers[0], rest, split), numbers[1]


@triton.jit  # type: ignore[untyped-decorator]
def _kernel(  # type: ignore[no-untyped-def]
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
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    matrix = row // starts
    high = (matrix * 2 * starts + row % starts) * size
    low = high + starts * size
    lanes = tl.arange(0, BLOCK)
    dots = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, size, BLOCK):
        at = start + lanes
        ok = at < size
        y = tl.load(found + high + at, ok, 0.0) + tl.load(found + low + at, ok, 0.0)
        dots += y * tl.load(unit + matrix * size + at, ok, 0.0)
    dot = tl.sum(dots, 0)
    ahead = tl.load(s + matrix) * tl.load(along + row)
    if not TO_TOKENS:
        ahead += dot
    if not FIRST:
        less = tl.load(factor + row)
        ahead -= less * tl.load(behind_along + row)
    squares = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, size, BLOCK):
        at = start + lanes
        ok = at < size
        y = tl.load(found + high + at, ok, 0.0) + tl.load(found + low + at, ok, 0.0)
        y -= dot * tl.load(unit + matrix * size + at, ok, 0.0)
        if not FIRST:
            y -= less * tl.load(behind + row * size + at, ok, 0.0)
        tl.store(rest + row * size + at, y, ok)
        squares += y * y
    total = tl.sqrt(tl.sum(squares, 0) + ahead * ahead)
    scale = tl.where(total > 0, 1.0 / total, 0.0)
    tl.store(length + row, total)
    ahead *= scale
    tl.store(new_along + row, ahead)
    tl.debug_barrier()
    for start in range(0, size, BLOCK):
        at = start + lanes
        ok = at < size
        y = tl.load(rest + row * size + at, ok, 0.0) * scale
        tl.store(rest + row * size + at, y, ok)
        if not TO_TOKENS:  # the next product is with R(v + v_c ĉ)
            y += ahead * tl.load(unit + matrix * size + at, ok, 0.0)
        first = y.to(tl.bfloat16)
        tl.store(split + high + at, first, ok)
        tl.store(split + low + at, (y - first.to(tl.float32)).to(tl.bfloat16), ok)
