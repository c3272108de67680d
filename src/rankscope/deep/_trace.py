"""``deep_trace``: residuals of every layer as logarithms, however small."""

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from rankscope.checks import measured_tokens
from rankscope.deep._run import deep_states
from rankscope.deep._split_state import SplitState
from rankscope.metrics import Center, Norm
from rankscope.network import Network
from rankscope.shapes import PerSample
from rankscope.tracing import Provenance, Trace

_LOG_10 = math.log(10)
_FOURTEEN_DIGITS = 14 * _LOG_10


def deep_trace(
    network: Network,
    x: Tensor,
    *,
    norm: Norm = "composite",
    center: Center = "mean",
    token_mask: Tensor | None = None,
    measured: Tensor | None = None,
    on_layer: Callable[[], None] | None = None,
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
    ``measured`` says which tokens count, as in ``trace``. Logarithms are good to ten digits or so
    but for two cases: differences inside a group of tokens that agree to 16 digits while others do
    not (saturated attention; the provenance then notes a doubt), and values of rank one before a
    norm, where deviations along the common row cancel.
    """
    rows: list[tuple[int, str, PerSample]] = []
    notes = {"arithmetic": "scaled, float64", "norm": norm, "center": center}
    before: PerSample | None = None
    last: SplitState | None = None
    for layer, state in deep_states(network, x, token_mask):
        if measured is not None and layer == 0:
            shape = tuple(state.mantissa.shape[:-1])
            measured = measured_tokens(measured, state.token_mask, shape)
        seen = state if measured is None else replace(state, token_mask=measured.to(state.device))
        log = seen.log_residual(norm=norm, center=center) / _LOG_10
        whole = seen.log_norm(norm=norm) / _LOG_10
        rows.append((layer, "log10_residual", log))
        rows.append((layer, "log10_relative_residual", _relative(log, whole)))
        if before is not None:
            rows += [
                (layer, name, values) for name, values in _made_of(before.to(log), log).items()
            ]
            if on_layer is not None:
                on_layer()
        if "beyond" not in notes and _beyond(state):
            notes["beyond"] = f"from layer {layer} on the logarithm itself is below −1.8e308"
        elif "doubt" not in notes and _doubtful(last, state):
            notes["doubt"] = (
                f"at layer {layer} a residual that was not small fell by more than 14 orders of "
                "magnitude at once: what is left may be differences between tokens that agreed to "
                "16 digits, and those are not resolved"
            )
        before, last = log, state
    return Trace(_columns(rows), replace(Provenance.of(network), notes=notes))


def _relative(log: PerSample, whole: PerSample) -> PerSample:
    """A residual as a part of the whole; as everywhere, zero divided by zero is zero."""
    return torch.where(log.isneginf(), log, log - whole)


def _doubtful(before: SplitState | None, after: SplitState) -> bool:
    """Whether a residual vanished faster than any law here takes it while it was not small."""
    if before is None:
        return False
    small = (before.log_scale - before.common.log.clamp(min=-1e300)).clamp(max=0.0)
    fall = before.log_scale - after.log_scale.to(before.log_scale.device)
    sudden = fall > _FOURTEEN_DIGITS - 3 * small
    return bool((sudden & ~before.log_scale.isneginf()).any())


def _made_of(before: PerSample, after: PerSample) -> dict[str, PerSample]:
    """What a layer made of a residual, three ways."""
    return {
        "local_exponent": torch.where(before == 0, math.nan, after / before),
        "log10_contraction": _less(after, before),
        "log10_cubic_constant": _less(after, 3 * before),
    }


def _less(after: PerSample, before: PerSample) -> PerSample:
    """A difference of logarithms; where both are minus infinity there is nothing to compare."""
    return torch.where(
        before.isneginf(), torch.where(after.isneginf(), math.nan, math.inf), after - before
    )


def _beyond(state: SplitState) -> bool:
    """Whether a residual is not zero and yet has no logarithm in float64."""
    gone = state.log_scale.isneginf() & state.mantissa.flatten(1).any(1)
    return bool(gone.any())


def _columns(rows: list[tuple[int, str, PerSample]]) -> dict[str, list[object]]:
    columns: dict[str, list[object]] = {"layer": [], "sample": [], "metric": [], "value": []}
    for layer, metric, values in rows:
        columns["layer"] += [layer] * len(values)
        columns["sample"] += list(range(len(values)))
        columns["metric"] += [metric] * len(values)
        columns["value"] += values.tolist()
    return columns
