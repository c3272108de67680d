"""From a state to figures in plain numbers; the quick ones first, the slow ones apart.

A figure is a list of rows for a chart. Where one cannot be had, its reason stands in ``notes``.
"""

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from rankscope.deep import deep_trace
from rankscope.errors import RankscopeError
from rankscope.lab._network import DTYPES, input_of, mask_of, network_of, spec_of
from rankscope.lab._places import place_tokens
from rankscope.lab._state import State
from rankscope.lab._words import describe_first, describe_second
from rankscope.metrics import spectra
from rankscope.network import Block, Network
from rankscope.paths import path_lengths
from rankscope.prediction import predict
from rankscope.theory import bounds
from rankscope.threads import one_thread
from rankscope.tracing import Trace, trace

Rows = list[dict[str, Any]]
DRAWS = {False: 8, True: 3}
"""Networks of which a prediction is made; fewer where layers share weights and all are drawn."""
ROUNDING = 1e-12
"""A relative residual below which float64 has too few digits of it left to be divided up."""
_CURVES = {
    "log10_residual": "measured",
    "log10_sharp_bound": "sharp, this layer",
    "log10_data_bound": "data, this layer",
    "log10_a_priori_bound": "a priori, this layer",
    "log10_depth_bound": "Dong et al. 2021, all layers",
}
"""Which bounds are drawn, and their names in the legend."""


def first(state: State) -> dict[str, Any]:
    """The mask, the tokens' ways, residuals and spectra."""
    with one_thread(), torch.no_grad():
        network, x = network_of(state), input_of(state)
        states = _finite_states(network, x)
        notes: dict[str, str] = {}
        if len(states) <= state.layers:
            notes["plane"] = f"In float64 layer {len(states)} overflows, so the ways end before it."
        found = {
            "description": spec_of(state).describe(),
            "query": state.query(),
            "mask": mask_rows(state),
            "places": place_tokens(states),
            "residual": _residuals(state, network, x, notes),
            "spectrum": _spectrum(states),
            "notes": notes,
        }
    return {**found, **describe_first(state, found)}


def second(state: State) -> dict[str, Any]:
    """Path lengths, the prediction and the bounds."""
    with one_thread(), torch.no_grad():
        network, x = network_of(state), input_of(state)
        notes: dict[str, str] = {}
        found: dict[str, Any] = {"query": state.query(), "notes": notes}
        for name, compute in _SLOW.items():
            found[name] = _or_reason(name, partial(compute, network, x, notes), notes)
    return {**found, **describe_second(state, found)}


def mask_rows(state: State) -> list[str]:
    """The mask as rows of ones and zeros: who attends, then to whom."""
    position = torch.arange(state.tokens)
    sees = mask_of(state).allows(position[:, None], position[None, :])
    matrix = sees.expand(state.tokens, state.tokens).int().tolist()
    return ["".join(map(str, row)) for row in matrix]


def _finite_states(network: Network, x: Tensor) -> list[Tensor]:
    """The input and every layer's state, up to where float64 overflows."""
    states = [x[0]]
    for state in network.states(x):
        if not bool(state.isfinite().all()):
            break
        states.append(state[0])
    return states


def _residuals(state: State, network: Network, x: Tensor, notes: dict[str, str]) -> Rows:
    """The relative residual by layer: in scaled arithmetic, float64 and the chosen format."""
    rows = _or_reason("residual", partial(_scaled_rows, network, x, notes), notes)
    for name in dict.fromkeys(("float64", state.format)):
        rows += _or_reason(name, partial(_float_rows, network, x, name, notes), notes)
    return rows


def _scaled_rows(network: Network, x: Tensor, notes: dict[str, str]) -> Rows:
    deep = deep_trace(network, x)
    if "doubt" in deep.provenance.notes:
        notes["doubt"] = deep.provenance.notes["doubt"]
    found = _by_layer(deep, "log10_relative_residual")
    return [{"layer": layer, "arithmetic": "scaled", "value": v} for layer, v in found.items()]


def _float_rows(network: Network, x: Tensor, name: str, notes: dict[str, str]) -> Rows:
    """As a number format has it, up to the layer in which it overflows."""
    rounded, tokens = copy.deepcopy(network).to(DTYPES[name]), x.to(DTYPES[name])
    layers = len(_finite_states(rounded, tokens)) - 1
    if layers < network.spec.layers:
        notes[name] = f"it overflows in layer {layers + 1}"
    if not layers:
        return []
    blocks = cast(list[Block], list(rounded.blocks)[:layers])
    within = Network(replace(network.spec, layers=layers), blocks)
    traced = trace(within, tokens, metrics="relative_residual")
    return [
        {"layer": layer, "arithmetic": name, "value": math.log10(v) if v > 0 else None}
        for layer, v in _by_layer(traced, "relative_residual").items()
    ]


def _by_layer(traced: Trace, metric: str) -> dict[int, float]:
    columns = traced.columns
    every = zip(columns["layer"], columns["metric"], columns["value"], strict=True)
    return {layer: value for layer, name, value in every if name == metric}


def _spectrum(states: list[Tensor]) -> Rows:
    """σᵢ/σ₁ of each layer's tokens; what is rounding counts as zero."""
    rows = []
    for layer, state in enumerate(states):
        one = spectra(state)
        for at, value in enumerate(one.scaled.tolist(), start=1):
            log = math.log10(value) if value > float(one.noise) else None
            rows.append({"layer": layer, "index": at, "value": log})
    return rows


def _paths(network: Network, x: Tensor, notes: dict[str, str]) -> Rows:
    """What paths of each length carry in the last layer, unless all they carry is rounding."""
    left = _by_layer(trace(network, x, metrics="relative_residual"), "relative_residual")
    if min(left.values()) < ROUNDING:
        notes["paths"] = (
            "In float64 the tokens have become equal but for rounding, so paths have no shares "
            "in what tells them apart."
        )
        return []
    columns = path_lengths(network, x).columns
    names = ("layer", "length", "metric", "value")
    last = network.spec.layers
    return [
        {"length": length, "share": value}
        for layer, length, metric, value in zip(*(columns[n] for n in names), strict=True)
        if layer == last and metric == "residual_share" and length is not None
    ]


def _prediction(network: Network, x: Tensor, notes: dict[str, str]) -> Rows:
    """The band of random networks like this one, and this one, in the Frobenius norm."""
    found = predict(network.spec, x[0], draws=DRAWS[network.spec.shared_layers])
    if "doubt" in found.notes:
        notes["prediction_doubt"] = found.notes["doubt"]
    band = found.band("log10_relative_dispersion")
    measured = _by_layer(deep_trace(network, x, norm="fro"), "log10_relative_residual")
    curves = zip(*(each.tolist() for each in band), strict=True)
    return [
        {"layer": layer, "mean": mean, "low": low, "high": high, "measured": measured[layer]}
        for layer, (mean, low, high) in enumerate(curves)
    ]


def _bounds(network: Network, x: Tensor, notes: dict[str, str]) -> Rows:
    """Each bound by layer beside the residual; why there is none is noted."""
    found = bounds(network, x)
    reasons = {layer.why_not: layer.layer for layer in reversed(found.layers) if layer.why_not}
    for reason, layer in reasons.items():
        notes["bounds"] = f"From layer {layer} on no bound applies: {reason}."
    return [
        {"layer": layer.layer, "curve": words, "value": value}
        for layer in found.layers
        if not layer.why_not
        for name, words in _CURVES.items()
        if math.isfinite(value := float(getattr(layer, name)[0]))
    ]


_SLOW: Mapping[str, Callable[[Network, Tensor, dict[str, str]], Rows]] = {
    "paths": _paths,
    "prediction": _prediction,
    "bounds": _bounds,
}


def _or_reason(name: str, compute: Callable[[], Rows], notes: dict[str, str]) -> Rows:
    """The rows, or none and a note that says why."""
    try:
        return compute()
    except RankscopeError as error:
        notes[name] = str(error)
        return []
