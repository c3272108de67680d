"""Numbers on their way from devices to the host, which is free until it asks for them."""

from collections.abc import Iterable

import torch
from torch import Tensor


class Transfer:
    """Copies of tensors to the host, begun at once; ``wait`` gives them when they are there."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        given = list(tensors)
        # Only CUDA says when a copy is done; other devices are waited for.
        self._copies = [
            each.to("cpu", non_blocking=True) if each.is_cuda else each.detach() for each in given
        ]
        self._ends = [_end(device) for device in {each.device for each in given if each.is_cuda}]

    def wait(self) -> list[Tensor]:
        """The tensors on the host."""
        for end in self._ends:
            end.synchronize()
        return [each.cpu() for each in self._copies]


def _end(device: torch.device) -> torch.cuda.Event:
    """When all that a device has been given so far is done."""
    end = torch.cuda.Event()
    end.record(torch.cuda.current_stream(device))
    return end
