"""The arguments of a model by name, and what they imply about batch, tokens and caches."""

import copy
import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rankscope.core.network import Network
from rankscope.errors import InputError

UNNAMED = "argument"
"""The name of an argument without a known name; its position follows."""
PADS_ON_THE_RIGHT = (
    *("longformer", "led", "big_bird", "bigbird_pegasus", "pegasus_x", "reformer"),
)
"""Models that pad their input to a whole number of windows or chunks themselves."""


class ModelArguments(NamedTuple):
    """The arguments of a forward pass, and the same by name as far as names are known."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    by_name: Mapping[str, Any]


def read_arguments(model: nn.Module, inputs: Any) -> ModelArguments:
    """The inputs of ``trace`` as arguments of a model, with copies of caches."""
    named = dict(inputs) if isinstance(inputs, Mapping) else {}
    placed = () if isinstance(inputs, Mapping) else inputs
    placed = (placed,) if isinstance(placed, Tensor) else placed
    args = tuple(copy_caches(x) if is_cache(x) else x for x in placed)
    kwargs = {name: copy_caches(x) if is_cache(x) else x for name, x in named.items()}
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
        if isinstance(value, Mapping):  # the model's ``**kwargs``
            names |= {key: item for key, item in value.items() if isinstance(key, str)}
            del names[name]
        elif name in kinds and kinds[name].kind is inspect.Parameter.VAR_POSITIONAL:
            names |= {f"{UNNAMED} {number}": item for number, item in enumerate(value, start=1)}
            del names[name]
    return ModelArguments(args, kwargs, names)


def _unwrapped(model: nn.Module) -> nn.Module:
    """The model inside wrappers such as DataParallel, which accept any argument."""
    for name in ("_orig_mod", "module"):
        inner = getattr(model, name, None)
        if isinstance(inner, nn.Module):
            return _unwrapped(inner)
    return model


class Ids(NamedTuple):
    """The argument that determines the number of samples and tokens."""

    name: str
    batch: int
    tokens: int
    are_ids: bool = True
    """False for floating-point inputs, whose axes are weaker evidence."""
    past: int | None = None
    """The number of tokens in a cache before these; None without a cache."""


def ids_among(arguments: Mapping[str, Any], *, decoder: bool) -> Ids | None:
    """Token ids ``(batch, token)`` among a model's arguments, or embeddings in their place."""
    ids = _ids(arguments, decoder=decoder)
    of_encoder = not decoder and any(name.startswith("decoder_") for name in arguments)
    if ids is None or of_encoder:  # a cache next to an encoder belongs to the decoder
        return ids
    return ids._replace(past=cached_tokens(arguments))


def _ids(arguments: Mapping[str, Any], *, decoder: bool) -> Ids | None:
    prefix = "decoder_" if decoder else ""
    usual = (f"{prefix}input_ids", f"{prefix}inputs_embeds")
    integers = [name for name, value in arguments.items() if _is_ids(name, value)]
    reals = [name for name, x in arguments.items() if _is_real(name, x) and name not in usual]
    if reals and not decoder:  # images or audio next to text: the blocks may process either
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
    """Whether this is a cache of Transformers, or the part of one that belongs to a layer."""
    return hasattr(value, "get_seq_length") and hasattr(value, "__dict__")


def copy_caches(value: Any) -> Any:
    """The same arguments with copies of all caches.

    A forward pass appends its tokens to its cache; a second trace would compute something else.
    """
    if is_cache(value):
        twin = copy.copy(value)
        vars(twin).update({name: copy_caches(item) for name, item in vars(value).items()})
        return twin
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        twin = copy.copy(value)  # keeps the class, such as OrderedDict
        twin.update({name: copy_caches(item) for name, item in value.items()})
        return twin
    if isinstance(value, list | tuple):
        parts = [copy_caches(item) for item in value]
        if isinstance(value, list):
            return parts
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value


def cached_tokens(arguments: Mapping[str, Any]) -> int | None:
    """The number of tokens in a cache among the arguments; None without a cache."""
    for value in arguments.values():
        if is_cache(value):
            return int(value.get_seq_length())
    past = arguments.get("past_key_values")
    while isinstance(past, tuple | list) and past:  # keys and values by layer, the old format
        past = past[0]
    return past.shape[-2] if isinstance(past, Tensor) and past.ndim == 4 else None


class BlockLocation(NamedTuple):
    """The path of a block in its model, and the model type of Transformers."""

    path: str
    model_type: str | None
    is_decoder: bool
    """Whether it belongs to the decoder of an encoder-decoder model."""

    @classmethod
    def of(cls, model: nn.Module, block: nn.Module) -> "BlockLocation":
        """The location of a block in a possibly wrapped model; empty for a ``Network``."""
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
        # The model type of the innermost module with a configuration that contains the block.
        on_the_way = (".".join(parts[:length]) for length in range(len(parts), -1, -1))
        kinds = (from_config(names.get(name), "model_type") for name in on_the_way)
        return cls(path, next((kind for kind in kinds if isinstance(kind, str)), None), beside)

    def sees_other_input(self, arguments: Mapping[str, Any]) -> bool:
        """Whether the block processes images or audio, to which the mask of a text does not
        apply."""
        others = any(_is_real(name, value) for name, value in arguments.items())
        texts = any(_is_ids(name, value) for name, value in arguments.items())
        named = any(word in self.path.lower() for word in ("vision", "visual", "image", "audio"))
        return others and texts and named


def from_config(module: nn.Module | None, name: str) -> Any:
    """An attribute of a module's configuration; None if it has none or raises."""
    try:
        return getattr(getattr(module, "config", None), name, None)
    except Exception:  # Gemma 4 raises its own error for values that differ between layers
        return None
