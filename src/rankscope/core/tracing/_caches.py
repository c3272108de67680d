"""Keys and values of earlier tokens, which a model that generates is given and adds to."""

import copy
from collections.abc import Mapping
from typing import Any

from torch import Tensor


def is_cache(value: Any) -> bool:
    """Whether this is a cache of transformers', or the part of one that belongs to a layer."""
    return hasattr(value, "get_seq_length") and hasattr(value, "__dict__")


def copy_caches(given: Any) -> Any:
    """The same arguments with caches of their own.

    A forward pass adds its tokens to the cache it is given: traced twice, it would be another pass.
    """
    if is_cache(given):
        twin = copy.copy(given)
        vars(twin).update({name: copy_caches(each) for name, each in vars(given).items()})
        return twin
    if isinstance(given, Tensor):
        return given.detach().clone()
    if isinstance(given, dict):
        twin = copy.copy(given)  # of its own kind, as an OrderedDict
        twin.update({name: copy_caches(each) for name, each in given.items()})
        return twin
    if isinstance(given, list | tuple):
        parts = [copy_caches(each) for each in given]
        if isinstance(given, list):
            return parts
        return type(given)(*parts) if hasattr(given, "_fields") else type(given)(parts)
    return given


def cached_tokens(given: Mapping[str, Any]) -> int | None:
    """How many tokens a cache among a model's arguments holds already; None without one."""
    for value in given.values():
        if is_cache(value):
            return int(value.get_seq_length())
    past = given.get("past_key_values")
    while isinstance(past, tuple | list) and past:  # keys and values by layer, as they once were
        past = past[0]
    return past.shape[-2] if isinstance(past, Tensor) and past.ndim == 4 else None
