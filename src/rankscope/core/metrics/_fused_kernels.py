"""Triton kernels that read hidden states twice: for their mean, and for the residual.

A program is one warp, which never waits for another, and works on some rows of some columns, so its
sums are partial. One program adds the partial sums, always in the same order, so that results agree
to the last bit from run to run.

Squares are float32, of entries multiplied by a power of two that brings those of the first token
near 1. Where that is not enough, for tokens 10¹⁵ times as small as the first, a flag is set.
"""

import triton
import triton.language as tl

FIGURES = tl.constexpr(8)
"""Numbers stored for each chunk of rows and for each group of columns."""
_NO_ROW = tl.constexpr(2147483647)
_LEAST = tl.constexpr(2.0**-100)
"""Sums of squares above this have all their digits."""


@triton.jit
def _tile(
    x, mask, rows, tokens, inside, x_n, mask_n,
    HAS_MASK: tl.constexpr, ALL_ROWS: tl.constexpr, ALL_COLUMNS: tl.constexpr,
):  # fmt: skip
    """Some rows as float32, zero at padding, and a mask of the entries that are read."""
    valid = rows < tokens
    if HAS_MASK:
        valid = valid & (tl.load(mask + rows * mask_n, mask=valid, other=0) != 0)
    there = x + rows.to(tl.int64) * x_n
    wanted = valid & inside
    everything = ALL_ROWS and ALL_COLUMNS
    tile = tl.load(there) if everything else tl.load(there, mask=wanted, other=0.0)
    return tile.to(tl.float32), wanted


@triton.jit
def _scale(anchor):
    """The power of two that brings the largest entry close to 1, within the range of float32."""
    peak = tl.max(tl.max(tl.abs(anchor), 1), 0)
    exponent = (peak.to(tl.int32, bitcast=True) >> 23) & 0xFF
    near = (tl.minimum(tl.maximum(254 - exponent, 1), 253) << 23).to(tl.float32, bitcast=True)
    return tl.where((peak > 0) & (peak < float("inf")), near, 1.0)


@triton.jit
def _length(norms):
    """The Euclidean length of each row, of numbers of any size."""
    peak = tl.max(norms, 1, keep_dims=True)
    safe = tl.where((peak > 0) & (peak < float("inf")), peak, 1.0)
    parts = norms / safe
    return tl.sqrt(tl.sum(parts * parts, 1, keep_dims=True)) * safe


@triton.jit
def _is_last(counter, programs):
    """Whether this program is the last to arrive, so that all others' results can be read."""
    tl.debug_barrier()
    last = tl.atomic_add(counter, 1) == programs - 1
    if last:
        tl.store(counter, 0)
    return last


@triton.jit(do_not_specialize=["layer"])
def mean_and_rows(
    x, mask, first, count, center, weights, lengths, row_parts, mean_parts, arrived, figures,
    layer, tokens, features, chunks, chunk_rows, row_apart,
    x_b, x_n, x_d, mask_b, mask_n,
    HAS_MASK: tl.constexpr, ALL_ROWS: tl.constexpr, ALL_COLUMNS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, CHUNKS: tl.constexpr, GROUPS: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """The mean of each sample's tokens, and the tokens' sizes: sums of entries and of squares.

    Sums for the mean are of differences from the first token, so that equal tokens have exactly
    their own value as mean, and a large common offset costs no digits. The last program to finish a
    group of columns, or a chunk of rows, adds the partial sums of all of them.
    """
    group, chunk, sample = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    groups, samples = tl.num_programs(0), tl.num_programs(2).to(tl.int64)
    columns = group * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    inside = columns < features
    x += sample * x_b + columns.to(tl.int64) * x_d
    mask += sample * mask_b
    anchor_row = tl.load(first + sample).to(tl.int64) if HAS_MASK else 0
    anchor = tl.load(x + anchor_row * x_n, mask=inside, other=0.0).to(tl.float32)
    scale = _scale(anchor)
    total = tl.zeros([1, COLUMNS], tl.float32)
    sums = row_parts + sample * tokens * groups
    for step in tl.range(0, chunk_rows, ROWS, num_stages=STAGES):
        rows = chunk * chunk_rows + step + tl.arange(0, ROWS)[:, None]
        tile, wanted = _tile(
            x, mask, rows, tokens, inside, x_n, mask_n, HAS_MASK, ALL_ROWS, ALL_COLUMNS
        )
        away = tile - anchor
        if not (ALL_ROWS and ALL_COLUMNS):
            away = tl.where(wanted, away, 0.0)
        total += tl.sum(away, 0, keep_dims=True)
        pointers = sums + rows.to(tl.int64) * groups + group
        size = tl.sum(tl.abs(tile), 1, keep_dims=True)
        small = tile * scale
        square = tl.sum(small * small, 1, keep_dims=True)
        # Smaller squares lack digits: a negative length marks an upper bound.
        length = tl.where((square < _LEAST) & (size > 0), -size, tl.sqrt(square) / scale)
        tl.store(pointers, size, mask=rows < tokens)
        tl.store(pointers + row_apart, length, mask=rows < tokens)
    mean_parts += sample * chunks * features + columns
    tl.store(mean_parts + chunk * features, total, mask=inside)

    if _is_last(arrived + sample * groups + group, chunks):
        chunk_totals = tl.zeros([CHUNKS, COLUMNS], tl.float32)
        for step in range(0, chunks, CHUNKS):
            some = step + tl.arange(0, CHUNKS)[:, None]
            there, wanted = mean_parts + some * features, (some < chunks) & inside
            chunk_totals += tl.load(there, mask=wanted, other=0.0, cache_modifier=".cg")
        number = tl.load(count + sample) if HAS_MASK else tokens
        mean = anchor + tl.sum(chunk_totals, 0, keep_dims=True) / number.to(tl.float32)
        tl.store(center + sample * features + columns, mean, mask=inside)

    if _is_last(arrived + samples * groups + sample * chunks + chunk, groups):
        every = tl.arange(0, GROUPS)[None, :]
        largest = tl.zeros([ROWS, 1], tl.float32)
        least = tl.zeros([ROWS, 1], tl.float32)
        squares = tl.zeros([ROWS, 1], tl.float64)
        nonzero = tl.zeros([ROWS, 1], tl.int32)
        broken = tl.zeros([ROWS, 1], tl.int32) + _NO_ROW
        for step in range(0, chunk_rows, ROWS):
            rows = chunk * chunk_rows + step + tl.arange(0, ROWS)[:, None]
            wanted = (rows < tokens) & (every < groups)
            pointers = sums + rows.to(tl.int64) * groups + every
            size = tl.load(pointers, mask=wanted, other=0.0, cache_modifier=".cg")
            length = tl.load(pointers + row_apart, mask=wanted, other=0.0, cache_modifier=".cg")
            norm, unknown = _length(tl.maximum(length, 0.0)), _length(tl.maximum(-length, 0.0))
            size = tl.sum(size, 1, keep_dims=True)
            weight = tl.where(norm > 0, 1.0 / tl.where(norm > 0, norm, 1.0), 0.0)
            tl.store(weights + sample * tokens + rows, weight, mask=rows < tokens)
            tl.store(lengths + sample * tokens + rows, norm, mask=rows < tokens)
            # Entries that are not finite show in the sum, lost digits in the length.
            doubtful = (size < float("inf")) & (
                (unknown > 1e-4 * norm)
                | ((norm < float("inf")) == 0)
                | ((weight < float("inf")) == 0)
            )
            wide = norm.to(tl.float64)
            largest = tl.maximum(largest, size)
            least = tl.where(doubtful, -1.0, least)
            squares += wide * wide
            nonzero += (size > 0).to(tl.int32)
            # A sum is not finite if an entry is not.
            broken = tl.minimum(broken, tl.where(size < float("inf"), _NO_ROW, rows))
        out = figures + ((layer * samples + sample) * (chunks + groups) + chunk) * FIGURES
        tl.store(out, tl.max(tl.max(largest, 1), 0).to(tl.float64))
        tl.store(out + 1, tl.sum(tl.sum(squares, 1), 0))
        tl.store(out + 2, tl.min(tl.min(least, 1), 0).to(tl.float64))
        tl.store(out + 3, tl.sum(tl.sum(nonzero, 1), 0).to(tl.float64))
        tl.store(out + 4, tl.min(tl.min(broken, 1), 0).to(tl.float64))


@triton.jit(do_not_specialize=["layer"])
def rest_and_columns(
    x, mask, first, center, weights, rest_parts, column_parts, energies, arrived, figures,
    layer, tokens, features, chunks, chunk_rows, column_apart,
    x_b, x_n, x_d, mask_b, mask_n,
    HAS_MASK: tl.constexpr, ALL_ROWS: tl.constexpr, ALL_COLUMNS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, CHUNKS: tl.constexpr, GROUPS: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """The residual, and sums over the rows: of absolute entries, of the residual, of unit rows.

    Programs start with the last rows, which are still in cache after the first kernel.
    """
    group, sample = tl.program_id(0), tl.program_id(2).to(tl.int64)
    groups, samples = tl.num_programs(0), tl.num_programs(2).to(tl.int64)
    chunk = chunks - 1 - tl.program_id(1)
    columns = group * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    inside = columns < features
    x += sample * x_b + columns.to(tl.int64) * x_d
    mask += sample * mask_b
    anchor_row = tl.load(first + sample).to(tl.int64) if HAS_MASK else 0
    scale = _scale(tl.load(x + anchor_row * x_n, mask=inside, other=0.0).to(tl.float32))
    mean = tl.load(center + sample * features + columns, mask=inside, other=0.0)
    sizes = tl.zeros([1, COLUMNS], tl.float32)
    rests = tl.zeros([1, COLUMNS], tl.float32)
    units = tl.zeros([1, COLUMNS], tl.float32)
    energy = tl.zeros([1, COLUMNS], tl.float32)
    rest_parts += sample * tokens * groups
    weights += sample * tokens
    for step in tl.range(0, chunk_rows, ROWS, num_stages=STAGES):
        rows = chunk * chunk_rows + step + tl.arange(0, ROWS)[:, None]
        tile, wanted = _tile(
            x, mask, rows, tokens, inside, x_n, mask_n, HAS_MASK, ALL_ROWS, ALL_COLUMNS
        )
        weight = tl.load(weights + rows, mask=rows < tokens, other=0.0)
        rest = tile - mean
        if not (ALL_ROWS and ALL_COLUMNS):
            rest = tl.where(wanted, rest, 0.0)
        sizes += tl.sum(tl.abs(tile), 0, keep_dims=True)
        rests += tl.sum(tl.abs(rest), 0, keep_dims=True)
        units += tl.sum(tile * weight, 0, keep_dims=True)
        small = rest * scale
        energy += tl.sum(small * small, 0, keep_dims=True)
        pointers = rest_parts + rows.to(tl.int64) * groups + group
        tl.store(pointers, tl.sum(tl.abs(rest), 1, keep_dims=True), mask=rows < tokens)
    column_parts += sample * chunks * features + columns
    there = column_parts + chunk * features
    tl.store(there, sizes, mask=inside)
    tl.store(there + column_apart, rests, mask=inside)
    tl.store(there + 2 * column_apart, units, mask=inside)
    energies += (sample * groups + group) * chunks
    tl.store(energies + chunk, tl.sum(tl.sum(energy, 1), 0))

    out = figures + (layer * samples + sample) * (chunks + groups) * FIGURES
    if _is_last(arrived + sample * groups + group, chunks):
        all_sizes = tl.zeros([CHUNKS, COLUMNS], tl.float32)
        all_rests = tl.zeros([CHUNKS, COLUMNS], tl.float32)
        all_units = tl.zeros([CHUNKS, COLUMNS], tl.float32)
        all_energy = tl.zeros([CHUNKS, 1], tl.float64)
        for step in range(0, chunks, CHUNKS):
            some = step + tl.arange(0, CHUNKS)[:, None]
            known, wanted = column_parts + some * features, (some < chunks) & inside
            all_sizes += tl.load(known, mask=wanted, other=0.0, cache_modifier=".cg")
            known += column_apart
            all_rests += tl.load(known, mask=wanted, other=0.0, cache_modifier=".cg")
            known += column_apart
            all_units += tl.load(known, mask=wanted, other=0.0, cache_modifier=".cg")
            part = tl.load(energies + some, mask=some < chunks, other=0.0, cache_modifier=".cg")
            all_energy += part.to(tl.float64)
        size = tl.sum(all_sizes, 0, keep_dims=True)
        left = tl.sum(all_rests, 0, keep_dims=True)
        unit = tl.sum(all_units, 0, keep_dims=True)
        wide = scale.to(tl.float64)
        here = out + (chunks + group) * FIGURES
        tl.store(here, tl.max(tl.max(size, 1), 0).to(tl.float64))
        tl.store(here + 1, tl.max(tl.max(left, 1), 0).to(tl.float64))
        tl.store(here + 2, tl.sum(tl.sum(unit * unit, 1), 0).to(tl.float64))
        tl.store(here + 3, tl.sum(tl.sum(all_energy, 1), 0) / (wide * wide))
        tl.store(here + 4, 1.0 / (wide * wide) * chunks)

    if _is_last(arrived + samples * groups + sample * chunks + chunk, groups):
        every = tl.arange(0, GROUPS)[None, :]
        largest = tl.zeros([ROWS, 1], tl.float32)
        for step in range(0, chunk_rows, ROWS):
            rows = chunk * chunk_rows + step + tl.arange(0, ROWS)[:, None]
            wanted = (rows < tokens) & (every < groups)
            pointers = rest_parts + rows.to(tl.int64) * groups + every
            rest = tl.load(pointers, mask=wanted, other=0.0, cache_modifier=".cg")
            largest = tl.maximum(largest, tl.sum(rest, 1, keep_dims=True))
        here = out + chunk * FIGURES
        tl.store(here + 5, tl.max(tl.max(largest, 1), 0).to(tl.float64))


@triton.jit
def _raise_peak(
    x, peak, program, rows, width, heads, tokens, x_b, x_h, x_n,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Raise a peak to the largest size of an entry in some rows; to infinity for NaN."""
    row = program * ROWS + tl.arange(0, ROWS)
    token, head, sample = row % tokens, (row // tokens) % heads, row // (tokens * heads)
    start = sample.to(tl.int64) * x_b + head.to(tl.int64) * x_h + token.to(tl.int64) * x_n
    column = tl.arange(0, WIDTH)
    wanted = (row < rows)[:, None] & (column < width)[None, :]
    size = tl.abs(tl.load(x + start[:, None] + column[None, :], mask=wanted, other=0.0))
    size = tl.where(size == size, size.to(tl.float32), float("inf"))
    # Floats that are not negative are in the order of their bits.
    tl.atomic_max(peak, tl.max(tl.max(size, 1), 0).to(tl.int32, bitcast=True))


@triton.jit(do_not_specialize=["slot"])
def largest_entries(
    query, key, peaks, slot, query_programs, width,
    query_rows, query_heads, query_tokens, query_b, query_h, query_n,
    key_rows, key_heads, key_tokens, key_b, key_h, key_n,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The largest size of an entry of queries, and of keys, as the bits of a float32."""
    program = tl.program_id(0)
    peaks += 2 * slot
    if program < query_programs:
        _raise_peak(
            query, peaks, program, query_rows, width, query_heads, query_tokens,
            query_b, query_h, query_n, ROWS, WIDTH,
        )  # fmt: skip
    else:
        _raise_peak(
            key, peaks + 1, program - query_programs, key_rows, width, key_heads, key_tokens,
            key_b, key_h, key_n, ROWS, WIDTH,
        )  # fmt: skip
