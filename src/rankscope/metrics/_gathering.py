"""Small kernels that look at many numbers and keep few: of queries and keys, and of weights."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from rankscope.metrics._kernels import FUSED_DTYPES, can_fuse, on, power_of_two, start

_QUERIES, _SAMPLED = 32, 1024


def largest_parts(x: Float[Tensor, "batch head token width"]) -> Float[Tensor, "part"]:
    """Numbers of which the largest is the largest size of an entry; NaN or infinity for NaN."""
    samples, heads, tokens, width = x.shape
    if not can_fuse(x) or x.stride(3) != 1 or x.dtype not in FUSED_DTYPES:
        least, most = torch.aminmax(x)  # a norm takes PyTorch twenty times as long
        return torch.maximum(most, -least).double().reshape(1)
    rows = samples * heads * tokens
    found = x.new_empty(math.ceil(rows / _QUERIES), dtype=torch.float32)
    shape = (rows, width, heads, tokens, *x.stride()[:3])
    with on(x.device):
        start(
            ("largest_entries", x.dtype, x.device, shape, x.data_ptr() % 16), (len(found),),
            (x, found, *shape), (_QUERIES, power_of_two(width)), warps=4,
        )  # fmt: skip
    return found


class SampledWords:
    """Words from all over some tensors of one GPU, which a single kernel gathers."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        table = [[each.data_ptr() for each in tensors], [each.nbytes // 4 for each in tensors]]
        self._addresses, self._lengths = torch.tensor(table).to(tensors[0].device).unbind()

    def gather(self) -> Tensor:
        """The words as they are now, of tensors that are still where they were."""
        found = self._lengths.new_empty((len(self._lengths), _SAMPLED), dtype=torch.int32)
        with on(found.device):
            key = ("sampled_words", found.device)
            start(key, (len(found),), (self._addresses, self._lengths, found), (_SAMPLED,))
        return found
