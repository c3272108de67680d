"""What a table of traces says in words: computed from its numbers, never typed in."""

import math

import polars as pl

from rankscope.arguments import checked
from rankscope.errors import InputError
from rankscope.numerals import plural, short
from rankscope.results import Fate, Finding

COLLAPSED = 1e-3
"""Relative residual under which tokens count as alike: a thousandth of their size."""
SHRUNK = 0.1
"""Fraction of the initial relative residual under which a network counts as losing rank slowly."""
ANISOTROPIC = 0.5
"""Mean cosine from which tokens count as pointing the same way."""
NOISE_FACTOR = 32
"""Relative residuals within this many units of the dtype's epsilon are rounding noise."""


@checked
def findings(summary: pl.DataFrame, *, epsilon: float) -> tuple[Finding, ...]:
    """One finding per variant, from a summary with ``relative_residual`` and ``mean_cosine``."""
    missing = {"variant", "layer", "metric", "mean"} - set(summary.columns)
    if missing:
        raise InputError(f"the summary lacks {', '.join(sorted(missing))}; see tables.summary.")
    variants = summary["variant"].unique(maintain_order=True).to_list()
    return tuple(_finding(name, summary.filter(variant=name), epsilon) for name in variants)


def _finding(variant: str, summary: pl.DataFrame, epsilon: float) -> Finding:
    residuals = _by_layer(summary, "relative_residual")
    if not all(math.isfinite(value) for value in residuals):
        raise InputError(f"{variant}: some relative residual is not finite, so nothing is found.")
    first, last, layers = residuals[0], residuals[-1], len(residuals) - 1
    collapsed_at = next((i for i, value in enumerate(residuals) if value < COLLAPSED), None)
    if last < COLLAPSED:
        fate: Fate = "collapse"
        sentence = _collapse_sentence(residuals, collapsed_at or 0, epsilon)
    elif last < SHRUNK * first:
        fate = "slow"
        sentence = (
            f"Depth collapse under way: the relative residual falls from {short(first, digits=2)} "
            f"to {short(last, digits=2)} over {plural(layers, 'layer')}."
        )
    else:
        fate = "holds"
        sentence = (
            f"No depth collapse: the relative residual {course(first, last)} "
            f"over {plural(layers, 'layer')}."
        )
        cosine = _by_layer(summary, "mean_cosine")[-1]
        if cosine > ANISOTROPIC:
            sentence += (
                " Cone anisotropy: the tokens point the same way (mean cosine "
                f"{short(cosine, digits=2)}), yet they stay different."
            )
    rule = f"relative residual below {COLLAPSED}, or a tenth of what it was"
    return Finding(variant, fate, sentence, rule, last, collapsed_at)


def course(first: float, last: float) -> str:
    """Where a number starts and ends, in words; one that ends where it began stays there.

    >>> course(1.0, 0.25), course(0.998, 1.001)
    ('goes from 1 to 0.25', 'stays near 1')
    """
    start, end = short(first, digits=2), short(last, digits=2)
    return f"stays near {start}" if start == end else f"goes from {start} to {end}"


def _collapse_sentence(residuals: list[float], collapsed_at: int, epsilon: float) -> str:
    sentence = (
        f"Depth collapse: after {plural(collapsed_at, 'layer')} the tokens differ by less than a "
        f"thousandth of their size (relative residual "
        f"{short(residuals[collapsed_at], digits=1)})."
    )
    floor = NOISE_FACTOR * epsilon
    noisy = next((i for i, value in enumerate(residuals) if value < floor), None)
    if noisy is not None:
        sentence += (
            f" From layer {noisy} on the figure ({short(residuals[-1], digits=1)} at the end) is "
            "the rounding noise of the number format, not an equilibrium."
        )
    return sentence


def _by_layer(summary: pl.DataFrame, metric: str) -> list[float]:
    found = summary.filter(metric=metric).sort("layer")["mean"].to_list()
    if not found:
        raise InputError(f"the summary has no {metric}; measure it, too.")
    return found
