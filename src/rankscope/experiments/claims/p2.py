"""Claim P2: branches scaled by 1/√L hold off rank collapse, which starves queries and keys."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
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
from rankscope.experiments.claims._overlapping import (
    overlap_kernel,
    overlapping_tokens,
)
from rankscope.experiments.kit import Mean
from rankscope.numerals import short

ENTRY = kit.claim(
    "P2",
    "Branches scaled by 1/√L hold off rank collapse at any depth L; without the scale tokens "
    "become alike, and the gradients of queries and keys vanish beside those of values.",
    source="Noci et al. 2022, residual scaling",
    domain="random networks without norms under uniform attention, and post-norm ones",
    seconds=17,
    metrics=(
        kit.Metric(
            "query_value_gradient",
            "Gradients of queries and keys over values",
            "‖query‖ / ‖value‖, last to first layer",
            "log",
            "0 = queries and keys of the last layer learn nothing",
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
_LEVEL = 0.02
"""By which the mean cosine at the two largest depths may differ, beside sampling."""
_ERRORS = 3.0
"""Standard errors that sampling is granted."""
_APART = 0.95
"""Mean cosine below which tokens have not collapsed."""
_COLLAPSED = 0.99
"""Mean cosine from which they have."""
_STARVED, _FED = 1e-3, 0.1
"""What is left of the first layer's ratio of gradients in the last one: nothing, or enough."""
_ROUNDING = 1e-12
_BEYOND = "pre-norm networks, whose stream grows by itself"

Row = tuple[str, str, str, float, int, str, float]


@dataclass(frozen=True)
class Config(kit.Config):
    """Transformers of growing depth with ReLU MLPs and LeCun weights, scaled or not."""

    kinds: tuple[str, ...] = KINDS
    depths: tuple[Annotated[int, Range(1, 4096)], ...] = (4, 8, 16, 32)
    tokens: Annotated[int, Range(2, 4096)] = 16
    overlap: float = 0.1
    """The cosine of any two tokens of the input."""
    width: int = 64
    heads: int = 4
    draws: int = 6
    """Predicted networks."""
    networks: int = 4
    """Measured ones."""

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


def run(config: Config, on_step: kit.OnStep) -> kit.Result:
    """The last layer's mean cosine at each depth, and the gradients of queries over values."""
    if len(config.depths) < 2 or not config.kinds:
        raise InputError(f"depths={config.depths}: P2 compares at least two depths of some kind.")
    for kind in config.kinds:
        if kind not in KINDS:
            raise InputError(f"there is no kind of network {kind!r}; choose {', '.join(KINDS)}.")
    rows = [
        row
        for (kind, layers, scaled), _ in kit.tracked(_cases(config), on_step)
        for row in _measure(config, kind, layers, scaled=scaled)
    ]
    names = ("model", "variant", "parameter", "setting", "sample", "metric", "value")
    table = tables.from_rows(names, rows)
    judgement, beyond, sentences = judge(table)
    return ENTRY.result(
        config,
        question="Do branches scaled by 1/√L keep tokens apart, and queries and keys learning, at "
        "any depth?",
        sentences=sentences,
        table=table,
        judgement=judgement,
        beyond=beyond,
        key_figures=_key_figures(table),
        drawings=(
            kit.Drawing("by_setting", "Mean cosine after the last layer.", _COSINE),
            kit.Drawing(
                "by_setting",
                "The last layer's gradients of queries and keys over those of values, in parts of "
                "the first layer's.",
                _GRADIENTS,
            ),
        ),
        shown=(_COSINE, _GRADIENTS),
    )


def _cases(config: Config) -> list[tuple[str, int, bool]]:
    return [(k, layers, s) for k in config.kinds for layers in config.depths for s in (True, False)]


def _measure(config: Config, kind: str, layers: int, *, scaled: bool) -> Iterator[Row]:
    spec = config.spec(kind, layers, scaled=scaled)
    name = SCALED if scaled else PLAIN
    learning = kind != "without norm"  # uniform attention has no queries to learn
    kernel = overlap_kernel(config.tokens, config.overlap)
    found = predict(spec, kernel=kernel, draws=config.draws, seed=config.seed, gradients=learning)
    label = (kind, f"{name}, {PREDICTED}", "depth", float(layers))
    for draw in range(config.draws):
        values = {metric: each[:, draw, 0] for metric, each in found.values.items()}
        yield from _rows(label, draw, float(values[_COSINE][-1]), values if learning else {})
    x = overlapping_tokens(config.tokens, config.width, config.overlap, config.seed).unsqueeze(0)
    label = (kind, f"{name}, {MEASURED}", "depth", float(layers))
    for draw in range(config.networks):
        network = Network.random(spec, seed=config.seed + draw, dtype=torch.float64)
        traced = trace(network, x, metrics=[_COSINE]).table
        cosine = traced.filter(layer=layers)["value"].item()
        gradients = measured_gradients(network, x, seed=config.seed + draw) if learning else {}
        one = {metric: each[:, 0] for metric, each in gradients.items()}
        yield from _rows(label, draw, cosine, one)


def _rows(
    label: tuple[str, str, str, float], sample: int, cosine: float, gradients: Mapping[str, Tensor]
) -> Iterator[Row]:
    yield *label, sample, _COSINE, cosine
    if gradients:
        larger = torch.maximum(gradients["query_gradient"], gradients["key_gradient"])
        ratio = larger / gradients["value_gradient"]
        yield *label, sample, _GRADIENTS, float(ratio[-1] / ratio[1])


def judge(table: pl.DataFrame) -> tuple[kit.Judgement, kit.Judgement | None, tuple[str, ...]]:
    """What is asked of every kind of network, predicted and measured alike.

    Scaled branches hold collapse off if the mean cosine at the largest depth is below 0.95 and
    within 0.02, and three standard errors, of that at the depth before. Without the scale tokens
    collapse if it rises with every depth, to 0.99 at least. Queries and keys are starved where the
    last layer's ratio of their gradients to those of values is a thousandth of the first layer's or
    less, and fed where it is a tenth or more.
    """
    means = _means(table)
    kinds = list(dict.fromkeys(kind for kind, _, _ in means))
    cases = {kind: _answers(means, kind) for kind in kinds}
    own = {f"{kind}, {q}": ok for kind in kinds if kind in OWN for q, ok in cases[kind].items()}
    other = {
        f"{kind}, {q}": ok for kind in kinds if kind not in OWN for q, ok in cases[kind].items()
    }
    return (
        kit.judged(ENTRY.domain, own),
        kit.judged(_BEYOND, other) if other else None,
        tuple(_sentence(means, kind) for kind in kinds),
    )


Means = Mapping[tuple[str, str, str], Mapping[float, Mean]]
"""By kind, variant and metric, the mean over draws at each depth."""


def _means(table: pl.DataFrame) -> Means:
    grouped = table.group_by("model", "variant", "metric", "setting", maintain_order=True)
    found: dict[tuple[str, str, str], dict[float, Mean]] = {}
    for kind, variant, metric, depth, values in grouped.agg("value").iter_rows():
        found.setdefault((kind, variant, metric), {})[depth] = Mean.of(values)
    return found


def _curve(means: Means, kind: str, name: str, source: str, metric: str) -> list[Mean]:
    found = means.get((kind, f"{name}, {source}", metric), {})
    return [found[depth] for depth in sorted(found)]


def _answers(means: Means, kind: str) -> dict[str, bool]:
    """Each question, answered alike by what was predicted and by networks, or not borne out."""
    answers: dict[str, bool] = {}
    for source in (PREDICTED, MEASURED):
        scaled, plain = (_curve(means, kind, n, source, _COSINE) for n in (SCALED, PLAIN))
        asked = {
            "held off with 1/√L": scaled[-1].value < _APART and _level(scaled[-2], scaled[-1]),
            "collapse without": plain[-1].value >= _COLLAPSED
            and all(before.value <= after.value + _ROUNDING for before, after in pairwise(plain)),
        }
        fed, starved = (_curve(means, kind, n, source, _GRADIENTS) for n in (SCALED, PLAIN))
        if fed:
            asked["queries fed with 1/√L"] = fed[-1].value >= _FED
            asked["queries starved without"] = starved[-1].value <= _STARVED
        for question, ok in asked.items():
            answers[question] = answers.get(question, True) and ok
    return answers


def _level(before: Mean, after: Mean) -> bool:
    granted = _LEVEL + _ERRORS * math.hypot(before.error, after.error)
    return abs(after.value - before.value) <= granted


def _sentence(means: Means, kind: str) -> str:
    scaled, plain = (_curve(means, kind, n, PREDICTED, _COSINE) for n in (SCALED, PLAIN))
    fed, starved = (_curve(means, kind, n, PREDICTED, _GRADIENTS) for n in (SCALED, PLAIN))
    words = (
        f"{kind.capitalize()}: 1 − mean cosine is {short(1 - scaled[-1].value)} at the largest "
        f"depth with 1/√L, {short(1 - plain[-1].value)} without"
    )
    if fed:
        words += (
            f"; of the first layer's gradients of queries over values {short(fed[-1].value)} and "
            f"{short(starved[-1].value)} are left in the last"
        )
    return (
        f"{words}; networks differ from the prediction by {short(_off(means, kind), digits=2)} "
        "standard errors at most."
    )


def _off(means: Means, kind: str) -> float:
    """The largest difference of networks from what was predicted, while tokens are apart."""
    return max(
        (
            one.errors_from(other)
            for name in (SCALED, PLAIN)
            for metric in (_COSINE, _GRADIENTS)
            for one, other in zip(
                *(_curve(means, kind, name, source, metric) for source in (PREDICTED, MEASURED)),
                strict=True,
            )
            if metric == _COSINE or name == SCALED
        ),
        default=0.0,
    )


def _key_figures(table: pl.DataFrame) -> dict[str, float]:
    means = _means(table)
    figures = {}
    for kind in dict.fromkeys(kind for kind, _, _ in means):
        for name in (SCALED, PLAIN):
            cosine = _curve(means, kind, name, PREDICTED, _COSINE)[-1].value
            figures[f"mean cosine, {kind}, {name}"] = cosine
        starved = _curve(means, kind, PLAIN, PREDICTED, _GRADIENTS)
        if starved:
            figures[f"gradients left, {kind}, {PLAIN}"] = starved[-1].value
    return figures
