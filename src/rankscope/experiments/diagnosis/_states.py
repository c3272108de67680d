"""Figures of a layer's tokens as a whole."""

from typing import Final

from torch import Tensor

from rankscope.metrics import deviations, mean_cosine, spectra, token_norm

STATES: Final = (
    "relative_dispersion",
    "relative_residual",
    "mean_cosine",
    "effective_rank",
    "numerical_rank",
    "token_norm",
)


def state_figures(x: Tensor, counted: Tensor, *, most: int) -> tuple[dict[str, Tensor], Tensor]:
    """Every figure of ``STATES`` for each sample, and its ``most`` largest singular values.

    Singular values are (value, sample), over their sum. Everything is on the CPU in float64.
    """
    apart, spectrum = deviations(x, token_mask=counted), spectra(x, token_mask=counted)
    found = {
        "relative_dispersion": apart.relative_dispersion(),
        "relative_residual": apart.relative_residual(),
        "mean_cosine": mean_cosine(x, token_mask=counted),
        "effective_rank": spectrum.effective_rank(),
        "numerical_rank": spectrum.numerical_rank(),
        "token_norm": token_norm(x, token_mask=counted),
    }
    values = spectrum.sigma.double().cpu()
    shares = (values / values.sum(-1, keepdim=True))[:, :most].mT
    return {name: figure.double().cpu() for name, figure in found.items()}, shares
