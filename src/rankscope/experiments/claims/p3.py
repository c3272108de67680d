"""Claim P3: the stream of pre-norm networks grows with depth, until layers change little of it."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Final

import polars as pl
import torch
from torch import Tensor

from rankscope import tables
from rankscope.arguments import Range
from rankscope.core.network import Block, Init, Network, Spec
from rankscope.core.prediction import predict
from rankscope.core.theory import late_exponent
from rankscope.errors import InputError
from rankscope.experiments import kit
from rankscope.experiments.claims._overlapping import (
    overlap_kernel,
    overlapping_tokens,
)
from rankscope.numerals import short

ENTRY = kit.claim(
    "P3",
    "The variance of pre-norm networks grows at least linearly with depth, so that deep layers "
    "tend to the identity; norms scaled by 1/√ℓ tame it and let deep layers change more.",
    source="Sun et al. 2025, curse of depth",
    domain="random pre-norm networks with LeCun's weights, at initialisation",
    seconds=22,
    metrics=(
        kit.Metric(
            "layer_share",
            "Share of the stream a layer changes",
            "‖step‖² / ‖X‖²",
            "log",
            "0 = the layer is the identity",
            "The mean square of what a layer adds over that of the hidden states after it.",
        ),
    ),
)
PAPER = {"layers": 128, "tokens": 64, "width": 256, "heads": 8}
_VARIANCE, _SHARE = "stream_variance", "layer_share"
PLAIN, SCALED = "norms × 1", "norms × 1/√ℓ"
CHAINED, PREDICTED, MEASURED = "predicted layer by layer", "predicted", "networks"
_FEWEST = 8
"""Layers without which no law can be seen."""
_LINEAR = (0.9, 1.1)
"""Exponents of the growth that count as linear."""
_INVERSE = (-1.15, -0.85)
"""Exponents of a layer's share that count as 1/ℓ."""
_TAMED = 0.5
"""The exponent below which the growth is tamed; a logarithm has 1/log ℓ."""
_QUESTIONS: Final = (
    "the variance grows at least linearly",
    "a layer's share falls as 1/ℓ",
    "1/√ℓ tames the growth",
    "1/√ℓ lets the last layer change more",
)
_BEYOND = "weights that are not LeCun's"

Row = tuple[str, str, int, int, str, float]


@dataclass(frozen=True)
class Config(kit.Config):
    """Pre-norm transformers with RMSNorm and ReLU MLPs; weights are LeCun's times each scale."""

    layers: int = 48
    tokens: Annotated[int, Range(2, 4096)] = 16
    overlap: float = 0.1
    width: int = 128
    heads: int = 4
    scales: tuple[float, ...] = (1.0, 0.5, 2.0)
    """The first is the claim's own, the others lie beyond it."""
    draws: int = 8
    networks: int = 8

    def spec(self, scale: float, layers: int, *, at: int = 1) -> Spec:
        """Layers as they are behind norms scaled by 1/√at.

        The gain of a norm goes into queries, keys and values, and through ReLU: as if all weights
        were multiplied by ``at^(−1/4)`` and the logits once more by 1/√at.
        """
        return Spec(
            layers,
            self.heads,
            self.width,
            norm="rms",
            activation="relu",
            bias=False,
            init=Init("lecun", scale * at**-0.25),
            score_scale=math.sqrt(self.heads / self.width / at),
        )


def run(config: Config, on_step: kit.OnStep) -> kit.Result:
    """The stream's mean square by layer and what each layer changes of it, predicted, measured."""
    if config.layers < _FEWEST or not config.scales or min(config.scales) <= 0:
        raise InputError(f"P3 needs scales above 0, and {_FEWEST} layers or more to see a law.")
    rows: list[Row] = []
    for scale, on_scale in kit.tracked(config.scales, on_step):
        for scaled, on_part in kit.tracked((False, True), on_scale):
            rows += _curves(config, scale, scaled=scaled)
            on_part(1.0)
    table = tables.from_rows(("model", "variant", "layer", "sample", "metric", "value"), rows)
    judgement, beyond, sentences = judge(table)
    return ENTRY.result(
        config,
        question="Does the stream grow with depth until layers change nothing, and do norms scaled "
        "by 1/√ℓ mend it?",
        sentences=sentences,
        table=table,
        about={
            "scaled norms": "predicted one layer after the other, each handing on the tokens' "
            "mean square and mean cosine; measured by setting the gains of the norms"
        },
        judgement=judgement,
        beyond=beyond,
        key_figures=_key_figures(table),
        drawings=(
            kit.Drawing("by_depth", "The tokens' mean square over the input's.", _VARIANCE),
            kit.Drawing("by_depth", "What a layer changes of the stream.", _SHARE),
        ),
        shown=(_VARIANCE, _SHARE),
    )


def _curves(config: Config, scale: float, *, scaled: bool) -> Iterator[Row]:
    model, name = f"LeCun × {scale:g}", SCALED if scaled else PLAIN
    chained = _chain(config, scale, scaled=scaled)
    yield from _rows((model, f"{name}, {CHAINED}"), 0, chained, _shares(chained))
    if not scaled:
        kernel = overlap_kernel(config.tokens, config.overlap)
        spec = config.spec(scale, config.layers)
        found = predict(spec, kernel=kernel, draws=config.draws, seed=config.seed)
        for draw, norms in enumerate(found.values["token_norm"][..., 0].T):
            sizes = norms.square().tolist()
            yield from _rows((model, f"{name}, {PREDICTED}"), draw, sizes, _shares(sizes))
    for draw in range(config.networks):
        sizes, shares = _network(config, scale, config.seed + draw, scaled=scaled)
        yield from _rows((model, f"{name}, {MEASURED}"), draw, sizes, shares)


def _shares(sizes: Sequence[float]) -> list[float]:
    """What each layer changes if its branches are orthogonal to the stream, as random ones are."""
    return [1 - before / after for before, after in pairwise(sizes)]


def _rows(
    label: tuple[str, str], sample: int, sizes: Sequence[float], shares: Sequence[float]
) -> Iterator[Row]:
    for layer, size in enumerate(sizes):
        yield *label, layer, sample, _VARIANCE, size / sizes[0]
    for layer, share in enumerate(shares, start=1):
        yield *label, layer, sample, _SHARE, share


def _chain(config: Config, scale: float, *, scaled: bool) -> list[float]:
    """The tokens' mean square by layer, each layer predicted from two means of the one before."""
    size, cosine = 1.0, config.overlap
    sizes = [size]
    for layer in range(1, config.layers + 1):
        found = predict(
            config.spec(scale, 1, at=layer if scaled else 1),
            kernel=size * overlap_kernel(config.tokens, cosine),
            draws=config.draws,
            seed=config.seed + layer,
            infinite_width=True,  # no chance overlaps of steps and stream, which shares would show
        )
        size = float(found.values["token_norm"][1].square().mean()) / config.width
        cosine = min(max(float(found.values["mean_cosine"][1].mean()), 0.0), 1 - 1e-12)
        sizes.append(size)
    return sizes


def _network(
    config: Config, scale: float, seed: int, *, scaled: bool
) -> tuple[list[float], list[float]]:
    """Mean squares of a network's states, and the squares of its layers' steps over them."""
    network = Network.random(config.spec(scale, config.layers), seed=seed, dtype=torch.float64)
    with torch.no_grad():
        if scaled:
            scale_norms(network)
        x = overlapping_tokens(config.tokens, config.width, config.overlap, config.seed)
        states: list[Tensor] = [x.unsqueeze(0), *network.states(x.unsqueeze(0))]
    sizes = [float(state.square().mean()) for state in states]
    steps = [float((after - before).square().mean()) for before, after in pairwise(states)]
    return sizes, [step / size for step, size in zip(steps, sizes[1:], strict=True)]


def scale_norms(network: Network) -> None:
    """Multiply the output of layer ℓ's norms by 1/√ℓ, in their gains."""
    for layer, block in enumerate(network.blocks, start=1):
        assert isinstance(block, Block)
        for gain in block.norms.parameters():
            gain.mul_(layer**-0.5)


def judge(table: pl.DataFrame) -> tuple[kit.Judgement, kit.Judgement | None, tuple[str, ...]]:
    """Exponents over the second half of the layers, of networks and of the prediction alike.

    The growth is that of the mean square above the input's: at least linear from an exponent of
    0.9 on, tamed below 0.5. A layer's share falls as 1/ℓ at exponents from −1.15 to −0.85. Scaled
    norms let the last layer change more if its share of the stream is larger than without.
    """
    curves = _means(table)
    models = list(dict.fromkeys(model for model, _, _ in curves))
    own, *others = models
    beyond = {f"{model}, {q}": ok for model in others for q, ok in _answers(curves, model).items()}
    return (
        kit.judged(ENTRY.domain, _answers(curves, own)),
        kit.judged(_BEYOND, beyond) if beyond else None,
        tuple(_sentence(curves, model) for model in models),
    )


Curves = Mapping[tuple[str, str, str], list[float]]


def _means(table: pl.DataFrame) -> Curves:
    """By model, variant and metric, the mean over draws, layer by layer."""
    keys = ("model", "variant", "metric")
    means = table.group_by(*keys, "layer", maintain_order=True).agg(pl.mean("value"))
    grouped = means.sort("layer", maintain_order=True).group_by(*keys, maintain_order=True)
    return {(m, v, k): values for m, v, k, values in grouped.agg("value").iter_rows()}


def _growth(curves: Curves, model: str, name: str, source: str) -> float:
    sizes = curves[model, f"{name}, {source}", _VARIANCE]
    return late_exponent([size - sizes[0] for size in sizes[1:]])


def _answers(curves: Curves, model: str) -> dict[str, bool]:
    answers = dict.fromkeys(_QUESTIONS, True)
    for source in (CHAINED, MEASURED):
        growth, tamed = (_growth(curves, model, name, source) for name in (PLAIN, SCALED))
        plain, scaled = (curves[model, f"{n}, {source}", _SHARE] for n in (PLAIN, SCALED))
        asked = (
            growth >= _LINEAR[0],
            _INVERSE[0] <= late_exponent(plain) <= _INVERSE[1],
            tamed < _TAMED,
            scaled[-1] > plain[-1],
        )
        for question, ok in zip(_QUESTIONS, asked, strict=True):
            answers[question] = answers[question] and ok
    return answers


def _sentence(curves: Curves, model: str) -> str:
    growth, tamed = (_growth(curves, model, name, CHAINED) for name in (PLAIN, SCALED))
    plain, scaled = (curves[model, f"{n}, {CHAINED}", _SHARE][-1] for n in (PLAIN, SCALED))
    low, high = _LINEAR
    law = "more slowly than" if growth < low else "faster than" if growth > high else "as fast as"
    return (
        f"{model}: the variance grows {law} the depth, as ℓ^{short(growth)} (networks "
        f"ℓ^{short(_growth(curves, model, PLAIN, MEASURED))}), with scaled norms as "
        f"ℓ^{short(tamed)}; the last layer changes {plain:.2%} of it, with scaled norms "
        f"{scaled:.2%}; networks differ from the prediction by {_off(curves, model):.0%} at most "
        "in the variance."
    )


def _off(curves: Curves, model: str) -> float:
    """The largest relative difference of networks from the layer-by-layer prediction."""
    found = 0.0
    for name in (PLAIN, SCALED):
        predicted, measured = (
            curves[model, f"{name}, {source}", _VARIANCE] for source in (CHAINED, MEASURED)
        )
        pairs = zip(predicted, measured, strict=True)
        found = max(found, *(abs(after / before - 1) for before, after in pairs))
    return found


def _key_figures(table: pl.DataFrame) -> dict[str, float]:
    curves = _means(table)
    model = next(iter(curves))[0]
    figures = {}
    for name in (PLAIN, SCALED):
        figures[f"exponent of the growth, {name}"] = _growth(curves, model, name, CHAINED)
        share = curves[model, f"{name}, {CHAINED}", _SHARE]
        figures[f"exponent of a layer's share, {name}"] = late_exponent(share)
        figures[f"share the last layer changes, {name}"] = share[-1]
    return figures
