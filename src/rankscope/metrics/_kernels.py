"""Where Triton kernels may stand in for plain PyTorch."""

from functools import cache
from importlib.util import find_spec

from torch import Tensor


def can_fuse(x: Tensor) -> bool:
    """Whether a kernel can work on a tensor: on CUDA, where Triton is installed."""
    return x.is_cuda and _triton_is_here()


@cache
def _triton_is_here() -> bool:
    return find_spec("triton") is not None
