"""Bounds for a network and an input beside what was measured: in numbers, as a table, in words."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from jaxtyping import Bool
from torch import Tensor

from rankscope.arguments import checked
from rankscope.core.shapes import PerSample
from rankscope.core.theory.residual_bounds._layer import SCORE_LIMIT
from rankscope.core.tracing import Trace
from rankscope.display import card, paragraph, table
from rankscope.numerals import plural, power_of_ten, span_of

if TYPE_CHECKING:
    import polars

MEASURED = (
    "log10_input_residual",
    "log10_residual",
    "log10_score_difference",
    "gamma",
    "beta",
    "paper_beta",
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
_SHOWN = {
    "log10_residual": "residual",
    "log10_sharp_bound": "sharp",
    "log10_data_bound": "data",
    "log10_a_priori_bound": "a priori",
    "log10_depth_data_bound": "data, all layers",
    "log10_depth_bound": "Dong et al. 2021, all layers",
    "log10_depth_input_bound": "input norm, all layers",
}
"""The columns of the table in a notebook."""
_LAYERS_SHOWN = 12
_SURE = ("beta", "paper_beta", "log10_depth_input_bound")
"""What follows from the weights and the network's input alone."""


@checked
@dataclass(frozen=True, repr=False)
class LayerBounds:
    """One layer: what was measured, and the bounds that follow; NaN where a bound does not apply.

    Residuals are in the composite norm at the best center, the only one these bounds are about
    (at the mean a residual may be ``2 − 2/n`` times as large). ``log10_a_priori_bound`` and
    ``log10_data_bound`` are those of Dong et al. 2021 for this layer's true input. They need the
    ``condition`` that all scores of a query differ by at most ``SCORE_LIMIT``.
    ``log10_sharp_bound`` is derived and needs no condition. The ``depth`` bounds are about all
    layers from the input to this one: the theorem of Dong et al. 2021, the chain of data bounds,
    and what follows from the norm of the input alone. ``beta`` takes the place of their βH, which
    is reported as ``paper_beta`` and false in general for several heads; ``lipschitz`` is λ.
    ``why_not`` says why no bound applies, ``why_not_a_priori`` why the bounds that need a λ for all
    inputs do not; both are empty if they do.
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
    paper_beta: PerSample
    lipschitz: PerSample
    log10_a_priori_bound: PerSample
    log10_data_bound: PerSample
    log10_sharp_bound: PerSample
    log10_depth_bound: PerSample
    log10_depth_data_bound: PerSample
    log10_depth_input_bound: PerSample

    @property
    def applies(self) -> bool:
        """Whether the theory covers this kind of layer; ``condition`` is a separate question."""
        return not self.why_not

    @property
    def informative(self) -> Bool[Tensor, "batch"]:
        """Whether the a-priori bound guarantees a smaller residual: ``4γβλ·scale·‖res‖² < 1``."""
        return self.log10_a_priori_bound < self.log10_input_residual

    def __repr__(self) -> str:
        residual = (
            f"residual {_format_largest(self.log10_residual)} "
            f"from {_format_largest(self.log10_input_residual)}"
        )
        if self.why_not:
            return (
                f"LayerBounds(layer {self.layer}; {residual}; no bound: {_shorten(self.why_not)})"
            )
        shown = ("sharp", "data", "a_priori")
        bounds = ", ".join(
            f"{name.replace('_', ' ')} {_format_largest(getattr(self, f'log10_{name}_bound'))}"
            for name in shown
        )
        return f"LayerBounds(layer {self.layer}; {residual}; bounds: {bounds})"


@checked
@dataclass(frozen=True, repr=False)
class Bounds:
    """Bounds on the residual after each layer and over all layers, beside what was measured.

    ``applies`` is about the theorem of Dong et al. 2021 for all layers and every sample; if it does
    not apply, ``why_not`` says why. ``traced`` is the run in scaled arithmetic the residuals are
    from, which says where they are in doubt.
    """

    layers: tuple[LayerBounds, ...]
    traced: Trace | None = None

    @property
    def doubts(self) -> tuple[str, ...]:
        """What scaled arithmetic leaves uncertain, in clauses; nothing if all is sure."""
        notes = {} if self.traced is None else self.traced.provenance.notes
        return tuple(notes[kind] for kind in ("doubt", "beyond") if kind in notes)

    @property
    def doubtful(self) -> set[tuple[int, int]]:
        """The layers and samples whose residuals are in doubt."""
        known = {} if self.traced is None else self.traced.columns
        doubts = known.get("doubt", ())
        rows = zip(known["layer"], known["sample"], doubts, strict=True) if doubts else ()
        return {(layer, sample) for layer, sample, doubt in rows if doubt}

    @property
    def why_not(self) -> str:
        """The first reason why the theorem does not cover the last layer; empty if it does."""
        for layer in self.layers:
            if layer.why_not_a_priori:
                return f"layer {layer.layer}: {layer.why_not_a_priori}"
        for layer in self.layers:
            failing = int((~layer.condition).sum())
            if failing:
                return (
                    f"layer {layer.layer}: the scores of a query differ by up to "
                    f"{_format_largest(layer.log10_score_difference)}, more than "
                    f"{SCORE_LIMIT:.4f}, in {failing} of {len(layer.condition)} samples"
                )
        return ""

    @property
    def applies(self) -> bool:
        """Whether the theorem of Dong et al. 2021 covers every layer and sample."""
        return not self.why_not

    @property
    def log10_depth_bound(self) -> PerSample:
        """The theorem of Dong et al. 2021 for the last layer; NaN where it does not apply."""
        return self.layers[-1].log10_depth_bound

    @property
    def table(self) -> "polars.DataFrame":
        """By layer, sample and metric; null where a bound does not apply.

        Where anything is in doubt there is a column that says so. What follows from a layer's input
        is in doubt where that is.
        """
        from rankscope import tables

        doubtful = self.doubtful
        doubts: list[bool] = []
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
                    source = layer.layer - (metric != "log10_residual")
                    doubts.append(metric not in _SURE and (source, sample) in doubtful)
        return tables.frame({**columns, "doubt": doubts} if doubtful else columns)

    @property
    def sentences(self) -> tuple[str, ...]:
        """The same in plain words, for the sample each bound is worst for."""
        doubts = (f"Note: {doubt}." for doubt in self.doubts)
        return (*_say_coverage(self), *_say_constants(self), *_say_depth(self), *doubts)

    def __repr__(self) -> str:
        last, first = self.layers[-1], self.layers[0]
        theorem = (
            f"at most {_format_largest(last.log10_depth_bound)} by Dong et al. 2021"
            if self.applies
            else f"Dong et al. 2021 does not apply ({_shorten(self.why_not)})"
        )
        sharp = _format_largest(last.log10_sharp_bound)
        doubt = "; residuals in doubt" if self.doubtful else ""
        last_bound = "" if last.why_not else f", at most {sharp} by the last layer's sharp bound"
        return (
            f"Bounds({plural(len(self.layers), 'layer')}, "
            f"{plural(len(last.log10_residual), 'sample')}; residual "
            f"{_format_largest(first.log10_input_residual)} at the input, "
            f"{_format_largest(last.log10_residual)} after the last layer{last_bound}; "
            f"{theorem}{doubt})"
        )

    def _repr_html_(self) -> str:
        samples = plural(len(self.layers[-1].log10_residual), "sample")
        notes = any(layer.why_not_a_priori for layer in self.layers)
        header = ("layer", *_SHOWN.values(), *(["does not apply"] if notes else []))
        return card(
            f"Residual and its bounds (largest of {samples}, composite norm, best center)",
            table(header, _html_rows(self, notes=notes)),
            *(paragraph(f"Note: {doubt}.") for doubt in self.doubts),
        )


def _html_rows(bounds: Bounds, *, notes: bool) -> Iterator[tuple[str, ...]]:
    """A row for each layer, the middle ones of a deep network left out."""
    half = _LAYERS_SHOWN // 2
    for place, layer in enumerate(bounds.layers):
        if half <= place < len(bounds.layers) - half:
            if place == half:
                yield ("…",)
            continue
        values = (getattr(layer, name) for name in _SHOWN)
        cells = ("–" if bool(value.isnan().any()) else _format_largest(value) for value in values)
        yield (str(layer.layer), *cells, *([layer.why_not_a_priori] if notes else []))


def _say_coverage(bounds: Bounds) -> list[str]:
    """Which layers no bound covers, and why; neighbours with one reason share a sentence."""
    lines = []
    for reason, group in groupby(bounds.layers, key=lambda layer: layer.why_not_a_priori):
        layers = [layer.layer for layer in group]
        if reason:
            which = f"Layer {layers[0]}" if len(layers) == 1 else f"Layers {layers[0]}–{layers[-1]}"
            lines.append(f"{which}: the theorem of Dong et al. 2021 does not apply: {reason}.")
    failing = [
        layer for layer in bounds.layers if layer.applies and not bool(layer.condition.all())
    ]
    if failing:
        which = ", ".join(str(layer.layer) for layer in failing)
        worst = max((layer.log10_score_difference for layer in failing), key=_largest)
        samples = max(int((~layer.condition).sum()) for layer in failing)
        lines.append(
            f"Layer{'s' * (len(failing) > 1)} {which}: the bounds of Dong et al. 2021 need the "
            f"scores of each query to differ by at most {SCORE_LIMIT:.4f}; here they differ by up "
            f"to {_format_largest(worst)}, too much in up to {samples} of "
            f"{len(failing[0].condition)} samples."
        )
    return lines


def _say_constants(bounds: Bounds) -> list[str]:
    """The constants in the bounds, over the layers they cover."""
    covered = [layer for layer in bounds.layers if layer.applies]
    if not covered:
        return []
    ranges = []
    symbols = {"gamma": "γ", "beta": "β", "paper_beta": "their βH", "lipschitz": "λ"}
    for name, symbol in symbols.items():
        values = [float(v) for layer in covered for v in getattr(layer, name)]
        ranges.append(f"{symbol} {span_of(min(values), max(values))}")
    useful = [str(layer.layer) for layer in covered if bool(layer.informative.all())]
    where = f"in layers {', '.join(useful)}" if useful else "in no layer"
    return [
        f"{', '.join(ranges)}; the a-priori bound of Dong et al. 2021 guarantees that the residual "
        f"shrinks {where}."
    ]


def _say_depth(bounds: Bounds) -> list[str]:
    """All layers together: what each chain of bounds gives, beside the measured residual."""
    last, first = bounds.layers[-1], bounds.layers[0]
    own = "the sharp bound of the last layer, given its true input,"
    named = {
        "the theorem of Dong et al. 2021": last.log10_depth_bound,
        "the chain of data-dependent bounds": last.log10_depth_data_bound,
        "the norm of the input alone": last.log10_depth_input_bound,
        own: last.log10_sharp_bound,
    }
    known = {name: bound for name, bound in named.items() if not bool(bound.isnan().any())}
    measured = _format_largest(last.log10_residual)
    if not known:
        return [f"No bound covers the last layer; its residual is {measured}."]
    start = first.log10_input_residual
    lines = [
        f"After layer {last.layer} the residual is {measured}, from {_format_largest(start)} at "
        "the input (the largest of the samples, composite norm, best center)."
    ]
    for name, bound in known.items():
        before = last.log10_input_residual if name == own else start
        above = int(((bound >= before) & ~before.isneginf()).sum())
        empty = f", which says nothing in {above} of {len(start)} samples" if above else ""
        lines.append(f"By {name} it is at most {_format_largest(bound)}{empty}.")
    return lines


def _shorten(reason: str) -> str:
    return shorten(reason, 200, placeholder=" …")


def _largest(values: PerSample) -> float:
    return float(values.max())


def _format_largest(log10: PerSample) -> str:
    """The largest of some numbers, given by their logarithms."""
    return power_of_ten(_largest(log10), digits=3)
