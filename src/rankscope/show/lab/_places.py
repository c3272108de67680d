"""Where the tokens are, layer by layer: in the plane and on the sphere."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def place_tokens(states: Sequence[Tensor]) -> list[dict[str, Any]]:
    """Every token of every layer in the principal axes of all layers together.

    Each layer is first brought to the same size (root mean square of its tokens' lengths one), or
    what shrinks would be a point and what grows would hide the rest. ``x`` and ``y`` are the first
    two coordinates; ``sx``, ``sy``, ``sz`` the first three, brought to length one. Axes are through
    the origin, not the mean, so that directions are those of the tokens themselves.
    """
    sized = torch.stack([_same_size(state) for state in states])
    axes = principal_axes(sized.flatten(0, 1))
    places = sized @ axes
    lengths = places.norm(dim=-1, keepdim=True)
    sphere = places / torch.where(lengths > 0, lengths, 1.0)
    return [
        {
            "layer": layer,
            "token": token,
            "x": x,
            "y": y,
            **dict(zip(("sx", "sy", "sz"), sphere[layer, token].tolist(), strict=True)),
        }
        for layer, row in enumerate(places.tolist())
        for token, (x, y, _) in enumerate(row)
    ]


def principal_axes(rows: Tensor) -> Tensor:
    """The first three right singular vectors as columns, zeros where the width is less.

    A vector's sign is arbitrary: its largest entry is made positive, so that a small change of the
    rows does not turn the picture over.
    """
    axes = torch.linalg.svd(rows, full_matrices=False).Vh[:3].T
    largest = axes.gather(0, axes.abs().argmax(0, keepdim=True))
    axes = axes * torch.where(largest < 0, -1.0, 1.0)
    return torch.nn.functional.pad(axes, (0, 3 - axes.shape[1]))


def _same_size(state: Tensor) -> Tensor:
    largest = state.abs().amax()  # squares of what is very large or small would not fit
    if not largest > 0:
        return state
    state = state / largest
    return state / state.square().sum(-1).mean().sqrt()
