"""``deep_trace``: residuals of every layer as logarithms, however small."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from rankscope.arguments import checked
from rankscope.core.checks import measured_tokens
from rankscope.core.deep._doubts import (
    Beside,
    LayerRecords,
    Measurement,
    Notes,
    first_layers_in_doubt,
    step_away,
)
from rankscope.core.deep._run import later_states, prepare
from rankscope.core.deep._split_state import SplitState
from rankscope.core.metrics import Center, Norm
from rankscope.core.network import Network
from rankscope.core.shapes import PerSample
from rankscope.core.tracing import Columns, Provenance, Trace
from rankscope.errors import InputError
from rankscope.numerals import list_words

_LOG_10 = math.log(10)


@checked
def deep_trace(
    network: Network,
    x: Tensor,
    *,
    norm: Norm = "composite",
    center: Center = "mean",
    token_mask: Tensor | None = None,
    measured: Tensor | None = None,
    on_step: Callable[[float], None] | None = None,
    on_state: Callable[[SplitState], None] | None = None,
) -> Trace:
    """Run a network in scaled arithmetic and take every layer's residual, to 10^−100000 and below.

    >>> import torch
    >>> from rankscope import Network, Spec, deep_trace
    >>> san = Network.random(Spec.pure_attention(9, 2, 8), seed=0)
    >>> deep = deep_trace(san, torch.randn(1, 5, 8))
    >>> max(deep.columns["layer"])
    9

    By layer (0 is the input) and sample: ``log10_residual``, ``log10_relative_residual``; and from
    layer 1 on what the layer made of the residual r before it: ``local_exponent``, the ratio of the
    two log-residuals (3 for pure full attention, 1 for linear decay, undefined where r is 1);
    ``log10_contraction``, of ``r'/r``, level where collapse is exponential; and
    ``log10_cubic_constant``, of ``r'/r³``, level where it is doubly exponential. Tokens that are
    all equal have ``log10_residual`` minus infinity.
    ``measured`` says which tokens count, as in ``trace``. ``on_step`` is called after each layer
    with the share of the layers that is done, ``on_state`` with the hidden state of each, that of
    the input first.

    Logarithms are good to ten digits or so, relative where they are large, as long as tokens differ
    by what is left of them beside one common row. Differences *inside* a group of tokens that agree
    to sixteen digits while others do not are lost (saturated attention, deviations that a norm or a
    projection takes away). Every sum measures how many digits it loses, and samples in which that
    is more than usual are run again with every result rounded at random: where that moves a
    logarithm by more than 1e-7, the residual is in doubt from that layer on, and so it is where
    tokens have become equal by underflow. Then the table has a column ``doubt``, and the provenance
    notes the layers and samples.
    """
    original = network
    network, x, token_mask = prepare(network, x, token_mask)
    if measured is not None:
        measured = measured_tokens(measured, token_mask, tuple(x.shape[:-1]))
    measurement = Measurement(norm, center, measured)
    notes = {"arithmetic": "scaled, float64", "norm": norm, "center": center}
    start = SplitState.of(x.detach(), token_mask)
    read, beside = _run(network, start, measurement, on_step, on_state)
    beyond = read.beyond[1:].any(1)
    if bool(beyond.any()):
        layer = 1 + int(beyond.to(torch.uint8).argmax())
        notes["beyond"] = f"from layer {layer} on the logarithm is below −1.8e308"
    doubts = first_layers_in_doubt(network, x.detach(), start, measurement, read, beside)
    columns = _columns(read.clean / _LOG_10, doubts)
    if "doubt" in columns:
        notes["doubt"] = describe_doubts(columns)
    origin = Provenance.of(original, {"x": x}, token_mask=token_mask, measured=measured)
    return Trace(columns, replace(origin, notes=notes))


def _run(
    network: Network,
    start: SplitState,
    measurement: Measurement,
    on_step: Callable[[float], None] | None,
    on_state: Callable[[SplitState], None] | None,
) -> tuple[LayerRecords, Beside | None]:
    """Run all layers; return their logarithms and records without GPU synchronisation."""
    count, together, noted = len(start.mantissa), start, Notes()
    logarithms = measurement.logarithms(start)
    noted.add(start, logarithms)
    if on_state is not None:
        on_state(start)
    beside = step_away(network, start, logarithms)
    if beside is not None:
        together, measurement = start.join(beside.state), measurement.with_one_more(beside.of)
    for layer, state in later_states(network, together):
        samples = state if beside is None else state.first(count)
        noted.add(samples, measurement.logarithms(state))
        if on_step is not None:
            on_step(layer / network.spec.layers)
        if on_state is not None:
            on_state(samples)
    return noted.read(), beside


@checked
def describe_doubts(columns: Columns) -> str:
    """The samples of a trace that are in doubt, and from which layer on; empty if none is.

    >>> from rankscope.core.deep import describe_doubts
    >>> print(describe_doubts({"sample": [0, 0], "layer": [1, 2], "doubt": [False, True]}))
    from layer 2 on the residuals of the sample are in doubt: ...
    """
    if not {"sample", "layer"} <= set(columns):
        raise InputError("expected columns sample, layer and, if any figure is in doubt, doubt.")
    rows = zip(columns["sample"], columns["layer"], columns.get("doubt", ()), strict=False)
    first: dict[int, int] = {}
    for sample, layer, doubt in rows:
        if doubt:
            first[sample] = min(layer, first.get(sample, layer))
    if not first:
        return ""
    count = len(set(columns["sample"]))
    whose = f"{len(first)} of {count} samples ({list_words([str(n) for n in sorted(first)])})"
    if len(first) == count:
        whose = "all samples" if count > 1 else "the sample"
    start, end = min(first.values()), max(first.values())
    where = f"layer {start}" if start == end else f"layers {start} to {end}"
    return (
        f"from {where} on the residuals of {whose} are in doubt: the differences between tokens "
        "are smaller than the rounding errors of float64"
    )


def _metrics(clean: Float[Tensor, "layer 2 batch"]) -> Iterator[tuple[int, str, PerSample]]:
    """The metrics of each layer that follow from the two base-10 logarithms."""
    for layer, (log, log_norm) in enumerate(clean):
        yield layer, "log10_residual", log
        # As everywhere, 0 / 0 is 0.
        yield layer, "log10_relative_residual", torch.where(log.isneginf(), log, log - log_norm)
        if layer:
            before = clean[layer - 1, 0]
            yield layer, "local_exponent", torch.where(before == 0, math.nan, log / before)
            yield layer, "log10_contraction", _less(log, before)
            yield layer, "log10_cubic_constant", _less(log, 3 * before)


def _less(after: PerSample, before: PerSample) -> PerSample:
    """A difference of logarithms; NaN where both are minus infinity."""
    return torch.where(
        before.isneginf(), torch.where(after.isneginf(), math.nan, math.inf), after - before
    )


def _columns(clean: Float[Tensor, "layer 2 batch"], first: PerSample) -> Columns:
    """The long table; if any figure is in doubt, with a column ``doubt``."""
    columns: Columns = {"layer": [], "sample": [], "metric": [], "value": []}
    doubts: list[object] = []
    for layer, metric, values in _metrics(clean):
        columns["layer"] += [layer] * len(values)
        columns["sample"] += list(range(len(values)))
        columns["metric"] += [metric] * len(values)
        columns["value"] += values.tolist()
        doubts += (first <= layer).tolist()
    return {**columns, "doubt": doubts} if any(doubts) else columns
