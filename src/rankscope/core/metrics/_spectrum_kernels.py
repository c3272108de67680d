"""Triton kernels for estimated spectra: two that split off the mean of hidden states, each reading
the state once, and one for half a Lanczos step without its product."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankscope.core.metrics._fused import power_of_two, start
from rankscope.core.metrics._mean_split import Split

_FEATURES = 128  # of a program
_TOKENS = 32  # that a program reads at once
_MOST_CHUNKS = 16  # of tokens, one for each program; their sums are added up afterwards
_BLOCK = 8192  # entries of a vector that a program of half a step holds at once


def move_mean(
    x: Tensor, mask: Tensor | None, center: Tensor | None, into: tuple[Tensor, ...]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The fields of ``Moved``; one kernel measures the states, one writes the terms."""
    batch, tokens, features = x.shape
    chunk = _TOKENS * triton.cdiv(triton.cdiv(tokens, _MOST_CHUNKS), _TOKENS)
    chunk = max(chunk, 4 * _TOKENS)
    blocks, chunks = triton.cdiv(features, _FEATURES), triton.cdiv(tokens, chunk)

    def allocate(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float32, device=x.device)

    surveyed = [allocate(batch, chunks, features) for _ in range(3)]
    surveyed += [allocate(batch, chunks * blocks) for _ in range(2)]
    shift, sums = allocate(batch, features), allocate(batch, chunks, features)
    squares = allocate(batch, chunks * blocks)
    seen = x if mask is None else mask.view(torch.uint8)
    strides = (*x.stride(), *((0, 0) if mask is None else mask.stride()))
    shape = (tokens, features, chunk, chunks, blocks)
    grid = (batch, blocks, chunks)
    common = (mask is not None, _FEATURES, _TOKENS)
    numbers = (*shape, *strides)
    start("_spectrum_kernels._survey", grid, (x, seen, *surveyed), numbers, common, warps=4)
    middle = x if center is None else center.float().contiguous()
    is_exact = x.dtype == torch.bfloat16
    sizes = (power_of_two(chunks), power_of_two(chunks * blocks))
    start(
        "_spectrum_kernels._write", grid,
        (x, seen, *surveyed, middle, into[0], into[-1], shift, sums, squares),
        numbers, (*common, center is not None, is_exact, *sizes), warps=4,
    )  # fmt: skip
    valid = allocate(batch, tokens).fill_(1) if mask is None else mask.float()
    return valid, shift, sums, squares


@triton.jit
def _seen(mask, matrix, token, tokens, mask_batch, mask_token, MASKED: tl.constexpr):
    """Which of some tokens exist and are not padding."""
    there = token < tokens
    if MASKED:
        at = mask + matrix * mask_batch + token * mask_token
        there = there & (tl.load(at, there, 0) != 0)
    return there


@triton.jit
def _survey(
    x, mask, leasts, mosts, means, sizes, counts,
    tokens, features, chunk, chunks, blocks,
    x_batch, x_token, x_feature, mask_batch, mask_token,
    MASKED: tl.constexpr, FEATURES: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """The least, the largest and the mean number of every feature, over a chunk of the tokens."""
    matrix, block, part = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    feature = block * FEATURES + tl.arange(0, FEATURES)
    inside = feature < features
    least = tl.full([FEATURES], float("inf"), tl.float32)
    most = tl.full([FEATURES], float("-inf"), tl.float32)
    mean = tl.zeros([FEATURES], tl.float32)
    size = tl.zeros([FEATURES], tl.float32)
    count = tl.zeros([TOKENS], tl.float32)
    for begin in range(part * chunk, part * chunk + chunk, TOKENS):
        token = begin + tl.arange(0, TOKENS)
        there = _seen(mask, matrix, token, tokens, mask_batch, mask_token, MASKED)
        ok = there[:, None] & inside[None, :]
        at = x + matrix * x_batch + token.to(tl.int64)[:, None] * x_token
        y = tl.load(at + feature.to(tl.int64)[None, :] * x_feature, ok, 0.0).to(tl.float32)
        least = tl.minimum(least, tl.min(tl.where(ok, y, float("inf")), 0))
        most = tl.maximum(most, tl.max(tl.where(ok, y, float("-inf")), 0))
        size = tl.maximum(size, tl.max(tl.abs(y), 0))
        mean += tl.sum(y * (1.0 / tokens), 0)  # divided first: sums of large numbers are finite
        count += there.to(tl.float32)
    at = (matrix * chunks + part) * features + feature
    tl.store(leasts + at, least, inside)
    tl.store(mosts + at, most, inside)
    tl.store(means + at, mean, inside)
    at = matrix * chunks * blocks + part * blocks + block
    tl.store(sizes + at, tl.max(size, 0))
    # Every block of features counts the same tokens: the mean over blocks is the count.
    tl.store(counts + at, tl.sum(count, 0) / blocks)


@triton.jit
def _write(
    x, mask, leasts, mosts, means, sizes, counts, center, first, second, shift, sums, squares,
    tokens, features, chunk, chunks, blocks,
    x_batch, x_token, x_feature, mask_batch, mask_token,
    MASKED: tl.constexpr, FEATURES: tl.constexpr, TOKENS: tl.constexpr,
    CENTERED: tl.constexpr, EXACT: tl.constexpr, CHUNKS: tl.constexpr, SIZES: tl.constexpr,
):  # fmt: skip
    """``(x − shift)/unit`` for a chunk of the tokens, in one bfloat16 term or two, and its sums."""
    matrix, block, part = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    feature = block * FEATURES + tl.arange(0, FEATURES)
    inside = feature < features
    every = tl.arange(0, CHUNKS)
    known = (every < chunks)[:, None] & inside[None, :]
    piece = (matrix * chunks + every[:, None]) * features + feature[None, :]
    index = tl.arange(0, SIZES)
    pointers = matrix * chunks * blocks + index
    size = tl.max(tl.load(sizes + pointers, index < chunks * blocks, 0.0), 0)
    if CENTERED:
        mean = tl.load(center + matrix * features + feature, inside, 0.0)
    else:
        count = tl.sum(tl.load(counts + pointers, index < chunks * blocks, 0.0), 0)
        mean = tl.sum(tl.load(means + piece, known, 0.0), 0) * (tokens / count)
    if EXACT:  # what bfloat16 numbers lose without rounding: see _exact_shift
        least = tl.min(tl.load(leasts + piece, known, float("inf")), 0)
        most = tl.max(tl.load(mosts + piece, known, float("-inf")), 0)
        near = mean.to(tl.bfloat16).to(tl.float32)
        low, high = tl.minimum(near / 2, near * 2), tl.maximum(near / 2, near * 2)
        mean = tl.where((least >= low) & (most <= high), near, 0.0)
    # One over the power of two below the size, by its exponent, kept where it is a normal number.
    exponent = tl.minimum(tl.maximum((size.to(tl.int32, bitcast=True) >> 23) & 255, 2), 252)
    scale = ((254 - exponent) << 23).to(tl.float32, bitcast=True)
    mean *= scale
    total = tl.zeros([FEATURES], tl.float32)
    energy = tl.zeros([FEATURES], tl.float32)
    for begin in range(part * chunk, part * chunk + chunk, TOKENS):
        token = begin + tl.arange(0, TOKENS)
        seen = _seen(mask, matrix, token, tokens, mask_batch, mask_token, MASKED)
        ok = seen[:, None] & inside[None, :]
        row = token.to(tl.int64)[:, None]
        at = x + matrix * x_batch + row * x_token + feature.to(tl.int64)[None, :] * x_feature
        y = tl.load(at, ok, 0.0).to(tl.float32) * scale - mean[None, :]
        y = tl.where(ok, y, 0.0)
        into = (matrix * tokens + row) * features + feature[None, :]
        bounds = (token < tokens)[:, None] & inside[None, :]
        rounded = y.to(tl.bfloat16)
        tl.store(first + into, rounded, bounds)
        if not EXACT:
            tl.store(second + into, (y - rounded.to(tl.float32)).to(tl.bfloat16), bounds)
        total += tl.sum(y, 0)
        energy += tl.sum(y * y, 0)
    tl.store(sums + (matrix * chunks + part) * features + feature, total, inside)
    tl.store(squares + matrix * chunks * blocks + part * blocks + block, tl.sum(energy, 0))
    if part == 0:
        tl.store(shift + matrix * features + feature, mean, inside)


def finish_half_step(
    image: Tensor, unit: Tensor, s: Tensor, along: Tensor,
    behind: Split | None, factor: Tensor | None, *, to_tokens: bool,
) -> tuple[Split, Tensor]:  # fmt: skip
    """From the products with both pieces to unit vectors, their lengths and their pieces."""
    batch, starts, size = image.shape[0], image.shape[1] // 2, image.shape[2]
    rest = torch.empty(batch, starts, size, dtype=torch.float32, device=image.device)
    split = torch.empty(batch, 2 * starts, size, dtype=torch.bfloat16, device=image.device)
    numbers = torch.empty(2, batch, starts, dtype=torch.float32, device=image.device)
    block = min(_BLOCK, power_of_two(size))
    # Of the first half step there is nothing behind; any tensor stands in.
    other = image if behind is None else behind.rest
    along_other = along if behind is None else behind.along.contiguous()
    tensors = (
        image, unit.contiguous(), s.contiguous(), along.contiguous(), other, along_other,
        along if factor is None else factor.contiguous(), rest, split, *numbers.unbind(),
    )  # fmt: skip
    options = (factor is None, to_tokens, size <= block, block)
    warps = max(4, min(16, block // 256))
    kernel, grid = "_spectrum_kernels._half_step", (batch * starts,)
    start(kernel, grid, tensors, (size, starts), options, warps=warps)
    return Split(numbers[0], rest, split), numbers[1]


@triton.jit
def _half_step(
    image, unit, s, along, behind, behind_along, factor, rest, split, new_along, length,
    size, starts,
    FIRST: tl.constexpr, TO_TOKENS: tl.constexpr, WHOLE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
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
        y = tl.load(image + high + lanes, ok, 0.0) + tl.load(image + low + lanes, ok, 0.0)
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
            y = tl.load(image + high + at, ok, 0.0) + tl.load(image + low + at, ok, 0.0)
            dots += y * tl.load(unit + matrix * size + at, ok, 0.0)
        dot = tl.sum(dots, 0)
        squares = tl.zeros([BLOCK], dtype=tl.float32)
        for begin in range(0, size, BLOCK):
            at = begin + lanes
            ok = at < size
            y = tl.load(image + high + at, ok, 0.0) + tl.load(image + low + at, ok, 0.0)
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
        y *= scale
        _store(y, u, along_here, rest + row * size, split + high, split + low, lanes, ok, TO_TOKENS)
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
