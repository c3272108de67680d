"""Claim P2: branches scaled by 1/√L hold off rank collapse, which starves queries and keys."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, product
from typing import Annotated, Final

import polars as pl
import torch
from torch import Tensor

from rankscope import tables
from rankscope.arguments import Range
from rankscope.core.network import Init, Network, Spec
from rankscope.core.prediction import measured_gradients, predict
from rankscope.core.tracing import trace
from rankscope.errors import InputError
from rankscope.experiments import kit
from rankscope.experiments.claims._overlapping import overlap_kernel, overlapping_tokens
from rankscope.numerals import short

ENTRY = kit.claim(
    "P2",
    "Branches scaled by 1/√L prevent rank collapse at any depth L; without the scale tokens "
    "become alike, and the gradients of queries and keys vanish relative to those of values.",
    source="Noci et al. 2022, residual scaling",
    domain="random networks without norms under uniform attention, and post-norm ones",
    beyond="pre-norm networks, whose stream grows by itself",
    question="Do branches scaled by 1/√L keep tokens apart, and queries and keys learning, at any "
    "depth?",
    seconds=17,
    metrics=(
        kit.Metric(
            "query_value_gradient",
            "Gradients of queries and keys over values",
            "‖query‖ / ‖value‖, last to first layer",
            "log",
            "0 = queries and keys of the last layer do not learn",
            "The larger of the gradients of the query and key weights over that of the value "
            "weights, in the last layer, over the same in the first.",
            includes=(1.0,),
        ),
    ),
)
PAPER = {"depths": (8, 16, 32, 64, 128), "tokens": 64, "width": 256, "heads": 8}
_COSINE, _GRADIENTS = "mean_cosine", "query_value_gradient"
KINDS: Final = ("without norm", "post-norm", "pre-norm")
OWN: Final = KINDS[:2]
SCALED, PLAIN = "branches × 1/√L", "branches × 1"
PREDICTED, MEASURED = "predicted", "networks"
_LEVEL = 0.02  # by which the mean cosine at the two largest depths may differ, beside sampling
_ERRORS = 3.0  # standard errors that sampling is granted
_APART, _COLLAPSED = 0.95, 0.99  # mean cosines: below, tokens are apart; from there on, alike
# What is left of the first layer's ratio of gradients in the last one: nothing, or enough.
_STARVED, _FED = 1e-3, 0.1
_ROUNDING = 1e-12
CHARTS = (
    kit.Drawing("by_setting", "Mean cosine after the last layer.", _COSINE),
    kit.Drawing(
        "by_setting",
        "The last layer's gradients of queries and keys over those of values, relative "
        "to the first layer's.",
        _GRADIENTS,
    ),
)


@dataclass(frozen=True)
class Config(kit.Config):
    """Transformers of growing depth with ReLU MLPs and LeCun weights, scaled or not."""

    kinds: tuple[str, ...] = KINDS
    depths: tuple[Annotated[int, Range(1, 4096)], ...] = (4, 8, 16, 32)
    tokens: Annotated[int, Range(2, 4096)] = 16
    overlap: float = 0.1  # the cosine of any two tokens of the input
    width: int = 64
    heads: int = 4
    draws: int = 6  # predicted networks
    networks: int = 4  # measured ones

    def spec(self, kind: str, layers: int, *, scaled: bool) -> Spec:
        """A network whose branches are multiplied by 1/√L, or not.

        After the sum a norm makes ``√L x + f(x)`` and ``x + f(x)/√L`` the same: there the skip is
        scaled. Everywhere else all weights are, by ``L^(−1/4)``, hence the product of two of them
        by 1/√L, which ReLU lets through; what that does to the logits ``score_scale`` takes back.
        Without a norm logits would grow with the stream; there attention is uniform, as the paper
        assumes.
        """
        after_sum = kind == "post-norm"
        weights = layers**-0.25 if scaled and not after_sum else 1.0
        score = 0.0 if kind == "without norm" else math.sqrt(self.heads / self.width) / weights**2
        return Spec(
            layers,
            self.heads,
            self.width,
            norm="none" if kind == "without norm" else "rms",
            norm_place="post" if after_sum else "pre",
            skip=math.sqrt(layers) if scaled and after_sum else 1.0,
            init=Init("lecun", weights),
            score_scale=score,
            activation="relu",
            bias=False,
        )


def measure(config: Config, on_step: kit.OnStep) -> pl.DataFrame:
    """The last layer's mean cosine at each depth, and the gradients of queries over values."""
    if len(config.depths) < 2 or not config.kinds:
        raise InputError(f"depths={config.depths}: P2 compares at least two depths of some kind.")
    for kind in config.kinds:
        if kind not in KINDS:
            raise InputError(f"there is no kind of network {kind!r}; choose {', '.join(KINDS)}.")
    cases = list(product(config.kinds, config.depths, (True, False)))
    rows = [
        (kind, variant, "depth", float(layers), sample, metric, value)
        for (kind, layers, scaled), _ in kit.tracked(cases, on_step)
        for variant, sample, figures in _last_layers(config, kind, layers, scaled=scaled)
        for metric, value in figures.items()
    ]
    names = ("model", "variant", "parameter", "setting", "sample", "metric", "value")
    return tables.from_rows(names, rows)


def _last_layers(
    config: Config, kind: str, layers: int, *, scaled: bool
) -> Iterator[tuple[str, int, dict[str, float]]]:
    """By variant and sample, figures of the last layer: predicted, then measured."""
    spec = config.spec(kind, layers, scaled=scaled)
    name = SCALED if scaled else PLAIN
    learning = kind != "without norm"  # uniform attention has no queries to learn
    kernel = overlap_kernel(config.tokens, config.overlap)
    predicted = predict(
        spec, kernel=kernel, draws=config.draws, seed=config.seed, gradients=learning
    )
    for draw in range(config.draws):
        values = {metric: by_draw[:, draw, 0] for metric, by_draw in predicted.values.items()}
        figures = {_COSINE: float(values[_COSINE][-1]), **(_gradients(values) if learning else {})}
        yield f"{name}, {PREDICTED}", draw, figures
    x = overlapping_tokens(config.tokens, config.width, config.overlap, config.seed).unsqueeze(0)
    for draw in range(config.networks):
        network = Network.random(spec, seed=config.seed + draw, dtype=torch.float64)
        traced = trace(network, x, metrics=[_COSINE]).table
        figures = {_COSINE: traced.filter(layer=layers)["value"].item()}
        if learning:
            gradients = measured_gradients(network, x, seed=config.seed + draw)
            figures |= _gradients({metric: value[:, 0] for metric, value in gradients.items()})
        yield f"{name}, {MEASURED}", draw, figures


def _gradients(by_layer: Mapping[str, Tensor]) -> dict[str, float]:
    larger = torch.maximum(by_layer["query_gradient"], by_layer["key_gradient"])
    ratio = larger / by_layer["value_gradient"]
    return {_GRADIENTS: float(ratio[-1] / ratio[1])}


def judge(_: Config, table: pl.DataFrame) -> kit.Answer:
    """What is asked of every kind of network, predicted and measured alike.

    Scaled branches hold collapse off if the mean cosine at the largest depth is below 0.95 and
    within 0.02, and three standard errors, of that at the depth before. Without the scale tokens
    collapse if it rises with every depth, to 0.99 at least. Queries and keys are starved where the
    last layer's ratio of their gradients to those of values is a thousandth of the first layer's or
    less, and fed where it is a tenth or more.
    """
    curves = kit.curves(table)
    kinds = list(dict.fromkeys(kind for kind, _, _ in curves))
    stated: dict[str, bool] = {}
    beyond: dict[str, bool] = {}
    for kind in kinds:
        checks = kit.on_all((PREDICTED, MEASURED), partial(_checks, curves, kind))
        named = {f"{kind}: {question}": ok for question, ok in checks.items()}
        (stated if kind in OWN else beyond).update(named)
    figures = {}
    for kind in kinds:
        for name in (SCALED, PLAIN):
            cosines = _means(curves, kind, name, PREDICTED, _COSINE)
            figures[f"mean cosine, {kind}, {name}"] = cosines[-1].value
        if starved := _means(curves, kind, PLAIN, PREDICTED, _GRADIENTS):
            figures[f"gradients left, {kind}, {PLAIN}"] = starved[-1].value
    return kit.Answer(
        [_sentence(curves, kind) for kind in kinds],
        stated=stated,
        beyond=beyond or None,
        key_figures=figures,
    )


def _means(
    curves: kit.Curves, kind: str, name: str, source: str, metric: str
) -> Sequence[kit.Mean]:
    """By depth; none if it was not measured."""
    return list(curves.get((kind, f"{name}, {source}", metric), {}).values())


def _checks(curves: kit.Curves, kind: str, source: str) -> dict[str, bool]:
    scaled, plain = (_means(curves, kind, n, source, _COSINE) for n in (SCALED, PLAIN))
    before, last = scaled[-2:]
    granted = _LEVEL + _ERRORS * math.hypot(before.error, last.error)
    checks = {
        "no collapse with 1/√L": last.value < _APART and abs(last.value - before.value) <= granted,
        "collapse without 1/√L": plain[-1].value >= _COLLAPSED
        and all(less.value <= more.value + _ROUNDING for less, more in pairwise(plain)),
    }
    fed, starved = (_means(curves, kind, n, source, _GRADIENTS) for n in (SCALED, PLAIN))
    if fed:
        checks["query gradients kept with 1/√L"] = fed[-1].value >= _FED
        checks["query gradients lost without 1/√L"] = starved[-1].value <= _STARVED
    return checks


def _sentence(curves: kit.Curves, kind: str) -> str:
    scaled, plain = (_means(curves, kind, n, PREDICTED, _COSINE) for n in (SCALED, PLAIN))
    fed, starved = (_means(curves, kind, n, PREDICTED, _GRADIENTS) for n in (SCALED, PLAIN))
    words = (
        f"{kind.capitalize()}: 1 − mean cosine is {short(1 - scaled[-1].value)} at the largest "
        f"depth with 1/√L, {short(1 - plain[-1].value)} without"
    )
    if fed:
        words += (
            f"; of the first layer's gradients of queries over values {short(fed[-1].value)} and "
            f"{short(starved[-1].value)} are left in the last"
        )
    # Gradients without the scale vanish, and so do relative differences of them.
    compared = ((SCALED, _COSINE), (SCALED, _GRADIENTS), (PLAIN, _COSINE))
    off = max(
        measured.errors_from(predicted)
        for name, metric in compared
        for predicted, measured in zip(
            *(_means(curves, kind, name, source, metric) for source in (PREDICTED, MEASURED)),
            strict=True,
        )
    )
    return (
        f"{words}; networks differ from the prediction by {short(off, digits=2)} standard errors "
        "at most."
    )
