"""What to hold a model against: its architecture at initialisation, measured and predicted."""

import math
from dataclasses import dataclass, replace
from typing import Final

import polars as pl

from rankscope import tables
from rankscope.core.network import Network, drawable
from rankscope.core.prediction import predict
from rankscope.core.theory import thresholds
from rankscope.errors import RankscopeError
from rankscope.experiments import advice, kit
from rankscope.numerals import power_of_ten, sentence_case, short
from rankscope.results import Listing

INITIAL, PREDICTED = "random weights", "predicted"
_CURVES: Final = ("relative_residual", "relative_dispersion")
_EXPONENT: Final = "log10_relative_dispersion"
_DRAWS: Final = 8
_SAMPLES: Final = 2
"""Samples that predictions are made for; every draw reads each of them."""


@dataclass(frozen=True)
class References:
    """Rows by layer under the names above, how weights are drawn for the prediction, and why any
    is missing."""

    table: pl.DataFrame
    drawn: str
    missing: tuple[str, ...]

    def last(self, variant: str, metric: str, statistic: str = "median") -> float | None:
        """A figure after the last layer, if the reference has it."""
        rows = self.summary.filter(variant=variant, metric=metric).sort("layer")
        return None if not rows.height else float(rows[statistic][-1])

    @property
    def summary(self) -> pl.DataFrame:
        """Over samples and draws."""
        return tables.summary(self.table)

    def sentence(self, end: float, dispersion: float) -> str:
        """This model's last residual and dispersion beside the references'."""
        said = "; ".join(filter(None, [self._initial(end), self._predicted(end, dispersion)]))
        return f"{sentence_case(said)}." if said else ""

    def _initial(self, end: float) -> str:
        initial = self.last(INITIAL, "relative_residual")
        if initial is None:
            return ""
        same = "with random weights in its blocks the same architecture"
        if max(initial, end) < thresholds.COLLAPSED_RESIDUAL:
            return f"{same} collapses as well"
        beside = "about as much as" if 0.9 <= end / initial <= 1.1 else "more than"
        beside = "less than" if end < 0.9 * initial else beside
        return (
            f"{same} ends at a relative residual of {short(initial, digits=2)}, and this one keeps "
            f"{beside} that ({short(end, digits=2)})"
        )

    def _predicted(self, end: float, dispersion: float) -> str:
        low, high = (self.last(PREDICTED, _EXPONENT, each) for each in ("low", "high"))
        if low is None or high is None:
            return ""
        band = " to ".join(dict.fromkeys(power_of_ten(each) for each in (low, high)))
        found = "a relative dispersion of " + band
        if end < thresholds.COLLAPSED_RESIDUAL and high < math.log10(thresholds.COLLAPSED_RESIDUAL):
            return f"random networks of this design are predicted to do so, too, to {found}"
        within = low - 1e-3 <= math.log10(max(dispersion, 1e-300)) <= high + 1e-3
        side = "within that" if within else "outside of it"
        return (
            f"random networks of this design (init {self.drawn}) are predicted to end at {found}, "
            f"and this one is {side}, at {short(dispersion, digits=2)}"
        )


def references(subject: kit.Subject, seed: int, on_step: kit.OnStep) -> References:
    """Random networks of the same design, on the same input."""
    rows, missing = [], []
    for name, (measure, on_part) in zip(
        (INITIAL, PREDICTED),
        kit.tracked((_initial, _predicted), on_step),
        strict=True,
    ):
        try:
            found = measure(subject, seed)
        except RankscopeError as error:
            missing.append(f"{name.capitalize()}: {str(error).rstrip('.')}.")
            continue
        rows.append(found.with_columns(pl.lit(name).alias("variant")))
        on_part(1.0)
    drawn = str(subject.network.spec.init)
    return References(tables.stack(rows) if rows else _empty(), drawn, tuple(missing))


def _initial(subject: kit.Subject, seed: int) -> pl.DataFrame:
    x = subject.x
    # Not the network itself, which may have been drawn with the same seed.
    if subject.twin is None:
        twin = Network.random(drawable(subject.network), seed=seed + 1).to(x.dtype)
    else:
        twin = subject.twin(seed + 1)
    return subject.with_network(twin.to(x.device, x.dtype)).trace(list(_CURVES)).table


def _predicted(subject: kit.Subject, seed: int) -> pl.DataFrame:
    subject.refuse_measured("predictions are about all tokens")
    subject = subject.on_cpu()
    mask = subject.token_mask
    found = predict(
        drawable(subject.network),
        subject.x[:_SAMPLES].float(),
        draws=_DRAWS,
        seed=seed,
        token_mask=mask if mask is None or mask.ndim < 2 else mask[:_SAMPLES],
    )
    return found.table.filter(pl.col("metric").is_in(["relative_dispersion", _EXPONENT]))


def _empty() -> pl.DataFrame:
    return tables.frame({"variant": [], "layer": [], "sample": [], "metric": [], "value": []})


_METRIC: Final = "relative_residual"
_MOST: Final = 8


def remedies(subject: kit.Subject, on_step: kit.OnStep) -> Listing:
    """What other skips, norms and masks would do to the residual, best first; none if none helps.

    Nothing is trained anew: the figures say what the structure does to these weights' tokens, not
    how well such a model would work.
    """
    network, tokens = subject.network, subject.x.shape[1]
    before = _lowest(subject, network)
    tried = []
    for change, _ in kit.tracked(advice.changes(drawable(network), tokens), on_step):
        spec = replace(change.spec, scores=network.spec.scores)
        try:
            after = _lowest(subject, network.with_structure(spec))
        except RankscopeError:  # it needs other weights, or does not fit this input
            continue
        if after[0] >= thresholds.REMEDY_FACTOR * before[0]:
            tried.append((change.words, *after))
    best = sorted(tried, key=lambda row: -row[1])[:_MOST]
    note = "" if best else "Nothing that was tried on these weights helps."
    return Listing(
        "On this very model, with its own weights: relative residual (medians over the samples)",
        ("change", "lowest", "after the last layer"),
        (("as it is", *before), *best),
        note or "Nothing was trained anew: a model that works needs training with the change.",
    )


def _lowest(subject: kit.Subject, network: Network) -> tuple[float, float]:
    """The lowest residual of all layers, and that after the last."""
    found = tables.summary(subject.with_network(network).trace([_METRIC]).table).sort("layer")
    by_layer = found["median"].to_list()
    return min(by_layer), by_layer[-1]
