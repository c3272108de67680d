"""Looking into an original while it runs: the blocks' input, and each block's output."""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from rankscope.families.family import Family
from rankscope.tracing import first_tensor


class _EnoughError(Exception):
    """Raised by a hook to end a forward pass early."""


def block_input(family: Family, body: nn.Module, arguments: Mapping[str, Any]) -> Tensor:
    """What the first block is given: the original's own embedding, whatever that does.

    The forward pass is ended as soon as the first block is reached.
    """
    seen: list[Tensor] = []

    def stop(_block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen.append(first_tensor((*args, kwargs)))
        raise _EnoughError

    handle = family.layers(body)[0].register_forward_pre_hook(stop, with_kwargs=True)
    try:
        with torch.no_grad():
            body(**arguments)
    except _EnoughError:
        pass
    finally:
        handle.remove()
    return family.batch_first(seen[0])


def layer_outputs(
    family: Family, body: nn.Module, arguments: Mapping[str, Any]
) -> tuple[Tensor, list[Tensor]]:
    """The blocks' input and every block's output, in the order they ran."""
    states: list[Tensor] = []

    def before(_block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not states:
            states.append(family.batch_first(first_tensor((*args, kwargs))))

    def after(_block: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        states.append(family.batch_first(first_tensor(output)))

    with ExitStack() as undo, torch.no_grad():
        for layer in dict.fromkeys(family.layers(body)):
            undo.callback(layer.register_forward_pre_hook(before, with_kwargs=True).remove)
            undo.callback(layer.register_forward_hook(after).remove)
        body(**arguments)
    return states[0], states[1:]
