"""From a state to figures in plain numbers; the quick ones first, the slow ones apart.

A figure is a list of rows for a chart. Where one cannot be had, its reason stands in ``notes``.
"""

import copy
import math
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from rankscope.core.deep import deep_trace
from rankscope.core.metrics import spectra
from rankscope.core.network import Block, Network
from rankscope.core.tracing import trace
from rankscope.process.threads import one_thread
from rankscope.show.lab._network import DTYPES, input_of, mask_of, network_of, spec_of
from rankscope.show.lab._places import place_tokens
from rankscope.show.lab._rows import Rows, by_layer, or_reason
from rankscope.show.lab._slow import SLOW
from rankscope.show.lab._state import State
from rankscope.show.lab._ticks import choose_ticks
from rankscope.show.lab._words import describe_first, describe_second


def first(state: State) -> dict[str, Any]:
    """The mask, the tokens' ways, residuals and spectra."""
    with one_thread(), torch.no_grad():
        network, x = network_of(state), input_of(state)
        states = _finite_states(network, x)
        notes: dict[str, str] = {}
        if len(states) <= state.layers:
            notes["plane"] = f"In float64 layer {len(states)} overflows, so the ways end before it."
        found: dict[str, Any] = {
            "description": spec_of(state).describe(),
            "query": state.query(),
            "mask": mask_rows(state),
            "places": place_tokens(states),
            "residual": _residuals(state, network, x, notes),
            "spectrum": _spectrum(states),
            "notes": notes,
        }
    found["ticks"] = _ticks(residual=found["residual"])
    return {**found, **describe_first(state, found)}


def second(state: State) -> dict[str, Any]:
    """Path lengths, the prediction and the bounds."""
    with one_thread(), torch.no_grad():
        network, x = network_of(state), input_of(state)
        notes: dict[str, str] = {}
        found: dict[str, Any] = {"query": state.query(), "notes": notes}
        for name, compute in SLOW.items():
            found[name] = or_reason(name, partial(compute, network, x, notes), notes)
    found["ticks"] = _ticks(prediction=found["prediction"], bounds=found["bounds"])
    return {**found, **describe_second(state, found)}


def _ticks(**charts: Rows) -> dict[str, list[float]]:
    """Where the axes of logarithms have ticks, by the numbers in their rows."""
    names = ("value", "mean", "low", "high", "measured")
    return {
        chart: choose_ticks(row[name] for row in rows for name in names if name in row)
        for chart, rows in charts.items()
    }


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
    rows = or_reason("residual", partial(_scaled_rows, network, x, notes), notes)
    for name in dict.fromkeys(("float64", state.format)):
        rows += or_reason(name, partial(_float_rows, network, x, name, notes), notes)
    return rows


def _scaled_rows(network: Network, x: Tensor, notes: dict[str, str]) -> Rows:
    deep = deep_trace(network, x)
    if "doubt" in deep.provenance.notes:
        notes["doubt"] = deep.provenance.notes["doubt"]
    found = by_layer(deep, "log10_relative_residual")
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
        for layer, v in by_layer(traced, "relative_residual").items()
    ]


def _spectrum(states: list[Tensor]) -> Rows:
    """σᵢ/σ₁ of each layer's tokens; what is rounding counts as zero."""
    rows = []
    for layer, state in enumerate(states):
        one = spectra(state)
        for at, value in enumerate(one.scaled.tolist(), start=1):
            log = math.log10(value) if value > float(one.noise) else None
            rows.append({"layer": layer, "index": at, "value": log})
    return rows
