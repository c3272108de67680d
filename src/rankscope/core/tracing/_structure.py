"""What a model is made of beside its weights, as a digest."""

import json
from collections.abc import Callable, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any

from torch import nn

from rankscope.core.tracing._described import described
from rankscope.core.tracing._digest import digest

_PLAIN = (bool, int, float, str, type(None))
PYTORCHS = {*vars(nn.Module()), "_is_full_backward_hook", "warnings_issued"}
"""Attributes of every module, and such as a forward pass writes its warnings into."""

_HOOKS = attrgetter("_forward_pre_hooks", "_forward_hooks")


def structure_of(model: nn.Module) -> str:
    """A digest of what a model is made of beside its weights: classes, settings, functions.

    Two models can share every weight and differ in their number of heads. Attributes of modules
    count as far as ``described`` sees into them, hooks by their code: what they hold may be what
    they record.
    """
    found: list[str] = []
    held: dict[str, Any] = {}
    configs: dict[int, Any] = {}
    for name, module in model.named_modules():
        kind = type(module)
        own = attributes(module)
        plain = {key: each for key, each in own.items() if isinstance(each, _PLAIN)}
        found.append(repr((name, kind.__module__, kind.__qualname__, sorted(plain.items()))))
        for hook in foreign_hooks([module]):
            code = getattr(hook, "__code__", None)
            called = getattr(hook, "__qualname__", type(hook).__qualname__)
            found.append(f"hook of {name}: {called}, {digest(described(code))}")
        held |= {f"{name}.{key}": described(each) for key, each in own.items() if key not in plain}
        config: Any = getattr(module, "config", None)
        if hasattr(config, "to_dict"):
            words = json.dumps(config.to_dict(), sort_keys=True, default=str)
            configs[id(config)] = (words, getattr(config, "_attn_implementation", None))
    return digest([found, held, list(configs.values())])


def attributes(module: nn.Module) -> dict[str, Any]:
    """The attributes that are part of a structure; ours keep aside what is known otherwise."""
    ours = is_ours(module)
    return {
        name: value
        for name, value in vars(module).items()
        if name not in PYTORCHS and not (ours and name.startswith("_"))
    }


def is_ours(module: nn.Module) -> bool:
    """Whether a module is of a class of this package."""
    return type(module).__module__.startswith("rankscope.")


def foreign_hooks(modules: Sequence[nn.Module]) -> list[Callable[..., Any]]:
    """Forward hooks that are not ours, which may change what a module gives."""
    places = chain.from_iterable(map(_HOOKS, modules))
    hooks = chain.from_iterable(map(dict.values, filter(None, places)))
    return [hook for hook in hooks if not str(hook.__module__).startswith("rankscope.")]
