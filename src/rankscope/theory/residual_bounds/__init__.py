"""Bounds on how fast attention collapses, and networks that provably do not.

``bounds`` is what users call; the formulas behind it are exported for checks and experiments.
"""

from rankscope.theory.residual_bounds._layer import (
    SCORE_LIMIT,
    CenteredTokens,
    HeadWeights,
    LogParts,
    a_priori_bound,
    data_bound,
    head_weights,
    log_differences,
    log_mean_cost,
    norm_bound,
    output_center,
    sharp_bound,
)
from rankscope.theory.residual_bounds._lipschitz import gated_gain, row_gain, slope_range
from rankscope.theory.residual_bounds._network import bounds
from rankscope.theory.residual_bounds._residual_preserving import (
    keeping_network,
    residual_preserving_network,
)
from rankscope.theory.residual_bounds._result import BOUNDS, MEASURED, Bounds, LayerBounds

__all__ = [
    "BOUNDS",
    "MEASURED",
    "SCORE_LIMIT",
    "Bounds",
    "CenteredTokens",
    "HeadWeights",
    "LayerBounds",
    "LogParts",
    "a_priori_bound",
    "bounds",
    "data_bound",
    "gated_gain",
    "head_weights",
    "keeping_network",
    "log_differences",
    "log_mean_cost",
    "norm_bound",
    "output_center",
    "residual_preserving_network",
    "row_gain",
    "sharp_bound",
    "slope_range",
]
