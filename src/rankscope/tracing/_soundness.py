"""Weights that are no numbers, found before they pass for something else."""

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from rankscope.errors import InputError
from rankscope.weights import named_tensors, not_finite


def refuse_broken(
    model: nn.Module,
    blocks: Sequence[nn.Module],
    *,
    digests: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Raise if a weight of the blocks is NaN or infinite; say which others of the model are.

    PyTorch's fused attention gives zeros for rows of NaN, so that broken weights would read as
    tokens that are all alike. Buffers may hold infinity: masks are kept in them.
    ``digests`` of the tensors, where they are known, save reading the same weights again.
    """
    tensors = named_tensors(model)
    parameters = {id(each) for each in model.parameters()}
    weights = {name: each for name, each in tensors.items() if id(each) in parameters}
    buffers = {name: each for name, each in tensors.items() if id(each) not in parameters}
    broken = [
        *not_finite(weights, digests=digests),
        *not_finite(buffers, infinity=True, digests=digests),
    ]
    layers = _layers(blocks) if broken else {}
    for name in broken:
        if id(tensors[name]) in layers:
            raise InputError(_sentence(name, tensors[name], layers[id(tensors[name])]))
    return {"not finite": ", ".join(broken)} if broken else {}


def _layers(blocks: Sequence[nn.Module]) -> dict[int, int]:
    """The first layer each tensor of the blocks belongs to."""
    found: dict[int, int] = {}
    for layer, block in enumerate(blocks, start=1):
        for each in (*block.parameters(), *block.buffers()):
            found.setdefault(id(each), layer)
    return found


def _sentence(name: str, tensor: Tensor, layer: int) -> str:
    bad = ~tensor.detach().float().isfinite()
    first = bad.nonzero()[0].tolist()
    return (
        f"layer {layer}, {name} is {tensor[tuple(first)].item()} at {first} ({int(bad.sum())} of "
        f"{tensor.numel()} entries are not finite), so nothing after it can be measured; load the "
        "weights again, or look where training broke down."
    )
