"""Metrics of hidden states and attention: functions of tensors that handle padding."""

from rankscope.core.metrics._attention import (
    attention_entropy,
    dobrushin,
    dobrushin_bounds,
    dobrushin_lower,
    dobrushin_upper,
    high_pass_ratio,
    largest_weight,
    renyi_entropy,
    score_gamma,
    second_singular_bounds,
    second_singular_lower,
    second_singular_upper,
    second_singular_value,
    sink_mass,
)
from rankscope.core.metrics._attention import gamma as gamma
from rankscope.core.metrics._attention_probe import AttentionProbe as AttentionProbe
from rankscope.core.metrics._attention_probe import probe_attention as probe_attention
from rankscope.core.metrics._attention_probe import visible_keys as visible_keys
from rankscope.core.metrics._attention_rows import SampledAttention as SampledAttention
from rankscope.core.metrics._attention_rows import SampledRows as SampledRows
from rankscope.core.metrics._attention_rows import sample_attention as sample_attention
from rankscope.core.metrics._attention_scores import AttentionScores
from rankscope.core.metrics._attention_scores import from_matrix as from_matrix
from rankscope.core.metrics._attention_sweeps import Bracket
from rankscope.core.metrics._centers import mean_center as mean_center
from rankscope.core.metrics._centers import median_center as median_center
from rankscope.core.metrics._centers import optimal_center as optimal_center
from rankscope.core.metrics._estimated_spectra import (
    EstimatedSpectra,
    RankEstimate,
    SpectrumProbe,
    estimated_spectra,
)
from rankscope.core.metrics._fused import can_fuse as can_fuse
from rankscope.core.metrics._lanczos_quadrature import SpectralEvidence
from rankscope.core.metrics._residual import Center as Center
from rankscope.core.metrics._residual import (
    Certified,
    Deviations,
    deviations,
    dispersion,
    mean_cosine,
    residual,
    token_norm,
)
from rankscope.core.metrics._spectrum import Norm as Norm
from rankscope.core.metrics._spectrum import (
    Spectra,
    effective_rank,
    matrix_norm,
    numerical_rank,
    participation_ratio,
    singular_values,
    spectra,
    spectral_ratio,
    stable_rank,
)
from rankscope.core.metrics._statistics import GatheredPeaks as GatheredPeaks
from rankscope.core.metrics._statistics import GatheredStatistics as GatheredStatistics
from rankscope.core.metrics._statistics import StateStatistics, state_statistics
from rankscope.core.metrics._uniformity import alignment, uniformity

__all__ = [
    "AttentionScores", "Bracket", "Certified", "Deviations", "EstimatedSpectra", "RankEstimate",
    "Spectra", "SpectralEvidence", "SpectrumProbe", "StateStatistics", "alignment",
    "attention_entropy", "deviations", "dispersion", "dobrushin", "dobrushin_bounds",
    "dobrushin_lower", "dobrushin_upper", "effective_rank", "estimated_spectra", "high_pass_ratio",
    "largest_weight", "matrix_norm", "mean_cosine", "numerical_rank", "participation_ratio",
    "renyi_entropy", "residual", "score_gamma", "second_singular_bounds", "second_singular_lower",
    "second_singular_upper", "second_singular_value", "singular_values", "sink_mass", "spectra",
    "spectral_ratio", "stable_rank", "state_statistics", "token_norm", "uniformity",
]  # fmt: skip
