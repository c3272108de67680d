"""The stack of blocks in a model, and the hidden states that go through it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, NamedTuple, TypeGuard

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
    """Blocks in the order they run, and their path in the model."""

    name: str
    blocks: list[nn.Module]

    @cached_property
    def words(self) -> str:
        """The path of the stack, and the number and class of its blocks."""
        kinds = ", ".join(dict.fromkeys(type(block).__name__ for block in self.blocks))
        words = f"{self.name or 'the model itself'}: {len(self.blocks)} {kinds}"
        inner = [_inner_stack(block) for block in self.blocks]
        if max(inner) > 1:
            words += (
                f", with {min(inner)} to {max(inner)} blocks inside each; each outer block is one "
                "layer"
            )
        return words


@checked
def find_blocks(model: nn.Module, named: Named | None = None) -> list[nn.Module]:
    """The blocks of a model in order: those of a ``Network``, those named, or those detected.

    >>> import torch
    >>> from rankscope.core.tracing import find_blocks
    >>> layer = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True)
    >>> len(find_blocks(torch.nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)))
    3

    The stack is the ``ModuleList`` or ``Sequential`` of modules of one class that has the most
    parameters; in a ``ModuleList`` of modules with parts of parts, a base class in common is
    enough. If there are two separate stacks of similar size (an encoder and a decoder), an error
    asks for a name.
    """
    return find_stack(model, named).blocks


def find_stack(model: nn.Module, named: Named | None = None) -> BlockStack:
    """``find_blocks`` with their path; for compiled blocks, the original modules."""
    if named is not None:
        name, blocks = _named_stack(model, named)
    elif isinstance(model, Network):
        name, blocks = "blocks", list(model.blocks)
    else:
        name = _largest_stack(model)
        blocks = _members(model.get_submodule(name))
    return BlockStack(name, [before_compilation(block) for block in blocks])


def _largest_stack(model: nn.Module) -> str:
    """The path of the largest stack; raises if another one is of similar size."""
    stacks: dict[str, nn.Module]
    stacks = {name: module for name, module in model.named_modules() if _is_stack(module)}
    mixed = {name: module for name, module in model.named_modules() if _is_mixed(module)}
    if all(any(_nested(name, outer) for outer in mixed) for name in stacks):
        stacks = mixed  # layers of several classes, as in hybrids, around nothing or experts
    if len(stacks) == 1 and any(True for stack in stacks.values() for _ in stack.parameters()):
        return next(iter(stacks))  # spares a walk through all parameters
    sizes = {name: sum(p.numel() for p in stack.parameters()) for name, stack in stacks.items()}
    best = max(sizes, key=lambda name: sizes[name], default="")  # of equals the outermost
    if not sizes.get(best):
        raise BlocksNotFoundError(
            f"{type(model).__name__} has no stack of blocks that can be detected; name it "
            "(blocks='encoder.layers'), or pass the modules in a list."
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
            f"name one (blocks={best!r})."
        )
    return best


def _named_stack(model: nn.Module, named: Named) -> tuple[str, list[nn.Module]]:
    """The blocks named by the user, and their paths in the model."""
    if isinstance(named, str):
        stack = _submodule(model, named)
        blocks = _members(stack) if isinstance(stack, nn.ModuleList | nn.Sequential) else []
        return named, blocks or [stack]
    entries: list[Any] = (
        _members(named) if isinstance(named, nn.ModuleList | nn.Sequential) else list(named)
    )
    if not entries:
        raise BlocksNotFoundError("blocks=[] names no block; omit it to detect the blocks.")
    places = {id(module): name for name, module in model.named_modules()}
    names = [entry if isinstance(entry, str) else places.get(id(entry), "?") for entry in entries]
    blocks = [_submodule(model, entry) if isinstance(entry, str) else entry for entry in entries]
    return ", ".join(names), blocks


def _members(stack: nn.Module) -> list[nn.Module]:
    """The modules of a stack, with repetitions, which ``children`` would omit."""
    return [module for module in stack._modules.values() if module is not None]


def _inner_stack(block: nn.Module) -> int:
    """The number of blocks of the largest stack inside a block."""
    inside = (module for module in block.modules() if module is not block)
    return max((len(_members(module)) for module in inside if _is_stack(module)), default=0)


def _is_stack(module: nn.Module) -> bool:
    if not isinstance(module, nn.ModuleList | nn.Sequential):
        return False
    children = [before_compilation(child) for child in _members(module)]
    kinds = list(dict.fromkeys(map(type, children)))
    if len(kinds) > 1 and isinstance(module, nn.ModuleList):  # hybrids mix kinds of blocks
        common = set(kinds[0].__mro__).intersection(*(kind.__mro__ for kind in kinds))
        deep = all(any(list(part.children()) for part in one.children()) for one in children)
        return deep and not common <= set(nn.Module.__mro__)  # convolutions in a list are shallow
    return len(kinds) == 1 and any(True for _ in children[0].children())  # a block has parts


def _is_mixed(module: nn.Module) -> bool:
    """Whether this is a list of layers of several classes that are called so."""
    if not isinstance(module, nn.ModuleList):
        return False
    children = [before_compilation(child) for child in _members(module)]
    kinds = {type(child) for child in children}
    parts = all(any(True for _ in child.children()) for child in children)
    named = all(kind.__name__.endswith(("Layer", "Block")) for kind in kinds)
    return len(kinds) > 1 and parts and named


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
    "the forward pass ran none of the blocks; are they part of the model, and called as modules "
    "(block(x), not block.forward(x))? With flex attention, compiled code stays compiled: run it "
    "uncompiled, with torch.compiler.set_stance('force_eager')."
)


@checked
def with_replaced_state(blocks: Sequence[nn.Module], state: Tensor, run: Callable[[], Any]) -> Any:
    """The result of ``run`` with the output of the last block replaced by ``state``.

    >>> import torch
    >>> from rankscope.core.tracing import with_replaced_state
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Softmax(-1))
    >>> with_replaced_state([model[0]], torch.zeros(1, 2), lambda: model(torch.ones(1, 2)))
    tensor([[0.5000, 0.5000]])

    This applies a model's own final norm, pooling and head to any hidden state.
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
    """The input of the first block when ``run`` is called; the forward pass stops there.

    >>> import torch
    >>> from rankscope.core.tracing import captured_input
    >>> model = torch.nn.Sequential(torch.nn.Identity(), torch.nn.Linear(2, 2))
    >>> captured_input([model[1]], lambda: model(torch.ones(1, 1, 2)))
    tensor([[[1., 1.]]])

    This gives the embeddings of the original model, at no further cost.
    """
    seen: list[Tensor] = []

    def stop(_block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen.append(first_tensor((*args, kwargs)))
        raise _EnoughError

    if not blocks:
        raise InputError("blocks is empty; pass at least one block.")
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
    """The input of the first block and the output of each block, in the order they ran.

    >>> import torch
    >>> from rankscope.core.tracing import captured_states
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    >>> len(captured_states(list(model), lambda: model(torch.ones(1, 3, 2))))
    3

    The tensors are copies, because later blocks may work in place.
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


class ModuleCall(NamedTuple):
    """One call of a module during a forward pass: the first real tensor it got, those it gave."""

    module: nn.Module
    x: Tensor
    outputs: tuple[Tensor, ...]

    @property
    def output(self) -> Tensor:
        """The first output."""
        return self.outputs[0]


@checked
def captured_calls(modules: Sequence[nn.Module], run: Callable[[], object]) -> list[ModuleCall]:
    """Every call of some modules while ``run`` runs the model, in the order they ended.

    Copies, as in ``captured_states``. Calls that do not map a real tensor to one are left
    out.
    """
    calls: list[ModuleCall] = []
    started: dict[nn.Module, list[Tensor | None]] = {module: [] for module in modules}

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tensors = [value for value in (*args, *kwargs.values()) if _is_state(value)]
        started[module].append(tensors[0].clone() if tensors else None)

    def after(module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        x, given = started[module].pop(), output if isinstance(output, tuple | list) else [output]
        outputs = tuple(value.clone() for value in given if _is_state(value))
        if x is not None and outputs:
            calls.append(ModuleCall(module, x, outputs))

    with TemporaryChanges() as changes, changes, changes, changes:
        changes.without_gradients()
        for module in started:
            changes.before(module, before)
            changes.after(module, after)
        run()
    return calls


@contextmanager
def calls_inside(
    modules: Sequence[nn.Module], context: Callable[[nn.Module], AbstractContextManager[None]]
) -> Iterator[None]:
    """Run every call of some modules inside a context of its own, in this thread."""
    running: dict[nn.Module, ExitStack] = {}

    def before(module: nn.Module, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        running.setdefault(module, ExitStack()).enter_context(context(module))

    def after(module: nn.Module, _args: tuple[Any, ...], _output: Any) -> None:
        running.pop(module).close()

    try:
        with TemporaryChanges() as changes, changes, changes, changes:
            for module in dict.fromkeys(modules):
                changes.before(module, before)
                changes.after(module, after)
            yield
    finally:  # a call that raised has not ended
        for stack in running.values():
            stack.close()


def _is_state(value: object) -> TypeGuard[Tensor]:
    return isinstance(value, Tensor) and value.is_floating_point()


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
    mode without gradients and is unchanged afterwards. If a module returns several tensors, the
    first is kept. A module that runs a second time is listed as ``name#2``.
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
