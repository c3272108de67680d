"""Words from all over a model's tensors, to see whether numbers changed that no one counted."""

from collections import defaultdict
from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from rankscope.core.metrics import SampledWords, can_fuse

_BYTES = 1024
"""How many single bytes are looked at of each tensor that no kernel reads."""


class Samples:
    """What some words of each tensor were; ``compare`` reads them again, without waiting for a
    device, and ``agree`` says whether all are the same."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        by_device: dict[torch.device, list[Tensor]] = defaultdict(list)
        self.are_complete = True
        for tensor in tensors:
            if not _is_plain(tensor):
                self.are_complete = False
            elif tensor.numel():
                by_device[tensor.device].append(tensor)
        self.are_at_hand = all(device.type == "cpu" for device in by_device)
        """Whether no device has to be waited for."""
        # Of a CPU only places are kept, no views: those would keep numbers alive that are replaced.
        readers = [_reader(some) for some in by_device.values()]
        self._read = [(reader, reader()) for reader in readers]
        self._same: list[Tensor] = []

    def compare(self) -> None:
        """Begin to read them again."""
        self._same = [(reader() == before).all() for reader, before in self._read]

    def agree(self) -> bool:
        """Whether they are what they were when they were last compared."""
        return all(bool(same) for same in self._same)


def _reader(tensors: list[Tensor]) -> Callable[[], Tensor]:
    """What reads some words of tensors of one device."""
    if can_fuse(tensors[0]):
        return SampledWords(tensors).gather
    return lambda: torch.cat([_some_bytes(each) for each in tensors])


def _some_bytes(tensor: Tensor) -> Tensor:
    """Single bytes from all over a tensor; an odd step meets every column of a matrix."""
    flat = tensor.detach().view(-1).view(torch.uint8)
    return flat[:: (len(flat) // _BYTES) | 1]


def _is_plain(tensor: Tensor) -> bool:
    """Whether a tensor is numbers in a row, writes to which PyTorch counts."""
    strange = tensor.is_meta or tensor.is_quantized or tensor.is_nested or tensor.is_inference()
    made_of_others = hasattr(tensor, "__tensor_flatten__")
    strided = not is_lazy(tensor) and tensor.layout == torch.strided and tensor.is_contiguous()
    strange |= tensor.is_complex()  # which may be conjugate where it lies
    return not strange and not made_of_others and strided and tensor.data_ptr() % 4 == 0
