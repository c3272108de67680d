"""Bounds on how fast attention collapses, and networks that provably do not.

``bounds`` is what users call; the formulas behind it are exported for checks and experiments.
"""

from rankscope.core.theory.residual_bounds._departure import (
    Departure,
    departure,
    worst_departure_layer,
)
from rankscope.core.theory.residual_bounds._layer import (
    SCORE_LIMIT,
    CenteredTokens,
    HeadWeights,
    LogParts,
    a_priori_bound,
    data_bound,
    find_best_center,
    gamma,
    head_weights,
    log_beta,
    log_differences,
    log_mean_cost,
    log_paper_beta,
    norm_bound,
    output_center,
    sharp_bound,
)
from rankscope.core.theory.residual_bounds._lipschitz import gated_gain, row_gain, slope_range
from rankscope.core.theory.residual_bounds._network import bounds
from rankscope.core.theory.residual_bounds._residual_preserving import (
    expanding_network,
    keeping_network,
    residual_preserving_network,
)
from rankscope.core.theory.residual_bounds._result import BOUNDS, MEASURED, Bounds, LayerBounds
from rankscope.core.theory.residual_bounds._two_heads import TwoHeadLayer

__all__ = [
    "BOUNDS",
    "MEASURED",
    "SCORE_LIMIT",
    "Bounds",
    "CenteredTokens",
    "Departure",
    "HeadWeights",
    "LayerBounds",
    "LogParts",
    "TwoHeadLayer",
    "a_priori_bound",
    "bounds",
    "data_bound",
    "departure",
    "expanding_network",
    "find_best_center",
    "gamma",
    "gated_gain",
    "head_weights",
    "keeping_network",
    "log_beta",
    "log_differences",
    "log_mean_cost",
    "log_paper_beta",
    "norm_bound",
    "output_center",
    "residual_preserving_network",
    "row_gain",
    "sharp_bound",
    "slope_range",
    "worst_departure_layer",
]
