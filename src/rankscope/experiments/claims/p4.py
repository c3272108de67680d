"""Claim P4: where a norm stands decides how the stream grows and how fast tokens collapse."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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
from rankscope.experiments.claims._overlapping import (
    overlap_kernel,
    overlapping_tokens,
)
from rankscope.experiments.kit import Mean
from rankscope.numerals import power_of_ten, short

ENTRY = kit.claim(
    "P4",
    "The stream is bounded with norms after the sum, grows with norms before it, and grows "
    "linearly with norms on both sides of each branch (sandwich); tokens collapse exponentially "
    "in the first, polynomially in the others, most slowly in the sandwich.",
    source="Kim et al. 2025, Peri-LN; Karagodin et al. 2025, speed of collapse",
    domain="random transformers with RMSNorm and LeCun's weights",
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
PREDICTED, MEASURED = "predicted", "networks"
_FEWEST = 8
_STILL = 0.01
"""By which a bounded stream may change."""
_LINEAR = (0.9, 1.1)
"""Exponents of the growth that count as linear."""
_STEADY = 0.5
"""The later half of the layers' fall over the earlier half's: 1 if exponential, less for powers."""
_ERRORS = 3.0
"""Standard errors by which one place has to be ahead of another."""
_BEYOND = "weights that are not LeCun's, and what changes with them"

Row = tuple[str, str, int, int, str, float]


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

    def spec(self, place: str, scale: float) -> Spec:
        return Spec(
            self.layers,
            self.heads,
            self.width,
            norm="rms",
            norm_place=PLACES[place],
            bias=False,
            init=Init("lecun", scale),
        )


def run(config: Config, on_step: kit.OnStep) -> kit.Result:
    """Size and dispersion of the tokens by layer, in every place and at every scale."""
    if config.layers < _FEWEST or not config.scales or min(config.scales) <= 0:
        raise InputError(f"P4 needs scales above 0, and {_FEWEST} layers or more to see a law.")
    cases = [(scale, place) for scale in config.scales for place in PLACES]
    rows = [
        row
        for (scale, place), _ in kit.tracked(cases, on_step)
        for row in (*_predicted(config, place, scale), *_measured(config, place, scale))
    ]
    table = tables.from_rows(("model", "variant", "layer", "sample", "metric", "value"), rows)
    judgement, beyond, sentences = judge(table)
    return ENTRY.result(
        config,
        question="Does the place of the norm set the growth of the stream and the speed of the "
        "collapse, in the order that is claimed?",
        sentences=sentences,
        table=table,
        listings=(_listing(table),),
        about={"dispersion": "Frobenius norm"},
        judgement=judgement,
        beyond=beyond,
        key_figures=_key_figures(table),
        drawings=(
            kit.Drawing("by_depth", "How alike the tokens become.", _DISPERSION),
            kit.Drawing("by_depth", "The tokens' mean square over the input's.", _VARIANCE),
        ),
        shown=(_DISPERSION, _VARIANCE),
    )


def _predicted(config: Config, place: str, scale: float) -> Iterator[Row]:
    kernel = overlap_kernel(config.tokens, config.overlap)
    spec = config.spec(place, scale)
    found = predict(spec, kernel=kernel, draws=config.draws, seed=config.seed, gradients=True)
    for draw in range(config.draws):
        label = (f"LeCun × {scale:g}", f"{place}, {PREDICTED}")
        values = {metric: each[:, draw, 0].tolist() for metric, each in found.values.items()}
        first = values["token_norm"][0]
        for layer, dispersion in enumerate(values[_DISPERSION]):
            size = (values["token_norm"][layer] / first) ** 2
            yield *label, layer, draw, _DISPERSION, dispersion
            yield *label, layer, draw, _VARIANCE, size
        gradients = values["state_gradient"]
        yield *label, config.layers, draw, _GRADIENT, gradients[0] / gradients[-1]


def _measured(config: Config, place: str, scale: float) -> Iterator[Row]:
    x = overlapping_tokens(config.tokens, config.width, config.overlap, config.seed).unsqueeze(0)
    for draw in range(config.networks):
        network = Network.random(
            config.spec(place, scale), seed=config.seed + draw, dtype=torch.float64
        )
        label = (f"LeCun × {scale:g}", f"{place}, {MEASURED}")
        with torch.no_grad():
            states = [x, *network.states(x)]
        for layer, value in enumerate(_dispersions(network, x, states)):
            yield *label, layer, draw, _DISPERSION, value
        for layer, state in enumerate(states):
            yield *label, layer, draw, _VARIANCE, float(state.square().mean() / x.square().mean())


def _dispersions(network: Network, x: Tensor, states: Sequence[Tensor]) -> list[float]:
    """Decimal logarithms by layer; after post-norm in scaled arithmetic, below what floats tell."""
    if network.spec.norm_place == "post":
        rows = deep_trace(network, x, norm="fro").table.filter(metric="log10_relative_residual")
        return rows.sort("layer")["value"].to_list()
    return [math.log10(deviations(state).relative_dispersion()) for state in states]


def judge(table: pl.DataFrame) -> tuple[kit.Judgement, kit.Judgement | None, tuple[str, ...]]:
    """Eight questions at every scale of the weights, and two about all scales.

    Bounded is a change of 1 % at most; growth is judged by the exponent of the mean square above
    the input's from the middle layer to the last, at least linear from 0.9 on, linear up to 1.1,
    within three standard errors: a stream is a random walk, whose length varies.
    A collapse is exponential if the logarithm of the relative dispersion falls at least half as
    much in the later half as in the earlier, polynomial if less. Post-norm is the fastest, the
    sandwich the slowest, if it ends below, or above, both others by three standard errors.
    Predictions and networks have to agree. Across the scales, the sandwich depends less on the
    weights than pre-norm does if its variance, and its gradient of the input over that of the
    output, have the smaller range.
    """
    curves = _curves(table)
    scales = list(dict.fromkeys(scale for scale, _, _ in curves))
    own, *others = scales
    further = {f"{s}, {q}": ok for s in others for q, ok in _answers(curves, s).items()}
    if others:
        further |= _across(curves, scales)
    return (
        kit.judged(ENTRY.domain, _answers(curves, own)),
        kit.judged(_BEYOND, further, _summary(further)) if others else None,
        (_sentence(curves, scales),),
    )


Curves = Mapping[tuple[str, str, str], list[Mean]]


def _curves(table: pl.DataFrame) -> Curves:
    """By scale, variant and metric, means over draws, layer by layer."""
    keys = ("model", "variant", "metric")
    grouped = table.group_by(*keys, "layer", maintain_order=True).agg("value")
    found: dict[tuple[str, str, str], list[Mean]] = {}
    for scale, variant, metric, _, values in grouped.sort("layer", maintain_order=True).iter_rows():
        found.setdefault((scale, variant, metric), []).append(Mean.of(values))
    return found


def _values(curves: Curves, scale: str, place: str, source: str, metric: str) -> list[float]:
    return [mean.value for mean in curves[scale, f"{place}, {source}", metric]]


def growth(sizes: Sequence[Mean]) -> Mean:
    return Mean(*growth_exponent([m.value for m in sizes], [m.error for m in sizes]))


def _answers(curves: Curves, scale: str) -> dict[str, bool]:
    """Every question; borne out if predictions and networks both say so."""
    answers: dict[str, bool] = {}
    low, high = _LINEAR
    for source in (PREDICTED, MEASURED):
        sizes = {p: curves[scale, f"{p}, {source}", _VARIANCE] for p in PLACES}
        steady = {p: steadiness(_values(curves, scale, p, source, _DISPERSION)) for p in PLACES}
        ends = {p: curves[scale, f"{p}, {source}", _DISPERSION][-1] for p in PLACES}
        pre, sandwich = (growth(sizes[place]) for place in ("pre-norm", "sandwich"))
        asked = {
            "post-norm is bounded": abs(sizes["post-norm"][-1].value - 1) <= _STILL,
            "pre-norm grows at least linearly": pre.value + _ERRORS * pre.error >= low,
            "the sandwich grows linearly": low - _ERRORS * sandwich.error
            <= sandwich.value
            <= high + _ERRORS * sandwich.error,
            "post-norm collapses exponentially": steady["post-norm"] >= _STEADY,
            "pre-norm collapses polynomially": steady["pre-norm"] < _STEADY,
            "the sandwich collapses polynomially": steady["sandwich"] < _STEADY,
            "post-norm is the fastest": _ahead(ends, "post-norm", -1),
            "the sandwich is the slowest": _ahead(ends, "sandwich", 1),
        }
        for question, ok in asked.items():
            answers[question] = answers.get(question, True) and ok
    return answers


def _ahead(ends: Mapping[str, Mean], place: str, sign: int) -> bool:
    """Whether a place ends above (1) or below (−1) all others, clearly."""
    own = ends[place]
    return all(
        sign * (own.value - other.value) > 0 and own.errors_from(other) >= _ERRORS
        for name, other in ends.items()
        if name != place
    )


def _across(curves: Curves, scales: list[str]) -> dict[str, bool]:
    """Whether pre-norm depends more on the weights than the sandwich does."""

    def spread(place: str, metric: str) -> float:
        ends = [_values(curves, scale, place, PREDICTED, metric)[-1] for scale in scales]
        return max(ends) / min(ends)

    return {
        f"{name} of the sandwich depends less on the weights": spread("sandwich", metric)
        < spread("pre-norm", metric)
        for metric, name in {_VARIANCE: "variance", _GRADIENT: "gradient"}.items()
    }


def _summary(further: Mapping[str, bool]) -> str:
    """Which questions have another answer at some scale; the verdict's own words if none has."""
    against = [case for case, ok in further.items() if not ok]
    if not against or len(against) == len(further):
        return ""
    return f"the weights: not borne out are {'; '.join(against)}"


def _sentence(curves: Curves, scales: Sequence[str]) -> str:
    """How far networks are from their predictions, at the most."""
    off = max(
        one.errors_from(other)
        for scale in scales
        for place in PLACES
        for one, other in zip(
            *(curves[scale, f"{place}, {s}", _DISPERSION][-1:] for s in (PREDICTED, MEASURED)),
            strict=True,
        )
    )
    return (
        "In the end networks differ from their predictions by "
        f"{short(off, digits=2)} standard errors of the relative dispersion at most."
    )


def _listing(table: pl.DataFrame) -> kit.Listing:
    """What is predicted of each place of the norm, at each scale of the weights."""
    curves = _curves(table)
    rows = []
    for scale in dict.fromkeys(scale for scale, _, _ in curves):
        for place in PLACES:
            logs = _values(curves, scale, place, PREDICTED, _DISPERSION)
            sizes = curves[scale, f"{place}, {PREDICTED}", _VARIANCE]
            grown = growth(sizes)
            power = f"{short(grown.value, digits=2)} ± {short(grown.error, digits=1)}"
            rows.append(
                (
                    *(scale, place, power_of_ten(logs[-1]), round(steadiness(logs), 3)),
                    *(sizes[-1].value, power if grown.value else None),
                    _values(curves, scale, place, PREDICTED, _GRADIENT)[-1],
                )
            )
    columns = ("weights", "norm", "dispersion", "steadiness", "variance", "power", "gradient")
    return kit.Listing(
        "Predicted for the last layer",
        columns,
        tuple(rows),
        "Relative dispersion of the tokens; steadiness: the fall of its logarithm in the later "
        "half over that in the earlier; the variance over the input's, and the power of the depth "
        "it grows like; the gradient of the input over that of the output.",
    )


def _key_figures(table: pl.DataFrame) -> dict[str, float]:
    curves = _curves(table)
    return {
        f"log10 of the relative dispersion, {place}, {scale}": _values(
            curves, scale, place, PREDICTED, _DISPERSION
        )[-1]
        for scale in dict.fromkeys(scale for scale, _, _ in curves)
        for place in PLACES
    }
