"""Bytes from all over a model's tensors, to see whether numbers changed that no one counted."""

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

_BYTES = 4096
"""How many single bytes are looked at of each tensor on a CPU."""
_PIECES, _PIECE = 4, 256
"""On other devices: so many pieces of each tensor, of so many bytes, which one copy gathers."""


class Samples:
    """What some bytes of each tensor were; ``compare`` reads them again, without waiting for a
    device, and ``agree`` says whether all are the same."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._views: dict[torch.device, list[Tensor]] = defaultdict(list)
        self.are_complete = True
        for tensor in tensors:
            if not _is_plain(tensor):
                self.are_complete = False
            elif tensor.numel():
                self._views[tensor.device] += _views(tensor)
        self._before = {device: torch.cat(some) for device, some in self._views.items()}
        self._same: list[Tensor] = []

    def compare(self) -> None:
        """Begin to read them again."""
        self._same = [
            (torch.cat(self._views[device]) == before).all()
            for device, before in self._before.items()
        ]

    def agree(self) -> bool:
        """Whether they are what they were when they were last compared."""
        return all(bool(same) for same in self._same)


def _is_plain(tensor: Tensor) -> bool:
    """Whether a tensor is numbers in a row, writes to which PyTorch counts."""
    strange = tensor.is_meta or tensor.is_quantized or tensor.is_nested or tensor.is_inference()
    made_of_others = hasattr(tensor, "__tensor_flatten__")
    strided = not is_lazy(tensor) and tensor.layout == torch.strided
    return not strange and not made_of_others and strided and tensor.is_contiguous()


def _views(tensor: Tensor) -> list[Tensor]:
    flat = tensor.detach().view(-1).view(torch.uint8)
    if tensor.device.type == "cpu":
        return [flat[:: (len(flat) // _BYTES) | 1]]  # an odd step meets every column of a matrix
    last = max(0, len(flat) - _PIECE)
    starts = [place * last // (_PIECES - 1) for place in range(_PIECES)]
    return [flat[start : start + _PIECE] for start in dict.fromkeys(starts)]
