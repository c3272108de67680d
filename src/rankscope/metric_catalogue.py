"""Every metric that stands in a table: its name, its words, how it is drawn and what it means.

Traces, charts, pages and the documentation read this catalogue, which imports nothing. To add a
metric, write its function and one entry here: with ``of`` and ``compute`` a trace knows it by name.

Throughout, X is the matrix of tokens, res(X) what is left of it when its center is subtracted from
every token, P an attention matrix, and r and r′ the residual before and after a layer.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Final, Literal

from rankscope.arguments import checked

Scale = Literal["log", "linear", "exponent"]
Collapse = Literal["down", "up", ""]
Of = Literal["statistics", "hidden", "spectrum", "attention", ""]

_LOGARITHM: Final = "log10_"


@checked
@dataclass(frozen=True)
class Metric:
    """One metric: what it is called, what it means, how it is drawn, how a trace computes it.

    ``meaning`` fits on one line of a chart, ``definition`` is for pages and documentation. On the
    scale ``exponent`` values are base-10 logarithms, and an axis names the powers. ``collapse``
    says which way its values go as tokens become alike; empty if neither. ``includes`` are values
    an axis shows whatever was measured, ``marks`` those with a name of their own. Titles, symbols
    and meanings keep to characters every font has (no ₂ or ⁴), or a picture made on a bare machine
    shows boxes.

    ``compute`` is ``module:name`` of the function a trace calls, ``of`` what it is a function of:
    a method of ``StateStatistics`` or ``Spectra`` of the hidden states, or
    ``f(x, token_mask=...)`` of hidden states or attention. Both are empty if a trace does not
    compute it.
    """

    name: str
    title: str
    symbol: str = ""
    scale: Scale = "linear"
    meaning: str = ""
    definition: str = ""
    collapse: Collapse = ""
    includes: tuple[float, ...] = ()
    marks: tuple[tuple[float, str], ...] = ()
    of: Of = ""
    compute: str = ""


_MORE: ContextVar[Mapping[str, Metric]] = ContextVar("_MORE", default={})  # noqa: B039


@contextmanager
def knowing(metrics: Iterable[Metric]) -> Iterator[None]:
    """Within it ``metric`` knows these, too: those that a single experiment measures.

    >>> with knowing([Metric("gap", "Gap between layers")]):
    ...     metric("gap").title, metric("log10_gap").scale
    ('Gap between layers', 'exponent')
    >>> metric("gap").title
    'Gap'

    A result carries them; what shows one opens this, and nothing else has to be passed on.
    """
    token = _MORE.set({**_MORE.get(), **{each.name: each for each in metrics}})
    try:
        yield
    finally:
        _MORE.reset(token)


@checked
def metric(name: str) -> Metric:
    """The words of a metric.

    >>> metric("mean_cosine").title
    'Mean cosine'
    >>> metric("log10_my_score").title, metric("log10_my_score").scale
    ('My score', 'exponent')

    The decimal logarithm of a metric has the words of that metric. One that has no entry, for
    instance a function of one's own, keeps its name; it is drawn on a linear axis, or on one over
    exponents if it begins with ``log10_``.
    """
    known = METRICS.get(name) or _MORE.get().get(name)
    if known is not None:
        return known
    if name.startswith(_LOGARITHM) and name != _LOGARITHM:
        return _logarithm(name, metric(name.removeprefix(_LOGARITHM)))
    words = name.replace("_", " ").strip() or name
    return Metric(name, words[:1].upper() + words[1:])


def _logarithm(name: str, of: Metric) -> Metric:
    """The decimal logarithm of a metric: the same words, the exponents of its axis."""
    return replace(
        of,
        name=name,
        scale="exponent",
        definition=of.definition and f"{of.definition} As its base-10 logarithm.",
        includes=tuple(math.log10(value) for value in of.includes if value > 0),
        marks=tuple((math.log10(value), mark) for value, mark in of.marks if value > 0),
        of="",
        compute="",
    )


_ALIKE: Final = "0 = all tokens alike"
_SMALLER: Final = "Smaller = tokens more alike"
_SIZED: Final = "grows with the size of the tokens"
_PARTS: Final = "1 = as large as the whole; parts can cancel out"
_ONE_LAYER: Final = "The residual after the layer stays below it"
_ALL_LAYERS: Final = "The residual stays below it at every depth"

# What a trace can compute.
_TRACED: Final = (
    Metric(
        "relative_residual",
        "Relative residual",
        "‖res(X)‖ / ‖X‖",
        "log",
        f"{_ALIKE}; about 1 = nothing in common",
        "The residual divided by the norm of all tokens, both in the composite norm √(‖·‖₁‖·‖∞).",
        "down",
        includes=(1.0,),
        of="statistics",
        compute="rankscope.core.metrics:StateStatistics.relative_residual",
    ),
    Metric(
        "residual",
        "Residual",
        "‖res(X)‖",
        "log",
        f"{_ALIKE}; {_SIZED}",
        "‖X − 1x̄ᵀ‖ with x̄ the mean of the tokens, in the composite norm √(‖·‖₁‖·‖∞) of Dong et al. "
        "2021.",
        "down",
        of="statistics",
        compute="rankscope.core.metrics:StateStatistics.residual",
    ),
    Metric(
        "dispersion",
        "Dispersion",
        "μ(X)",
        "log",
        f"{_ALIKE}; {_SIZED}",
        "μ(X) = ‖X − 1x̄ᵀ‖ in the Frobenius norm, the measure of Wu et al. 2024.",
        "down",
        of="statistics",
        compute="rankscope.core.metrics:StateStatistics.dispersion",
    ),
    Metric(
        "relative_dispersion",
        "Relative dispersion",
        "μ(X) / ‖X‖",
        "log",
        f"{_ALIKE}; 1 = nothing in common",
        "‖X − 1x̄ᵀ‖ / ‖X‖ in the Frobenius norm, which no rotation of the features changes: the "
        "dispersion divided by the size of all tokens.",
        "down",
        includes=(1.0,),
        of="statistics",
        compute="rankscope.core.metrics:StateStatistics.relative_dispersion",
    ),
    Metric(
        "token_norm",
        "Token norm",
        "‖X‖ / n^½",
        "log",
        "The length of a token",
        "The root mean square of the tokens' lengths.",
        of="statistics",
        compute="rankscope.core.metrics:StateStatistics.token_norm",
    ),
    Metric(
        "mean_cosine",
        "Mean cosine",
        "cos(x, x′)",
        "linear",
        "1 = one direction; 0 = none in common",
        "The mean of cos(x, x′) over all pairs of different tokens.",
        "up",
        includes=(0.0, 1.0),
        of="statistics",
        compute="rankscope.core.metrics:StateStatistics.mean_cosine",
    ),
    Metric(
        "effective_rank",
        "Effective rank",
        "exp H(σ)",
        "linear",
        "1 = one direction; higher = more in use",
        "exp of the entropy of σ/Σσ, the singular values of X divided by their sum (Roy and "
        "Vetterli 2007).",
        "down",
        includes=(0.0,),
        of="spectrum",
        compute="rankscope.core.metrics:Spectra.effective_rank",
    ),
    Metric(
        "stable_rank",
        "Stable rank",
        "Σσ² / max σ²",
        "linear",
        "1 = one direction dominates",
        "Σσ² / σ₁², the squared Frobenius norm of X over its squared spectral norm.",
        "down",
        includes=(0.0,),
        of="spectrum",
        compute="rankscope.core.metrics:Spectra.stable_rank",
    ),
    Metric(
        "numerical_rank",
        "Numerical rank",
        "rank(X)",
        "linear",
        "1 = one direction above rounding",
        "How many singular values of X exceed the rounding of its number format times the largest.",
        "down",
        includes=(0.0,),
        of="spectrum",
        compute="rankscope.core.metrics:Spectra.numerical_rank",
    ),
    Metric(
        "participation_ratio",
        "Participation ratio",
        "(Σσ²)² / Σ(σ²)²",
        "linear",
        "How many directions share the energy",
        "(Σσ²)² / Σσ⁴ of the singular values of X.",
        "down",
        includes=(0.0,),
        of="spectrum",
        compute="rankscope.core.metrics:Spectra.participation_ratio",
    ),
    Metric(
        "spectral_ratio",
        "Spectral ratio",
        "σ2 / σ1",
        "log",
        "0 = rank one; 1 = no direction dominates",
        "σ₂/σ₁, the second singular value of X over the first.",
        "down",
        includes=(1.0,),
        of="spectrum",
        compute="rankscope.core.metrics:Spectra.spectral_ratio",
    ),
    Metric(
        "attention_entropy",
        "Attention entropy",
        "H(P), nats",
        "linear",
        "0 = one key per query; log n = all alike",
        "The mean entropy of the rows of P, in nats.",
        includes=(0.0,),
        of="attention",
        compute="rankscope.core.metrics:attention_entropy",
    ),
    Metric(
        "dobrushin",
        "Ergodicity coefficient",
        "τ(P)",
        "linear",
        "0 = one step makes all tokens alike; 1 = need not mix",
        "τ(P) = ½ max over pairs of queries of Σ_j |P_ij − P_i′j|, Dobrushin's coefficient: the "
        "largest part of any difference that one application of P can leave.",
        "down",
        includes=(0.0, 1.0),
        of="attention",
        compute="rankscope.core.metrics:dobrushin",
    ),
    Metric(
        "second_singular_value",
        "Second singular value",
        "σ2(P)",
        "linear",
        "0 = no difference gets through",
        "σ₂(P), the second singular value of the attention matrix.",
        "down",
        includes=(0.0, 1.0),
        of="attention",
        compute="rankscope.core.metrics:second_singular_value",
    ),
    Metric(
        "high_pass_ratio",
        "High-pass ratio",
        "‖high-pass‖ / ‖DC‖",
        "linear",
        "0 = all queries look alike",
        "‖P − 11ᵀP/n‖ / ‖11ᵀP/n‖ in the Frobenius norm: what the rows of P do not have in common "
        "over what they have.",
        "down",
        includes=(0.0,),
        of="attention",
        compute="rankscope.core.metrics:high_pass_ratio",
    ),
    Metric(
        "renyi_entropy",
        "Collision entropy",
        "H2(P), nats",
        "linear",
        "0 = one key per query; log n = all alike",
        "The mean over the queries of −log Σ_j P_ij², the Rényi entropy of order 2, in nats.",
        includes=(0.0,),
        of="attention",
        compute="rankscope.core.metrics:renyi_entropy",
    ),
    Metric(
        "largest_weight",
        "Largest weight",
        "max P",
        "linear",
        "1 = every query looks at one key",
        "The mean over the queries of the largest weight any key gets, max_j P_ij.",
        includes=(0.0, 1.0),
        of="attention",
        compute="rankscope.core.metrics:largest_weight",
    ),
    Metric(
        "sink_mass",
        "Weight on the sink",
        "P to token 0",
        "linear",
        "1 = every query looks at the first token",
        "The mean over the queries of the weight on the first token, and on a learned sink where a "
        "model has one, together.",
        includes=(0.0, 1.0),
        of="attention",
        compute="rankscope.core.metrics:sink_mass",
    ),
    Metric(
        "score_gamma",
        "Gamma of a head",
        "γ(P)",
        "linear",
        "1 = one query stands out; the root of n = all alike",
        "γ = √(Σ_i D_i / max_i D_i), D_i the range of query i's scores, over the keys that it "
        "sees, less those of the mean query (Dong et al. 2021).",
        includes=(1.0,),
        of="attention",
        compute="rankscope.core.metrics:score_gamma",
    ),
    Metric(
        "dobrushin_lower",
        "Ergodicity coefficient, at least",
        "τ(P), at least",
        "linear",
        "0 = all queries may look alike; 1 = need not mix",
        "A lower bound on τ(P) that compares no pairs: the greatest distance, in total variation, "
        "of any row of P to one of three.",
        "down",
        includes=(0.0, 1.0),
        of="attention",
        compute="rankscope.core.metrics:dobrushin_lower",
    ),
    Metric(
        "dobrushin_upper",
        "Ergodicity coefficient, at most",
        "τ(P), at most",
        "linear",
        "0 = one step makes all tokens alike",
        "An upper bound on τ(P) that compares no pairs: the smaller of 1 − Σ_j min_i P_ij and the "
        "two greatest distances to one row, added up; at most twice the lower bound.",
        "down",
        includes=(0.0, 1.0),
        of="attention",
        compute="rankscope.core.metrics:dobrushin_upper",
    ),
    Metric(
        "second_singular_lower",
        "Second singular value, at least",
        "σ2(P), at least",
        "linear",
        "0 = no difference may get through",
        "A lower bound on σ₂(P), by powers of PᵀP on eight seeded vectors.",
        "down",
        includes=(0.0, 1.0),
        of="attention",
        compute="rankscope.core.metrics:second_singular_lower",
    ),
    Metric(
        "second_singular_upper",
        "Second singular value, at most",
        "σ2(P), at most",
        "linear",
        "0 = no difference gets through",
        "An upper bound on σ₂(P): what the eight vectors of the lower bound leave of the sum of "
        "squared weights is added to it.",
        "down",
        includes=(0.0, 1.0),
        of="attention",
        compute="rankscope.core.metrics:second_singular_upper",
    ),
)

# What a part of a hidden state is of the whole: the paths of one length, or through one head.
_PATHS: Final = (
    Metric(
        "residual_share",
        "Share of the residual",
        "‖res(part)‖ / ‖res(X)‖",
        "log",
        _PARTS,
        "The residual of what some paths carry over the residual of the whole hidden state; shares "
        "need not add up to 1, since parts can cancel.",
        includes=(1.0,),
    ),
    Metric(
        "norm_share",
        "Share of the norm",
        "‖part‖ / ‖X‖",
        "log",
        _PARTS,
        "The Frobenius norm of what some paths carry over that of the whole hidden state.",
        includes=(1.0,),
    ),
    Metric(
        "projection",
        "Projection",
        "part·X / ‖X‖²",
        "linear",
        "All parts add up to 1; below 0 = against the whole",
        "⟨part, X⟩ / ‖X‖², so that the parts of all lengths and of the biases add up to 1.",
        includes=(0.0, 1.0),
    ),
    Metric(
        "proportion",
        "Proportion of paths",
        "paths of this length / all paths",
        "linear",
        "How many of all paths have each length",
        "How many of a model's paths have this length, divided by how many there are; counted "
        "exactly from its layers and heads.",
        includes=(0.0,),
    ),
)


def _gradient(name: str, of: str, what: str) -> Metric:
    return Metric(
        name,
        f"Gradient of {of}",
        "‖grad‖",
        "log",
        "Level = every layer can learn",
        f"The Frobenius norm of the gradient of a random linear function of the last layer, with "
        f"respect to {what}.",
    )


_GRADIENTS: Final = (
    _gradient("state_gradient", "hidden states", "the layer's hidden state"),
    _gradient("query_gradient", "queries", "the layer's query weights"),
    _gradient("key_gradient", "keys", "the layer's key weights"),
    _gradient("value_gradient", "values", "the layer's value weights"),
    _gradient("output_gradient", "outputs", "the layer's output weights"),
    _gradient("up_gradient", "MLPs, first matrix", "the weights into the layer's hidden units"),
    _gradient("gate_gradient", "MLPs, gate", "the weights into the layer's gates"),
    _gradient(
        "down_gradient", "MLPs, second matrix", "the weights out of the layer's hidden units"
    ),
)

_SHORT: Final = "0 = within every limit"

# How designs stand, of which advice is given: figures of random networks, and prices.
_ADVICE: Final = (
    Metric(
        "predicted_shortfall",
        "Shortfall, predicted",
        "decades",
        "linear",
        _SHORT,
        "By how many decades random networks of a design break the limits of tokens kept apart, "
        "their size, gradients across depth, queries' gradients and entropy, added up; predicted.",
        includes=(0.0,),
    ),
    Metric(
        "measured_shortfall",
        "Shortfall, measured",
        "decades",
        "linear",
        _SHORT,
        "The same, measured on random networks.",
        includes=(0.0,),
    ),
    Metric(
        "log10_dispersion_kept",
        "Kept apart",
        "last / first",
        "exponent",
        "1 = tokens as different as at first",
        "The relative dispersion after the last layer over the input's, at most 1; predicted.",
        "down",
        includes=(0.0,),
    ),
    Metric(
        "log10_measured_dispersion_kept",
        "Kept apart, measured",
        "last / first",
        "exponent",
        "1 = tokens as different as at first",
        "The relative dispersion after the last layer over the input's, at most 1; measured.",
        "down",
        includes=(0.0,),
    ),
    Metric(
        "log10_size_growth",
        "Growth",
        "last / first",
        "exponent",
        "1 = tokens keep their size",
        "The token norm after the last layer over that of the input.",
        includes=(0.0,),
    ),
    Metric(
        "log10_gradient_ratio",
        "Gradient",
        "first / last",
        "exponent",
        "1 = the same at every depth",
        "The norm of the gradient with respect to the input over that with respect to the last "
        "layer's state.",
        includes=(0.0,),
    ),
    Metric(
        "log10_query_share",
        "Queries / values",
        "least of all layers",
        "exponent",
        "0 = queries do not learn",
        "The norm of the gradient of query weights over that of value weights, in the layer where "
        "it is least.",
        includes=(0.0,),
    ),
    Metric(
        "log10_entropy_share",
        "Entropy / uniform",
        "least of all layers",
        "exponent",
        "1 = uniform; 0 = one key per query",
        "The entropy of attention over that of uniform attention under the same mask, in the layer "
        "where it is least.",
        includes=(0.0,),
    ),
    Metric(
        "parameters_added",
        "Parameters added",
        "more / before",
        "linear",
        "0 = as many as before",
        "How many parameters a change adds, as a part of those there were.",
        includes=(0.0,),
    ),
    Metric(
        "context_share",
        "Context",
        "pairs seen / all",
        "linear",
        "1 = every token sees every token",
        "The part of all pairs of tokens that the masks allow, over the layers.",
        includes=(0.0, 1.0),
    ),
)

# What a diagnosis adds: single steps, heads, tokens and singular values.
_DIAGNOSED: Final = (
    Metric(
        "residual_step",
        "Change of the residual",
        "decades",
        "linear",
        "0 = no change; -1 = a tenth is left",
        "log10 of the relative residual after a part of a block, less that before it; the changes "
        "of all parts add up to the change over the network.",
        includes=(0.0,),
    ),
    Metric(
        "residual_step_alone",
        "Change without the skip",
        "decades",
        "linear",
        "0 = no change; -1 = a tenth is left",
        "log10 of the relative residual of a part's own output, without the skip around it, less "
        "that of its input.",
        includes=(0.0,),
    ),
    Metric(
        "common_residual",
        "Residual without giants",
        "less the longest tokens",
        "log",
        "0 = all tokens but a few alike",
        "The relative residual of the tokens that are no more than ten times as long as the median "
        "one.",
        "down",
    ),
    Metric(
        "sink_share",
        "Weight on the first token",
        "mean over queries",
        "linear",
        "1 = all attention goes to the first token",
        "The mean attention weight of the first token, over the queries after it.",
        includes=(0.0, 1.0),
    ),
    Metric(
        "layer_turn",
        "Turn of the tokens",
        "radians",
        "linear",
        "0 = the layer is the identity",
        "The angle by which a layer turns a token, in radians: the median over the tokens.",
        includes=(0.0,),
    ),
    Metric(
        "last_token_distance",
        "Last token to its nearest fellow",
        "parts of its length",
        "log",
        "0 = the last token equals another",
        "The distance from the last token to the token nearest to it, over the longer of the two.",
        "down",
    ),
    Metric(
        "singular_value_share",
        "Singular value",
        "part of their sum",
        "log",
        "One large and no others = rank one",
        "Each singular value of the matrix of tokens over the sum of all, the largest first.",
    ),
    Metric(
        "token_distance",
        "Distance from the center",
        "|x - mean| / rms length",
        "linear",
        _ALIKE,
        "The distance of a token from the mean of all, over the root mean square of all tokens' "
        "lengths.",
        "down",
        includes=(0.0,),
    ),
    Metric(
        "token_cosine",
        "Cosine between two tokens",
        "cos",
        "linear",
        "1 = they point the same way",
        "The cosine of the angle between two tokens of one sample.",
        "up",
        includes=(-1.0, 1.0),
    ),
)

# Of predictions, over maps of designs.
_MAPPED: Final = (
    Metric(
        "entropy_share",
        "Share of the entropy",
        "H(P) / H of even attention",
        "linear",
        "0 = one key per query; 1 = all alike",
        "The attention entropy divided by that of attention which is even over the keys each query "
        "may see.",
        includes=(0.0, 1.0),
    ),
    Metric(
        "collapse_layer",
        "Layer of the collapse",
        "layer",
        "linear",
        "None = not within these layers",
        "The first layer at which the tokens' relative dispersion is below the boundary; along the "
        "axes of a sweep, the metric that was asked for.",
        includes=(0.0,),
    ),
)

# Runs in scaled arithmetic, far beyond the range of floats.
_DEEP: Final = (
    Metric(
        "log10_residual",
        "Residual",
        "‖res(X)‖",
        "exponent",
        f"{_SMALLER}; grows with their size",
        "The base-10 logarithm of the residual, in the norm and around the center that the "
        "provenance names.",
        "down",
    ),
    Metric(
        "log10_relative_residual",
        "Relative residual",
        "‖res(X)‖ / ‖X‖",
        "exponent",
        f"{_SMALLER}; about 1 = nothing in common",
        "The base-10 logarithm of the residual divided by the norm of all tokens, both in the "
        "composite norm, or in another if one was asked for, which the provenance names.",
        "down",
        includes=(0.0,),
    ),
    Metric(
        "log10_relative_dispersion",
        "Relative dispersion",
        "μ(X) / ‖X‖",
        "exponent",
        f"{_ALIKE}; 1 = nothing in common",
        "The base-10 logarithm of ‖X − 1x̄ᵀ‖ / ‖X‖ in the Frobenius norm.",
        "down",
        includes=(0.0,),
    ),
    Metric(
        "log10_dispersion",
        "Dispersion",
        "μ(X)",
        "exponent",
        f"{_SMALLER}; grows with their size",
        "The base-10 logarithm of μ(X) = ‖X − 1x̄ᵀ‖ in the Frobenius norm.",
        "down",
    ),
    Metric(
        "log10_largest",
        "Largest entry",
        "max |X|",
        "exponent",
        "Number formats overflow if it grows too large",
        "The base-10 logarithm of the largest entry of X in absolute value.",
    ),
    Metric(
        "local_exponent",
        "Local exponent",
        "log r′ / log r",
        "linear",
        "What a layer multiplies the residual's logarithm by",
        "log r′ / log r: 3 where r′ = C r³ and the residual is small, 1 where r′ = c r.",
        "up",
        includes=(0.0, 1.0, 3.0),
        marks=((1.0, "exponential"), (3.0, "doubly exponential")),
    ),
    Metric(
        "log10_contraction",
        "Contraction",
        "r′ / r",
        "exponent",
        "Level = exponential collapse; 1 = none",
        "The base-10 logarithm of r′/r; level with depth where collapse is exponential.",
        "down",
        includes=(0.0,),
    ),
    Metric(
        "log10_cubic_constant",
        "Cubic constant",
        "r′ / r³",
        "exponent",
        "C in r′ = C r³; level with depth = doubly exponential",
        "The base-10 logarithm of r′/r³; level with depth where collapse is doubly exponential.",
        "down",
    ),
)

# Bounds, and what they are made of: composite norm, best center.
_BOUNDS: Final = (
    Metric(
        "log10_input_residual",
        "Residual before the layer",
        "r",
        "exponent",
        f"{_SMALLER}; grows with their size",
        "The base-10 logarithm of the residual a layer is given, in the composite norm around the "
        "best center.",
        "down",
    ),
    Metric(
        "log10_score_difference",
        "Score difference",
        "max D",
        "exponent",
        "Small = attention close to a rank-one pattern",
        "The base-10 logarithm of the largest D_i, by which the scores of query i differ once what "
        "all queries share is taken out; the bounds of Dong et al. 2021 need it below 1.2564.",
    ),
    Metric(
        "gamma",
        "Gamma",
        "γ",
        "linear",
        "1 = one query stands out; the root of n = all alike",
        "γ = √(Σ_i D_i / max_i D_i), the largest over the heads, with D_i the score differences.",
        includes=(1.0,),
    ),
    Metric(
        "beta",
        "Beta",
        "‖W_QK‖·‖W_V‖",
        "log",
        "Size of the weights; bounds grow with it",
        "The constant of the weights: ‖W_QK‖₁‖W_V‖ in the composite norm for one head, and for "
        "several √(Σ‖W_QK‖₁‖W‖₁ · Σ‖W_QK‖₁‖W‖∞) over the heads, in the place of βH.",
    ),
    Metric(
        "paper_beta",
        "Beta times heads",
        "βH",
        "log",
        "The published constant of the weights",
        "βH of Dong et al. 2021: the number of heads times the largest ‖W_QK‖₁‖W_V‖ of a head, in "
        "the composite norm; too small in general for several heads, so that no bound uses it.",
    ),
    Metric(
        "lemma_ratio",
        "Departure over twice the spread",
        "|P − 1q| / 2Dq",
        "log",
        "Above 1 = the lemma is false",
        "The largest entry of |P − 1qᵀ| / (2D·1qᵀ), with q the weights that all queries share and "
        "D_i the spread of a query's own scores.",
        includes=(1.0,),
        marks=((1.0, "exceeded above"),),
    ),
    Metric(
        "sharp_lemma_ratio",
        "Departure over the sharp factor",
        "|P − 1q| / (exp D − 1)q",
        "log",
        "1 = nothing smaller would do",
        "The largest entry of |P − 1qᵀ| / ((e^D − 1)·1qᵀ), which is at most 1 at every spread.",
        includes=(1.0,),
    ),
    Metric(
        "bound_ratio",
        "Residual over its bound",
        "r′ / bound",
        "log",
        "Above 1 = the bound is false",
        "The residual after a layer over a bound on it, in the composite norm around the best "
        "center.",
        includes=(1.0,),
        marks=((1.0, "exceeded above"),),
    ),
    Metric(
        "lipschitz",
        "Lipschitz constant",
        "λ",
        "log",
        "By how much the MLP can stretch a difference",
        "λ, a Lipschitz constant of what follows attention in the layer; 1 without an MLP.",
        includes=(1.0,),
    ),
    Metric(
        "condition",
        "Condition of the bounds",
        "max D within its limit",
        "linear",
        "1 = the bounds on this layer apply; 0 = they do not",
        "Whether all scores of each query differ by 1.2564 at most, where eᵗ = 1 + 2t: the "
        "condition of the bounds of Dong et al. 2021.",
        includes=(0.0, 1.0),
    ),
    Metric(
        "log10_a_priori_bound",
        "A-priori bound",
        "bound on r′",
        "exponent",
        _ONE_LAYER,
        "The base-10 logarithm of 4γβλ·scale·r³ (Dong et al. 2021, theorem 2.2).",
        "down",
    ),
    Metric(
        "log10_data_bound",
        "Bound from the data",
        "bound on r′",
        "exponent",
        _ONE_LAYER,
        "The base-10 logarithm of the step before the a-priori bound in its proof, with the score "
        "differences as measured.",
        "down",
    ),
    Metric(
        "log10_sharp_bound",
        "Sharp bound",
        "bound on r′",
        "exponent",
        _ONE_LAYER,
        "The base-10 logarithm of the best bound that follows from the score differences alone; it "
        "needs no condition.",
        "down",
    ),
    Metric(
        "log10_depth_bound",
        "Bound over the layers",
        "bound on ‖res(X)‖",
        "exponent",
        _ALL_LAYERS,
        "The base-10 logarithm of κ^((3^L − 1)/2) ‖res(X)‖^(3^L), with κ the largest 4γβλ·scale of "
        "the L layers (Dong et al. 2021, theorem 2.3).",
        "down",
    ),
    Metric(
        "log10_depth_data_bound",
        "Chained bounds from the data",
        "bound on ‖res(X)‖",
        "exponent",
        _ALL_LAYERS,
        "The base-10 logarithm of the bounds on single layers chained from the input on, with each "
        "layer's score differences as measured.",
        "down",
    ),
    Metric(
        "log10_depth_input_bound",
        "Bound from the input alone",
        "bound on ‖res(X)‖",
        "exponent",
        _ALL_LAYERS,
        "The base-10 logarithm of the bounds on single layers chained from the input on, from the "
        "weights and the norm of the input's residual alone.",
        "down",
    ),
    Metric(
        "log10_slack",
        "Slack",
        "bound / measured",
        "exponent",
        "How many times too large a bound is",
        "The base-10 logarithm of a bound divided by the residual measured at the same place.",
        includes=(0.0,),
    ),
)

# Signal propagation at initialisation.
_SIGNALS: Final = (
    Metric(
        "query_value_gradient",
        "Gradients of queries and keys over values",
        "‖query‖ / ‖value‖, last to first layer",
        "log",
        "0 = queries and keys of the last layer learn nothing",
        "The larger of the gradients of the query and key weights over that of the value weights, "
        "in the last layer, over the same in the first.",
        includes=(1.0,),
    ),
    Metric(
        "stream_variance",
        "Variance of the stream",
        "‖X‖² / ‖input‖²",
        "log",
        "1 = as large as the input",
        "The mean square of the hidden states over that of the input.",
        includes=(1.0,),
    ),
    Metric(
        "layer_share",
        "Share of the stream a layer changes",
        "‖step‖² / ‖X‖²",
        "log",
        "0 = the layer is the identity",
        "The mean square of what a layer adds over that of the hidden states after it.",
    ),
    Metric(
        "first_last_gradient",
        "Gradient of the input over the output's",
        "‖input‖ / ‖output‖ of gradients",
        "log",
        "1 = level; below = vanishes, above = explodes",
        "The norm of the gradient with respect to the input over that with respect to the last "
        "hidden state.",
        includes=(1.0,),
    ),
    Metric(
        "upper_level_keys",
        "Keys that stand out",
        "keys",
        "linear",
        "How many keys share the upper logit at least entropy",
        "Of all logits of one norm that take two values, how many keys have the larger where the "
        "entropy is least.",
        includes=(1.0,),
    ),
    Metric(
        "first_singular_value",
        "First singular value",
        "σ1(P)",
        "linear",
        "1 = what all tokens share keeps its size",
        "σ₁(P), the largest singular value of the attention matrix.",
        includes=(1.0,),
    ),
    Metric(
        "gram_stable_rank",
        "Stable rank of the Gram matrix",
        "Σ(σ²)² / max (σ²)²",
        "linear",
        "1 = one direction dominates",
        "Σσ⁴ / σ₁⁴ of the singular values of X: the stable rank of XXᵀ.",
        "down",
        includes=(0.0,),
    ),
    Metric(
        "weight_participation",
        "Participation of weights",
        "Σ P²",
        "linear",
        "1 = one key per query; 1 / n = all alike",
        "Σ_j P_ij², the mean over the queries: one over the number of keys that share a query's "
        "attention.",
        includes=(0.0, 1.0),
    ),
)

# Masks as graphs, equilibria, counts over runs, and how exact a computation is.
_OTHERS: Final = (
    Metric(
        "log10_product_ergodicity",
        "Ergodicity coefficient of all layers so far",
        "τ(P′P)",
        "exponent",
        "What can be left of any difference",
        "The base-10 logarithm of τ of the product of the attention matrices up to this layer.",
        "down",
        includes=(0.0,),
    ),
    Metric(
        "second_eigenvalue",
        "Second eigenvalue",
        "|λ2(P)|",
        "log",
        "What a layer leaves of differences in the long run",
        "The second largest modulus among the eigenvalues of the attention matrix that all tokens "
        "would have if they were equal to their mean.",
        "down",
        includes=(1.0,),
    ),
    Metric(
        "radius",
        "Radius of the graph",
        "radius",
        "linear",
        "Layers until one token reaches all; infinite = never",
        "The fewest steps in which some token reaches all others in the graph of the mask.",
        includes=(0.0,),
    ),
    Metric(
        "smallest_weight",
        "Smallest weight",
        "min P",
        "log",
        "The promised rate of mixing grows with it",
        "The smallest attention weight on a pair that the mask allows, over all layers and heads "
        "of a sample (of the first one where masks are compared on one network).",
        includes=(1.0,),
    ),
    Metric(
        "mean_ergodicity",
        "Mean ergodicity coefficient",
        "mean τ(P)",
        "linear",
        "0 = one step makes all tokens alike; 1 = need not mix",
        "The mean of Dobrushin's coefficient τ(P) over all layers and heads of the first sample.",
        "down",
        includes=(0.0, 1.0),
    ),
    Metric(
        "product_ergodicity_rate",
        "Ergodicity coefficient of all layers, by layer",
        "τ of all layers, L-th root",
        "linear",
        "What a layer can leave of any difference on average",
        "The L-th root of τ of the product of the heads' average attention in all L layers, for "
        "the first sample.",
        "down",
        includes=(0.0, 1.0),
    ),
    Metric(
        "log10_promised_dispersion",
        "Promised dispersion",
        "bound on μ(X)",
        "exponent",
        "The dispersion stays below it",
        "The base-10 logarithm of the bound on μ(X) that the graph of the masks, the smallest "
        "weight and the norms of the values promise (Wu et al. 2024).",
        "down",
    ),
    Metric(
        "log10_promised_loss",
        "Promised loss",
        "loss in a layer",
        "exponent",
        "The part of the differences a layer loses at least",
        "The base-10 logarithm of the part of all differences that the graph and the smallest "
        "weight promise to be lost in each layer; minus infinity where they promise nothing.",
        includes=(0.0,),
    ),
    Metric(
        "largest_limit_weight",
        "Largest weight in the end",
        "largest weight",
        "linear",
        "1 = all is left of one position; 1 / n = of all alike",
        "The largest of the weights that the final tokens give to each position's input.",
        includes=(0.0, 1.0),
    ),
    Metric(
        "perron_weight",
        "Perron weight",
        "weight of a token",
        "linear",
        "What each token adds to the limit",
        "π with π = πP: the weight of each position in the state that repeating the last layer's "
        "attention tends to.",
        includes=(0.0,),
    ),
    Metric(
        "limit_weight",
        "Weight in the end",
        "weight",
        "linear",
        "What is left of each position's input",
        "The mean row of the product of all layers' attention matrices: how much of the final "
        "tokens comes from each position.",
        includes=(0.0,),
    ),
    Metric(
        "still_apart",
        "Still apart",
        "1 or 0 for each run",
        "linear",
        "1 = tokens still differ at the end of a run",
        "1 if the relative dispersion of a run is above a hundredth at its end, 0 otherwise.",
        "down",
        includes=(0.0, 1.0),
    ),
    Metric(
        "share_still_apart",
        "Runs that stay apart",
        "share of runs",
        "linear",
        "0 = all collapse",
        "The share of runs whose relative dispersion is above a hundredth at their end.",
        "down",
        includes=(0.0, 1.0),
    ),
    Metric(
        "share_above_rank_one",
        "Starts above rank one",
        "share of starts",
        "linear",
        "0 = all tend to one direction",
        "The share of starts whose tokens differ and whose second singular value is more than a "
        "hundredth of the first; tokens at two opposite poles have rank one.",
        "down",
        includes=(0.0, 1.0),
    ),
    Metric(
        "stable_rank_apart",
        "Stable rank of runs that stay apart",
        "Σσ² / max σ²",
        "linear",
        "1 = one direction dominates",
        "The stable rank at the end of those runs whose tokens still differ.",
        "down",
        includes=(0.0,),
    ),
    Metric(
        "rank",
        "Rank",
        "rank(X)",
        "linear",
        "1 = one direction; higher = more in use",
        "The numerical rank of an equilibrium.",
        "down",
        includes=(0.0,),
    ),
    Metric(
        "rank_share",
        "Rank",
        "rank(X) / min(n, d)",
        "linear",
        "1 = full rank",
        "The numerical rank of X over the largest it can have with n tokens of d features.",
        "down",
        includes=(0.0, 1.0),
    ),
    Metric(
        "fixed_point_residual",
        "Error of the fixed point",
        "‖F(X) − X‖",
        "log",
        "Rounding, if X is an equilibrium",
        "‖F(X) − X‖ in the Frobenius norm: how far one step moves a point that it should leave.",
    ),
    Metric(
        "spectral_radius",
        "Spectral radius",
        "max |λ|",
        "log",
        "Below 1 = small disturbances die out",
        "The largest absolute eigenvalue of the derivative of one step at an equilibrium.",
        includes=(1.0,),
        marks=((1.0, "stable below"),),
    ),
    Metric(
        "relative_error",
        "Relative error",
        "‖error‖ / ‖X‖",
        "log",
        "Rounding, if the computation is right",
        "By how much two computations of the same hidden state differ, over its norm.",
    ),
    Metric(
        "token_accuracy",
        "Token accuracy",
        "right tokens / all tokens",
        "linear",
        "What paths of one length know alone",
        "The share of tokens labelled rightly when only paths of one length, and the biases, reach "
        "the readout.",
        includes=(0.0, 1.0),
    ),
    Metric(
        "whole_accuracy",
        "Accuracy of the whole network",
        "right tokens / all tokens",
        "linear",
        "1 = every token labelled rightly",
        "The share of tokens a trained network labels rightly, on new examples or, where random "
        "labels are memorised, on those.",
        includes=(0.0, 1.0),
    ),
    Metric(
        "train_accuracy",
        "Accuracy in training",
        "right tokens / all tokens",
        "linear",
        "1 = every token labelled rightly",
        "The share of tokens a network labels rightly of what it was trained on, when it stopped.",
        includes=(0.0, 1.0),
    ),
    Metric(
        "reached_loss",
        "Loss reached",
        "cross-entropy",
        "linear",
        "0 = every token certain and right",
        "The cross-entropy of a trained network on new examples, in nats a token, and at most that "
        "of a guess that does not look.",
        includes=(0.0,),
    ),
    Metric(
        "explainable_share",
        "Explainable share",
        "1 − s²/n / var",
        "linear",
        "1 = seeds agree, so that all is the designs'",
        "The share of the differences in loss between designs that is not the chance of n seeds, "
        "whose variance is s².",
        includes=(0.0, 1.0),
    ),
    Metric(
        "explained_share",
        "Explained share",
        "1 − errors² / differences²",
        "linear",
        "0 = no better than no forecast",
        "The share of the differences in loss that is forecast for designs left out, each by a "
        "smooth function of some figures that was fitted to the others.",
        includes=(0.0, 1.0),
    ),
    Metric(
        "neighbour_share",
        "Explained share, by neighbours",
        "1 − errors² / differences²",
        "linear",
        "0 = no better than no forecast",
        "As the explained share, each design forecast by the mean loss of the designs nearest to "
        "it in the ranks of the figures.",
        includes=(0.0, 1.0),
    ),
    Metric(
        "rank_correlation",
        "Rank correlation",
        "Spearman's r",
        "linear",
        "1 = forecasts have the order of what is reached",
        "The correlation of the ranks of forecast and reached losses, over designs left out.",
        includes=(0.0, 1.0),
    ),
    Metric(
        "log10_distance",
        "Distance of the two points",
        "‖x − y‖",
        "exponent",
        "Falling = the points move together",
        "The Euclidean distance of two points in the plane.",
        "down",
    ),
    Metric(
        "step_error",
        "Error of a step",
        "error / length of a step",
        "log",
        "Below 1 = less than the way itself",
        "By how much a trained step misses the next place on its arc, root mean square, over the "
        "length of a step.",
    ),
    Metric(
        "x_coordinate",
        "Position across",
        "x",
        "linear",
        "Where a point is",
        "The first coordinate of a point in the plane.",
    ),
    Metric(
        "y_coordinate",
        "Position upwards",
        "y",
        "linear",
        "Where a point is",
        "The second coordinate of a point in the plane.",
    ),
)

_EVERY: Final = (
    *_TRACED,
    *_PATHS,
    *_GRADIENTS,
    *_ADVICE,
    *_MAPPED,
    *_DIAGNOSED,
    *_DEEP,
    *_BOUNDS,
    *_SIGNALS,
    *_OTHERS,
)
METRICS: Final[dict[str, Metric]] = {each.name: each for each in _EVERY}
