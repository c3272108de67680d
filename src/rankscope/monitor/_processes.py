"""What several processes do together: agree, divide the probe, and average."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from rankscope.errors import InputError


def distributed() -> bool:
    """Whether this is one of several processes."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def agree(value: Any) -> Any:
    """The value that the first process has."""
    if not distributed():
        return value
    values = [value]
    dist.broadcast_object_list(values)
    return values[0]


def refuse_other_probes(name: str) -> None:
    """Raise unless every process has the same probe."""
    names: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(names, name)
    if len(set(names)) > 1:
        raise InputError(
            "processes have different probes; pass the same one to all of them (it is divided "
            "among them here)."
        )


def is_divisible(model: nn.Module) -> bool:
    """Whether processes may run different samples: with plain parameters or FSDP2 alone."""
    if not distributed():
        return False
    sharded: list[Any] = [p for p in model.parameters() if hasattr(p, "device_mesh")]
    by_fsdp = any(hasattr(module, "set_requires_gradient_sync") for module in model.modules())
    return not sharded or (by_fsdp and all(p.device_mesh.ndim == 1 for p in sharded))


def reducing_device(model: nn.Module) -> torch.device:
    """The device on which the processes can sum tensors."""
    if dist.get_backend() == "nccl":
        return next(model.parameters()).device
    return torch.device("cpu")


def mean_of_processes(value: float | None, model: nn.Module) -> float | None:
    """The mean of the processes that have a value; None if none has."""
    pair = torch.tensor([value or 0.0, float(value is not None)], dtype=torch.float64)
    pair = pair.to(reducing_device(model))
    dist.all_reduce(pair)
    total, count = pair.tolist()
    return total / count if count else None
