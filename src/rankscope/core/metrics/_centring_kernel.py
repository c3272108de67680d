"""Setting the mean of hidden states apart, in two Triton kernels: each reads the state once."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankscope.core.metrics._kernels import power_of_two, start

_HERE = "_centring_kernel"
_FEATURES = 128  # of a program
_TOKENS = 32  # that a program reads at once
_MOST_CHUNKS = 16  # of tokens, one for each program; their sums are added up afterwards


def move_mean(
    x: Tensor, mask: Tensor | None, center: Tensor | None, into: tuple[Tensor, ...]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The fields of ``Moved``; first sizes of what is there, then the terms."""
    batch, tokens, features = x.shape
    chunk = _TOKENS * triton.cdiv(triton.cdiv(tokens, _MOST_CHUNKS), _TOKENS)
    chunk = max(chunk, 4 * _TOKENS)
    blocks, chunks = triton.cdiv(features, _FEATURES), triton.cdiv(tokens, chunk)

    def room(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float32, device=x.device)

    surveyed = [room(batch, chunks, features) for _ in range(3)]
    surveyed += [room(batch, chunks * blocks) for _ in range(2)]
    shift, sums = room(batch, features), room(batch, chunks, features)
    squares = room(batch, chunks * blocks)
    seen = x if mask is None else mask.view(torch.uint8)
    strides = (*x.stride(), *((0, 0) if mask is None else mask.stride()))
    shape = (tokens, features, chunk, chunks, blocks)
    grid = (batch, blocks, chunks)
    common = (mask is not None, _FEATURES, _TOKENS)
    numbers = (*shape, *strides)
    start(f"{_HERE}._survey", grid, (x, seen, *surveyed), numbers, common, warps=4)
    middle = x if center is None else center.float().contiguous()
    is_exact = x.dtype == torch.bfloat16
    sizes = (power_of_two(chunks), power_of_two(chunks * blocks))
    start(
        f"{_HERE}._write", grid,
        (x, seen, *surveyed, middle, into[0], into[-1], shift, sums, squares),
        numbers, (*common, center is not None, is_exact, *sizes), warps=4,
    )  # fmt: skip
    valid = room(batch, tokens).fill_(1) if mask is None else mask.float()
    return valid, shift, sums, squares


@triton.jit
def _seen(mask, matrix, token, tokens, mask_batch, mask_token, MASKED: tl.constexpr):
    """Which of some tokens are there, and no padding."""
    there = token < tokens
    if MASKED:
        at = mask + matrix * mask_batch + token * mask_token
        there = there & (tl.load(at, there, 0) != 0)
    return there


@triton.jit
def _survey(
    x,
    mask,
    leasts,
    mosts,
    means,
    sizes,
    counts,
    tokens,
    features,
    chunk,
    chunks,
    blocks,
    x_batch,
    x_token,
    x_feature,
    mask_batch,
    mask_token,
    MASKED: tl.constexpr,
    FEATURES: tl.constexpr,
    TOKENS: tl.constexpr,
):
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
    x,
    mask,
    leasts,
    mosts,
    means,
    sizes,
    counts,
    center,
    first,
    second,
    shift,
    sums,
    squares,
    tokens,
    features,
    chunk,
    chunks,
    blocks,
    x_batch,
    x_token,
    x_feature,
    mask_batch,
    mask_token,
    MASKED: tl.constexpr,
    FEATURES: tl.constexpr,
    TOKENS: tl.constexpr,
    CENTERED: tl.constexpr,
    EXACT: tl.constexpr,
    CHUNKS: tl.constexpr,
    SIZES: tl.constexpr,
):
    """``(x − shift)/unit`` for a chunk of the tokens, in one bfloat16 term or two, and its sums."""
    matrix, block, part = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    feature = block * FEATURES + tl.arange(0, FEATURES)
    inside = feature < features
    every = tl.arange(0, CHUNKS)
    known = (every < chunks)[:, None] & inside[None, :]
    piece = (matrix * chunks + every[:, None]) * features + feature[None, :]
    one = tl.arange(0, SIZES)
    place = matrix * chunks * blocks + one
    size = tl.max(tl.load(sizes + place, one < chunks * blocks, 0.0), 0)
    if CENTERED:
        mean = tl.load(center + matrix * features + feature, inside, 0.0)
    else:
        count = tl.sum(tl.load(counts + place, one < chunks * blocks, 0.0), 0)
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
