"""The figures of every query in one pass over the keys, as a Triton kernel.

A program has some queries of one head and goes through the keys a block at a time, as flash
attention does. It keeps the largest score m of each query, and of all weights ``e^(s−m)`` their
sum, that of their squares, that of ``(s−m)e^(s−m)``, and what the first key and padding get.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_QUERIES, _KEYS = 64, 64


def row_figures(attention: Any) -> tuple[Tensor, Tensor]:
    """Entropy, Rényi entropy, largest, first, sink, padding of each query; and who sees a key."""
    batch, heads, queries, keys = attention.shape
    query, key = attention.query, attention.key
    if query.dtype != key.dtype:
        query, key = query.float(), key.float()
    out = torch.empty(6, batch, heads, queries, dtype=torch.float32, device=query.device)
    sees = torch.empty(batch, heads, queries, dtype=torch.uint8, device=query.device)
    nothing = query.new_empty(1, 1, 1, 1)
    bias = (nothing if attention.bias is None else attention.bias).expand(attention.shape)
    mask = nothing if attention.mask is None else attention.mask.view(torch.uint8)
    mask = mask.expand(attention.shape)
    hidden = float(torch.finfo(bias.dtype).min) / 2
    first = attention.first_keys(1).view(torch.uint8).expand(batch, keys)
    padding = first
    if attention.token_mask is not None:
        padding = (~attention.token_mask).view(torch.uint8).expand(batch, keys)
    width = query.shape[3]
    # Heads on the first axis: the others end at 65,535.
    _kernel[(batch * heads, triton.cdiv(queries, _QUERIES))](
        query, key, bias, mask, query if attention.sinks is None else attention.sinks.contiguous(),
        first, padding, out, sees,
        attention.scale, attention.softcap or 1.0, attention.window or 0, hidden,
        queries, keys, width, heads, heads // key.shape[1],
        *query.stride(), *key.stride(), *bias.stride(), *mask.stride(), *first.stride(),
        *padding.stride(), out.stride(0),
        CAUSAL=attention.causal, WINDOW=attention.window is not None,
        CAP=attention.softcap is not None, BIAS=attention.bias is not None,
        MASK=attention.mask is not None, SINKS=attention.sinks is not None,
        PADDED=attention.token_mask is not None,
        QUERIES=_QUERIES, KEYS=_KEYS, WIDTH=max(16, triton.next_power_of_2(width)), num_stages=2,
    )  # fmt: skip
    return out, sees.bool()


@triton.jit
def _kernel(
    query, key, bias, mask, sinks, first, padding, out, sees,
    scale, softcap, window, hidden,
    queries, keys, width, heads, sharing,
    q_b, q_h, q_n, q_w, k_b, k_h, k_n, k_w, b_b, b_h, b_n, b_m, m_b, m_h, m_n, m_m, f_b, f_m,
    p_b, p_m, o_f,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, CAP: tl.constexpr, BIAS: tl.constexpr,
    MASK: tl.constexpr, SINKS: tl.constexpr, PADDED: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    sample, head = (tl.program_id(0) // heads).to(tl.int64), (tl.program_id(0) % heads).to(tl.int64)
    begin = tl.program_id(1) * QUERIES
    rows = begin + tl.arange(0, QUERIES)
    inside = rows < queries
    positions = rows + keys - queries  # of the queries among the keys
    parts = tl.arange(0, WIDTH)
    rows_far = rows.to(tl.int64)
    asked = tl.load(
        query + sample * q_b + head * q_h + rows_far[:, None] * q_n + parts[None, :] * q_w,
        mask=inside[:, None] & (parts[None, :] < width), other=0.0,
    )  # fmt: skip
    top = tl.full([QUERIES], float("-inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    squares = tl.zeros([QUERIES], tl.float32)
    moment = tl.zeros([QUERIES], tl.float32)
    on_first = tl.zeros([QUERIES], tl.float32)
    astray = tl.zeros([QUERIES], tl.float32)
    start, stop = 0, keys
    last = tl.minimum(begin + QUERIES, queries) + keys - queries  # one beyond the last query
    if WINDOW:
        start = tl.maximum(0, begin + keys - queries - window + 1) // KEYS * KEYS
        stop = tl.minimum(stop, last + window - 1)
    if CAUSAL:
        stop = tl.minimum(stop, last)
    for at in range(start, stop, KEYS):
        columns = at + tl.arange(0, KEYS)
        there = columns < keys
        columns_far = columns.to(tl.int64)
        key_block = tl.load(
            key + sample * k_b + (head // sharing) * k_h + columns_far[None, :] * k_n
            + parts[:, None] * k_w,
            mask=there[None, :] & (parts[:, None] < width), other=0.0,
        )  # fmt: skip
        score = tl.dot(asked, key_block, input_precision="ieee") * scale
        if CAP:
            # tanh by the exponential of a negative number, which cannot overflow
            small = tl.exp(-2 * tl.abs(score / softcap))
            bent = softcap * (1 - small) / (1 + small)
            score = tl.where(score < 0, -bent, bent)
        seen = inside[:, None] & there[None, :]
        if BIAS:
            added = tl.load(
                bias + sample * b_b + head * b_h + rows_far[:, None] * b_n
                + columns_far[None, :] * b_m, mask=seen, other=0.0,
            ).to(tl.float32)  # fmt: skip
            seen = seen & (added >= hidden)
            score += added
        if MASK:
            allowed = tl.load(
                mask + sample * m_b + head * m_h + rows_far[:, None] * m_n
                + columns_far[None, :] * m_m, mask=seen, other=0,
            )  # fmt: skip
            seen = seen & (allowed != 0)
        ahead = columns[None, :] - positions[:, None]
        if CAUSAL:
            seen = seen & (ahead <= 0)
        if WINDOW:
            seen = seen & (tl.abs(ahead) < window)
        score = tl.where(seen, score, float("-inf"))
        higher = tl.maximum(top, tl.max(score, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        less = tl.where(top == float("-inf"), 0.0, top - base)  # nothing to rescale before
        shrink = tl.exp(less)
        weight = tl.exp(score - base[:, None])
        moment = shrink * (moment + less * total)
        moment += tl.sum(weight * tl.where(seen, score - base[:, None], 0.0), 1)
        total = shrink * total + tl.sum(weight, 1)
        squares = shrink * shrink * squares + tl.sum(weight * weight, 1)
        is_first = tl.load(first + sample * f_b + columns_far * f_m, mask=there, other=0)
        on_first = shrink * on_first
        on_first += tl.sum(tl.where(is_first[None, :] != 0, weight, 0.0), 1)
        if PADDED:
            is_padding = tl.load(padding + sample * p_b + columns_far * p_m, mask=there, other=0)
            astray = shrink * astray
            astray += tl.sum(tl.where(is_padding[None, :] != 0, weight, 0.0), 1)
        top = higher
    blind = top == float("-inf")
    sink = tl.zeros([QUERIES], tl.float32)
    normaliser, spread, energy = total, moment, squares
    if SINKS:
        # The sink relative to the largest score of a key, or the other way round if it is larger.
        raw = tl.load(sinks + head).to(tl.float32)
        base = tl.maximum(tl.where(blind, raw, top), raw)
        base = tl.where(base == float("-inf"), 0.0, base)  # no key is seen, and no sink open
        less = tl.where(blind, 0.0, top - base)
        shrink = tl.exp(less)
        sink = tl.exp(raw - base)
        normaliser = shrink * total + sink
        spread = shrink * (moment + less * total) + tl.where(sink > 0, raw - base, 0.0) * sink
        energy = shrink * shrink * squares + sink * sink
        on_first, astray = shrink * on_first, shrink * astray
        largest = shrink
    else:
        largest = tl.full([QUERIES], 1.0, tl.float32)
    normaliser = tl.where(normaliser > 0, normaliser, 1.0)
    energy = tl.where(energy > 0, energy, 1.0)
    there = out + tl.program_id(0).to(tl.int64) * queries + rows
    tl.store(there, tl.log(normaliser) - spread / normaliser, mask=inside)
    tl.store(there + o_f, 2 * tl.log(normaliser) - tl.log(energy), mask=inside)
    tl.store(there + 2 * o_f, largest / normaliser, mask=inside)
    tl.store(there + 3 * o_f, on_first / normaliser, mask=inside)
    tl.store(there + 4 * o_f, sink / normaliser, mask=inside)
    tl.store(there + 5 * o_f, astray / normaliser, mask=inside)
    visible = tl.where(blind, 0, 1).to(tl.uint8)
    tl.store(sees + tl.program_id(0).to(tl.int64) * queries + rows, visible, mask=inside)
