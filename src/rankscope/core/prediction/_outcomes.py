"""Outcomes of a prediction: what happens to tokens, attention, token norms and gradients."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rankscope.arguments import checked
from rankscope.core.theory import LEVEL, Trend, later_factors, thresholds, trend

if TYPE_CHECKING:
    from rankscope.core.prediction._prediction import Prediction

About = Literal["tokens", "attention", "size", "gradients", "queries"]
_KINDS: Final[Mapping[About, tuple[str, ...]]] = {
    "tokens": ("depth collapse", "collapse under way", "tokens kept apart", "chaos"),
    "attention": ("entropy collapse", "even attention", "selective attention"),
    "size": ("bounded size", "growing size", "shrinking size"),
    "gradients": ("vanishing gradients", "exploding gradients", "level gradients"),
    "queries": ("starved queries", "learning queries"),
}
"""The possible kinds of each outcome; networks are counted by index into these."""
_ENTROPY: Final = "attention_entropy"
_LOG_10: Final = math.log(10)
Curves = Float[Tensor, "layer curve"]


@checked
@dataclass(frozen=True)
class PredictedOutcome:
    """One outcome, the share of networks that show it, and its figures.

    >>> import torch
    >>> from rankscope import Spec, predict
    >>> first, *_ = predict(Spec.pure_attention(6, 2, 8), torch.randn(5, 8), draws=4).verdict
    >>> first.about, first.kind, first.share
    ('tokens', 'depth collapse', 1.0)

    ``layer`` is the first layer for which it holds, None if it is about the whole depth. ``share``
    is the fraction of the networks that show this ``kind``; ``shares`` has every kind that
    occurred, the most common first.
    """

    about: About
    kind: str
    share: float
    layers: int
    """The number of layers."""
    layer: int | None = None
    figures: Mapping[str, float] = field(default_factory=dict)
    shares: Mapping[str, float] = field(default_factory=dict)
    trend: Trend | None = None
    """How tokens or token norms develop over the second half of the layers."""

    @property
    def is_sure(self) -> bool:
        """Whether nine in ten networks agree, so that their band does not cross a threshold."""
        return self.share >= thresholds.SURE_NETWORKS

    @property
    def law(self) -> str:
        """The law of the trend; empty if there is none."""
        return "" if self.trend is None else self.trend.kind

    @property
    def sentence(self) -> str:
        """The outcome in words, with its figures."""
        from rankscope.show import words

        return words.describe_outcome(self)

    def __str__(self) -> str:
        return self.sentence


def read_prediction(prediction: "Prediction") -> tuple[PredictedOutcome, ...]:
    """What happens to tokens, attention and token norms, and to gradients if they were computed."""
    curves = {name: _curves(values) for name, values in prediction.values.items()}
    outcomes = [_tokens(curves["log10_relative_dispersion"])]
    if prediction.even_entropy is not None:
        even = prediction.even_entropy.unsqueeze(1).expand_as(prediction.values[_ENTROPY])
        outcomes.append(_attention(curves[_ENTROPY][1:], _curves(even)[1:]))
    outcomes.append(_size(curves["token_norm"]))
    if "state_gradient" in curves:
        outcomes.append(_gradients(curves["state_gradient"]))
        reaching = torch.maximum(curves["query_gradient"], curves["key_gradient"])
        outcomes.append(_queries(_ratio(reaching[1:], curves["value_gradient"][1:])))
    return tuple(outcomes)


def _curves(values: Float[Tensor, "layer draw sample"]) -> Curves:
    """A curve for each draw and sample; contiguous, or torch takes wrong medians of what is
    expanded."""
    return values.flatten(1).double().contiguous()


def _tokens(log10: Curves) -> PredictedOutcome:
    first, last = log10[0], log10[-1]
    change = torch.where(last == first, 0.0, last - first)  # both may be minus infinity
    codes = torch.full(first.shape, 2)
    codes[change > math.log10(thresholds.RISEN_RESIDUAL)] = 3
    codes[change < math.log10(thresholds.SHRUNK_RESIDUAL)] = 1
    codes[last < math.log10(thresholds.COLLAPSED_RESIDUAL)] = 0
    middle = log10.median(1).values
    fall = trend(_LOG_10 * _center(log10))
    figures = {
        "first": float(middle[0]),
        "last": float(middle[-1]),
        "rate": fall.rate / _LOG_10,
    }
    alike = middle < math.log10(thresholds.COLLAPSED_RESIDUAL)
    return _outcome("tokens", codes, len(log10) - 1, figures, where=alike, law=fall)


def _attention(entropy: Curves, even: Curves) -> PredictedOutcome:
    parts = torch.where(even > 0, entropy / even, 1.0)
    codes = torch.full((parts.shape[1],), 2)
    codes[(parts > thresholds.EVEN_ENTROPY).all(0)] = 1
    codes[(parts < thresholds.SHARP_ENTROPY).any(0)] = 0
    chosen = parts[:, codes == torch.bincount(codes).argmax()].contiguous()
    middle = chosen.median(1).values
    sharp = middle < thresholds.SHARP_ENTROPY
    least = int(middle.argmin())
    figures = {
        "least": float(middle.min()),
        "least_at": least + 1,
        "highest": float(middle.max()),
        "entropy": float(entropy[least].median()),
        "even_entropy": float(even[least].median()),
        "sharp_layers": _layers_below(chosen, thresholds.SHARP_ENTROPY),
    }
    return _outcome("attention", codes, len(parts), figures, where=sharp, first=1)


def _size(sizes: Curves) -> PredictedOutcome:
    change = later_factors(sizes)
    codes = torch.zeros(change.shape, dtype=torch.long)
    codes[change > LEVEL] = 1
    codes[change < 1 / LEVEL] = 2
    middle, way = sizes.median(1).values, trend(_center(sizes.log()))
    figures = {
        "first": float(middle[0]),
        "last": float(middle[-1]),
        "factor": way.factor,
        "power": way.power,
    }
    return _outcome("size", codes, len(sizes) - 1, figures, law=way)


def _gradients(states: Curves) -> PredictedOutcome:
    ratios = _ratio(states[0], states[-1])
    codes = torch.full(ratios.shape, 2)
    codes[ratios < thresholds.VANISHED_GRADIENT] = 0
    codes[ratios > thresholds.EXPLODED_GRADIENT] = 1
    ratio, layers = float(ratios.median()), len(states) - 1
    figures = {"ratio": ratio, "factor": ratio ** (1 / layers)}
    return _outcome("gradients", codes, layers, figures)


def _queries(parts: Curves) -> PredictedOutcome:
    """``parts``: the gradients of queries and keys relative to those of values, from layer 1 on."""
    codes = torch.where((parts < thresholds.STARVED_GRADIENT).any(0), 0, 1)
    middle = parts.median(1).values
    starved = middle < thresholds.STARVED_GRADIENT
    least = int(middle.argmin())
    figures = {
        "least": float(middle[least]),
        "least_at": least + 1,
        "starved_layers": _layers_below(parts, thresholds.STARVED_GRADIENT),
    }
    return _outcome("queries", codes, len(parts), figures, where=starved, first=1)


def _ratio(part: Tensor, reference: Tensor) -> Tensor:
    """A ratio of gradients: 0 / x is 0, and NaN means that one of them overflowed."""
    ratio = torch.where(part == 0, 0.0, part / reference)
    return torch.where(ratio.isnan(), math.inf, ratio)


def _layers_below(parts: Curves, threshold: float) -> int:
    """The number of layers in which the median curve is below a threshold; at least one."""
    return max(1, int((parts < threshold).sum(0).median()))


def _outcome(
    about: About,
    codes: Int[Tensor, "curve"],
    layers: int,
    figures: Mapping[str, float],
    *,
    where: Tensor | None = None,
    first: int = 0,
    law: Trend | None = None,
) -> PredictedOutcome:
    """The kind that most networks show, and the shares of all kinds.

    ``where`` says for each layer, from ``first`` on, whether it has collapsed in the median; it is
    used only if the networks collapse, which is the first kind.
    """
    kinds: Sequence[str] = _KINDS[about]
    counts = torch.bincount(codes, minlength=len(kinds))
    shares = {
        kinds[at]: float(counts[at] / counts.sum())
        for at in counts.argsort(descending=True, stable=True).tolist()
        if counts[at]
    }
    collapsed = [] if where is None or counts.argmax() else torch.nonzero(where).flatten().tolist()
    return PredictedOutcome(
        about,
        kinds[int(counts.argmax())],
        float(counts.max()) / len(codes),
        layers,
        first + collapsed[0] if collapsed else None,
        figures,
        shares,
        law,
    )


def _center(logs: Curves) -> Float[Tensor, "layer"]:
    """One curve for all networks: means, or medians if some logarithms are infinite."""
    means = logs.mean(1)
    return means if bool(means.isfinite().all()) else logs.median(1).values
