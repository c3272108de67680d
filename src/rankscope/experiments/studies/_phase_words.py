"""What maps of designs say in words: where the boundary lies, and how measurements agree."""

import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Final

import polars as pl

from rankscope import metric_catalogue
from rankscope.numerals import plural, sentence_case, short

PREDICTED, MEASURED = "predicted", "measured"
COLLAPSE_LAYER: Final = "collapse_layer"
_PLACE: Final = ("model", "parameter", "setting", "layer", "metric")
_FOLLOWED: Final = 1e-10
"""Figures below which a plain pass in float64 has lost its digits; they are not compared."""


_ROUNDING: Final = 1 + 1e-4
"""Draws that differ by less are alike but for rounding, which a norm sees to; nothing is said."""


def boundary(table: pl.DataFrame, model: str, parameter: str, threshold: float) -> str:
    """Where on one map the tokens collapse: at which settings, and how soon."""
    rows = table.filter(model=model, parameter=parameter, variant=PREDICTED)
    found = rows.filter(metric=COLLAPSE_LAYER).sort("setting")
    reached = dict(zip(found["setting"].to_list(), found["value"].to_list(), strict=True))
    layers = int(rows["layer"].max())  # type: ignore[arg-type]  # there are layers
    name = f"{sentence_case(parameter.replace('_', ' '))}, {model}"
    inside = [not math.isnan(layer) for layer in reached.values()]
    settings = list(reached)
    if not any(inside):
        least = rows.filter(metric="relative_dispersion").group_by("setting", "layer")
        lowest = float(least.agg(pl.col("value").mean())["value"].min())  # type: ignore[arg-type]
        return (
            f"{name}: no collapse at any setting from {short(settings[0])} to "
            f"{short(settings[-1])} within {plural(layers, 'layer')}; the relative dispersion "
            f"stays above {math.floor(100 * lowest) / 100:g}."
        )
    soonest, latest = (
        pick((each for each in settings if not math.isnan(reached[each])), key=reached.__getitem__)
        for pick in (min, max)
    )
    ends = f"soonest at layer {reached[soonest]:.0f} ({short(soonest)})"
    if reached[latest] != reached[soonest]:
        ends += f", latest at layer {reached[latest]:.0f} ({short(latest)})"
    return (
        f"{name}: the relative dispersion falls below {threshold:g} within "
        f"{plural(layers, 'layer')} {_ranges(settings, inside)}, {ends}."
    )


def _ranges(settings: Sequence[float], inside: Sequence[bool]) -> str:
    """The settings that are inside, runs of neighbours as ranges.

    >>> _ranges([1.0, 2.0, 3.0, 4.0], [False, True, True, True]), _ranges([1.0, 2.0], [True] * 2)
    ('at settings 2 to 4', 'at every setting')
    """
    if all(inside):
        return "at every setting"
    runs = []
    for side, group in groupby(zip(settings, inside, strict=True), key=lambda pair: pair[1]):
        run = [short(setting) for setting, _ in group]
        if side:
            runs.append(run[0] if len(run) == 1 else f"{run[0]} to {run[-1]}")
    return f"at settings {', '.join(runs)}"


def agreement(table: pl.DataFrame, draws: int) -> Iterator[str]:
    """How measured networks lie beside the draws, and where they are furthest from their mean."""
    rows = table.filter(pl.col("metric") != COLLAPSE_LAYER)
    value, low, high = pl.col("value"), pl.col("low"), pl.col("high")
    drawn = (
        rows.filter(variant=PREDICTED)
        .group_by(*_PLACE)
        .agg(
            value.log().mean().exp().alias("mean"),
            value.min().alias("low"),
            value.max().alias("high"),
        )
    )
    measured = (
        rows.filter(variant=MEASURED)
        .join(drawn, on=list(_PLACE), maintain_order="left")
        .filter((value > _FOLLOWED) & (low > _FOLLOWED) & (high > _ROUNDING * low))
        .with_columns(
            (value / pl.col("mean")).log().abs().alias("apart"),
            value.is_between(low, high).alias("inside"),
        )
    )
    if measured.is_empty():
        return
    share = measured["inside"].sum() / measured.height
    if draws > 1:
        expected = (draws - 1) / (draws + 1)
        yield (
            f"Of {measured.height:,} measured figures {share:.0%} lie between the least and the "
            f"largest of {plural(draws, 'draw')}, where {expected:.0%} are expected of networks "
            "from one law."
        )
    furthest = [_furthest(part) for _, part in measured.group_by("metric", maintain_order=True)]
    yield (
        "Measured beside the geometric mean of the draws, the largest differences: "
        f"{'; '.join(furthest)}."
    )


def _furthest(part: pl.DataFrame) -> str:
    """Where a metric differs most from its mean prediction, and how it usually does."""
    row: dict[str, Any] = part.sort("apart").row(-1, named=True)
    title = metric_catalogue.metric(row["metric"]).title.lower()
    usual = math.expm1(float(part["apart"].median()))  # type: ignore[arg-type]  # not empty
    return (
        f"{title} {short(row['value'])} where {short(row['mean'])} is predicted "
        f"({row['parameter'].replace('_', ' ')} {short(row['setting'])}, {row['model']}, layer "
        f"{row['layer']}), in the median {short(100 * usual, digits=2)}% off"
    )
