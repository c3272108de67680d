"""Hidden states themselves, for comparing and converting models: the one place that keeps them."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from rankscope.arguments import checked
from rankscope.core.tracing._hooks import each_once, thread_hooks
from rankscope.core.tracing._tensors import first_tensor
from rankscope.errors import InputError

NONE_RAN = (
    "the forward pass ran none of the blocks; are they the model's own, and called as modules "
    "(block(x), not block.forward(x))? Beside flex attention, compiled code stays compiled: run it "
    "as it was written, with torch.compiler.set_stance('force_eager')."
)


@checked
def with_replaced_state(blocks: Sequence[nn.Module], state: Tensor, run: Callable[[], Any]) -> Any:
    """What ``run`` gives when the last block's output is replaced by ``state``.

    So a model's own final norm, pooling and head can be asked about any hidden state.
    """
    calls, last = 0, len(blocks)

    def replace(_block: nn.Module, _args: tuple[Any, ...], output: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls < last:
            return output
        return state if isinstance(output, Tensor) else (state, *output[1:])

    with thread_hooks() as hooks, torch.no_grad():
        for block in each_once(blocks):
            hooks.after(block, replace)
        return run()


class _EnoughError(Exception):
    """Raised by a hook to end a forward pass early."""


@checked
def captured_input(blocks: Sequence[nn.Module], run: Callable[[], object]) -> Tensor:
    """What the first block is given when ``run`` is called, which is ended as soon as it is known.

    So an embedding is the original's own, whatever it does, and costs nothing beyond itself.
    """
    seen: list[Tensor] = []

    def stop(_block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen.append(first_tensor((*args, kwargs)))
        raise _EnoughError

    if not blocks:
        raise InputError("there is no block whose input could be captured; give at least one.")
    with thread_hooks() as hooks, torch.no_grad():
        hooks.before(blocks[0], stop)
        with suppress(_EnoughError):
            run()
    if not seen:
        raise InputError(NONE_RAN)
    return seen[0]


@checked
def captured_states(blocks: Sequence[nn.Module], run: Callable[[], object]) -> list[Tensor]:
    """The blocks' input and every block's output, in the order they ran.

    Copies, because later blocks may work in place.
    """
    states: list[Tensor] = []

    def before(_block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not states:
            states.append(first_tensor((*args, kwargs)).clone())

    def after(_block: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        states.append(first_tensor(output).clone())

    with thread_hooks() as hooks, torch.no_grad():
        for block in each_once(blocks):
            hooks.before(block, before)
            hooks.after(block, after)
        run()
    if not states:
        raise InputError(NONE_RAN)
    return states
