"""What a prediction comes to: what will become of tokens, attention, sizes and gradients."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rankscope.arguments import checked
from rankscope.core.prediction._trends import LEVEL, Trend, changes, trend
from rankscope.numerals import plural, power_of_ten, short

if TYPE_CHECKING:
    from rankscope.core.prediction._prediction import Prediction

COLLAPSED: Final = 1e-3
"""Relative dispersion under which tokens count as alike: a thousandth of their size."""
SHRUNK: Final = 0.1
"""What is left of the input's relative dispersion, under which a collapse is under way."""
RISEN: Final = 1.1
"""What the relative dispersion is of the input's, above which tokens move apart."""
NARROW: Final = 0.25
"""A layer's entropy, as a part of what even attention has, under which it has collapsed: of 32
keys a query then sees about two, of 128 three."""
EVEN: Final = 0.95
"""The same part, above which attention hardly distinguishes keys."""
VANISHED: Final = 0.1
EXPLODED: Final = 10.0
"""The gradient of the input as a part of that of the last layer: outside of these it does not
stay."""
STARVED: Final = 0.01
"""The larger gradient of queries and keys as a part of that of values, below which those two
hardly learn."""
SURE: Final = 0.9
"""The part of the networks drawn that has to agree: with less, the 10 to 90 % band straddles."""

About = Literal["tokens", "attention", "size", "gradients", "queries"]
_TOKENS: Final = ("depth collapse", "collapse under way", "tokens kept apart", "chaos")
_ATTENTION: Final = ("entropy collapse", "even attention", "selective attention")
_SIZE: Final = ("bounded size", "growing size", "shrinking size")
_GRADIENTS: Final = ("vanishing gradients", "exploding gradients", "level gradients")
_QUERIES: Final = ("starved queries", "learning queries")
_ENTROPY: Final = "attention_entropy"
_LOG_10: Final = math.log(10)
Curves = Float[Tensor, "layer curve"]


@checked
@dataclass(frozen=True)
class Outcome:
    """One thing that will happen, by how many of the networks drawn, and the figures behind it.

    ``layer`` is the one from which it holds, None if it is about the whole depth. ``share`` is the
    part of the networks drawn that show this ``kind``, and no other of what it is ``about``.
    """

    about: About
    kind: str
    sentence: str
    share: float
    layer: int | None = None
    figures: Mapping[str, float] = field(default_factory=dict)
    law: str = ""
    """Of tokens and sizes, how they go on over the second half of the layers."""

    @property
    def is_sure(self) -> bool:
        """Whether nine in ten networks agree, so that their band does not straddle a threshold."""
        return self.share >= SURE

    def __str__(self) -> str:
        return self.sentence


def read_prediction(prediction: "Prediction") -> tuple[Outcome, ...]:
    """What will happen to tokens, attention and sizes, and to gradients if they are there."""
    curves = {name: _curves(values) for name, values in prediction.values.items()}
    found = [_tokens(curves["log10_relative_dispersion"])]
    if prediction.even_entropy is not None:
        even = prediction.even_entropy.unsqueeze(1).expand_as(prediction.values[_ENTROPY])
        found.append(_attention(curves[_ENTROPY][1:], _curves(even)[1:]))
    found.append(_size(curves["token_norm"]))
    if "state_gradient" in curves:
        found.append(_gradients(curves["state_gradient"]))
        reaching = torch.maximum(curves["query_gradient"], curves["key_gradient"])
        found.append(_queries(_ratio(reaching[1:], curves["value_gradient"][1:])))
    return tuple(found)


def _curves(values: Float[Tensor, "layer draw sample"]) -> Curves:
    """A curve for each draw and sample; contiguous, or torch takes wrong medians of what is
    expanded."""
    return values.flatten(1).double().contiguous()


def _tokens(log10: Curves) -> Outcome:
    first, last = log10[0], log10[-1]
    change = torch.where(last == first, 0.0, last - first)  # both may be minus infinity
    codes = torch.full(first.shape, 2)
    codes[change > math.log10(RISEN)] = 3
    codes[change < math.log10(SHRUNK)] = 1
    codes[last < math.log10(COLLAPSED)] = 0
    middle = log10.median(1).values
    end_of_it, layers = trend(_LOG_10 * _center(log10)), len(log10) - 1
    from_layer = _first(middle < math.log10(COLLAPSED))
    start, end = (power_of_ten(float(middle[at])) for at in (0, -1))

    def words(kind: str) -> str:
        if kind == "depth collapse":
            since = f"from layer {from_layer} on" if from_layer is not None else "in the end"
            return (
                f"Depth collapse: {since} tokens differ by less than a thousandth of their size, "
                f"after {plural(layers, 'layer')} by {end} of it{_law(end_of_it)}."
            )
        opening = {
            "collapse under way": "Depth collapse under way",
            "tokens kept apart": "No depth collapse",
            "chaos": "Chaos, tokens move apart",
        }[kind]
        way = f"goes from {start} to {end}" if start != end else f"stays near {start}"
        return (
            f"{opening}: the tokens' relative dispersion {way} over "
            f"{plural(layers, 'layer')}{_law(end_of_it) if kind == 'collapse under way' else ''}."
        )

    figures = {
        "first": float(middle[0]),
        "last": float(middle[-1]),
        "rate": end_of_it.rate / _LOG_10,
    }
    at = from_layer if _common(codes) == 0 else None
    return _outcome("tokens", _TOKENS, codes, words, at, figures, end_of_it.law)


def _law(found: Trend) -> str:
    """How a fall goes on, in a clause."""
    if found.rate > 0 or not math.isfinite(found.rate):
        return ""
    factor = short(found.factor, digits=2)
    return {
        "level": "",
        "exponential": f"; the fall is exponential, each layer leaves {factor} of it",
        "faster than exponential": "; the fall is faster than exponential",
        "polynomial": f"; it falls like the power {short(found.power, digits=2)} of the layer",
        "unclear": f"; in the second half a layer leaves {factor} of it",
    }[found.law]


def _attention(entropy: Curves, even: Curves) -> Outcome:
    parts = torch.where(even > 0, entropy / even, 1.0)
    codes = torch.full((parts.shape[1],), 2)
    codes[(parts > EVEN).all(0)] = 1
    codes[(parts < NARROW).any(0)] = 0
    chosen = parts[:, codes == _common(codes)].contiguous()
    middle = chosen.median(1).values
    narrow = middle < NARROW
    least, lowest = int(middle.argmin()), float(middle.min())
    how_many = max(1, int((chosen < NARROW).sum(0).median()))
    size, most = float(entropy[least].median()), float(even[least].median())
    figures = {"least": lowest, "highest": float(middle.max()), "layers": float(narrow.sum())}
    seen = f"{short(size, digits=2)} of {short(most, digits=2)} nats at layer {least + 1}"

    def words(kind: str) -> str:
        if kind == "entropy collapse":
            layers = f"{how_many} of {plural(len(parts), 'layer')}"
            return (
                f"Entropy collapse: at {layers} attention has less than a quarter of the entropy "
                f"it could have ({seen}); queries see few keys."
            )
        if kind == "even attention" and most == 0:
            return "Every query sees one key alone."
        if kind == "even attention":
            return (
                f"Attention is nearly even at every layer, at least {_percent(lowest)} of the "
                "entropy it could have: it hardly tells keys apart."
            )
        return f"Attention has {_percent(lowest)} or more of the entropy it could have ({seen})."

    first = _first(narrow)
    at = first + 1 if first is not None and _common(codes) == 0 else None
    return _outcome("attention", _ATTENTION, codes, words, at, figures)


def _size(sizes: Curves) -> Outcome:
    change = changes(sizes)
    codes = torch.zeros(change.shape, dtype=torch.long)
    codes[change > LEVEL] = 1
    codes[change < 1 / LEVEL] = 2
    middle, found = sizes.median(1).values, trend(_center(sizes.log()))
    figures = {
        "first": float(middle[0]),
        "last": float(middle[-1]),
        "factor": found.factor,
        "power": found.power,
    }
    law = {
        "exponential": f" exponentially, by a factor of {short(found.factor)} a layer",
        "faster than exponential": " faster than exponentially",
        "polynomial": f" polynomially, like the power {short(found.power, digits=2)} of the layer",
    }.get(found.law, "")

    def words(kind: str) -> str:
        verb = {  # few networks may grow while most do not: then there is no law of growth
            "bounded size": "stay bounded",
            "growing size": f"grow{law if found.rate > 0 else ''}",
            "shrinking size": f"shrink{law if found.rate < 0 else ''}",
        }[kind]
        return (
            f"Token norms {verb}: {short(figures['first'])} at the input, "
            f"{short(figures['last'])} in the end."
        )

    return _outcome("size", _SIZE, codes, words, None, figures, found.law)


def _gradients(states: Curves) -> Outcome:
    ratios = _ratio(states[0], states[-1])
    codes = torch.full(ratios.shape, 2)
    codes[ratios < VANISHED] = 0
    codes[ratios > EXPLODED] = 1
    ratio, layers = float(ratios.median()), len(states) - 1
    opening = {
        "vanishing gradients": "Gradients vanish",
        "exploding gradients": "Gradients explode",
        "level gradients": "Gradients stay",
    }
    figures = {"ratio": ratio, "factor": ratio ** (1 / layers)}

    def words(kind: str) -> str:
        return (
            f"{opening[kind]}: what reaches the input is {short(ratio)} times what leaves the last "
            f"layer, a factor of {short(figures['factor'])} a layer."
        )

    return _outcome("gradients", _GRADIENTS, codes, words, None, figures)


def _queries(parts: Curves) -> Outcome:
    """``parts``: the gradients of queries and keys beside those of values, from layer 1 on."""
    codes = torch.where((parts < STARVED).any(0), 0, 1)
    middle = parts.median(1).values
    starved = middle < STARVED
    how_many = max(1, int((parts < STARVED).sum(0).median()))
    least = int(middle.argmin())
    figures = {"least": float(middle[least]), "layers": float(starved.sum())}

    def words(kind: str) -> str:
        seen = f"{short(figures['least'], digits=2)} of those of values at layer {least + 1}"
        if kind == "learning queries":
            return f"Gradients of queries and keys are at least {seen}."
        return (
            f"Queries and keys hardly learn at {how_many} of "
            f"{plural(len(parts), 'layer')}: their gradients go down to {seen}."
        )

    first = _first(starved)
    at = first + 1 if first is not None and _common(codes) == 0 else None
    return _outcome("queries", _QUERIES, codes, words, at, figures)


def _ratio(part: Tensor, whole: Tensor) -> Tensor:
    """Of gradients: nothing is nothing of anything; what is no number has been infinite before."""
    found = torch.where(part == 0, 0.0, part / whole)
    return torch.where(found.isnan(), math.inf, found)


def _outcome(
    about: About,
    kinds: Sequence[str],
    codes: Int[Tensor, "curve"],
    words: Callable[[str], str],
    layer: int | None,
    figures: Mapping[str, float],
    law: str = "",
) -> Outcome:
    """The kind that most networks show, in words, and how many show another."""
    counts = torch.bincount(codes, minlength=len(kinds))
    kind = kinds[int(counts.argmax())]
    share = float(counts.max()) / len(codes)
    shares = ", ".join(_shares(kinds, counts))
    doubt = "" if share >= SURE else f" Not sure: of the networks drawn {shares}."
    return Outcome(about, kind, words(kind) + doubt, share, layer, figures, law)


def _shares(kinds: Sequence[str], counts: Int[Tensor, "kind"]) -> Iterator[str]:
    """Each kind that was seen, the most common first, with its part of the networks drawn."""
    for at in counts.argsort(descending=True, stable=True).tolist():
        if counts[at]:
            yield f"{float(counts[at] / counts.sum()):.0%} show {kinds[at]}"


def _center(logs: Curves) -> Float[Tensor, "layer"]:
    """One curve for all: means, or medians where some have no logarithm."""
    means = logs.mean(1)
    return means if bool(means.isfinite().all()) else logs.median(1).values


def _percent(part: float) -> str:
    """Rounded down, so that what is not all does not look like it."""
    return f"{math.floor(1000 * part) / 10:g}%"


def _common(codes: Int[Tensor, "curve"]) -> int:
    return int(torch.bincount(codes).argmax())


def _first(there: Tensor) -> int | None:
    """The first place where something is there, if it is anywhere."""
    found = torch.nonzero(there).flatten().tolist()
    return found[0] if found else None
