"""Weights that are no numbers, found before they pass for something else."""

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from rankscope.core.weights import named_tensors, not_finite, unread
from rankscope.errors import InputError


def refuse_broken(
    model: nn.Module,
    blocks: Sequence[nn.Module],
    *,
    digests: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Raise if a weight of the blocks is NaN or infinite; say which others are, and what is unread.

    PyTorch's fused attention gives zeros for rows of NaN, so that broken weights would read as
    tokens that are all alike. Buffers may hold infinity: masks are kept in them.
    ``digests`` of the tensors, where they are known, save reading the same weights again.
    """
    tensors = named_tensors(model)
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    weights = {name: each for name, each in tensors.items() if name in parameters}
    buffers = {name: each for name, each in tensors.items() if name not in parameters}
    broken = [
        *not_finite(weights, digests=digests),
        *not_finite(buffers, infinity=True, digests=digests),
    ]
    layers = _layers(model, blocks) if broken else {}
    for name in broken:
        if name in layers:
            raise InputError(_sentence(name, tensors[name], layers[name]))
    found = {"not finite": ", ".join(broken)} if broken else {}
    if elsewhere := unread(tensors):
        found["unread weights"] = (
            f"{len(elsewhere)} of {len(tensors)} are offloaded to disk; the digest knows their "
            "shapes alone, and whether they are finite was not looked at"
        )
    return found


def _layers(model: nn.Module, blocks: Sequence[nn.Module]) -> dict[str, int]:
    """The first layer each tensor of the blocks belongs to, by its name in the model."""
    first: dict[int, int] = {}
    for layer, block in enumerate(blocks, start=1):
        for each in (*block.parameters(), *block.buffers()):
            first.setdefault(id(each), layer)
    own = (
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    )
    return {name: first[id(each)] for name, each in own if id(each) in first}


def _sentence(name: str, tensor: Tensor, layer: int) -> str:
    bad = ~tensor.detach().float().isfinite()
    first = bad.nonzero()[0].tolist()
    return (
        f"layer {layer}, {name} is {tensor[tuple(first)].item()} at {first} ({int(bad.sum())} of "
        f"{tensor.numel()} entries are not finite), so nothing after it can be measured; load the "
        "weights again, or look where training broke down."
    )
