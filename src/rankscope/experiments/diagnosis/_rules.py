"""The six things called collapse (docs/theory.md, section 8), each with its rule and its words.

To add one, write a function of the ``Evidence`` under ``@rule``, and enter its threshold among the
others.
"""

import math
from typing import Final

import torch

from rankscope.core.theory import thresholds
from rankscope.experiments.diagnosis._evidence import (
    Evidence,
    Sighting,
    Words,
    depth_sighting,
    kept,
    rule,
)
from rankscope.experiments.diagnosis._measure import Measured
from rankscope.numerals import power_of_ten, short

_MORE: Final = "all tokens become alike"


@rule(
    "depth collapse",
    f"the relative residual (without tokens more than {thresholds.GIANT_NORM:g} times as long as "
    f"the median one) falls below {thresholds.COLLAPSED_RESIDUAL:g}, and below "
    f"{thresholds.SHRUNK_RESIDUAL:g} of its largest value in an earlier layer; under way from "
    f"{thresholds.SHRUNK_RESIDUAL:g} of that value down, or if a single layer leaves less than "
    f"{thresholds.HALVED_RESIDUAL:g} of it",
)
def depth(evidence: Evidence) -> Words:
    """Whether the residual goes to zero with the layers."""
    measured, loss = evidence.measured, evidence.loss
    seen = depth_sighting(measured)
    concerned = measured.of_samples(seen.concerned)
    start, end = (float(concerned.common[at].quantile(0.5)) for at in (0, -1))

    def when_found(figure: float, layer: int) -> str:
        if not bool(seen.found.any()):
            alone = f"; layer {loss.layer} alone leaves {power_of_ten(loss.decades)} of it"
            return (
                f"Depth collapse under way: the relative residual, {short(start, digits=2)} at the "
                f"input, is {short(figure, digits=2)} at its lowest"
                f"{alone if 10**loss.decades < thresholds.HALVED_RESIDUAL else ''}."
            )
        words = (
            f"Depth collapse: at layer {layer} tokens differ by less than a thousandth of their "
            f"size (relative residual {short(figure, digits=2)})."
        )
        if end > thresholds.SHRUNK_RESIDUAL:
            words += f" After the last layer it is {short(end, digits=2)} again."
        if figure < thresholds.NOISE_EPSILONS * evidence.epsilon:
            words += " So small a figure is the number format's rounding."
        return words

    def when_not(figure: float, layer: int) -> str:
        return (
            f"No depth collapse: the relative residual is {short(start, digits=2)} at the input, "
            f"{short(figure, digits=2)} at its lowest (layer {layer}) and {short(end, digits=2)} "
            "after the last layer."
        )

    return Words(seen, when_found, when_not, loss.part, loss.layer)


@rule(
    "width collapse",
    "the relative dispersion after the last layer falls with the number T of tokens as T to the "
    f"power −{-thresholds.WIDTH_EXPONENT:g} or faster, over the first eighth, quarter, half and "
    f"all of each text (theory: −0.5); under way from −{-thresholds.WIDTH_HINT_EXPONENT:g}",
)
def width(evidence: Evidence) -> Words:
    """Whether tokens become more alike the more of them there are."""
    exponents = evidence.exponents
    known = exponents[~exponents.isnan()]
    if not len(known):
        return Words(Sighting.none(len(exponents), evidence.why_no_exponents))
    seen = Sighting(
        known <= thresholds.WIDTH_EXPONENT, known <= thresholds.WIDTH_HINT_EXPONENT, known
    )

    def words(name: str, figure: float) -> str:
        power = short(figure, digits=2)
        return f"{name}: the relative dispersion goes as the number of tokens to the power {power}."

    return Words(
        seen,
        when_found=lambda figure, _: words("Width collapse", figure),
        when_not=lambda figure, _: words("No width collapse", figure),
    )


@rule(
    "entropy collapse",
    "in some layer the entropy of attention, over all heads, is below "
    f"{thresholds.ONE_HOT_ENTROPY:g} of what even attention has under the same mask; under way "
    f"from {thresholds.SHARP_ENTROPY:g} down",
)
def entropy(evidence: Evidence) -> Words:
    """Whether attention becomes one-hot."""
    measured = evidence.measured
    shares = measured.heads["entropy_share"].nanmean(1)  # layer, sample
    if bool(shares.isnan().all()):
        return Words(Sighting.none(measured.samples, "every query sees one token only"))
    lowest, at = shares.nan_to_num(nan=math.inf).min(0)
    seen = Sighting(
        lowest < thresholds.ONE_HOT_ENTROPY, lowest < thresholds.SHARP_ENTROPY, lowest, at + 1
    )
    return Words(
        seen,
        when_found=lambda figure, layer: (
            f"Entropy collapse{'' if bool(seen.found.any()) else ' under way'}: in layer {layer} "
            f"attention has {short(figure, digits=2)} of the entropy of even attention, so that "
            "most queries look at hardly more than one token."
        ),
        when_not=lambda figure, layer: (
            f"No entropy collapse: attention is sharpest in layer {layer}, with "
            f"{short(figure, digits=2)} of the entropy of even attention."
        ),
        part="attention",
    )


@rule(
    "layer collapse",
    f"at least {thresholds.IDLE_LAYERS:g} of the layers turn the median token by less than "
    f"{thresholds.IDLE_TURN:g} radians, so that they are close to the identity; under way if any "
    "does",
)
def layers(evidence: Evidence) -> Words:
    """Whether layers become the identity."""
    measured = evidence.measured
    idle = measured.turned < thresholds.IDLE_TURN
    share = idle.double().mean(0)
    quietest = measured.turned.argmin(0) + 1
    seen = Sighting(share >= thresholds.IDLE_LAYERS, idle.any(0), measured.turned.amin(0), quietest)
    usual = (idle.double().mean(1) >= 0.5).tolist()
    named = runs_of(usual)
    cause, growth = _growth(measured, usual)

    def when_found(figure: float, layer: int) -> str:
        where = "" if bool(seen.found.any()) else " in places"
        who = named or f"layer {layer}"
        verb = "turns" if sum(usual) <= 1 else "turn"
        return (
            f"Layer collapse{where}: {who} hardly {verb} the tokens (by "
            f"{short(figure, digits=2)} radians at the least){growth}."
        )

    return Words(
        seen,
        when_found=when_found,
        when_not=lambda figure, layer: (
            f"No layer collapse: layer {layer} does least, and still turns the median token by "
            f"{short(figure, digits=2)} radians."
        ),
        layer=cause or (usual.index(True) + 1 if any(usual) else None),
    )


def _growth(measured: Measured, idle: list[bool]) -> tuple[int, str]:
    """Which layer made the tokens so long that later ones change little, if one did."""
    sizes = measured.states["token_norm"].quantile(0.5, dim=-1)
    growth = sizes[1:] / sizes[:-1].clamp_min(1e-300)
    largest = int(growth.argmax())
    if float(growth[largest]) < thresholds.GROWN_NORM or not any(idle[largest + 1 :]):
        return 0, ""
    times = short(float(growth[largest]), digits=2)
    words = (
        f"; layer {largest + 1} makes the tokens {times} times as long, and what layers after it "
        "add is small beside them"
    )
    return largest + 1, words


@rule(
    "last-token collapse",
    "after the last layer the last token is nearer to another token than "
    f"{thresholds.MERGED_DISTANCE:g} of its length, while the tokens as a whole keep "
    f"{thresholds.SHRUNK_RESIDUAL:g} or more of their relative residual",
)
def last_token(evidence: Evidence) -> Words:
    """Whether the last token cannot be told from another."""
    measured = evidence.measured
    apart, lost = measured.last_apart, (kept(measured.common) < thresholds.SHRUNK_RESIDUAL).any(0)
    if bool(lost.all()):
        return Words(Sighting.none(measured.samples, _MORE))
    merged = (apart[-1] < thresholds.MERGED_DISTANCE) & ~lost
    together = apart < thresholds.MERGED_DISTANCE
    since = together.flip(0).int().cumprod(0).sum(0)  # layers in a row, up to the last
    layer = (len(apart) - since).clamp(max=len(apart) - 1)
    seen = Sighting(merged, torch.zeros_like(merged), apart[-1], layer)
    fellow = int(measured.last_fellow[seen.concerned].mode().values)

    def when_found(figure: float, layer: int) -> str:
        since = "from the input on" if layer == 0 else f"from layer {layer} on"
        return (
            f"Last-token collapse: {since} the last token cannot be told from token {fellow} of "
            f"its text (counted from 0; distance {short(figure, digits=2)} of its length)."
        )

    return Words(
        seen,
        when_found=when_found,
        when_not=lambda figure, _: (
            "No last-token collapse: after the last layer the last token's nearest fellow is "
            f"{short(figure, digits=2)} of its length away."
        ),
    )


@rule(
    "cone",
    f"in some layer the mean cosine between tokens is {thresholds.CONE_COSINE:g} or more, the "
    f"rank {thresholds.FULL_RANK_SHARE:g} or more of the largest possible, and the tokens keep "
    f"{thresholds.SHRUNK_RESIDUAL:g} or more of their relative residual; it is no loss of rank",
    worst="noted",
    headline="the tokens lie in a cone",
)
def cone(evidence: Evidence) -> Words:
    """Whether tokens point the same way, and yet differ."""
    measured = evidence.measured
    cosine = measured.states["mean_cosine"]
    lost = (kept(measured.common) < thresholds.SHRUNK_RESIDUAL).any(0)
    enough = measured.tokens >= thresholds.CONE_TOKENS
    wide = ~lost & enough & (measured.states["rank_share"] >= thresholds.FULL_RANK_SHARE)
    highest, at = torch.where(wide, cosine, -math.inf).max(0)
    if not bool(wide.any()):
        why = "the tokens are too few, or have no full rank in any layer"
        why = _MORE if bool(lost.all()) else why
        return Words(Sighting.none(measured.samples, why))
    seen = Sighting(highest >= thresholds.CONE_COSINE, torch.zeros_like(highest) > 0, highest, at)

    def told(figure: float, layer: int) -> str:
        angle = math.degrees(math.acos(max(-1.0, min(1.0, figure))))
        where = "at the input" if layer == 0 else f"at layer {layer}"
        return f"{where} the mean cosine is {short(figure, digits=2)}, an angle of {angle:.0f}°"

    def when_found(figure: float, layer: int) -> str:
        rank = float(measured.states["numerical_rank"][layer].quantile(0.5))
        return f"Cone: {told(figure, layer)}, yet the rank is {short(rank)}."

    return Words(
        seen,
        when_found=when_found,
        when_not=lambda figure, layer: f"No cone: at its narrowest, {told(figure, layer)}.",
    )


def runs_of(flags: list[bool]) -> str:
    """Layers from 1 in words: "layers 3 to 6 and 9"; nothing if there is none."""
    numbers = [number for number, flag in enumerate(flags, start=1) if flag]
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    words = [str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs]
    if not words:
        return ""
    *before, last = words
    listed = f"{', '.join(before)} and {last}" if before else last
    return f"layer{'s' * (len(numbers) > 1)} {listed}"


RULES: Final = (depth, width, entropy, layers, last_token, cone)
"""In the order in which findings are listed."""
