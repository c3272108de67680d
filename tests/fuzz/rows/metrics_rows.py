"""Metrics."""

from table import add
from things import MASK, P, X

from rankscope.core import metrics

for one in (
    "deviations",
    "dispersion",
    "effective_rank",
    "participation_ratio",
    "singular_values",
    "spectra",
    "spectral_ratio",
    "stable_rank",
    "state_statistics",
    "token_norm",
):
    add(f"metrics.{one}", getattr(metrics, one), x=X, token_mask=MASK)
for one in (
    "attention_entropy",
    "dobrushin",
    "dobrushin_bounds",
    "dobrushin_lower",
    "dobrushin_upper",
    "high_pass_ratio",
    "largest_weight",
    "renyi_entropy",
    "score_gamma",
    "second_singular_lower",
    "second_singular_upper",
    "second_singular_value",
):
    add(f"metrics.{one}", getattr(metrics, one), attention=P, token_mask=None)
add("metrics.sink_mass", metrics.sink_mass, attention=P, tokens=2, token_mask=None)
add(
    "metrics.residual",
    metrics.residual,
    x=X,
    norm="fro",
    center="mean",
    relative=True,
    token_mask=MASK,
    certified=False,
    tolerance=1e-3,
)
add(
    "metrics.residual",
    metrics.residual,
    x=X,
    norm="spectral",
    center="optimal",
    relative=False,
    token_mask=None,
    certified=True,
    tolerance=1e-3,
)
add("metrics.residual", metrics.residual, x=X, norm="one", center="optimal")
add("metrics.mean_cosine", metrics.mean_cosine, x=X, exclude=(0,), token_mask=MASK)
add("metrics.uniformity", metrics.uniformity, x=X, t=2.0, token_mask=MASK)
add("metrics.alignment", metrics.alignment, x=X, y=X, alpha=2.0, token_mask=MASK)
add("metrics.numerical_rank", metrics.numerical_rank, x=X, rtol=1e-3, token_mask=MASK)
add("metrics.matrix_norm", metrics.matrix_norm, m=X, norm="composite")
add("metrics.Deviations", metrics.Deviations, tokens=X, rest=X)
add(
    "metrics.StateStatistics",
    metrics.StateStatistics,
    **dict.fromkeys(metrics.StateStatistics.__dataclass_fields__, X[0, 0]),
)
add("metrics.StateStatistics.only", metrics.state_statistics(X).only, state=1)
add("metrics.StateStatistics.fault", metrics.state_statistics(X).fault, dtype=X.dtype)
add("metrics.Spectra", metrics.Spectra, sigma=X[0], scaled=X[0], noise=X[0, :, 0])
add("metrics.Spectra.numerical_rank", metrics.spectra(X).numerical_rank, rtol=0.1)
PROBE = metrics.SpectrumProbe()
ESTIMATED = metrics.estimated_spectra(X)
add(
    "metrics.estimated_spectra",
    metrics.estimated_spectra,
    x=X,
    token_mask=MASK,
    probes=4,
    steps=4,
    seed=1,
)
add(
    "metrics.SpectrumProbe",
    metrics.SpectrumProbe,
    probes=4,
    steps=4,
    seed=1,
    fourth_powers=False,
    bytes_held=100,
)
add("metrics.SpectrumProbe.feed", PROBE.feed, x=X, token_mask=MASK, center=X[..., 0, :])
add(
    "metrics.EstimatedSpectra",
    metrics.EstimatedSpectra,
    evidence=ESTIMATED.evidence,
    shape=(2,),
    probes=16,
)
add(
    "metrics.second_singular_bounds",
    metrics.second_singular_bounds,
    attention=P,
    seed=0,
    token_mask=None,
)
add(
    "metrics.AttentionScores",
    metrics.AttentionScores,
    query=P,
    key=P,
    scale=0.5,
    bias=P,
    mask=P > 0,
    causal=True,
    window=2,
    softcap=3.0,
    sinks=X[0, 0, :2],
    token_mask=MASK,
)
add("metrics.AttentionScores.matrix", metrics.AttentionScores(query=P, key=P, scale=0.5).matrix)
add("metrics.Bracket", metrics.Bracket, lower=X[0], upper=X[0])
