"""Claim P4: where a norm stands decides how the stream grows and how fast tokens collapse.

Kim et al. 2025 report the exponential growth of pre-norm during training, which is not tested here;
how it grows at initialisation is ours and judged beyond the claim.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Annotated, Final, Literal

import polars as pl
import torch
from torch import Tensor

from rankscope import tables
from rankscope.arguments import Range
from rankscope.core.deep import deep_trace
from rankscope.core.metrics import deviations
from rankscope.core.network import Init, Network, Spec
from rankscope.core.prediction import predict
from rankscope.core.theory import growth_exponent, steadiness
from rankscope.errors import InputError
from rankscope.experiments import kit
from rankscope.experiments.claims._overlapping import overlap_kernel, overlapping_tokens
from rankscope.experiments.kit import Mean
from rankscope.numerals import power_of_ten, short

ENTRY = kit.claim(
    "P4",
    "The stream is bounded with norms after the sum, grows exponentially in training with norms "
    "before it, and linearly with norms on both sides of each branch (sandwich); tokens collapse "
    "exponentially in the first, polynomially in the others, most slowly in the sandwich.",
    source="Kim et al. 2025, Peri-LN; Karagodin et al. 2025, speed of collapse (as summarised)",
    question="Does the placement of the norm determine the growth of the stream and the speed of "
    "the collapse, in the claimed order?",
    domain="random transformers with RMSNorm and LeCun's weights, at initialisation; the growth of "
    "pre-norm during training not tested",
    beyond="the growth of pre-norm at initialisation, and weights that are not LeCun's",
    seconds=14,
    metrics=(
        kit.Metric(
            "first_last_gradient",
            "Gradient of the input over the output's",
            "‖input‖ / ‖output‖ of gradients",
            "log",
            "1 = level; below = vanishes, above = explodes",
            "The norm of the gradient with respect to the input over that with respect to the "
            "last hidden state.",
            includes=(1.0,),
        ),
    ),
)
PAPER = {"layers": 96, "tokens": 64, "width": 256, "heads": 8}
_VARIANCE, _DISPERSION, _GRADIENT = (
    "stream_variance",
    "log10_relative_dispersion",
    "first_last_gradient",
)
PLACES: Final[dict[str, Literal["pre", "post", "both"]]] = {
    "post-norm": "post",
    "pre-norm": "pre",
    "sandwich": "both",
}
PREDICTED, MEASURED = _SOURCES = "predicted", "networks"
_FEWEST = 8  # layers without which no law can be seen
_STILL = 0.01  # by which a bounded stream may change
_LINEAR = (0.9, 1.1)  # exponents of the growth that count as linear
_STEADY = 0.5  # a logarithm's change in the later half over that in the earlier: 1 if exponential
_TOLD = 10.0  # the growth from which on an exponential is told from a line
_ERRORS = 3.0  # standard errors by which one place has to be ahead of another
CHARTS = (
    kit.Drawing("by_depth", "How alike the tokens become.", _DISPERSION),
    kit.Drawing("by_depth", "The tokens' mean square over the input's.", _VARIANCE),
)
Row = tuple[str, str, int, int, str, float]
Curves = Mapping[tuple[str, str, str], Sequence[Mean]]
"""By scale, variant and metric, means over draws, layer by layer."""


@dataclass(frozen=True)
class Config(kit.Config):
    """Transformers with RMSNorm in each place; weights are LeCun's times each scale."""

    layers: int = 24
    tokens: Annotated[int, Range(2, 4096)] = 16
    overlap: float = 0.1
    width: int = 128
    heads: int = 4
    scales: tuple[float, ...] = (1.0, 0.5, 2.0)
    """The first is the claim's own, the others lie beyond it."""
    draws: int = 6
    networks: int = 3

    def spec(self, placement: str, scale: float) -> Spec:
        return Spec(
            self.layers,
            self.heads,
            self.width,
            norm="rms",
            norm_place=PLACES[placement],
            bias=False,
            init=Init("lecun", scale),
        )


def measure(config: Config, on_step: kit.OnStep) -> pl.DataFrame:
    """Size and dispersion of the tokens by layer, in every place and at every scale."""
    if config.layers < _FEWEST or not config.scales or min(config.scales) <= 0:
        raise InputError(f"P4 needs scales above 0, and {_FEWEST} layers or more to see a law.")
    cases = list(product(config.scales, PLACES))
    rows = [row for case, _ in kit.tracked(cases, on_step) for row in _rows(config, *case)]
    return tables.from_rows(("model", "variant", "layer", "sample", "metric", "value"), rows)


def _rows(config: Config, scale: float, placement: str) -> Iterator[Row]:
    """Predicted, then measured."""
    model, spec = f"LeCun × {scale:g}", config.spec(placement, scale)
    kernel = overlap_kernel(config.tokens, config.overlap)
    predicted = predict(spec, kernel=kernel, draws=config.draws, seed=config.seed, gradients=True)
    for draw in range(config.draws):
        label = (model, f"{placement}, {PREDICTED}")
        values = {name: by_draw[:, draw, 0].tolist() for name, by_draw in predicted.values.items()}
        norms, gradients = values["token_norm"], values["state_gradient"]
        for layer, (norm, dispersion) in enumerate(zip(norms, values[_DISPERSION], strict=True)):
            yield *label, layer, draw, _DISPERSION, dispersion
            yield *label, layer, draw, _VARIANCE, (norm / norms[0]) ** 2
        yield *label, config.layers, draw, _GRADIENT, gradients[0] / gradients[-1]
    x = overlapping_tokens(config.tokens, config.width, config.overlap, config.seed).unsqueeze(0)
    for draw in range(config.networks):
        label = (model, f"{placement}, {MEASURED}")
        network = Network.random(spec, seed=config.seed + draw, dtype=torch.float64)
        with torch.no_grad():
            states = [x, *network.states(x)]
        for layer, dispersion in enumerate(_dispersions(network, x, states)):
            yield *label, layer, draw, _DISPERSION, dispersion
        for layer, state in enumerate(states):
            yield *label, layer, draw, _VARIANCE, float(state.square().mean() / x.square().mean())


def _dispersions(network: Network, x: Tensor, states: Sequence[Tensor]) -> list[float]:
    """Decimal logarithms by layer; after post-norm in scaled arithmetic, below what floats tell."""
    if network.spec.norm_place == "post":
        rows = deep_trace(network, x, norm="fro").table.filter(metric="log10_relative_residual")
        return rows.sort("layer")["value"].to_list()
    return [math.log10(deviations(state).relative_dispersion()) for state in states]


def judge(_: Config, table: pl.DataFrame) -> kit.Answer:
    """Seven questions that are stated, one of ours about pre-norm, and two about all scales.

    Bounded is a change of 1 % at most; growth is judged by the exponent of the mean square above
    the input's from the middle layer to the last, linear from 0.9 to 1.1, within three standard
    errors: a stream is a random walk, whose length varies. Scales at which pre-norm grows less than
    tenfold are left out (settled after a first look), since over so little a straight line and an
    exponential look alike.
    A collapse is exponential if the logarithm of the relative dispersion falls at least half as
    much in the later half as in the earlier, polynomial if less. Post-norm is the fastest, the
    sandwich the slowest, if it ends below, or above, both others by three standard errors.
    Predictions and networks have to agree. Across the scales, the sandwich depends less on the
    weights than pre-norm does if its variance, and its gradient of the input over that of the
    output, have the smaller range.
    """
    means = kit.curves(table, "layer")
    curves = {key: list(curve.values()) for key, curve in means.items()}
    scales = list(dict.fromkeys(scale for scale, _, _ in curves))
    checks = {scale: kit.on_all(_SOURCES, partial(_checks, curves, scale)) for scale in scales}
    usual, *others = scales
    grows = {
        f"{scale}, pre-norm grows linearly at initialisation, not exponentially": all(
            _grows_linearly(curves[scale, f"pre-norm, {source}", _VARIANCE]) for source in _SOURCES
        )
        for scale in scales
        if all(
            curves[scale, f"pre-norm, {source}", _VARIANCE][-1].value >= _TOLD
            for source in _SOURCES
        )
    }
    beyond = grows | {
        f"{scale}, {name}": ok for scale in others for name, ok in checks[scale].items()
    }
    if others:
        beyond |= _across(curves, scales)
    unsupported = ", ".join(question for question, holds in checks[usual].items() if not holds)
    against = "; ".join(question for question, holds in beyond.items() if not holds)
    last = {
        (scale, placement): [
            curves[scale, f"{placement}, {source}", _DISPERSION][-1] for source in _SOURCES
        ]
        for scale, placement in product(scales, PLACES)
    }
    off = max(predicted.errors_from(measured) for predicted, measured in last.values())
    return kit.Answer(
        (
            "In the end networks differ from their predictions by "
            f"{short(off, digits=2)} standard errors of the relative dispersion at most.",
        ),
        stated=checks[usual],
        on={"depends": f"supported except for: {unsupported}"},
        beyond=beyond or None,
        on_beyond={"depends": f"supported except for: {against}"},
        key_figures={
            f"log10 of the relative dispersion, {placement}, {scale}": predicted.value
            for (scale, placement), (predicted, _) in last.items()
        },
        listings=(
            kit.Listing(
                "Predicted for the last layer",
                ("weights", "norm", "dispersion", "steadiness", "variance", "power", "gradient"),
                tuple(_entries(curves, *case) for case in last),
                "Relative dispersion of the tokens; steadiness: the fall of its logarithm in the "
                "later half over that in the earlier; the variance over the input's, and the power "
                "of the depth it grows like; the gradient of the input over that of the output.",
            ),
        ),
        about={"dispersion": "Frobenius norm"},
    )


def growth(sizes: Sequence[Mean]) -> Mean:
    """The exponent of what the mean square has gained, and its error."""
    return Mean(*growth_exponent([m.value for m in sizes], [m.error for m in sizes]))


def _checks(curves: Curves, scale: str, source: str) -> dict[str, bool]:
    low, high = _LINEAR
    sizes, logs = (
        {placement: curves[scale, f"{placement}, {source}", metric] for placement in PLACES}
        for metric in (_VARIANCE, _DISPERSION)
    )
    steady = {
        placement: steadiness([mean.value for mean in curve]) for placement, curve in logs.items()
    }
    sandwich = growth(sizes["sandwich"])
    granted = _ERRORS * sandwich.error

    def ahead(placement: str, sign: int) -> bool:
        """Whether a place ends above (1) or below (−1) all others, clearly."""
        others = [curve[-1] for name, curve in logs.items() if name != placement]
        end = logs[placement][-1]
        return all(
            sign * (end.value - other.value) > 0 and end.errors_from(other) >= _ERRORS
            for other in others
        )

    return {
        "post-norm is bounded": abs(sizes["post-norm"][-1].value - 1) <= _STILL,
        "the sandwich grows linearly": low - granted <= sandwich.value <= high + granted,
        "post-norm collapses exponentially": steady["post-norm"] >= _STEADY,
        "pre-norm collapses polynomially": steady["pre-norm"] < _STEADY,
        "the sandwich collapses polynomially": steady["sandwich"] < _STEADY,
        "post-norm is the fastest": ahead("post-norm", -1),
        "the sandwich is the slowest": ahead("sandwich", 1),
    }


def _grows_linearly(sizes: Sequence[Mean]) -> bool:
    """Whether a stream grows as a line; F-fold, an exponential has the exponent log₂(√F + 1)."""
    grown, (low, high) = growth(sizes), _LINEAR
    granted = _ERRORS * grown.error
    return low - granted <= grown.value <= high + granted


def _across(curves: Curves, scales: Sequence[str]) -> dict[str, bool]:
    """Whether pre-norm depends more on the weights than the sandwich does."""

    def spread(placement: str, metric: str) -> float:
        ends = [curves[scale, f"{placement}, {PREDICTED}", metric][-1].value for scale in scales]
        return max(ends) / min(ends)

    return {
        f"{name} of the sandwich depends less on the weights": spread("sandwich", metric)
        < spread("pre-norm", metric)
        for metric, name in {_VARIANCE: "variance", _GRADIENT: "gradient"}.items()
    }


def _entries(curves: Curves, scale: str, placement: str) -> tuple[str | float | None, ...]:
    """What is predicted of a place of the norm at a scale of the weights, for the listing."""
    dispersions, sizes, gradients = (
        curves[scale, f"{placement}, {PREDICTED}", metric]
        for metric in (_DISPERSION, _VARIANCE, _GRADIENT)
    )
    logs, grown = [mean.value for mean in dispersions], growth(sizes)
    power = f"{short(grown.value, digits=2)} ± {short(grown.error, digits=1)}"
    return (
        *(scale, placement, power_of_ten(logs[-1]), round(steadiness(logs), 3), sizes[-1].value),
        *(power if grown.value else None, gradients[-1].value),
    )
