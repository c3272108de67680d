"""Figures of a layer's tokens as a whole."""

from typing import Final

from torch import Tensor

from rankscope.core.metrics import deviations, mean_cosine, spectra, token_norm
from rankscope.experiments.diagnosis._tokens import without_giants

STATES: Final = (
    "relative_dispersion",
    "relative_residual",
    "common_residual",
    "mean_cosine",
    "effective_rank",
    "numerical_rank",
    "rank_share",
    "token_norm",
)


def state_figures(x: Tensor, counted: Tensor, *, most: int) -> tuple[dict[str, Tensor], Tensor]:
    """Every figure of ``STATES`` for each sample, and its ``most`` largest singular values.

    Singular values are (value, sample), over their sum. Everything is on the CPU in float64.
    """
    apart, spectrum = deviations(x, token_mask=counted), spectra(x, token_mask=counted)
    most_rank = counted.sum(-1).clamp(max=x.shape[-1])
    common = deviations(x, token_mask=without_giants(x, counted))
    found = {
        "relative_dispersion": apart.relative_dispersion(),
        "relative_residual": apart.relative_residual(),
        "common_residual": common.relative_residual(),
        "mean_cosine": mean_cosine(x, token_mask=counted),
        "effective_rank": spectrum.effective_rank(),
        "numerical_rank": spectrum.numerical_rank(),
        "rank_share": spectrum.numerical_rank() / most_rank,
        "token_norm": token_norm(x, token_mask=counted),
    }
    values = spectrum.sigma.double().cpu()
    shares = (values / values.sum(-1, keepdim=True))[:, :most].mT
    return {name: figure.double().cpu() for name, figure in found.items()}, shares
