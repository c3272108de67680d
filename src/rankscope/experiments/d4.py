"""Claim D4: with skips there are infinitely many networks whose residual does not shrink."""

import math
from collections.abc import Callable
from dataclasses import asdict
from functools import partial

import polars as pl

from rankscope import tables
from rankscope.deep import Scaled
from rankscope.experiments.claims import Claim, overall
from rankscope.experiments.depths import Texts, deep_table, laws
from rankscope.experiments.laws import medians, power_of_ten
from rankscope.network import Network
from rankscope.theory import keeping_network
from rankscope.tracing import Provenance

STATEMENT = (
    "Skips stop the collapse: there are infinitely many parameterisations whose residual does not "
    "shrink at any depth."
)
LAYERS = 64
STRENGTHS = (0.0, 0.5, 1.0, 2.0)
KEPT, WIDTH = 8, 32
_METRIC = "log10_residual"
_ROUNDING = 1e-9


def d4(*, seed: int = 0, on_network: Callable[[], None] | None = None) -> Claim:
    """Members of a continuous family of networks with skips, and each without its skips.

    A member bears the claim out if its residual never falls below that of the features it keeps,
    while the same weights without skips collapse.
    """
    reading = Texts(width=WIDTH, seed=seed)
    x, token_mask = reading()
    whole = {_name(s): partial(_network, s, seed) for s in STRENGTHS}
    bare = {f"{name}, no skip": partial(_bare, make) for name, make in whole.items()}
    table = deep_table(whole | bare, x, token_mask, on_network=on_network)
    kept = Scaled.of(x[..., :KEPT], token_mask).log_residual() / math.log(10)
    floor = dict(enumerate(kept.tolist()))
    summary = tables.summary(table)
    ends = laws(summary, _METRIC)
    borne_out, reasons = {}, []
    for name in whole:
        least = _least(table, name)
        stays = all(value >= floor[s] - _ROUNDING for s, value in least.items())
        gone = ends[f"{name}, no skip"]
        borne_out[name] = stays and gone.kind != "none"
        first, last = (medians(summary, _METRIC, variant=name)[k] for k in (0, -1))
        reasons.append(
            f"{name}: residual {power_of_ten(first)} at the input, {power_of_ten(last)} after "
            f"{LAYERS} layers, {'never' if stays else 'and somewhere'} below that of the {KEPT} "
            f"features it keeps; without skips {power_of_ten(gone.last)}."
        )
    return Claim(
        "D4",
        STATEMENT,
        "Dong, Cordonnier, Loukas 2021, claim 3.1",
        overall(borne_out),
        tuple(reasons),
        table,
        summary,
        asdict(Provenance("keeping_network", seed=seed)) | {"input": str(reading)},
        metric=_METRIC,
        figure="by_depth",
        lowest=-30.0,
    )


def steps() -> int:
    """How often ``on_network`` is called."""
    return 2 * len(STRENGTHS)


def _name(strength: float) -> str:
    return f"logits × {strength:g}"


def _network(strength: float, seed: int) -> Network:
    return keeping_network(
        LAYERS, WIDTH, kept=KEPT, heads=2, strength=strength, values=0.3, seed=seed
    )


def _bare(make: Callable[[], Network]) -> Network:
    return make().without("skip")


def _least(table: pl.DataFrame, name: str) -> dict[int, float]:
    """Each sample's smallest residual over all layers."""
    rows = table.filter((pl.col("variant") == name) & (pl.col("metric") == _METRIC))
    least = rows.group_by("sample").agg(pl.col("value").min())
    return dict(least.iter_rows())
