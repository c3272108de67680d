"""``load``: a Hub id, a folder, a model object or a built-in name → ``Loaded``."""

import copy
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rankscope.arguments import checked
from rankscope.core.checks import usable_device
from rankscope.core.tracing import refuse_broken
from rankscope.errors import InputError, KindError, UnsupportedModelError
from rankscope.models.families._bert import Albert, Bert, DistilBert, Roberta
from rankscope.models.families._family import Family
from rankscope.models.families._gpt2 import GPT2
from rankscope.models.families._llama import Llama
from rankscope.models.families._loaded import Loaded, fresh
from rankscope.models.families._neox import NeoX
from rankscope.models.families._sources import another_tokenizer, initialise, load_pretrained
from rankscope.models.families._t5 import T5
from rankscope.models.families._verification import TOLERANCES, Verification, compare
from rankscope.models.families._vit import ViT
from rankscope.models.families._xlnet import XLNet

FAMILIES: tuple[Family, ...] = (
    Bert(),
    Roberta(),
    Albert(),
    XLNet(),
    DistilBert(),
    GPT2(),
    Llama(),
    NeoX(),
    T5(),
    ViT(),
)


@checked
def load(
    source: str | Path | nn.Module,
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    revision: str | None = None,
    init: bool = False,
    seed: int = 0,
    pickled: bool = False,
    trust_remote_code: bool = False,
    device_map: Any = None,
    tokenizer: Any = None,
) -> Loaded:
    """Load a model, build our network on its weights, and prove that the two are equal.

    >>> loaded = load("bert-base", init=True)
    >>> x, token_mask, _ = loaded.inputs(["Attention is not all you need."])

    ``source`` is a folder, a Hub id, a transformers model, or with ``init=True`` also a built-in
    name (``BUILTIN`` lists them): then the weights are random, drawn with ``seed``, and nothing is
    downloaded. Weights are read from safetensors; ``pickled=True`` also allows pickle files, read
    with ``weights_only=True``. Code that comes with a checkpoint runs only if
    ``trust_remote_code=True``. ``device_map`` is Accelerate's, for models larger than one device.
    ``tokenizer`` is a folder, a Hub id or a tokeniser of transformers, for a model that comes
    without one or is to be given another's.
    """
    if dtype is not None and dtype not in TOLERANCES:
        known = ", ".join(str(each) for each in TOLERANCES)
        raise KindError(f"dtype={dtype!r} is none a model can be verified in; use {known}.")
    usable_device("device", device)
    if isinstance(source, nn.Module):
        if revision is not None or device_map is not None:
            raise InputError(
                "revision and device_map are about loading; a model is loaded already."
            )
        model, processor, name = source, None, type(source).__name__
        reads = None if tokenizer is None else another_tokenizer(tokenizer)
        if init:
            model = fresh(source, seed)
        elif device is not None or dtype is not None:
            model = copy.deepcopy(source)  # the caller's model stays as it is
    else:
        if init and device_map is not None:
            raise InputError("device_map places pretrained weights; with init=True give a device.")
        options: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
        name = str(source)
        if init:
            model, reads, processor = initialise(name, seed, options, tokenizer)
        else:
            options |= {"dtype": dtype or "auto", "device_map": device_map}
            model, reads, processor = load_pretrained(
                name, options, pickled=pickled, tokenizer=tokenizer
            )
    model = _placed(model, device, dtype)
    drawn = seed if init else None
    return build(model, name=name, tokenizer=reads, processor=processor, seed=drawn)


def _placed(
    model: nn.Module, device: str | torch.device | None, dtype: torch.dtype | None
) -> nn.Module:
    """The model on a device and in a dtype; one that Accelerate spread out stays where it is."""
    if any(parameter.is_meta for parameter in model.parameters()):
        raise UnsupportedModelError(
            "some weights are offloaded, so they are nowhere to be read; give every layer a device "
            "of its own in device_map, or load the model without one."
        )
    if getattr(model, "hf_device_map", None) is not None:
        found = next(model.parameters()).dtype
        if device is not None or dtype not in (None, found):
            raise UnsupportedModelError(
                f"a model that Accelerate spread over devices keeps its places and its {found}; "
                "give dtype together with device_map, and no device."
            )
        return model
    if device is None and dtype in (None, next(model.parameters()).dtype):
        return model
    # Rotary frequencies are float32 in every model; casting them to halves would bend the angles.
    kept = {
        (module, name): buffer.clone()
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
        if name.endswith("inv_freq")
    }
    model = model.to(device=device, dtype=dtype)
    for (module, name), buffer in kept.items():
        setattr(module, name, buffer.to(getattr(module, name).device))
    return model


def build(
    model: nn.Module,
    *,
    name: str,
    tokenizer: Any = None,
    processor: Any = None,
    seed: int | None = None,
) -> Loaded:
    """Find the family, build the network, verify it."""
    family = family_of(model)
    body = family.body(model)
    broken = refuse_broken(body, family.layers(body))
    if broken:  # nothing could be compared
        raise InputError(
            f"the weights {broken['not finite']} are not finite, so the model computes nothing; "
            "load them again, or look where training broke down."
        )
    network = family.network(body)
    network.name, network.seed = name, seed
    found = compare(family, body, network)
    found.check()
    return Loaded(network, model, family, found, name, tokenizer, processor)


@checked
def verify(model: Loaded | nn.Module) -> Verification:
    """Compare every layer of our network with the original's, print the table, and return it.

    Raises, after printing, if a layer differs too much.
    """
    if isinstance(model, Loaded):
        found = compare(model.family, model.body, model.network)
    else:
        family = family_of(model)
        body = family.body(model)
        found = compare(family, body, family.network(body))
    print(found)
    found.check()
    return found


@checked
def family_of(model: nn.Module) -> Family:
    """The family that converts a model, by the type its configuration states."""
    kind = getattr(getattr(model, "config", None), "model_type", None)
    for family in FAMILIES:
        if kind in family.model_types:
            return family
    known = ", ".join(sorted(kind for family in FAMILIES for kind in family.model_types))
    raise UnsupportedModelError(
        f"{type(model).__name__} (model type {kind!r}) belongs to no family rankscope converts "
        f"({known}); rankscope.trace(model, inputs) works on it without conversion."
    )
