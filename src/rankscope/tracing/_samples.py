"""Words from all over a model's tensors, to see whether numbers changed that no one counted."""

from collections import defaultdict
from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from rankscope.metrics import SampledWords, has_kernels

_BYTES = 4096
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
        readers = [_reader(device, some) for device, some in by_device.items()]
        self.are_at_hand = all(device.type == "cpu" for device in by_device)
        """Whether no device has to be waited for."""
        self._read = [(reader, reader()) for reader in readers]
        self._same: list[Tensor] = []

    def compare(self) -> None:
        """Begin to read them again."""
        self._same = [(reader() == before).all() for reader, before in self._read]

    def agree(self) -> bool:
        """Whether they are what they were when they were last compared."""
        return all(bool(same) for same in self._same)


def _reader(device: torch.device, tensors: list[Tensor]) -> Callable[[], Tensor]:
    """What reads some words of tensors of one device."""
    if device.type == "cuda" and has_kernels():
        return SampledWords(tensors).gather
    return lambda: torch.cat([_some_bytes(each) for each in tensors])


def _some_bytes(tensor: Tensor) -> Tensor:
    """A view made anew each time: one that is kept keeps numbers that the model has left behind."""
    flat = tensor.detach().view(-1).view(torch.uint8)
    return flat[:: (len(flat) // _BYTES) | 1]  # odd: meets every column


def _is_plain(tensor: Tensor) -> bool:
    """Whether a tensor is numbers in a row, writes to which PyTorch counts."""
    strange = tensor.is_meta or tensor.is_quantized or tensor.is_nested or tensor.is_inference()
    made_of_others = hasattr(tensor, "__tensor_flatten__")
    strided = not is_lazy(tensor) and tensor.layout == torch.strided
    plain = strided and tensor.is_contiguous() and not tensor.is_complex()  # which may be conjugate
    return not strange and not made_of_others and plain
