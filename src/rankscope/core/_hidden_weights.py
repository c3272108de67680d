"""Weights that are no parameters and no buffers: offloaded by accelerate, or packed into integers.

Accelerate is not imported: its hooks are known by what they carry.
"""

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn


def packed(model: nn.Module) -> dict[str, Tensor]:
    """What PyTorch's quantised layers hide in an object of their own."""
    found = {}
    for place, module in model.named_modules():
        unpack = getattr(vars(module).get("_packed_params"), "unpack", None)
        for number, each in enumerate(unpack() if callable(unpack) else ()):
            if isinstance(each, Tensor):
                found[f"{place}[{number}]"] = each
    return found


def offloaded(model: nn.Module) -> dict[str, Tensor]:
    """The empty tensors of a model that are filled from main memory before each call, by name."""
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
