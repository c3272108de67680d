"""Scaled arithmetic beside the oracle: by how much the logarithms of residuals differ."""

import itertools

import torch
from torch import Tensor

from rankscope.core.deep import deep_trace
from rankscope.core.network import Network
from rankscope.core.tracing import Trace

from . import stored
from .oracle import Measure, settled

MEASURES = [
    Measure(norm, center, relative)
    for norm, center, relative in itertools.product(
        ("composite", "one", "inf", "fro"), ("mean", "median"), (False, True)
    )
]
USUAL = [Measure(), Measure(relative=True)]


def by_layer(trace: Trace, metric: str) -> Tensor:
    """One metric of a trace as ``(layer, sample)``; layers without it are left out."""
    found: dict[int, list[float]] = {}
    columns = trace.columns
    for layer, name, value in zip(
        columns["layer"], columns["metric"], columns["value"], strict=True
    ):
        if name == metric:
            found.setdefault(layer, []).append(value)
    return torch.tensor(list(found.values()), dtype=torch.float64)


def deep_residuals(
    network: Network, x: Tensor, token_mask: Tensor | None, measures: list[Measure]
) -> dict[Measure, Tensor]:
    """What scaled arithmetic says, as the oracle would: ``(layer + 1, batch)`` for each measure."""
    traces = {
        (norm, center): deep_trace(network, x, norm=norm, center=center, token_mask=token_mask)
        for norm, center in {(m.norm, m.center) for m in measures}
    }
    names = {False: "log10_residual", True: "log10_relative_residual"}
    return {m: by_layer(traces[m.norm, m.center], names[m.relative]) for m in measures}


def gap(
    network: Network,
    x: Tensor,
    token_mask: Tensor | None = None,
    *,
    measures: list[Measure] = USUAL,
    most: int = 4000,
    live: bool = False,
) -> float:
    """The largest difference from the oracle at any layer, relative where a logarithm is large.

    Infinite where one of the two says that nothing is left and the other that something is. The
    oracle's answers are stored, unless it is asked ``live``.
    """
    ask = settled if live else stored.residuals
    expected = ask(network, x, token_mask, measures, most=most)
    got = deep_residuals(network, x, token_mask, measures)
    gaps = [difference(got[measure], expected[measure]) for measure in measures]
    return float(torch.stack(gaps).amax())


def difference(got: Tensor, expected: Tensor) -> Tensor:
    """The largest ``|got − expected| / max(1, |expected|)``, zero where both are the same."""
    apart = (got - expected).abs() / expected.abs().clamp(min=1)
    return torch.where(got == expected, 0.0, apart.nan_to_num(torch.inf)).amax()
