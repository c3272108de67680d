"""The kernels of hidden states, compiled for a GPU that need not be there; prints their names."""

import sys

from triton import compile as compile_kernel
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from rankscope.core.metrics import _fused_kernels as fused
from rankscope.core.metrics import _spectrum_kernels as spectrum

HALVES = {"split", "first", "second"}
WHOLE = {"tokens", "features", "chunk", "chunks", "blocks", "size", "starts"}
WHOLE |= {"layer", "chunk_rows", "groups", "width", "slot"}
ENDINGS = ("_batch", "_token", "_feature", "_apart", "_b", "_n", "_d", "_h")
ENDINGS += ("_programs", "_rows", "_heads", "_tokens")
POINTERS = {"mask": "u8", "first": "i64", "count": "i32", "arrived": "i32"}
POINTERS |= {"figures": "fp64", "tensors": "i64", "words": "i64", "peaks": "i32"}
SIZES = {"FEATURES": 128, "TOKENS": 32}


def build(kernel, state="bf16", **constants):
    """What is neither a constant nor a whole number is a pointer."""
    kinds = {}
    for name in kernel.arg_names:
        whole = name in WHOLE or name.endswith(ENDINGS)
        pointer = {"x": state, **POINTERS}.get(name, "bf16" if name in HALVES else "fp32")
        kinds[name] = "i32" if whole else f"*{pointer}"
        if name in constants:
            kinds[name] = "constexpr"
    built = compile_kernel(ASTSource(kernel, kinds, constants), target=GPUTarget("cuda", 90, 32))
    print(kernel.__name__, len(built.asm["ptx"]) > 0)


def main():
    build(spectrum._survey, MASKED=True, **SIZES)
    build(spectrum._survey, MASKED=False, chunks=1, blocks=1, x_feature=1, **SIZES)
    shape = {"CHUNKS": 16, "SIZES": 512, **SIZES}
    build(spectrum._write, MASKED=True, CENTERED=False, EXACT=True, **shape)
    build(spectrum._write, "fp32", MASKED=False, CENTERED=True, EXACT=False, x_feature=1, **shape)
    for whole in (True, False):
        tile = {"HAS_MASK": not whole, "ALL_ROWS": whole, "ALL_COLUMNS": whole, "STAGES": 3}
        tile |= {"ROWS": 8, "COLUMNS": 256, **({"x_d": 1} if whole else {})}
        build(fused.mean_and_rows, CHUNKS=8, GROUPS=16, **tile)
        build(fused.rest_and_columns, "fp32", CHUNKS=8, GROUPS=16, **tile)
    build(fused.largest_entries, ROWS=32, WIDTH=128)
    build(spectrum._half_step, FIRST=True, TO_TOKENS=False, WHOLE=True, BLOCK=256)
    build(spectrum._half_step, FIRST=False, TO_TOKENS=True, WHOLE=False, BLOCK=256)


if __name__ == "__main__":
    sys.exit(main())
