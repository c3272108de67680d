"""Claim 3.1's own inequality, down to the smallest β, and each way to judge it."""

from dataclasses import replace

import polars as pl
import pytest

from rankscope import tables
from rankscope.core.metrics import residual
from rankscope.core.theory import expanding_network, law
from rankscope.experiments import kit
from rankscope.experiments.claims import d4
from rankscope.process.progress import silent

from ..shown import reads
from .small import TINY, tiny

CONFIG = d4.Config(layers=5, betas=(0.1, 1e-3), controls=(0.1,), random_scales=(1.0, 2.0))
FALLING = [0.0, -1.0, -4.0, -13.0, -40.0, -121.0]
QUICKENING = [-0.5 * layer * (layer + 1) for layer in range(13)]
"""Steps that grow by one decade each."""


def made_up(
    kept: dict[float, float], bare: list[float] = FALLING, scales: tuple[float, float] = (1.0, 1.0)
) -> pl.DataFrame:
    curves = {d4._name(d4.EXPANDING, beta): [0.0] * 5 + [least] for beta, least in kept.items()}
    curves[d4._name(d4.BARE, 0.1)] = bare
    for scale, least in zip((1.0, 2.0), scales, strict=True):
        curves[f"{d4.RANDOM}, LeCun × {scale:g}"] = [0.0, *[least] * 5]
    return tables.from_rows(
        ("variant", "layer", "sample", "metric", "value"),
        [
            (name, layer, sample, metric, value)
            for name, curve in curves.items()
            for layer, value in enumerate(curve)
            for sample in range(2)
            for metric in ("log10_residual", "log10_relative_residual")
        ],
    )


@pytest.mark.parametrize(
    ("table", "verdict", "beyond"),
    [
        (made_up({0.1: 0.0, 1e-3: 0.1}), "Supported for β down to 0.001", "Supported"),
        (made_up({0.1: 0.0, 1e-3: 0.1}, bare=QUICKENING), "Supported", "Supported"),
        (made_up({0.1: 0.0, 1e-3: -0.1}), "Supported for every head", "Supported"),
        (made_up({0.1: 0.0, 1e-3: 0.1}, bare=[0.0] * 6), "Supported for every head", "Supported"),
        (made_up({0.1: -1.0, 1e-3: -1.0}, bare=[0.0] * 6), "Not supported", "Supported"),
        (
            made_up({0.1: 0.0, 1e-3: 0.0}, scales=(1.0, -2.0)),
            "Supported",
            "Supported in part: residuals stay",
        ),
        (made_up({0.1: 0.0, 1e-3: 0.0}, scales=(-1.0, -2.0)), "Supported", "Not supported"),
    ],
)
def test_each_outcome(table: pl.DataFrame, verdict: str, beyond: str) -> None:
    found = kit.conclude(d4.ENTRY, CONFIG, kit.Measured(table))
    assert reads(found.judgement, verdict)
    assert found.beyond is not None
    assert reads(found.beyond, beyond)
    assert all(sentence.endswith(".") for sentence in found.sentences)


def test_a_fall_whose_steps_grow_linearly_is_between_and_a_collapse() -> None:
    found = law(QUICKENING)
    assert (found.kind, found.collapses) == ("between", True)


def test_one_layer_of_one_sample_below_its_input_is_noticed() -> None:
    """And a residual is compared with its own sample's input, not with that of another."""
    rows = [(0, 0, 1.0), (1, 0, 1.5), (2, 0, 1.2), (0, 1, 5.0), (1, 1, 4.75), (2, 1, 5.5)]
    table = tables.from_rows(
        ("variant", "layer", "sample", "metric", "value"),
        [("a", layer, sample, "log10_residual", value) for layer, sample, value in rows],
    )
    assert d4.least_kept(table, "a") == -0.25
    assert d4.least_kept(table.filter(sample=0), "a") == pytest.approx(0.2)


def test_the_figures_are_those_of_plain_numbers() -> None:
    config = TINY["d4"][1]
    found, _ = tiny("d4")
    x, token_mask = config.texts()
    network = expanding_network(config.layers, config.width, beta=0.1, seed=config.seed)
    rows = found.table.filter(
        metric="log10_residual", variant=d4._name(d4.EXPANDING, 0.1), layer=config.layers
    )
    want = residual(network(x, token_mask), center="median", token_mask=token_mask)
    assert rows.sort("sample")["value"].to_list() == pytest.approx(want.log10().tolist())
    (listing,) = found.listings
    changes = {row[0]: row[1:] for row in listing.rows}
    assert len(changes) == found.table["variant"].n_unique()
    at_input = residual(x, center="median", token_mask=token_mask)
    lowest = min(
        float((residual(each.detach(), center="median", token_mask=token_mask) / at_input).min())
        - 1
        for each in network.states(x, token_mask)
    )
    assert changes[d4._name(d4.EXPANDING, 0.1)][0] == pytest.approx(lowest)
    assert changes[d4._name(d4.BARE, 0.1)][-1] == "doubly exponential"
    least = d4.least_kept(found.table, d4._name(d4.EXPANDING, 1e-12))
    assert 0 < least < 1e-11
    assert list(found.key_figures.values()) == [10**least]


def test_two_runs_are_equal() -> None:
    module, config = TINY["d4"]
    assert module.ENTRY.run(config, silent).table.equals(tiny("d4")[0].table)


def test_without_random_networks_nothing_is_said_beyond() -> None:
    module, config = TINY["d4"]
    found = module.ENTRY.run(replace(config, random_scales=()), silent)
    assert found.beyond is None
    assert found.verdict == "holds"
