"""Finding the stack of blocks in a model we have never seen."""

from collections.abc import Sequence

from torch import nn

from rankscope.errors import BlocksNotFoundError, KindError
from rankscope.network import Network

Named = str | Sequence[str] | Sequence[nn.Module] | nn.ModuleList | nn.Sequential


def find_blocks(model: nn.Module, named: Named | None = None) -> list[nn.Module]:
    """The blocks of a model in order: its own if it is ours, as named, or found.

    The stack is the ``ModuleList`` or ``Sequential`` of modules of one class that holds the most
    parameters. Two separate stacks of similar size (an encoder and a decoder) are not guessed
    between.
    """
    if named is not None:
        return _by_name(model, named)
    if isinstance(model, Network):
        return list(model.blocks)
    sizes = {
        name: sum(p.numel() for p in stack.parameters())
        for name, stack in model.named_modules()
        if _is_stack(stack)
    }
    sizes = {name: size for name, size in sizes.items() if size}
    if not sizes:
        raise BlocksNotFoundError(
            f"no stack of blocks was found in {type(model).__name__}; name it: "
            "trace(model, inputs, blocks='encoder.layers'), or give the modules in a list."
        )
    best = max(sizes, key=lambda name: sizes[name])  # the outermost of equals: it comes first
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
    return list(model.get_submodule(best).children())


def _is_stack(module: nn.Module) -> bool:
    children = list(module.children())
    one_class = len({type(child) for child in children}) == 1
    # A leaf such as a Linear is no block: a block has parts.
    return (
        isinstance(module, nn.ModuleList | nn.Sequential)
        and one_class
        and any(True for _ in children[0].children())
    )


def _nested(inner: str, outer: str) -> bool:
    return inner == outer or inner.startswith(f"{outer}.") or outer == ""


def _by_name(model: nn.Module, named: Named) -> list[nn.Module]:
    if isinstance(named, str):
        stack = _submodule(model, named)
        blocks = list(stack.children()) if isinstance(stack, nn.ModuleList | nn.Sequential) else []
        return blocks or [stack]
    if isinstance(named, nn.ModuleList | nn.Sequential):
        named = list(named.children())
    if not isinstance(named, Sequence):
        raise _wrong_kind(named)
    blocks = [_submodule(model, one) if isinstance(one, str) else one for one in named]
    for block in blocks:
        if not isinstance(block, nn.Module):
            raise _wrong_kind(block)
    if not blocks:
        raise BlocksNotFoundError("blocks=[] names no block; leave it out to have them found.")
    return blocks


def _wrong_kind(got: object) -> KindError:
    return KindError(
        f"blocks holds a {type(got).__name__}; give a name such as 'encoder.layers', "
        "a list of names, or a list of modules."
    )


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
