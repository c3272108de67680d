"""Numbers that say how alike the tokens are: functions of tensors, padding-aware."""

from rankscope.metrics._attention import (
    attention_entropy,
    dobrushin,
    high_pass_ratio,
    second_singular_value,
)
from rankscope.metrics._centers import mean_center as mean_center
from rankscope.metrics._centers import median_center as median_center
from rankscope.metrics._centers import optimal_center as optimal_center
from rankscope.metrics._estimates import Estimate, EstimatedSpectra
from rankscope.metrics._evidence import Evidence
from rankscope.metrics._norms import Norm as Norm
from rankscope.metrics._norms import matrix_norm
from rankscope.metrics._residual import Center as Center
from rankscope.metrics._residual import Certified, Deviations, deviations, dispersion, residual
from rankscope.metrics._similarity import mean_cosine
from rankscope.metrics._size import token_norm
from rankscope.metrics._spectrum import (
    Spectra,
    effective_rank,
    numerical_rank,
    participation_ratio,
    singular_values,
    spectra,
    spectral_ratio,
    stable_rank,
)
from rankscope.metrics._spectrum_probe import SpectrumProbe, estimated_spectra

__all__ = [
    "Certified",
    "Deviations",
    "Estimate",
    "EstimatedSpectra",
    "Evidence",
    "Spectra",
    "SpectrumProbe",
    "attention_entropy",
    "deviations",
    "dispersion",
    "dobrushin",
    "effective_rank",
    "estimated_spectra",
    "high_pass_ratio",
    "matrix_norm",
    "mean_cosine",
    "numerical_rank",
    "participation_ratio",
    "residual",
    "second_singular_value",
    "singular_values",
    "spectra",
    "spectral_ratio",
    "stable_rank",
    "token_norm",
]
