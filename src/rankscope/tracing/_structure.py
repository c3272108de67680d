"""What a model is made of beside its weights, as a digest."""

import json
from typing import Any

from torch import nn

from rankscope.tracing._described import described
from rankscope.tracing._digest import digest

_PLAIN = (bool, int, float, str, type(None))
PYTORCHS = {*vars(nn.Module()), "_is_full_backward_hook", "warnings_issued"}
"""Attributes of every module, and such as a forward pass writes its warnings into."""


def structure_of(model: nn.Module) -> str:
    """A digest of what a model is made of beside its weights: classes, settings, functions.

    Two models can share every weight and differ in their number of heads. Attributes of modules
    count as far as ``described`` sees into them.
    """
    found: list[str] = []
    held: dict[str, Any] = {}
    configs: dict[int, Any] = {}
    for name, module in model.named_modules():
        kind = type(module)
        own = {key: each for key, each in vars(module).items() if key not in PYTORCHS}
        if kind.__module__.startswith("rankscope."):  # ours keep aside what is known otherwise
            own = {key: each for key, each in own.items() if not key.startswith("_")}
        plain = {key: each for key, each in own.items() if isinstance(each, _PLAIN)}
        found.append(repr((name, kind.__module__, kind.__qualname__, sorted(plain.items()))))
        held |= {f"{name}.{key}": described(each) for key, each in own.items() if key not in plain}
        config: Any = getattr(module, "config", None)
        if hasattr(config, "to_dict"):
            words = json.dumps(config.to_dict(), sort_keys=True, default=str)
            configs[id(config)] = (words, getattr(config, "_attn_implementation", None))
    return digest([found, held, list(configs.values())])
