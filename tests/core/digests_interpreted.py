"""The kernels for digests in Triton's interpreter, against those of a CPU; prints what differs."""

import os

os.environ["TRITON_INTERPRET"] = "1"  # before Triton is loaded

import numpy as np
import torch

from rankscope.core import weights
from rankscope.core.weights_kernels import begin, divide

generator = torch.Generator().manual_seed(0)
shapes = [(1,), (1023,), (1024,), (4, 2048), (2049, 7), (40, 1030), (0,), (3, 5, 1024)]
tensors = [
    (10 * torch.randn(shape, generator=generator)).to(dtype)
    for shape in shapes
    for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.int8, torch.bool)
]
tensors = [tensor for tensor in tensors if tensor.data_ptr() % 8 == 0]
contents = begin(tensors, weights._keys_on(torch.device("cpu")))()
for tensor, content in zip(tensors, contents, strict=True):
    expected = b"".join(piece.numpy().tobytes() for piece in weights._pieces(tensor))
    print(tuple(tensor.shape), str(tensor.dtype)[6:], len(content), content == expected, sep=";")

sizes = np.array([0, 1, 16, 17, 40, 0, 33])
rows = [
    (tensor, row)
    for tensor, first, count in zip(*divide(sizes), strict=True)
    for row in range(first, first + count)
]
print(rows == [(tensor, row) for tensor, size in enumerate(sizes) for row in range(size)])
