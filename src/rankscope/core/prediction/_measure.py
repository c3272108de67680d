"""What is told of the tokens after each layer, from coordinates or from split states."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from rankscope.core.deep import SplitState
from rankscope.core.metrics import deviations, effective_rank, mean_cosine, token_norm
from rankscope.core.prediction._coordinates import Coordinates

Figures = dict[str, Float[Tensor, "network"]]
"""Each metric, network by network."""
Course = dict[str, Float[Tensor, "layer network"]]
"""Each metric, by layer and network."""
_LOG_10 = math.log(10)


def of_tokens(x: Coordinates, token_mask: Tensor | None) -> Figures:
    """Figures of tokens in plain coordinates; none of them changes when tokens are rotated."""
    relative = deviations(x, token_mask=token_mask).relative_dispersion()
    found = {
        "relative_dispersion": relative,
        "log10_relative_dispersion": relative.log10(),
        "mean_cosine": mean_cosine(x, token_mask=token_mask),
        "effective_rank": effective_rank(x, token_mask=token_mask),
        "token_norm": token_norm(x, token_mask=token_mask),
    }
    return {name: values.double() for name, values in found.items()}


def of_state(state: SplitState) -> Figures:
    """The same of split states, whose residuals and sizes no float need hold."""
    size = state.log_norm(norm="fro")
    relative = state.log_residual(norm="fro") - torch.where(size.isneginf(), 0.0, size)
    unit = state.unit()
    plain = state.common.at(unit).unsqueeze(1) + state.deviation.at(unit)
    mask = state.token_mask
    count = torch.tensor(float(plain.shape[1])) if mask is None else mask.sum(-1)
    return {
        "relative_dispersion": relative.exp(),
        "log10_relative_dispersion": relative / _LOG_10,
        "mean_cosine": mean_cosine(plain, token_mask=mask),
        "effective_rank": effective_rank(plain, token_mask=mask),
        "token_norm": (size - 0.5 * count.double().log()).exp(),
    }
