"""Weights that accelerate keeps elsewhere between calls; the model holds empty ones meanwhile.

Accelerate is not imported: its hooks are known by what they carry.
"""

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn


def in_memory(model: nn.Module) -> dict[str, Tensor]:
    """The model's offloaded tensors that wait in main memory, by name."""
    return {
        name: kept[key]
        for name, kept, key in _offloaded(model)
        if isinstance(kept, dict) and isinstance(kept.get(key), Tensor)
    }


def _offloaded(model: nn.Module) -> Iterator[tuple[str, Any, str]]:
    """Names of empty tensors, where each is kept, and what it is called there."""
    for place, module in model.named_modules():
        for hook in _hooks(getattr(module, "_hf_hook", None)):
            weights = getattr(hook, "weights_map", None)
            if weights is None:
                continue
            prefix = getattr(weights, "prefix", "")
            kept = getattr(weights, "dataset", weights)
            kept = getattr(kept, "state_dict", kept)  # what is on disk is in its index
            own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
            for name, tensor in own.items():
                if tensor.is_meta:
                    yield f"{place}.{name}".removeprefix("."), kept, f"{prefix}{name}"


def _hooks(hook: Any) -> tuple[Any, ...]:
    return (hook, *getattr(hook, "hooks", ())) if hook is not None else ()
