"""Compute the figures of a state, in a fast and a slow part.

A figure is a list of rows for a chart. If it cannot be computed, ``notes`` has the reason.
"""

import copy
import json
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final, cast

import torch
from torch import Tensor

from rankscope.core.deep import deep_trace
from rankscope.core.metrics import spectra
from rankscope.core.network import Block, Network
from rankscope.core.paths import path_lengths
from rankscope.core.prediction import predict
from rankscope.core.theory import bounds
from rankscope.core.tracing import Trace, trace
from rankscope.errors import RankscopeError
from rankscope.numerals import power_of_ten
from rankscope.process import one_thread
from rankscope.show.lab._network import DTYPES, input_of, mask_of, network_of, snippet, spec_of
from rankscope.show.lab._state import State
from rankscope.show.lab._words import BAND, THIS, choose_ticks, describe_first, describe_second

Rows = list[dict[str, Any]]
Notes = dict[str, str]

# Number of random networks of a prediction; fewer if layers share weights, which is slower.
DRAWS: Final = {False: 8, True: 3}
# Relative residual below which float64 has too few digits to split it by path.
_ROUNDING: Final = 1e-12
# Bounds to draw, and their names in the legend.
_BOUNDS: Final = {
    "log10_residual": "measured",
    "log10_sharp_bound": "sharp, this layer",
    "log10_data_bound": "data, this layer",
    "log10_a_priori_bound": "a priori, this layer",
    "log10_depth_bound": "Dong et al. 2021, all layers",
}


@lru_cache(maxsize=32)  # a worker is forked with the figures of the first page (``warm``)
def run_task(task: str, query: str, chart: str = "") -> bytes:
    """The body of a reply; raises RankscopeError if the state is invalid."""
    state = State.read(query)
    if task == "snippet":
        network_of(state)(input_of(state))  # do not offer a program that raises
        return snippet(state).encode()
    if task == "picture":
        # Altair imports polars, which starts threads; a process that forks must have none.
        from rankscope.show.lab._charts import ROWS, picture

        slow = chart in ("paths", "prediction", "bounds")
        figures = (second if slow else first)(state)
        about = textwrap.wrap(f"{spec_of(state).describe()}; seed {state.seed}", 100)
        rows, ticks = clean(figures[ROWS.get(chart, chart)]), figures["ticks"].get(chart, ())
        return picture(chart, rows, subtitle=about, ticks=ticks).encode()
    figures = {"first": first, "second": second}[task](state)
    return json.dumps(clean(figures), allow_nan=False, separators=(",", ":")).encode()


def warm() -> None:
    """Warm up the process that workers are forked from.

    The first call loads kernels and lazy imports; workers forked afterwards reply to their first
    request without delay, and to that of the page as it opens without computing. Uses one thread,
    because a fork copies only one.
    """
    for part in ("first", "second"):
        run_task(part, "")


def clean(value: Any) -> Any:
    """Replace NaN and infinities by None, for JSON."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: clean(inner) for key, inner in value.items()}
    return [clean(inner) for inner in value] if isinstance(value, list) else value


def first(state: State) -> dict[str, Any]:
    """The mask, trajectories of tokens, residuals and spectra."""
    with one_thread(), torch.no_grad():
        network, x = network_of(state), input_of(state)
        states = _finite_states(network, x)
        notes: Notes = {}
        if len(states) <= state.layers:
            notes["plane"] = (
                f"Layer {len(states)} overflows in float64; trajectories end before it."
            )
        position = torch.arange(state.tokens)
        sees = mask_of(state).allows(position[:, None], position[None, :])
        matrix = sees.expand(state.tokens, state.tokens).int().tolist()
        # In scaled arithmetic, float64 and the chosen format.
        residual = _or_reason("residual", notes, _scaled_rows, network, x)
        for name in dict.fromkeys(("float64", state.format)):
            residual += _or_reason(name, notes, _float_rows, network, x, name)
        figures: dict[str, Any] = {
            "description": spec_of(state).describe(),
            "query": state.query(),
            "mask": ["".join(map(str, row)) for row in matrix],  # queries, then keys
            "places": place_tokens(states),
            "residual": residual,
            "spectrum": _spectrum(states),
            "notes": notes,
        }
    figures["ticks"] = _ticks(residual=figures["residual"])
    return {**figures, **describe_first(state, figures)}


def second(state: State) -> dict[str, Any]:
    """Path lengths, the prediction and the bounds."""
    slow = {"paths": _paths, "prediction": _prediction, "bounds": _bounds}
    with one_thread(), torch.no_grad():
        network, x = network_of(state), input_of(state)
        notes: Notes = {}
        figures: dict[str, Any] = {"query": state.query(), "notes": notes}
        for name, compute in slow.items():
            figures[name] = _or_reason(name, notes, compute, network, x)
    figures["ticks"] = _ticks(prediction=figures["prediction"], bounds=figures["bounds"])
    return {**figures, **describe_second(state, figures)}


def _or_reason(name: str, notes: Notes, compute: Callable[..., Rows], *arguments: Any) -> Rows:
    """The rows; if they cannot be computed, none, with the reason in ``notes``."""
    try:
        return compute(*arguments, notes)
    except RankscopeError as error:
        notes[name] = str(error)
        return []


def _curve(name: str, values: Mapping[int, float | None], **spread: Mapping[int, float]) -> Rows:
    """The rows of one curve by layer, for a line chart."""
    return [
        {
            "layer": layer,
            "variant": name,
            "drawn_median": value,
            "exact_median": power_of_ten(-math.inf if value is None else value, digits=3),
            **{f"drawn_{end}": ends[layer] for end, ends in spread.items()},
        }
        for layer, value in values.items()
    ]


def _ticks(**charts: Rows) -> dict[str, list[float]]:
    """Ticks of the logarithmic axes, from the numbers in the rows."""
    names = ("drawn_median", "drawn_low", "drawn_high")
    return {
        chart: choose_ticks(row[name] for row in rows for name in names if name in row)
        for chart, rows in charts.items()
    }


def _finite_states(network: Network, x: Tensor) -> list[Tensor]:
    """The input and every layer's state, up to the first overflow."""
    states = [x[0]]
    for state in network.states(x):
        if not bool(state.isfinite().all()):
            break
        states.append(state[0])
    return states


def place_tokens(states: Sequence[Tensor]) -> Rows:
    """Coordinates of all tokens along the principal axes of all layers together.

    Each layer is first normalised (root mean square of its token norms is one), so that shrinking
    and growing layers stay visible. ``x`` and ``y`` are the first two coordinates; ``sx``, ``sy``,
    ``sz`` are the first three, normalised. Axes pass through the origin, not the mean, so that
    directions are those of the tokens.
    """
    sized = torch.stack([_same_size(state) for state in states])
    places = sized @ principal_axes(sized.flatten(0, 1))
    lengths = places.norm(dim=-1, keepdim=True)
    sphere = places / torch.where(lengths > 0, lengths, 1.0)
    numbers = torch.cat([places[..., :2], sphere], -1).tolist()
    return [
        {"layer": layer, "token": token, "x": x, "y": y, "sx": sx, "sy": sy, "sz": sz}
        for layer, row in enumerate(numbers)
        for token, (x, y, sx, sy, sz) in enumerate(row)
    ]


def principal_axes(rows: Tensor) -> Tensor:
    """The first three right singular vectors as columns, padded with zeros.

    The sign of a vector is arbitrary: its largest entry is made positive, so that a small change of
    the rows does not flip the chart.
    """
    axes = torch.linalg.svd(rows, full_matrices=False).Vh[:3].T
    largest = axes.gather(0, axes.abs().argmax(0, keepdim=True))
    axes = axes * torch.where(largest < 0, -1.0, 1.0)
    return torch.nn.functional.pad(axes, (0, 3 - axes.shape[1]))


def _same_size(state: Tensor) -> Tensor:
    largest = state.abs().amax()  # avoids overflow and underflow of squares
    if not largest > 0:
        return state
    state = state / largest
    return state / state.square().sum(-1).mean().sqrt()


def _by_layer(traced: Trace, metric: str) -> dict[int, float]:
    """One metric of a single sample, by layer."""
    columns = traced.columns
    every = zip(columns["layer"], columns["metric"], columns["value"], strict=True)
    return {layer: value for layer, name, value in every if name == metric}


def _scaled_rows(network: Network, x: Tensor, notes: Notes) -> Rows:
    deep = deep_trace(network, x)
    if "doubt" in deep.provenance.notes:
        notes["doubt"] = deep.provenance.notes["doubt"]
    return _curve("scaled", _by_layer(deep, "log10_relative_residual"))


def _float_rows(network: Network, x: Tensor, name: str, notes: Notes) -> Rows:
    """The curve of a number format, up to the layer in which it overflows."""
    rounded, tokens = copy.deepcopy(network).to(DTYPES[name]), x.to(DTYPES[name])
    layers = len(_finite_states(rounded, tokens)) - 1
    if layers < network.spec.layers:
        notes[name] = f"it overflows in layer {layers + 1}"
    if not layers:
        return []
    blocks = cast(list[Block], list(rounded.blocks)[:layers])
    within = Network(replace(network.spec, layers=layers), blocks)
    traced = _by_layer(trace(within, tokens, metrics="relative_residual"), "relative_residual")
    return _curve(name, {at: math.log10(v) if v > 0 else None for at, v in traced.items()})


def _spectrum(states: list[Tensor]) -> Rows:
    """log10(σᵢ/σ₁) of each layer's tokens; values below rounding are None."""
    rows = []
    for layer, state in enumerate(states):
        spectrum = spectra(state)
        for index, value in enumerate(spectrum.scaled.tolist(), start=1):
            log = math.log10(value) if value > float(spectrum.noise) else None
            rows.append({"across": layer, "up": index, "shade": log})
    return rows


def _paths(network: Network, x: Tensor, notes: Notes) -> Rows:
    """Contribution of paths by length at the last layer, unless it is below rounding."""
    left = _by_layer(trace(network, x, metrics="relative_residual"), "relative_residual")
    if min(left.values()) < _ROUNDING:
        notes["paths"] = (
            "In float64 the tokens are equal up to rounding, so that the residual cannot be split "
            "by path length."
        )
        return []
    columns = path_lengths(network, x).columns
    names = ("layer", "length", "metric", "value")
    return [
        {"length": length, "share": value}
        for layer, length, metric, value in zip(*(columns[n] for n in names), strict=True)
        if layer == network.spec.layers and metric == "residual_share" and length is not None
    ]


def _prediction(network: Network, x: Tensor, notes: Notes) -> Rows:
    """The band of random networks of this architecture, and this network; Frobenius norm."""
    predicted = predict(network.spec, x[0], draws=DRAWS[network.spec.shared_layers])
    if "doubt" in predicted.notes:
        notes["prediction_doubt"] = predicted.notes["doubt"]
    mean, low, high = (
        dict(enumerate(values.tolist())) for values in predicted.band("log10_relative_dispersion")
    )
    measured = _by_layer(deep_trace(network, x, norm="fro"), "log10_relative_residual")
    return _curve(BAND, mean, low=low, high=high) + _curve(THIS, measured)


def _bounds(network: Network, x: Tensor, notes: Notes) -> Rows:
    """The residual and its bounds by layer; ``notes`` says why a bound does not apply."""
    layers = bounds(network, x).layers
    reasons = {layer.why_not: layer.layer for layer in reversed(layers) if layer.why_not}
    for reason, at in reasons.items():
        notes["bounds"] = f"No bound applies from layer {at} on: {reason}."
    rows: Rows = []
    for name, words in _BOUNDS.items():
        values = {at.layer: float(getattr(at, name)[0]) for at in layers if not at.why_not}
        rows += _curve(words, {at: value for at, value in values.items() if math.isfinite(value)})
    return rows
