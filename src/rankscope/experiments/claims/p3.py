"""Claim P3: the stream of pre-norm networks grows with depth, until layers change little of it.

What is stated is the abstract's growth and, of the lemma, the lower end, Θ(L); its upper end is
Θ(exp L). The paper's models are trained; here networks are as they were drawn. Behind a norm a
branch adds no more than its weights allow, so that with weights of one size in all layers the
variance grows at most quadratically (docs/theory.md, section 7b): an exponential needs weights that
grow with depth.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, product
from typing import Annotated

import polars as pl
import torch
from torch import Tensor

from rankscope import tables
from rankscope.arguments import Range
from rankscope.core.network import Block, Init, Network, Spec
from rankscope.core.prediction import predict
from rankscope.core.theory import late_exponent, steadiness
from rankscope.errors import InputError
from rankscope.experiments import kit
from rankscope.experiments.claims._overlapping import overlap_kernel, overlapping_tokens
from rankscope.numerals import plural, short

ENTRY = kit.claim(
    "P3",
    "The output variance of pre-norm networks grows exponentially with depth (at least linearly by "
    "the lemma), so that deep layers tend to the identity; norms scaled by 1/√ℓ slow the growth.",
    source="Sun et al. 2025, curse of depth, abstract and lemma (as summarised)",
    question="Does the stream grow exponentially with depth until layers change nothing, and do "
    "norms scaled by 1/√ℓ prevent it?",
    domain="random pre-norm networks with LeCun's weights, at initialisation; trained models not "
    "tested",
    beyond="consequences of the variance for the layers at initialisation, and other weights",
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
_FEWEST = 8  # layers without which no law can be seen
_STEADY = 0.5  # the later half of the logarithm's rise over the earlier half's: 1 if exponential
_LINEAR = (0.9, 1.1)  # exponents of the growth that count as linear
_QUADRATIC = 2.0  # the largest exponent that weights of one size allow
_FALLING = -0.5  # the exponent below which a layer's share falls
_INVERSE = (-1.15, -0.85)  # exponents of a layer's share that count as 1/ℓ
CHARTS = (
    kit.Drawing("by_depth", "The tokens' mean square over the input's.", _VARIANCE),
    kit.Drawing("by_depth", "The share of the stream that a layer changes.", _SHARE),
)
Curves = Mapping[tuple[str, str, str], Sequence[float]]
"""By model, variant and metric, the mean over draws, layer by layer."""


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


def measure(config: Config, on_step: kit.OnStep) -> pl.DataFrame:
    """The stream's mean square by layer and what each layer changes of it, predicted, measured."""
    if config.layers < _FEWEST or not config.scales or min(config.scales) <= 0:
        raise InputError(f"P3 needs scales above 0, and {_FEWEST} layers or more to see a law.")
    rows: list[tuple[str, str, int, int, str, float]] = []
    cases = list(product(config.scales, (False, True)))
    for (scale, scaled), _ in kit.tracked(cases, on_step):
        model, name = f"LeCun × {scale:g}", SCALED if scaled else PLAIN
        for source, sample, sizes, shares in _streams(config, scale, scaled=scaled):
            label = (model, f"{name}, {source}")
            rows += [(*label, at, sample, _VARIANCE, s / sizes[0]) for at, s in enumerate(sizes)]
            rows += [(*label, at, sample, _SHARE, s) for at, s in enumerate(shares, start=1)]
    names = ("model", "variant", "layer", "sample", "metric", "value")
    return tables.from_rows(names, rows)


def _streams(
    config: Config, scale: float, *, scaled: bool
) -> Iterator[tuple[str, int, list[float], list[float]]]:
    """By source and sample: mean squares of the states, and the shares that layers change."""
    chained = _chain(config, scale, scaled=scaled)
    yield CHAINED, 0, chained, _shares(chained)
    if not scaled:
        kernel = overlap_kernel(config.tokens, config.overlap)
        spec = config.spec(scale, config.layers)
        predicted = predict(spec, kernel=kernel, draws=config.draws, seed=config.seed)
        for draw, norms in enumerate(predicted.values["token_norm"][..., 0].T):
            sizes = norms.square().tolist()
            yield PREDICTED, draw, sizes, _shares(sizes)
    for draw in range(config.networks):
        yield MEASURED, draw, *_network(config, scale, config.seed + draw, scaled=scaled)


def _shares(sizes: Sequence[float]) -> list[float]:
    """What each layer changes if its branches are orthogonal to the stream, as random ones are."""
    return [1 - before / after for before, after in pairwise(sizes)]


def _chain(config: Config, scale: float, *, scaled: bool) -> list[float]:
    """The tokens' mean square by layer, each layer predicted from two means of the one before."""
    size, cosine = 1.0, config.overlap
    sizes = [size]
    for layer in range(1, config.layers + 1):
        predicted = predict(
            config.spec(scale, 1, at=layer if scaled else 1),
            kernel=size * overlap_kernel(config.tokens, cosine),
            draws=config.draws,
            seed=config.seed + layer,
            infinite_width=True,  # no chance overlaps of steps and stream, which shares would show
        )
        size = float(predicted.values["token_norm"][1].square().mean()) / config.width
        cosine = min(max(float(predicted.values["mean_cosine"][1].mean()), 0.0), 1 - 1e-12)
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


def judge(config: Config, table: pl.DataFrame) -> kit.Answer:
    """Growth over depth, in networks and in the prediction alike.

    Exponential is a logarithm of the variance that rises at least half as much over the later half
    of the layers as over the earlier. Exponents are those of the mean square above the input's and
    of a layer's share, over the second half of the layers: the growth is at least linear from 0.9
    on, and deep layers tend to the identity if a layer's share falls with an exponent below −0.5.
    Norms scaled by 1/√ℓ slow the growth if its exponent is smaller with them.

    Ours, beyond: that the exponent is at most 2, that a layer's share falls as 1/ℓ (from −1.15 to
    −0.85), and that the last layer's share is larger with scaled norms. The paper measures the
    latter, the contribution of deep layers, in trained models.
    """
    means = kit.curves(table, "layer")
    curves = {key: [mean.value for mean in curve.values()] for key, curve in means.items()}
    models = list(dict.fromkeys(model for model, _, _ in curves))
    checks = {
        model: kit.on_all((CHAINED, MEASURED), partial(_checks, curves, model)) for model in models
    }
    derived = {
        model: kit.on_all((CHAINED, MEASURED), partial(_derived, curves, model)) for model in models
    }
    usual, *others = models
    beyond = {f"{usual}, {name}": ok for name, ok in derived[usual].items()}
    for model in others:
        both = checks[model] | derived[model]
        beyond |= {f"{model}, {name}": ok for name, ok in both.items()}
    against = "; ".join(name for name, holds in beyond.items() if not holds)
    figures: dict[str, float] = {}
    for name in (PLAIN, SCALED):
        shares = curves[usual, f"{name}, {CHAINED}", _SHARE]
        figures |= {
            f"exponent of the growth, {name}": _growth(curves, usual, name, CHAINED),
            f"steadiness of the growth, {name}": _rise(curves, usual, name, CHAINED),
            f"exponent of a layer's share, {name}": late_exponent(shares),
            f"share the last layer changes, {name}": shares[-1],
        }
    return kit.Answer(
        [_sentence(curves, model) for model in models],
        stated=checks[usual],
        on={"depends": _verdict(curves, usual, checks[usual], config.networks)},
        beyond=beyond,
        on_beyond={"depends": f"supported except for: {against}"},
        key_figures=figures,
        about={
            "scaled norms": "predicted one layer after the other, each handing on the tokens' "
            "mean square and mean cosine; measured by setting the gains of the norms"
        },
    )


def _verdict(curves: Curves, model: str, checks: Mapping[str, bool], networks: int) -> str:
    """What is supported at initialisation and what is not, with the exponent of the growth."""
    sides = [
        ", ".join(name for name, holds in checks.items() if holds is side) for side in (True, False)
    ]
    growth = _growth(curves, model, PLAIN, MEASURED)
    return (
        f"supported at initialisation for {sides[0]}; not for {sides[1]} (it grows as "
        f"ℓ^{short(growth)} in the mean of {plural(networks, 'network')})"
    )


def _growth(curves: Curves, model: str, name: str, source: str) -> float:
    sizes = curves[model, f"{name}, {source}", _VARIANCE]
    return late_exponent([size - sizes[0] for size in sizes[1:]])


def _rise(curves: Curves, model: str, name: str, source: str) -> float:
    """The rise of the logarithm in the later half over that in the earlier: 1 if exponential."""
    sizes = curves[model, f"{name}, {source}", _VARIANCE]
    return steadiness([math.log(size) for size in sizes])


def _checks(curves: Curves, model: str, source: str) -> dict[str, bool]:
    """What the paper states."""
    growth, slowed = (_growth(curves, model, name, source) for name in (PLAIN, SCALED))
    shares = curves[model, f"{PLAIN}, {source}", _SHARE]
    return {
        "exponential growth": _rise(curves, model, PLAIN, source) >= _STEADY,
        "growth at least linear (the lemma's lower end)": growth >= _LINEAR[0],
        "deep layers that tend to the identity": late_exponent(shares) < _FALLING,
        "slower growth with norms × 1/√ℓ": slowed < growth,
    }


def _derived(curves: Curves, model: str, source: str) -> dict[str, bool]:
    """What we add to it."""
    plain, scaled = (curves[model, f"{n}, {source}", _SHARE] for n in (PLAIN, SCALED))
    return {
        "growth at most quadratic": _growth(curves, model, PLAIN, source) <= _QUADRATIC,
        "a layer's share falls as 1/ℓ": _INVERSE[0] <= late_exponent(plain) <= _INVERSE[1],
        "1/√ℓ lets the last layer change more": scaled[-1] > plain[-1],
    }


def _sentence(curves: Curves, model: str) -> str:
    growth, tamed = (_growth(curves, model, name, CHAINED) for name in (PLAIN, SCALED))
    plain, scaled = (curves[model, f"{n}, {CHAINED}", _SHARE][-1] for n in (PLAIN, SCALED))
    low, high = _LINEAR
    law = "more slowly than" if growth < low else "faster than" if growth > high else "as fast as"
    off = max(
        abs(measured / predicted - 1)
        for name in (PLAIN, SCALED)
        for predicted, measured in zip(
            *(curves[model, f"{name}, {source}", _VARIANCE] for source in (CHAINED, MEASURED)),
            strict=True,
        )
    )
    return (
        f"{model}: the variance grows {law} the depth, as ℓ^{short(growth)} (networks "
        f"ℓ^{short(_growth(curves, model, PLAIN, MEASURED))}), with scaled norms as "
        f"ℓ^{short(tamed)}; the last layer changes {plain:.2%} of it, with scaled norms "
        f"{scaled:.2%}; networks differ from the prediction by {off:.0%} at most in the variance."
    )
