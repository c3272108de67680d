"""What to hold a model against: its architecture at initialisation, measured and predicted."""

from dataclasses import dataclass
from typing import Final

import polars as pl
import torch

from rankscope import tables
from rankscope.errors import RankscopeError
from rankscope.experiments import kit
from rankscope.network import Network, drawable
from rankscope.numerals import short, span_of
from rankscope.prediction import predict

THIS, INITIAL, PREDICTED = "this model", "at initialisation", "predicted"
_CURVES: Final = ("relative_residual", "relative_dispersion")
_DRAWS: Final = 8
_SAMPLES: Final = 2
"""Samples that predictions are made for; every draw reads each of them."""


@dataclass(frozen=True)
class References:
    """Rows by layer under the names above, and why any is missing."""

    table: pl.DataFrame
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
        parts = []
        initial = self.last(INITIAL, "relative_residual")
        if initial is not None:
            beside = "more" if end > 1.1 * initial else "less" if end < 0.9 * initial else "as much"
            than = "as" if beside == "as much" else "than"
            parts.append(
                f"With random weights the same architecture ends at a relative residual of "
                f"{short(initial, digits=2)}, so this one keeps {beside} {than} that "
                f"({short(end, digits=2)})"
            )
        low, high = (self.last(PREDICTED, "relative_dispersion", each) for each in ("low", "high"))
        if low is not None and high is not None:
            side = "within it" if low <= dispersion <= high else "outside"
            parts.append(
                f"random networks of this design are predicted to end at a relative dispersion of "
                f"{span_of(low, high)}, and this one is {side}, at {short(dispersion, digits=2)}"
            )
        said = "; ".join(parts)
        return f"{said[:1].upper()}{said[1:]}." if said else ""


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
    return References(tables.stack(rows) if rows else _empty(), tuple(missing))


def _initial(subject: kit.Subject, seed: int) -> pl.DataFrame:
    spec, x = drawable(subject.network), subject.x
    # Not the network itself, where that was drawn with the same seed.
    other = seed + 1 if subject.network.seed == seed else seed
    twin = Network.random(spec, seed=other, dtype=x.dtype).to(x.device)
    return subject.with_network(twin).trace(list(_CURVES)).table


def _predicted(subject: kit.Subject, seed: int) -> pl.DataFrame:
    subject.refuse_measured("predictions are about all tokens")
    mask = subject.token_mask
    found = predict(
        drawable(subject.network),
        subject.x[:_SAMPLES].to("cpu", torch.float32),
        draws=_DRAWS,
        seed=seed,
        token_mask=mask if mask is None or mask.ndim < 2 else mask[:_SAMPLES].cpu(),
    )
    return found.table.filter(pl.col("metric") == "relative_dispersion")


def _empty() -> pl.DataFrame:
    return tables.frame({"variant": [], "layer": [], "sample": [], "metric": [], "value": []})
