"""Models at hand whose weights are not plain numbers in memory: offloaded, quantised, adapted."""

from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from rankscope.errors import UnsupportedModelError
from rankscope.models.checkpoints._files import fits_memory
from rankscope.numerals import gigabytes
from rankscope.process import available_memory
from rankscope.streams import global_stream

_TRACED = "rankscope.trace measures it as it is"


def gather(model: nn.Module) -> nn.Module:
    """A copy of an offloaded model with every weight in main memory; other models as they are.

    Weights are read one after the other, from main memory or from disk. Raises if the memory is too
    small for all of them, or if they cannot be read.
    """
    tensors = list(chain(model.parameters(), model.buffers()))
    if not any(tensor.is_meta for tensor in tensors):
        return model
    size = sum(tensor.nbytes for tensor in tensors)
    if not fits_memory(size):
        there = gigabytes(available_memory() or 0)
        raise UnsupportedModelError(
            f"the model is offloaded and takes about {gigabytes(size)} of memory, and {there} are "
            f"available, so our network cannot be built on its weights; {_TRACED}."
        )
    unread = UnsupportedModelError(
        "some weights are offloaded in a way that is not Accelerate's, so they cannot be read; "
        f"{_TRACED}, or load the model without a device_map."
    )
    config = getattr(model, "config", None)
    if config is None:
        raise unread
    with global_stream(0, "original"), torch.no_grad():
        whole: nn.Module = type(model)(config).to(tensors[0].dtype).eval()
        values = _values(model)
        for name, tensor in chain(whole.named_parameters(), whole.named_buffers()):
            value = values.get(name)
            if value is None or value.is_meta or value.shape != tensor.shape:
                raise unread
            tensor.data = value.to("cpu", copy=True)
    return whole


def _values(model: nn.Module) -> dict[str, Tensor]:
    """Every tensor of an offloaded model by name; empty ones are read from Accelerate's hooks."""
    values: dict[str, Tensor] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        prefix = f"{path}." if path else ""
        for name, tensor in chain(
            module.named_parameters(recurse=False), module.named_buffers(recurse=False)
        ):
            if not tensor.is_meta:
                values[prefix + name] = tensor
        hook = vars(module).get("_hf_hook")
        for part in (hook, *getattr(hook, "hooks", ())):
            stored: Any = getattr(part, "weights_map", None)
            if stored is None:
                continue
            for name, tensor in chain(module.named_parameters(), module.named_buffers()):
                if tensor.is_meta and prefix + name not in values:
                    try:
                        values[prefix + name] = stored[name]
                    except (KeyError, OSError):  # that of another hook, or a file that is gone
                        continue
    return values


def refuse_packed(model: nn.Module) -> None:
    """Raise for a model whose layers compute with something other than their floating weights."""
    if hasattr(model, "merge_and_unload"):
        raise UnsupportedModelError(
            "the model has an adapter beside its weights; merge it first: "
            "rankscope.load(model.merge_and_unload())."
        )
    if _is_quantised(model):
        method = getattr(model, "quantization_method", None)
        called = f" ({getattr(method, 'value', method)})" if method else ""
        raise UnsupportedModelError(
            f"the model is quantised{called}, so its weights are not floating-point numbers; "
            f"{_TRACED}, or load what it was made from."
        )


def _is_quantised(model: nn.Module) -> bool:
    if getattr(model, "is_quantized", False):
        return True
    if any("_packed_params" in vars(module) for module in model.modules()):
        return True  # layers of torch.ao
    return any(
        not parameter.is_floating_point() or parameter.dtype.itemsize < 2
        for parameter in model.parameters()
    )
