"""What a model is given, by name, and what that says about batch, tokens and caches."""

import copy
import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rankscope.core.network import Network
from rankscope.errors import InputError

UNNAMED = "argument"
"""What an argument is called whose name is not known; its place comes after."""
PADS_ON_THE_RIGHT = ("longformer", "led", "big_bird", "bigbird_pegasus", "reformer")
"""Models that fill up their input to a whole number of windows or chunks on their own."""


class ModelArguments(NamedTuple):
    """The arguments of a forward pass, and the same by name as far as names can be known."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    by_name: Mapping[str, Any]


def read_arguments(model: nn.Module, inputs: Any) -> ModelArguments:
    """What ``trace`` was given as a model's arguments; caches among them are not written to."""
    named = dict(inputs) if isinstance(inputs, Mapping) else {}
    placed = () if isinstance(inputs, Mapping) else inputs
    placed = (placed,) if isinstance(placed, Tensor) else placed
    args = tuple(copy_caches(argument) if is_cache(argument) else argument for argument in placed)
    kwargs = {
        name: copy_caches(argument) if is_cache(argument) else argument
        for name, argument in named.items()
    }
    if isinstance(model, Network):
        try:
            bound = dict(inspect.signature(model.forward).bind(*args, **kwargs).arguments)
        except TypeError as error:
            raise InputError(f"a network takes x and token_mask: {error}.") from None
        return ModelArguments((), bound, bound)
    try:
        call = inspect.signature(_unwrapped(model).forward).bind_partial(*args, **kwargs)
        names, kinds = dict(call.arguments), dict(call.signature.parameters)
    except (TypeError, ValueError):
        names, kinds = dict(kwargs), {}
    for name, value in list(names.items()):
        if isinstance(value, Mapping):  # what ``**kwargs`` took
            names |= {key: item for key, item in value.items() if isinstance(key, str)}
            del names[name]
        elif name in kinds and kinds[name].kind is inspect.Parameter.VAR_POSITIONAL:
            names |= {f"{UNNAMED} {number}": item for number, item in enumerate(value, start=1)}
            del names[name]
    return ModelArguments(args, kwargs, names)


def _unwrapped(model: nn.Module) -> nn.Module:
    """The model inside DataParallel, torch.compile and the like, which take anything."""
    for name in ("_orig_mod", "module"):
        inner = getattr(model, name, None)
        if isinstance(inner, nn.Module):
            return _unwrapped(inner)
    return model


class Ids(NamedTuple):
    """The argument that says how many samples and tokens there are, if one does."""

    name: str
    batch: int
    tokens: int
    are_ids: bool = True
    """Real numbers may be anything, so their axes prove less."""
    past: int | None = None
    """How many tokens come before these in a cache; None without one."""


def ids_among(arguments: Mapping[str, Any], *, decoder: bool) -> Ids | None:
    """Token ids ``(batch, token)`` among a model's arguments, or embeddings in their place."""
    ids = _ids(arguments, decoder=decoder)
    of_encoder = not decoder and any(name.startswith("decoder_") for name in arguments)
    if ids is None or of_encoder:  # a cache beside an encoder is the decoder's
        return ids
    return ids._replace(past=cached_tokens(arguments))


def _ids(arguments: Mapping[str, Any], *, decoder: bool) -> Ids | None:
    prefix = "decoder_" if decoder else ""
    usual = (f"{prefix}input_ids", f"{prefix}inputs_embeds")
    integers = [name for name, value in arguments.items() if _is_ids(name, value)]
    reals = [
        name for name, value in arguments.items() if _is_real(name, value) and name not in usual
    ]
    if reals and not decoder:  # images or sounds beside the text: whose the blocks are is not known
        value = arguments[reals[0]]
        lone = value.ndim == 3 and not integers and len(reals) == 1
        return Ids(reals[0], value.shape[0], value.shape[1], are_ids=False) if lone else None
    for name in (*usual, *([] if decoder else integers)):
        value = arguments.get(name)
        if isinstance(value, Tensor) and value.ndim >= 2:
            return Ids(name, value.shape[0], value.shape[1])
    return None


def _is_ids(name: str, value: Any) -> bool:
    integers = isinstance(value, Tensor) and value.dtype in (torch.int64, torch.int32)
    return integers and value.ndim == 2 and "mask" not in name


def _is_real(name: str, value: Any) -> bool:
    real = isinstance(value, Tensor) and value.is_floating_point() and value.ndim > 2
    return real and "mask" not in name


def is_cache(value: Any) -> bool:
    """Whether this is a cache of transformers', or the part of one that belongs to a layer."""
    return hasattr(value, "get_seq_length") and hasattr(value, "__dict__")


def copy_caches(value: Any) -> Any:
    """The same arguments with caches of their own.

    A forward pass adds its tokens to the cache it is given: traced twice, it would be another pass.
    """
    if is_cache(value):
        twin = copy.copy(value)
        vars(twin).update({name: copy_caches(item) for name, item in vars(value).items()})
        return twin
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        twin = copy.copy(value)  # of its own kind, as an OrderedDict
        twin.update({name: copy_caches(item) for name, item in value.items()})
        return twin
    if isinstance(value, list | tuple):
        parts = [copy_caches(item) for item in value]
        if isinstance(value, list):
            return parts
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value


def cached_tokens(arguments: Mapping[str, Any]) -> int | None:
    """How many tokens a cache among a model's arguments holds already; None without one."""
    for value in arguments.values():
        if is_cache(value):
            return int(value.get_seq_length())
    past = arguments.get("past_key_values")
    while isinstance(past, tuple | list) and past:  # keys and values by layer, as they once were
        past = past[0]
    return past.shape[-2] if isinstance(past, Tensor) and past.ndim == 4 else None


class BlockLocation(NamedTuple):
    """Where a block is in its model: its path, and what transformers calls the model it is of."""

    path: str
    model_type: str | None
    is_decoder: bool
    """Whether it belongs to a decoder that has an encoder beside it."""

    @classmethod
    def of(cls, model: nn.Module, block: nn.Module) -> "BlockLocation":
        """The place of a block, however deep the model is wrapped; ours needs no telling."""
        if isinstance(model, Network):
            return cls("", None, is_decoder=False)
        names = dict(model.named_modules())
        path = next((name for name, module in names.items() if module is block), "")
        parts = path.split(".")
        beside = any(
            ".".join([*parts[:index], "encoder"]) in names
            for index, part in enumerate(parts)
            if part == "decoder"
        )
        # What the innermost module with a configuration is called, on the way to the block.
        on_the_way = (".".join(parts[:length]) for length in range(len(parts), -1, -1))
        kinds = (from_config(names.get(name), "model_type") for name in on_the_way)
        return cls(path, next((kind for kind in kinds if isinstance(kind, str)), None), beside)

    def sees_other_input(self, arguments: Mapping[str, Any]) -> bool:
        """Whether the block looks at images or sounds; the mask of a text beside them is not
        theirs."""
        others = any(_is_real(name, value) for name, value in arguments.items())
        texts = any(_is_ids(name, value) for name, value in arguments.items())
        named = any(word in self.path.lower() for word in ("vision", "visual", "image", "audio"))
        return others and texts and named


def from_config(module: nn.Module | None, name: str) -> Any:
    """What a module's configuration says of itself; None without one, or if it refuses to."""
    try:
        return getattr(getattr(module, "config", None), name, None)
    except Exception:  # Gemma 4's raises an error of its own for what differs between layers
        return None
