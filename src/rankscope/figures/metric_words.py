"""What each metric is called, how it is drawn and what it means, in plain words."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

Scale = Literal["log", "linear", "exponent"]


@dataclass(frozen=True)
class MetricWords:
    """The words and the scale of one metric.

    ``includes`` are values its axis shows whatever was measured, such as 0 for a rank, ``marks``
    those with a name of their own. On the scale ``exponent`` values are base-10 logarithms, and the
    axis names the powers. Symbols keep to characters every font has (no ₂ or ⁴), or a picture made
    on a bare machine shows boxes.
    """

    title: str
    symbol: str = ""
    scale: Scale = "linear"
    meaning: str = ""
    includes: tuple[float, ...] = ()
    marks: tuple[tuple[float, str], ...] = ()


_LOGARITHM: Final = "log10_"
_ALIKE = "0 = all tokens alike"

WORDS: Final[Mapping[str, MetricWords]] = {
    "relative_residual": MetricWords(
        "Relative residual",
        "‖res(X)‖ / ‖X‖",
        "log",
        f"{_ALIKE}; about 1 = nothing in common",
        (1.0,),
    ),
    "residual": MetricWords(
        "Residual", "‖res(X)‖", "log", f"{_ALIKE}; grows with the size of the tokens"
    ),
    "dispersion": MetricWords(
        "Dispersion", "μ(X)", "log", f"{_ALIKE}; grows with the size of the tokens"
    ),
    "mean_cosine": MetricWords(
        "Mean cosine", "cos(x, x′)", "linear", "1 = one direction; 0 = none in common", (0.0, 1.0)
    ),
    "effective_rank": MetricWords(
        "Effective rank", "exp H(σ)", "linear", "1 = one direction; higher = more in use", (0.0,)
    ),
    "stable_rank": MetricWords(
        "Stable rank", "Σσ² / max σ²", "linear", "1 = one direction dominates", (0.0,)
    ),
    "numerical_rank": MetricWords(
        "Numerical rank", "rank(X)", "linear", "1 = one direction above rounding", (0.0,)
    ),
    "participation_ratio": MetricWords(
        "Participation ratio",
        "(Σσ²)² / Σ(σ²)²",
        "linear",
        "How many directions share the energy",
        (0.0,),
    ),
    "spectral_ratio": MetricWords(
        "Spectral ratio", "σ2 / σ1", "log", "0 = rank one; 1 = no direction dominates", (1.0,)
    ),
    "attention_entropy": MetricWords(
        "Attention entropy",
        "H(P), nats",
        "linear",
        "0 = one key per query; log n = all alike",
        (0.0,),
    ),
    "dobrushin": MetricWords(
        "Ergodicity coefficient",
        "τ(P)",
        "linear",
        "0 = one step makes all tokens alike; 1 = need not mix",
        (0.0, 1.0),
    ),
    "second_singular_value": MetricWords(
        "Second singular value", "σ2(P)", "linear", "0 = no difference gets through", (0.0, 1.0)
    ),
    "high_pass_ratio": MetricWords(
        "High-pass ratio", "‖high-pass‖ / ‖DC‖", "linear", "0 = all queries look alike", (0.0,)
    ),
}

# What a part of a hidden state is of the whole: the paths of one length, or through one head.
PATH_WORDS: Final[Mapping[str, MetricWords]] = {
    "residual_share": MetricWords(
        "Share of the residual",
        "‖res(part)‖ / ‖res(X)‖",
        "log",
        "1 = as large as the whole; parts can cancel out",
        (1.0,),
    ),
    "norm_share": MetricWords(
        "Share of the norm",
        "‖part‖ / ‖X‖",
        "log",
        "1 = as large as the whole; parts can cancel out",
        (1.0,),
    ),
    "projection": MetricWords(
        "Projection",
        "part·X / ‖X‖²",
        "linear",
        "All parts add up to 1; below 0 = against the whole",
        (0.0, 1.0),
    ),
    "proportion": MetricWords(
        "Proportion of paths",
        "paths of this length / all paths",
        "linear",
        "How many of all paths have each length",
        (0.0,),
    ),
}


_SMALLER = "Smaller = tokens more alike"
_ROUNDED = "The residual after the layer stays below it"
_COURSE = "The residual stays below it at every depth"

# What runs far beyond the range of floats, bounds and masks tell; r is the residual before a layer,
# r′ the one after it.
DEEP_WORDS: Final[Mapping[str, MetricWords]] = {
    "log10_residual": MetricWords(
        "Residual", "‖res(X)‖", "exponent", f"{_SMALLER}; grows with their size"
    ),
    "log10_relative_residual": MetricWords(
        "Relative residual",
        "‖res(X)‖ / ‖X‖",
        "exponent",
        f"{_SMALLER}; about 1 = nothing in common",
        (0.0,),
    ),
    "log10_dispersion": MetricWords(
        "Dispersion", "μ(X)", "exponent", f"{_SMALLER}; grows with their size"
    ),
    "local_exponent": MetricWords(
        "Local exponent",
        "log r′ / log r",
        "linear",
        "What a layer multiplies the residual's logarithm by",
        (0.0, 1.0, 3.0),
        ((1.0, "exponential"), (3.0, "doubly exponential")),
    ),
    "log10_contraction": MetricWords(
        "Contraction", "r′ / r", "exponent", "Level = exponential collapse; 1 = none", (0.0,)
    ),
    "log10_cubic_constant": MetricWords(
        "Cubic constant",
        "r′ / r³",
        "exponent",
        "C in r′ = C r³; level with depth = doubly exponential",
    ),
    "log10_data_bound": MetricWords("Bound from the data", "bound on r′", "exponent", _ROUNDED),
    "log10_a_priori_bound": MetricWords("A-priori bound", "bound on r′", "exponent", _ROUNDED),
    "log10_sharp_bound": MetricWords("Sharp bound", "bound on r′", "exponent", _ROUNDED),
    "log10_depth_bound": MetricWords(
        "Bound over the layers", "bound on ‖res(X)‖", "exponent", _COURSE
    ),
    "log10_depth_data_bound": MetricWords(
        "Chained bounds from the data", "bound on ‖res(X)‖", "exponent", _COURSE
    ),
    "log10_depth_input_bound": MetricWords(
        "Bound from the input alone", "bound on ‖res(X)‖", "exponent", _COURSE
    ),
    "gamma": MetricWords(
        "Gamma", "γ", "linear", "1 = one query stands out; the root of n = all alike", (1.0,)
    ),
    "beta": MetricWords("Beta", "‖W_QK‖·‖W_V‖", "log", "Size of the weights; bounds grow with it"),
    "log10_contraction_rate": MetricWords(
        "Contraction rate", "r′ / r in the long run", "exponent", "1 = no collapse", (0.0,)
    ),
    "ergodicity": MetricWords(
        "Ergodicity of the product",
        "τ(P · · · P)",
        "log",
        "0 = all tokens alike by now; 1 = need not have mixed",
        (1.0,),
    ),
    "perron_weight": MetricWords(
        "Perron weight", "weight of a token", "linear", "What each token adds to the limit", (0.0,)
    ),
    "limit_weight": MetricWords(
        "Weight in the end", "weight", "linear", "What is left of each position's input", (0.0,)
    ),
    "log10_slack": MetricWords(
        "Slack", "bound / measured", "exponent", "How many times too large a bound is", (0.0,)
    ),
    "log10_product_ergodicity": MetricWords(
        "Ergodicity coefficient of all layers so far",
        "τ(P′P)",
        "exponent",
        "What can be left of any difference",
        (0.0,),
    ),
    "share_still_apart": MetricWords(
        "Runs that stay apart", "share of runs", "linear", "0 = all collapse", (0.0, 1.0)
    ),
    "rank_share": MetricWords("Rank", "rank(X) / min(n, d)", "linear", "1 = full rank", (0.0, 1.0)),
    "fixed_point_residual": MetricWords(
        "Error of the fixed point", "‖F(X) − X‖", "log", "Rounding, if X is an equilibrium"
    ),
    "layers_to": MetricWords(
        "Layers needed", "layers", "log", "How many until the residual is below the mark"
    ),
    "rank": MetricWords(
        "Rank", "rank(X)", "linear", "1 = one direction; higher = more in use", (0.0,)
    ),
    "spectral_radius": MetricWords(
        "Spectral radius",
        "max |λ|",
        "log",
        "Below 1 = small disturbances die out",
        (1.0,),
        ((1.0, "stable below"),),
    ),
}


def metric_words(name: str) -> MetricWords:
    """The words for a metric; one we do not know keeps its own name, on a linear axis, or on one
    over exponents if it begins with ``log10_``.

    >>> metric_words("my_score").title
    'My score'
    """
    known = WORDS.get(name) or PATH_WORDS.get(name) or DEEP_WORDS.get(name)
    if known is not None:
        return known
    spoken = name.removeprefix(_LOGARITHM).replace("_", " ").strip() or name
    scale: Scale = "exponent" if name.startswith(_LOGARITHM) else "linear"
    return MetricWords(spoken[:1].upper() + spoken[1:], scale=scale)
