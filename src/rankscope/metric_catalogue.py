"""The metrics in tables: name, title, axis and meaning of each.

Traces, charts, pages and the documentation read this catalogue, which imports no other part. To
add a metric, write its function and one entry here; ``of`` makes it available to traces by name.
The base-10 logarithm ``log10_x`` needs no entry besides that of ``x``. A metric that only one
experiment measures is in that experiment's ``ENTRY``; its results carry it (``Result.metrics``).

Throughout, X is the matrix of tokens, res(X) the matrix left after subtracting the center from
every token, P an attention matrix, and r and r′ the residual before and after a layer.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Final, Literal

from rankscope.arguments import checked

__all__ = ["METRICS", "Metric", "knowing", "metric"]

Scale = Literal["log", "linear", "exponent"]
Collapse = Literal["down", "up", ""]
Of = Literal["statistics", "hidden", "spectrum", "attention", ""]

_LOGARITHM: Final = "log10_"


@checked
@dataclass(frozen=True)
class Metric:
    """One metric: its title, its meaning, its axis, and how a trace computes it.

    >>> from rankscope.metric_catalogue import Metric
    >>> Metric("gap", "Spectral gap", symbol="1 − |λ₂|", meaning="0 = no mixing").scale
    'linear'

    ``meaning`` fits on one line of a chart, ``definition`` is for pages and documentation. On the
    scale ``exponent`` the values are base-10 logarithms, and the axis is labelled with powers of
    ten. ``collapse`` is the direction of the values as tokens become alike; empty if neither.
    ``includes`` are values that an axis always shows, ``marks`` are values with a label. Titles,
    symbols and meanings use only characters that every font has (no ₂ or ⁴); others appear as
    boxes on machines with few fonts.

    ``of`` is the input from which a trace computes the metric, by the function of the same name in
    ``core.metrics``: a method of ``StateStatistics`` or ``Spectra`` of the hidden states, or
    ``f(x, token_mask=...)`` of hidden states or attention. It is empty if traces do not compute
    the metric. ``module`` holds the function if ``core.metrics`` does not export it. ``misleads``
    says when its values are read wrongly; every metric of a trace states it.
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
    module: str = "rankscope.core.metrics"
    misleads: str = ""

    @property
    def compute(self) -> str:
        """The function a trace calls, as ``module:name``; empty if there is none."""
        kind = {"statistics": "StateStatistics.", "spectrum": "Spectra."}.get(self.of, "")
        return f"{self.module}:{kind}{self.name}" if self.of else ""


_MORE: ContextVar[Mapping[str, Metric]] = ContextVar("_MORE", default={})  # noqa: B039


@checked
@contextmanager
def knowing(metrics: Iterable[Metric]) -> Iterator[None]:
    """A context in which ``metric`` also knows these metrics of a single experiment.

    >>> with knowing([Metric("gap", "Gap between layers")]):
    ...     metric("gap").title, metric("log10_gap").scale
    ('Gap between layers', 'exponent')
    >>> metric("gap").title
    'Gap'

    A result carries its metrics; code that shows a result opens this context.
    """
    token = _MORE.set({**_MORE.get(), **{entry.name: entry for entry in metrics}})
    try:
        yield
    finally:
        _MORE.reset(token)


@checked
def metric(name: str) -> Metric:
    """Title, axis and meaning of a metric.

    >>> metric("mean_cosine").title
    'Mean cosine'
    >>> metric("log10_my_score").title, metric("log10_my_score").scale
    ('My score', 'exponent')

    The base-10 logarithm of a metric has the title and meaning of that metric. A metric without an
    entry, such as a function of the user, keeps its name and has a linear axis, or an axis of
    exponents if the name begins with ``log10_``.
    """
    known = METRICS.get(name) or _MORE.get().get(name)
    if known is not None:
        return known
    if name.startswith(_LOGARITHM) and name != _LOGARITHM:
        base = metric(name.removeprefix(_LOGARITHM))
        return replace(
            base,
            name=name,
            scale="exponent",
            definition=base.definition and f"{base.definition} As its base-10 logarithm.",
            includes=tuple(math.log10(value) for value in base.includes if value > 0),
            marks=tuple((math.log10(value), mark) for value, mark in base.marks if value > 0),
            of="",
        )
    words = name.replace("_", " ").strip() or name
    return Metric(name, words[:1].upper() + words[1:])


def _on_axis(scale: Scale, *includes: float) -> Callable[..., Metric]:
    """A function that makes metrics with this axis from their texts and collapse direction."""

    def make(
        name: str, title: str, symbol: str, meaning: str, definition: str, collapse: Collapse = ""
    ) -> Metric:
        return Metric(name, title, symbol, scale, meaning, definition, collapse, includes)

    return make


_size, _ratio = _on_axis("log"), _on_axis("log", 1.0)
_from_zero, _share = _on_axis("linear", 0.0), _on_axis("linear", 0.0, 1.0)


_ALIKE: Final = "0 = all tokens alike"
_SMALLER: Final = "Smaller = tokens more alike"
_SIZED: Final = "grows with the size of the tokens"
_PARTS: Final = "1 = as large as the whole; parts can cancel"

# Metrics that a trace can compute.
_OF_STATES: Final = (
    _ratio(
        "relative_residual",
        "Relative residual",
        "‖res(X)‖ / ‖X‖",
        f"{_ALIKE}; about 1 = no common part",
        "The residual divided by the norm of all tokens, both in the composite norm √(‖·‖₁‖·‖∞), "
        "unless the provenance names another.",
        "down",
    ),
    _size(
        "residual",
        "Residual",
        "‖res(X)‖",
        f"{_ALIKE}; {_SIZED}",
        "‖X − 1x̄ᵀ‖ with x̄ the mean of the tokens, in the composite norm √(‖·‖₁‖·‖∞) of Dong et al. "
        "2021, unless the provenance names another norm or center.",
        "down",
    ),
    _size(
        "dispersion",
        "Dispersion",
        "μ(X)",
        f"{_ALIKE}; {_SIZED}",
        "μ(X) = ‖X − 1x̄ᵀ‖ in the Frobenius norm, the measure of Wu et al. 2024.",
        "down",
    ),
    _ratio(
        "relative_dispersion",
        "Relative dispersion",
        "μ(X) / ‖X‖",
        f"{_ALIKE}; 1 = no common part",
        "‖X − 1x̄ᵀ‖ / ‖X‖ in the Frobenius norm: the dispersion divided by the norm of all "
        "tokens. Rotating the features does not change it.",
        "down",
    ),
    _size(
        "token_norm",
        "Token norm",
        "‖X‖ / n^½",
        "Norm of a typical token",
        "The root mean square of the Euclidean norms of the tokens.",
    ),
    _share(
        "mean_cosine",
        "Mean cosine",
        "cos(x, x′)",
        "1 = all in one direction; 0 = no common direction",
        "The mean of cos(x, x′) over all pairs of different tokens.",
        "up",
    ),
)
_OF_SPECTRA: Final = (
    _from_zero(
        "effective_rank",
        "Effective rank",
        "exp H(σ)",
        "1 = one direction; higher = more in use",
        "exp of the entropy of σ/Σσ, the singular values of X divided by their sum (Roy and "
        "Vetterli 2007).",
        "down",
    ),
    _from_zero(
        "stable_rank",
        "Stable rank",
        "Σσ² / max σ²",
        "1 = one direction dominates",
        "Σσ² / σ₁², the squared Frobenius norm of X over its squared spectral norm.",
        "down",
    ),
    _from_zero(
        "numerical_rank",
        "Numerical rank",
        "rank(X)",
        "1 = one direction above rounding",
        "The number of singular values of X above the largest times the precision of the dtype.",
        "down",
    ),
    _from_zero(
        "participation_ratio",
        "Participation ratio",
        "(Σσ²)² / Σ(σ²)²",
        "Number of directions that share the energy",
        "(Σσ²)² / Σσ⁴ of the singular values of X.",
        "down",
    ),
    _ratio(
        "spectral_ratio",
        "Spectral ratio",
        "σ2 / σ1",
        "0 = rank one; 1 = no direction dominates",
        "σ₂/σ₁, the second singular value of X over the first.",
        "down",
    ),
)
_OF_ATTENTION: Final = (
    _from_zero(
        "attention_entropy",
        "Attention entropy",
        "H(P), nats",
        "0 = one key per query; log n = all alike",
        "The mean entropy of the rows of P, in nats.",
    ),
    _share(
        "dobrushin",
        "Ergodicity coefficient",
        "τ(P)",
        "0 = one step makes all tokens alike; 1 = need not mix",
        "τ(P) = ½ max over pairs of queries of Σ_j |P_ij − P_i′j|, Dobrushin's coefficient: the "
        "largest fraction of a difference between tokens that one application of P can keep.",
        "down",
    ),
    _share(
        "second_singular_value",
        "Second singular value",
        "σ2(P)",
        "0 = no difference gets through",
        "σ₂(P), the second singular value of the attention matrix.",
        "down",
    ),
    _from_zero(
        "high_pass_ratio",
        "High-pass ratio",
        "‖high-pass‖ / ‖DC‖",
        "0 = all queries look alike",
        "‖P − 11ᵀP/n‖ / ‖11ᵀP/n‖ in the Frobenius norm: the part of P that differs between "
        "rows over the part that all rows share.",
        "down",
    ),
    _from_zero(
        "renyi_entropy",
        "Collision entropy",
        "H2(P), nats",
        "0 = one key per query; log n = all alike",
        "The mean over the queries of −log Σ_j P_ij², the Rényi entropy of order 2, in nats.",
    ),
    _share(
        "largest_weight",
        "Largest weight",
        "max P",
        "1 = every query looks at one key",
        "The mean over the queries of the largest attention weight, max_j P_ij.",
    ),
    _share(
        "sink_mass",
        "Attention sink weight",
        "P to token 0",
        "1 = every query looks at the first token",
        "The mean over the queries of the weight on the first token, plus the weight on a learned "
        "sink if the model has one.",
    ),
    Metric(
        "score_gamma",
        "Gamma per head",
        "γ(P)",
        "linear",
        "1 = one query stands out; the root of n = all alike",
        "γ = √(Σ_i D_i / max_i D_i), D_i the range, over the visible keys, of the scores of "
        "query i minus those of the mean query (Dong et al. 2021).",
        includes=(1.0,),
    ),
    _share(
        "dobrushin_lower",
        "Ergodicity coefficient (lower bound)",
        "τ(P), lower bound",
        "0 = all queries may look alike; 1 = need not mix",
        "A lower bound on τ(P) without comparing all pairs: the largest total variation distance "
        "of any row of P to one of three rows.",
        "down",
    ),
    _share(
        "dobrushin_upper",
        "Ergodicity coefficient (upper bound)",
        "τ(P), upper bound",
        "0 = one step makes all tokens alike",
        "An upper bound on τ(P) without comparing all pairs: the smaller of 1 − Σ_j min_i P_ij and "
        "the sum of the two largest distances to one row; at most twice the lower bound.",
        "down",
    ),
    _share(
        "second_singular_lower",
        "Second singular value (lower bound)",
        "σ2(P), lower bound",
        "0 = no difference may get through",
        "A lower bound on σ₂(P), from powers of PᵀP applied to eight seeded vectors.",
        "down",
    ),
    _share(
        "second_singular_upper",
        "Second singular value (upper bound)",
        "σ2(P), upper bound",
        "0 = no difference gets through",
        "An upper bound on σ₂(P): the lower bound plus the part of ‖P‖² that its eight vectors do "
        "not account for.",
        "down",
    ),
)
_BY_TRACES: Final[dict[Of, tuple[Metric, ...]]] = {
    "statistics": _OF_STATES,
    "spectrum": _OF_SPECTRA,
    "attention": _OF_ATTENTION,
}

# When the metrics of a trace are read wrongly.
_MISLEADS: Final[Mapping[str, str]] = {
    "relative_residual": "A few tokens with very large norms fill both norms: it falls although "
    "the other tokens differ, or stays although they have become alike. A vector that all tokens "
    "share (a bias, an anisotropic embedding) lowers it without any loss of information.",
    "residual": "It grows and shrinks with the size of the tokens: a norm or a growing residual "
    "stream changes it while tokens stay as different as before. Compare relative residuals.",
    "dispersion": "Like the residual, it depends on the size of the tokens and on their number; "
    "one long token can hold most of it.",
    "relative_dispersion": "Two tokens at opposite poles have the value 1 and still rank one: it "
    "measures differences, not directions. Look at the stable rank as well.",
    "token_norm": "It is a root mean square: one token a hundred times as long as the others "
    "hides what happens to them.",
    "mean_cosine": "A common direction (a cone) gives a high cosine at full rank, and subtracting "
    "the mean removes it. Opposite poles give a value near 0 at rank one. Averages over all pairs "
    "hide clusters.",
    "effective_rank": "It counts small directions generously, noise among them, and is at most "
    "the number of tokens: values of texts of different length are not comparable.",
    "stable_rank": "A single common direction brings it to 1 although the rest still differs; "
    "subtract the mean of the tokens to see that rest.",
    "numerical_rank": "It counts everything above rounding, so it stays full long after every "
    "difference that matters is lost, and depends on the number format.",
    "participation_ratio": "One common direction dominates it as it does the stable rank; it is "
    "at most the number of tokens.",
    "spectral_ratio": "It looks at two directions only: a second one that stays hides the loss of "
    "all the others.",
    "attention_entropy": "High entropy is usual at initialisation and no fault. It is bounded by "
    "the log of the visible keys, so causal masks and short texts lower it; a mean over heads "
    "hides single sharp ones.",
    "dobrushin": "It is about the worst pair of queries: one query that looks elsewhere keeps it "
    "near 1 while all the others agree. Skip connections are not part of it.",
    "second_singular_value": "It may exceed 1, because P is not symmetric, and it does not know "
    "the values: differences that pass P can still be removed by them.",
    "high_pass_ratio": "Under a causal mask rows differ because they see different keys; the "
    "ratio is then high although attention is uniform.",
    "renyi_entropy": "Dominated by the largest weights: it says little about the tail, and like "
    "the entropy it depends on how many keys are visible.",
    "largest_weight": "Under a causal mask the first queries see few keys, and their largest "
    "weight is high by necessity.",
    "sink_mass": "Weight on the first token is usual in trained decoders and often means that a "
    "head does nothing here; it is not a collapse. Of encoders, the first token may be a real one.",
    "score_gamma": "It compares queries with each other, not with the size of the scores: it is "
    "large for attention that is nearly uniform as well as for attention that is sharp.",
    "dobrushin_lower": "A small value proves nothing by itself: the coefficient may be twice as "
    "large.",
    "dobrushin_upper": "A value of 1 proves nothing: it is the trivial bound.",
    "second_singular_lower": "A small value proves nothing by itself: eight vectors may have "
    "missed the largest direction.",
    "second_singular_upper": "It can be far above the value for matrices whose singular values "
    "fall slowly; with the lower bound it brackets it.",
}

# A part of a hidden state relative to the whole: the paths of one length, or through one head.
_PATHS: Final = (
    _ratio(
        "residual_share",
        "Share of the residual",
        "‖res(part)‖ / ‖res(X)‖",
        _PARTS,
        "The residual of the contribution of some paths over the residual of the whole hidden "
        "state; shares need not add up to 1, since parts can cancel.",
    ),
    _ratio(
        "norm_share",
        "Share of the norm",
        "‖part‖ / ‖X‖",
        _PARTS,
        "The Frobenius norm of the contribution of some paths over that of the whole hidden state.",
    ),
    _share(
        "projection",
        "Projection",
        "part·X / ‖X‖²",
        "Parts add up to 1; below 0 = opposes the whole",
        "⟨part, X⟩ / ‖X‖², so that the parts of all lengths and of the biases add up to 1.",
    ),
    _from_zero(
        "proportion",
        "Proportion of paths",
        "paths of this length / all paths",
        "Fraction of all paths with each length",
        "The number of paths of this length divided by the number of all paths; counted exactly "
        "from the layers and heads of the model.",
    ),
    _size(
        "count",
        "Number of paths",
        "paths",
        "All paths of one length",
        "How many paths of a length there are, of (H + 1)^L paths in all.",
    ),
    _size(
        "residual_contribution",
        "Contribution of a path",
        "‖res(path)‖",
        "0 = it adds nothing to the differences",
        "The residual of what a single path adds to the output.",
    ),
)


def _gradient(name: str, of: str, what: str) -> Metric:
    definition = (
        f"The Frobenius norm of the gradient of a random linear function of the last layer, with "
        f"respect to {what}."
    )
    meaning = "Constant = every layer can learn"
    return _size(name, f"Gradient of {of}", "‖grad‖", meaning, definition)


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

# Metrics of predictions, shown on maps of designs.
_MAPPED: Final = (
    _share(
        "entropy_share",
        "Share of the entropy",
        "H(P) / H of uniform attention",
        "0 = one key per query; 1 = all alike",
        "The attention entropy divided by that of uniform attention over the keys that each query "
        "may see.",
    ),
    _from_zero(
        "collapse_layer",
        "Collapse layer",
        "layer",
        "None = not within these layers",
        "The first layer at which the relative dispersion (in a sweep: the requested metric) is "
        "below the threshold.",
    ),
)

# Runs in scaled arithmetic, far beyond the range of floats.
_DEEP: Final = (
    _size(
        "largest",
        "Largest entry",
        "max |X|",
        "Floating-point numbers overflow if it grows too large",
        "The largest entry of X in absolute value.",
    ),
    Metric(
        "local_exponent",
        "Local exponent",
        "log r′ / log r",
        "linear",
        "Factor by which a layer multiplies log r",
        "log r′ / log r: 3 where r′ = C r³ and the residual is small, 1 where r′ = c r.",
        "up",
        includes=(0.0, 1.0, 3.0),
        marks=((1.0, "exponential"), (3.0, "doubly exponential")),
    ),
    _ratio(
        "contraction",
        "Contraction",
        "r′ / r",
        "Constant = exponential collapse; 1 = none",
        "r′/r; constant in depth if collapse is exponential.",
        "down",
    ),
    _size(
        "cubic_constant",
        "Cubic constant",
        "r′ / r³",
        "C in r′ = C r³; constant = doubly exponential",
        "r′/r³; constant in depth if collapse is doubly exponential.",
        "down",
    ),
)


def _layer_bound(name: str, title: str, definition: str) -> Metric:
    meaning = "Upper bound on the residual after the layer"
    return _size(name, title, "bound on r′", meaning, definition, "down")


def _depth_bound(name: str, title: str, definition: str) -> Metric:
    meaning = "Upper bound on the residual at every depth"
    return _size(name, title, "bound on ‖res(X)‖", meaning, definition, "down")


# Bounds and their ingredients, in the composite norm around the optimal center.
_BOUNDS: Final = (
    _size(
        "input_residual",
        "Residual before the layer",
        "r",
        f"{_SMALLER}; grows with their size",
        "The residual of a layer's input, in the composite norm around the optimal center.",
        "down",
    ),
    _size(
        "score_difference",
        "Score difference",
        "max D",
        "Small = attention close to a rank-one pattern",
        "The largest D_i, the range of the scores of query i minus those that all queries share; "
        "the bounds of Dong et al. 2021 require at most 1.2564.",
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
    _size(
        "beta",
        "Beta",
        "‖W_QK‖·‖W_V‖",
        "Size of the weights; bounds grow with it",
        "The constant of the weights: ‖W_QK‖₁‖W_V‖ in the composite norm for one head, and for "
        "several √(Σ‖W_QK‖₁‖W‖₁ · Σ‖W_QK‖₁‖W‖∞) over the heads instead of βH.",
    ),
    _size(
        "paper_beta",
        "Beta times heads",
        "βH",
        "The published constant of the weights",
        "βH of Dong et al. 2021: the number of heads times the largest ‖W_QK‖₁‖W_V‖ of a head, in "
        "the composite norm; too small in general for several heads, so no bound uses it.",
    ),
    _ratio(
        "lipschitz",
        "Lipschitz constant",
        "λ",
        "Largest factor by which the MLP can stretch a difference",
        "λ, a Lipschitz constant of the part of the layer after attention; 1 without an MLP.",
    ),
    _share(
        "condition",
        "Condition of the bounds",
        "max D at most 1.2564",
        "1 = the bounds on this layer apply; 0 = they do not",
        "Whether the score difference is at most 1.2564, where eᵗ = 1 + 2t: the condition of the "
        "bounds of Dong et al. 2021.",
    ),
    _layer_bound(
        "a_priori_bound", "A-priori bound", "4γβλ·scale·r³ (Dong et al. 2021, theorem 2.2)."
    ),
    _layer_bound(
        "data_bound",
        "Bound from the data",
        "The step before the a-priori bound in its proof, with measured score differences.",
    ),
    _layer_bound(
        "sharp_bound",
        "Sharp bound",
        "The best bound that follows from the score differences alone; it holds unconditionally.",
    ),
    _depth_bound(
        "depth_bound",
        "Bound over all layers",
        "κ^((3^L − 1)/2) ‖res(X)‖^(3^L), with κ the largest 4γβλ·scale of the L layers (Dong et "
        "al. 2021, theorem 2.3).",
    ),
    _depth_bound(
        "depth_data_bound",
        "Chained bounds from the data",
        "The bounds on single layers, chained from the input with the measured score differences "
        "of each layer.",
    ),
    _depth_bound(
        "depth_input_bound",
        "Bound from the input alone",
        "The bounds on single layers, chained from the input; uses only the weights and the norm "
        "of the residual of the input.",
    ),
    _ratio(
        "slack",
        "Slack",
        "bound / measured",
        "Bound over measured value; 1 = tight",
        "A bound divided by the residual measured at the same layer.",
    ),
)

# Signal propagation at initialisation.
_SIGNALS: Final = (
    _ratio(
        "stream_variance",
        "Residual stream variance",
        "‖X‖² / ‖input‖²",
        "1 = as large as the input",
        "The mean square of the hidden states over that of the input.",
    ),
)

# Masks as graphs, equilibria, counts over runs, and accuracy of a computation.
_OTHERS: Final = (
    _from_zero(
        "uniformity",
        "Uniformity",
        "log mean exp(−2‖u − v‖²)",
        "0 = all in one direction; lower = spread more evenly",
        "log of the mean of exp(−2‖u − v‖²) over all pairs of different embeddings at length 1 "
        "(Wang and Isola 2020).",
        "up",
    ),
    _from_zero(
        "alignment",
        "Alignment",
        "mean ‖u − v‖²",
        "0 = positive pairs equal; 2 = unrelated",
        "The mean of ‖u − v‖² over positive pairs of embeddings at length 1 (Wang and Isola 2020); "
        "in a diagnosis the two halves of a text.",
    ),
    _ratio(
        "product_ergodicity",
        "Ergodicity coefficient of all layers so far",
        "τ(P′P)",
        "Largest fraction of a difference that remains",
        "τ of the product of the attention matrices up to this layer.",
        "down",
    ),
    _ratio(
        "smallest_weight",
        "Smallest weight",
        "min P",
        "The guaranteed mixing rate grows with it",
        "The smallest attention weight on a pair that the mask allows, over all layers and heads "
        "of a sample (of the first one where masks are compared on one network).",
    ),
    _share(
        "still_apart",
        "Still apart",
        "1 or 0 per run",
        "1 = tokens still differ at the end of a run",
        "1 if the relative dispersion of a run is above a hundredth at its end, 0 otherwise.",
        "down",
    ),
    _share(
        "share_above_rank_one",
        "Starts above rank one",
        "share of starts",
        "0 = all converge to one direction",
        "The share of starts whose tokens differ and whose second singular value is more than a "
        "hundredth of the first; tokens at two opposite poles have rank one.",
        "down",
    ),
    _from_zero(
        "stable_rank_apart",
        "Stable rank of runs that stay apart",
        "Σσ² / max σ²",
        "1 = one direction dominates",
        "The stable rank at the end of those runs whose tokens still differ.",
        "down",
    ),
    _share(
        "rank_share",
        "Rank",
        "rank(X) / min(n, d)",
        "1 = full rank",
        "The numerical rank of X over the largest it can have with n tokens of d features.",
        "down",
    ),
    _share(
        "share_still_apart",
        "Runs that stay apart",
        "share of runs",
        "0 = all collapse",
        "The share of runs whose relative dispersion is above a hundredth at their end.",
        "down",
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
        "collapsed",
        "Collapsed",
        "0 or 1",
        meaning="1 = all tokens are equal",
        definition="Whether all tokens of an equilibrium are equal.",
        includes=(0.0, 1.0),
    ),
    Metric(
        "stable",
        "Stable",
        "0 or 1",
        meaning="1 = small disturbances die out",
        definition="Whether an equilibrium is proved to be stable.",
        includes=(0.0, 1.0),
    ),
    Metric(
        "basin",
        "Basin",
        "starts",
        meaning="Starts that lead to it",
        definition="The number of starts that converge to an equilibrium.",
        includes=(0.0,),
    ),
    _size(
        "fixed_point_error",
        "Error of an equilibrium",
        "‖f(X) − X‖",
        "Rounding error for an equilibrium",
        "The largest entry by which one step changes an equilibrium.",
    ),
    Metric(
        "class_size",
        "Size of a closed class",
        "tokens",
        meaning="All tokens = one class",
        definition="The number of tokens of a closed class of the graph of a mask.",
        includes=(0.0,),
    ),
    Metric(
        "period",
        "Period of a closed class",
        "layers",
        meaning="1 = aperiodic",
        definition="The greatest common divisor of the lengths of the cycles in a closed class.",
        includes=(1.0,),
    ),
    _size(
        "relative_error",
        "Relative error",
        "‖error‖ / ‖X‖",
        "Rounding error if the computation is correct",
        "The norm of the difference of two computations of the same hidden state over its norm.",
    ),
    Metric(
        "training_score",
        "Training score",
        "score",
        meaning="Higher = better learnt",
        definition="The score of a task on training examples, such as the share of right labels.",
    ),
    Metric(
        "x_coordinate",
        "x coordinate",
        "x",
        "linear",
        "Position of a point",
        "The first coordinate of a point in the plane.",
    ),
    Metric(
        "y_coordinate",
        "y coordinate",
        "y",
        "linear",
        "Position of a point",
        "The second coordinate of a point in the plane.",
    ),
)

_EVERY: Final = (
    *(
        replace(metric, of=of, misleads=_MISLEADS.get(metric.name, ""))
        for of, metrics in _BY_TRACES.items()
        for metric in metrics
    ),
    *(*_PATHS, *_GRADIENTS, *_MAPPED, *_DEEP, *_BOUNDS, *_SIGNALS, *_OTHERS),
)
METRICS: Final[dict[str, Metric]] = {metric.name: metric for metric in _EVERY}
