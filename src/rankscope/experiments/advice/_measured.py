"""The same figures of networks that were really drawn."""

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

from rankscope.core.deep import deep_trace
from rankscope.core.network import Network, Spec
from rankscope.core.prediction import measured_gradients
from rankscope.core.tracing import trace
from rankscope.streams import stream_seed

_BLURRED = 1e-4
"""Relative dispersions below which float32 may tell its own rounding."""
_LARGE = 1e9
"""Tokens from whose size on squares may leave float32."""
_METRICS = ("relative_dispersion", "token_norm", "attention_entropy")
_DISPERSION = "log10_relative_dispersion"


def measured_values(
    spec: Spec, x: Tensor, token_mask: Tensor | None, *, seed: int, number: int, largest: float
) -> dict[str, Float[Tensor, "layer sample"]]:
    """What ``predict`` tells of each layer, measured on one network, the ``number``-th of a seed.

    ``largest`` is how large tokens are expected to become. Its weights have nothing in common with
    what predictions of the same seed draw.
    """
    dtype = torch.float64 if largest > _LARGE else torch.float32
    drawn = stream_seed(seed, "advice", "network", number)
    network = Network.random(spec, seed=drawn, dtype=dtype)
    traced = trace(network, x.to(dtype), metrics=_METRICS, token_mask=token_mask).table
    values = {name: _by_layer(traced, name) for name in _METRICS}
    apart = values["relative_dispersion"]
    values[_DISPERSION] = apart.log10()
    if bool((apart < _BLURRED).any()):
        deep = deep_trace(network, x.double(), norm="fro", token_mask=token_mask).table
        values[_DISPERSION] = _by_layer(deep, "log10_relative_residual")
    return values | measured_gradients(network, x, token_mask=token_mask, seed=drawn)


def _by_layer(table: pl.DataFrame, metric: str) -> Float[Tensor, "layer sample"]:
    """Means over heads, by layer and sample; not a number where the input has none."""
    rows = table.filter(pl.col("metric") == metric)
    means = rows.group_by("layer", "sample").agg(pl.col("value").mean())
    shape = int(table["layer"].max()) + 1, int(table["sample"].max()) + 1  # type: ignore[arg-type]
    out = torch.full(shape, torch.nan, dtype=torch.float64)
    for layer, sample, value in means.select("layer", "sample", "value").iter_rows():
        out[layer, sample] = value
    return out
