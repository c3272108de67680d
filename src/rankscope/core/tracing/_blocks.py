"""The stack of blocks in a model, and the hidden states that go through it."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

from torch import Tensor, nn

from rankscope.arguments import checked
from rankscope.core.network import Network
from rankscope.core.tracing._hidden_states import first_tensor
from rankscope.core.tracing._inputs import read_arguments
from rankscope.core.tracing._temporary_changes import TemporaryChanges, before_compilation
from rankscope.errors import BlocksNotFoundError, InputError

Named = str | Sequence[str] | Sequence[nn.Module] | nn.ModuleList | nn.Sequential


@dataclass(frozen=True)
class BlockStack:
    """Blocks in the order they are meant to run, and where they are in the model."""

    name: str
    blocks: list[nn.Module]

    @cached_property
    def words(self) -> str:
        """What was chosen: its place, and how many blocks of which kind it has."""
        kinds = ", ".join(dict.fromkeys(type(block).__name__ for block in self.blocks))
        words = f"{self.name or 'the model itself'}: {len(self.blocks)} {kinds}"
        inner = [_inner_stack(block) for block in self.blocks]
        if max(inner) > 1:
            words += (
                f", with {min(inner)} to {max(inner)} blocks inside each; a layer is one of the "
                "outer ones"
            )
        return words


@checked
def find_blocks(model: nn.Module, named: Named | None = None) -> list[nn.Module]:
    """The blocks of a model in order: its own if it is ours, as named, or found.

    The stack is the ``ModuleList`` or ``Sequential`` of modules of one class that holds the most
    parameters. Two separate stacks of similar size (an encoder and a decoder) are not guessed
    between.
    """
    return find_stack(model, named).blocks


def find_stack(model: nn.Module, named: Named | None = None) -> BlockStack:
    """``find_blocks``, and where they are; of compiled blocks, those that were compiled."""
    if named is not None:
        name, blocks = _named_stack(model, named)
    elif isinstance(model, Network):
        name, blocks = "blocks", list(model.blocks)
    else:
        name = _largest_stack(model)
        blocks = _members(model.get_submodule(name))
    return BlockStack(name, [before_compilation(block) for block in blocks])


def _largest_stack(model: nn.Module) -> str:
    """Its name, unless there is a rival."""
    stacks: dict[str, nn.Module]
    stacks = {name: module for name, module in model.named_modules() if _is_stack(module)}
    if len(stacks) == 1 and any(True for stack in stacks.values() for _ in stack.parameters()):
        return next(iter(stacks))  # nothing to weigh, which takes a walk through all parameters
    sizes = {name: sum(p.numel() for p in stack.parameters()) for name, stack in stacks.items()}
    best = max(sizes, key=lambda name: sizes[name], default="")  # the first, outermost of equals
    if not sizes.get(best):
        raise BlocksNotFoundError(
            f"no stack of blocks was found in {type(model).__name__}; name it: "
            "trace(model, inputs, blocks='encoder.layers'), or give the modules in a list."
        )
    rivals = [
        name
        for name, size in sizes.items()
        if 2 * size > sizes[best] and not _nested(name, best) and not _nested(best, name)
    ]
    if rivals:
        choices = ", ".join(repr(name) for name in (best, *rivals))
        raise BlocksNotFoundError(
            f"{type(model).__name__} has several stacks of blocks: {choices}; "
            f"name one: trace(model, inputs, blocks={best!r})."
        )
    return best


def _named_stack(model: nn.Module, named: Named) -> tuple[str, list[nn.Module]]:
    """What the user named, with the places of modules that were given as such."""
    if isinstance(named, str):
        stack = _submodule(model, named)
        blocks = _members(stack) if isinstance(stack, nn.ModuleList | nn.Sequential) else []
        return named, blocks or [stack]
    entries: list[Any] = (
        _members(named) if isinstance(named, nn.ModuleList | nn.Sequential) else list(named)
    )
    if not entries:
        raise BlocksNotFoundError("blocks=[] names no block; leave it out to have them found.")
    places = {id(module): name for name, module in model.named_modules()}
    names = [entry if isinstance(entry, str) else places.get(id(entry), "?") for entry in entries]
    blocks = [_submodule(model, entry) if isinstance(entry, str) else entry for entry in entries]
    return ", ".join(names), blocks


def _members(stack: nn.Module) -> list[nn.Module]:
    """What a stack holds, a module that is there twice twice; ``children`` would give it once."""
    return [module for module in stack._modules.values() if module is not None]


def _inner_stack(block: nn.Module) -> int:
    """How many blocks the largest stack inside a block has."""
    inside = (module for module in block.modules() if module is not block)
    return max((len(_members(module)) for module in inside if _is_stack(module)), default=0)


def _is_stack(module: nn.Module) -> bool:
    if not isinstance(module, nn.ModuleList | nn.Sequential):
        return False
    children = [before_compilation(child) for child in _members(module)]
    one_class = len({type(child) for child in children}) == 1
    return one_class and any(True for _ in children[0].children())  # a block has parts


def _nested(inner: str, outer: str) -> bool:
    return inner == outer or inner.startswith(f"{outer}.") or outer == ""


def _submodule(model: nn.Module, name: str) -> nn.Module:
    try:
        return model.get_submodule(name)
    except AttributeError:
        near = [path for path, module in model.named_modules() if _is_stack(module)]
        names = ", ".join(path or "the model itself" for path in near)
        hint = f"its stacks are {names}" if near else "it has no ModuleList of blocks"
        raise BlocksNotFoundError(
            f"{type(model).__name__} has no submodule {name!r}; {hint}."
        ) from None


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

    with TemporaryChanges() as changes, changes, changes, changes:
        changes.without_gradients()
        for block in dict.fromkeys(blocks):
            changes.after(block, replace)
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
    with TemporaryChanges() as changes, changes, changes, changes:
        changes.without_gradients()
        changes.before(blocks[0], stop)
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

    with TemporaryChanges() as changes, changes, changes, changes:
        changes.without_gradients()
        for block in dict.fromkeys(blocks):
            changes.before(block, before)
            changes.after(block, after)
        run()
    if not states:
        raise InputError(NONE_RAN)
    return states


@checked
def activations(
    model: nn.Module,
    inputs: Tensor | Mapping[str, Any] | Sequence[Any],
    names: str | Sequence[str],
) -> dict[str, Tensor]:
    """The outputs of named modules while a model runs, in the order they ran.

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> states = activations(model, torch.ones(3, 4), "*")
    >>> {name: tuple(state.shape) for name, state in states.items()}
    {'0': (3, 8), '1': (3, 8), '2': (3, 2)}

    ``names`` are paths as in ``model.named_modules()``, where ``*`` stands for anything:
    ``"encoder.layer.*.attention"``. ``inputs`` are as for ``trace``; the model runs in evaluation
    mode without gradients and is left as it was. Of several tensors that a module returns, the
    first is kept. A module that runs again is listed as ``name#2``.
    """
    patterns = (names,) if isinstance(names, str) else tuple(names)
    wanted: dict[nn.Module, str] = {}
    for pattern in patterns:
        chosen = {
            module: path
            for path, module in model.named_modules()
            if path and fnmatchcase(path, pattern)
        }
        if not chosen:
            paths = [path for path, _ in model.named_modules() if path]
            near = "".join(
                f"; did you mean {path!r}?" for path in get_close_matches(pattern, paths, 1)
            )
            raise InputError(f"the model has no module {pattern!r}{near or '.'}")
        wanted |= chosen
    states: dict[str, Tensor] = {}

    def keep(module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        path, number = wanted[module], 1
        while (key := path if number == 1 else f"{path}#{number}") in states:
            number += 1
        states[key] = first_tensor(output).clone()

    arguments = read_arguments(model, inputs)
    with TemporaryChanges() as changes, changes, changes, changes:
        changes.without_gradients()
        changes.evaluate(list(model.modules()))
        for module in wanted:
            changes.after(module, keep)
        model(*arguments.args, **arguments.kwargs)
    return states
