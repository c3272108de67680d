"""What the theory promises about a network and an input, in numbers, as a table and in words."""

import math
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from jaxtyping import Bool
from torch import Tensor

from rankscope.shapes import PerSample
from rankscope.theory.residual_bounds._layer import SCORE_LIMIT

if TYPE_CHECKING:
    import polars

MEASURED = (
    "log10_input_residual",
    "log10_residual",
    "log10_score_difference",
    "gamma",
    "beta",
    "lipschitz",
)
BOUNDS = (
    "log10_a_priori_bound",
    "log10_data_bound",
    "log10_sharp_bound",
    "log10_depth_bound",
    "log10_depth_data_bound",
    "log10_depth_input_bound",
)


@dataclass(frozen=True)
class LayerBounds:
    """One layer: what is known of it, and what the theory then says; NaN where it says nothing.

    Residuals are in the composite norm at the best center, the only one these bounds are about
    (at the mean a residual may be ``2 − 2/n`` times as large). ``log10_a_priori_bound`` and
    ``log10_data_bound`` are D's for this layer's true input, if ``condition`` holds: all scores of
    a query differ by ``SCORE_LIMIT`` at most. ``log10_sharp_bound`` is derived and needs no
    condition. The ``depth`` bounds are about the whole way from the input to this layer: D's
    theorem, the chain of data bounds, and what follows from the norm of the input alone. ``beta``
    stands for D's βH, ``lipschitz`` is λ. ``why_not`` says why no bound applies,
    ``why_not_a_priori`` why those do not that need a λ for all inputs; both are empty if they do.
    """

    layer: int
    why_not: str
    why_not_a_priori: str
    condition: Bool[Tensor, "batch"]
    log10_input_residual: PerSample
    log10_residual: PerSample
    log10_score_difference: PerSample
    gamma: PerSample
    beta: PerSample
    lipschitz: PerSample
    log10_a_priori_bound: PerSample
    log10_data_bound: PerSample
    log10_sharp_bound: PerSample
    log10_depth_bound: PerSample
    log10_depth_data_bound: PerSample
    log10_depth_input_bound: PerSample

    @property
    def applies(self) -> bool:
        """Whether the theory covers a layer of this make; the ``condition`` is another matter."""
        return not self.why_not

    @property
    def informative(self) -> Bool[Tensor, "batch"]:
        """Whether D's bound promises that the residual shrinks: ``4γβHλ · scale · ‖res‖² < 1``."""
        return self.log10_a_priori_bound < self.log10_input_residual


@dataclass(frozen=True)
class Bounds:
    """What the theory promises for each layer and for the whole depth, beside what was measured.

    ``applies`` is about D's theorem for the whole depth and every sample; ``why_not`` says what
    stands in its way.
    """

    layers: tuple[LayerBounds, ...]

    @property
    def why_not(self) -> str:
        """The first reason why D's theorem says nothing about the last layer; empty if it does."""
        for layer in self.layers:
            if layer.why_not_a_priori:
                return f"layer {layer.layer}: {layer.why_not_a_priori}"
        for layer in self.layers:
            failing = int((~layer.condition).sum())
            if failing:
                return (
                    f"layer {layer.layer}: the scores of a query differ by up to "
                    f"{_power(layer.log10_score_difference)}, more than "
                    f"{SCORE_LIMIT:.4f}, in {failing} of {len(layer.condition)} samples"
                )
        return ""

    @property
    def applies(self) -> bool:
        """Whether D's theorem covers every layer and sample."""
        return not self.why_not

    @property
    def log10_depth_bound(self) -> PerSample:
        """D's theorem for the last layer; NaN where it does not apply."""
        return self.layers[-1].log10_depth_bound

    @property
    def table(self) -> "polars.DataFrame":
        """By layer, sample and metric; null where a bound does not apply."""
        from rankscope import tables

        columns: dict[str, list[Any]] = {"layer": [], "sample": [], "metric": [], "value": []}
        for layer in self.layers:
            for metric in (*MEASURED, *BOUNDS, "condition"):
                values = getattr(layer, metric).double()
                if metric == "condition" and layer.why_not:
                    values = values * math.nan
                for sample, value in enumerate(values.tolist()):
                    row = (layer.layer, sample, metric, None if math.isnan(value) else value)
                    for column, entry in zip(columns.values(), row, strict=True):
                        column.append(entry)
        return tables.frame(columns)

    @property
    def sentences(self) -> tuple[str, ...]:
        """The same in plain words, for the sample each bound is worst for."""
        return (*_reach(self), *_constants(self), *_depth(self))


def _reach(bounds: Bounds) -> list[str]:
    """Which layers no bound covers, and why; neighbours with one reason share a sentence."""
    said = []
    for reason, group in groupby(bounds.layers, key=lambda layer: layer.why_not_a_priori):
        layers = [layer.layer for layer in group]
        if reason:
            which = f"Layer {layers[0]}" if len(layers) == 1 else f"Layers {layers[0]}–{layers[-1]}"
            said.append(f"{which}: D's theorem does not apply: {reason}.")
    failing = [
        layer for layer in bounds.layers if layer.applies and not bool(layer.condition.all())
    ]
    if failing:
        which = ", ".join(str(layer.layer) for layer in failing)
        worst = max((layer.log10_score_difference for layer in failing), key=_largest)
        samples = max(int((~layer.condition).sum()) for layer in failing)
        said.append(
            f"Layer{'s' * (len(failing) > 1)} {which}: D's bounds need the scores of each query to "
            f"differ by {SCORE_LIMIT:.4f} at most; here they differ by up to "
            f"{_power(worst)}, too much in up to {samples} of "
            f"{len(failing[0].condition)} samples."
        )
    return said


def _constants(bounds: Bounds) -> list[str]:
    """What the bounds are made of, over the layers they cover."""
    covered = [layer for layer in bounds.layers if layer.applies]
    if not covered:
        return []
    spans = []
    for name, symbol in {"gamma": "γ", "beta": "β", "lipschitz": "λ"}.items():
        values = [float(v) for layer in covered for v in getattr(layer, name)]
        low, high = min(values), max(values)
        same = math.isclose(low, high, rel_tol=1e-3)
        spans.append(f"{symbol} {low:.3g}" if same else f"{symbol} {low:.3g} to {high:.3g}")
    useful = [str(layer.layer) for layer in covered if bool(layer.informative.all())]
    promise = f"in layers {', '.join(useful)}" if useful else "in no layer"
    return [f"{', '.join(spans)}; D's bound promises that the residual shrinks {promise}."]


def _depth(bounds: Bounds) -> list[str]:
    """The whole depth: what each chain of bounds promises, beside the measured residual."""
    last, first = bounds.layers[-1], bounds.layers[0]
    named = {
        "D's theorem": last.log10_depth_bound,
        "the chain of data bounds": last.log10_depth_data_bound,
        "the norm of the input alone": last.log10_depth_input_bound,
        "the last layer's true input": last.log10_sharp_bound,
    }
    known = {name: bound for name, bound in named.items() if not bool(bound.isnan().any())}
    measured = _power(last.log10_residual)
    if not known:
        return [f"No bound covers the last layer; its residual is {measured}."]
    start = first.log10_input_residual
    told = [
        f"After layer {last.layer} the residual is {measured}, from {_power(start)} at the input "
        "(the largest of the samples, composite norm, best center)."
    ]
    for name, bound in known.items():
        before = last.log10_input_residual if name == "the last layer's true input" else start
        above = int(((bound >= before) & ~before.isneginf()).sum())
        empty = f", which says nothing in {above} of {len(start)} samples" if above else ""
        told.append(f"By {name} it is at most {_power(bound)}{empty}.")
    return told


def _largest(values: PerSample) -> float:
    return float(values.max())


def _power(log10: PerSample) -> str:
    """The largest of some numbers, given by their logarithms, however small or large."""
    most = _largest(log10)
    if math.isinf(most) or math.isnan(most):
        return "0" if most < 0 else "infinity" if most > 0 else "unknown"
    if abs(most) < 4:
        return f"{10**most:.3g}"
    return f"10^{most:,.1f}" if abs(most) < 1e6 else f"10^({most:.4g})"
