"""The six things called collapse (docs/theory.md, section 8), each with its rule and its words."""

import math
from typing import Final

import torch
from torch import Tensor

from rankscope.core.theory import thresholds
from rankscope.experiments.diagnosis._blame import Loss, find_loss
from rankscope.experiments.diagnosis._measure import Measured
from rankscope.experiments.diagnosis._sightings import Kind, Sighting
from rankscope.numerals import power_of_ten, short
from rankscope.results import Finding

DEPTH = Kind(
    "depth collapse",
    f"the relative residual (without tokens more than {thresholds.GIANT_NORM:g} times as long as "
    f"the median one) falls below {thresholds.COLLAPSED_RESIDUAL:g}, and below "
    f"{thresholds.SHRUNK_RESIDUAL:g} of its largest value in an earlier layer; under way from "
    f"{thresholds.SHRUNK_RESIDUAL:g} of that value down, or if a single layer leaves less than "
    f"{thresholds.HALVED_RESIDUAL:g} of it",
)
WIDTH = Kind(
    "width collapse",
    "the relative dispersion after the last layer falls with the number T of tokens as T to the "
    f"power −{-thresholds.WIDTH_EXPONENT:g} or faster, over the first eighth, quarter, half and "
    f"all of each text (theory: −0.5); under way from −{-thresholds.WIDTH_HINT_EXPONENT:g}",
)
ENTROPY = Kind(
    "entropy collapse",
    "in some layer the entropy of attention, over all heads, is below "
    f"{thresholds.ONE_HOT_ENTROPY:g} of what even attention has under the same mask; under way "
    f"from {thresholds.SHARP_ENTROPY:g} down",
)
LAYER = Kind(
    "layer collapse",
    f"at least {thresholds.IDLE_LAYERS:g} of the layers turn the median token by less than "
    f"{thresholds.IDLE_TURN:g} radians, so that they are close to the identity; under way if any "
    "does",
)
LAST = Kind(
    "last-token collapse",
    "after the last layer the last token is nearer to another token than "
    f"{thresholds.MERGED_DISTANCE:g} of its length, while the tokens as a whole keep "
    f"{thresholds.SHRUNK_RESIDUAL:g} or more of their relative residual",
)
CONE = Kind(
    "cone",
    f"in some layer the mean cosine between tokens is {thresholds.CONE_COSINE:g} or more, the "
    f"rank {thresholds.FULL_RANK_SHARE:g} or more of the largest possible, and the tokens keep "
    f"{thresholds.SHRUNK_RESIDUAL:g} or more of their relative residual; it is no loss of rank",
    worst="noted",
)
_MORE: Final = "all tokens become alike"
KINDS: Final = (DEPTH, WIDTH, ENTROPY, LAYER, LAST, CONE)


def depth(measured: Measured, epsilon: float) -> tuple[Finding, Loss]:
    """Whether the residual goes to zero with the layers, and where most of it is lost.

    Both are about the samples in which it does, if there are any.
    """
    seen = depth_sighting(measured)
    concerned = measured.of_samples(seen.concerned)
    loss = find_loss(concerned)
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
        if figure < thresholds.NOISE_EPSILONS * epsilon:
            words += " So small a figure is the number format's rounding."
        return words

    def when_not(figure: float, layer: int) -> str:
        return (
            f"No depth collapse: the relative residual is {short(start, digits=2)} at the input, "
            f"{short(figure, digits=2)} at its lowest (layer {layer}) and {short(end, digits=2)} "
            "after the last layer."
        )

    found = DEPTH.finding(
        seen, when_found=when_found, when_not=when_not, part=loss.part, layer=loss.layer
    )
    return found, loss


def depth_sighting(measured: Measured) -> Sighting:
    """Sample by sample, over all layers."""
    residual = measured.common
    if bool((residual[0] < thresholds.COLLAPSED_RESIDUAL).all()) and not bool(
        (residual >= thresholds.COLLAPSED_RESIDUAL).any()
    ):
        return Sighting.none(measured.samples, "the tokens are alike before the first layer")
    shrunk = kept(residual) < thresholds.SHRUNK_RESIDUAL
    alike = (residual < thresholds.COLLAPSED_RESIDUAL) & shrunk
    before = residual[:-1]
    sudden = (residual[1:] < thresholds.HALVED_RESIDUAL * before) & (
        before >= thresholds.COLLAPSED_RESIDUAL
    )
    lowest = residual.argmin(0)
    layer = _first(alike, _first(shrunk, lowest))
    figure = residual.gather(0, torch.where(alike.any(0), layer, lowest).unsqueeze(0)).squeeze(0)
    return Sighting(alike.any(0), shrunk.any(0) | sudden.any(0), figure, layer)


def kept(residual: Tensor) -> Tensor:
    """What each layer has of the largest residual so far; all of it where there never was any."""
    largest = residual.cummax(0).values
    return torch.where(largest > 0, residual / largest, 1.0)


def width(exponents: Tensor, why_not: str) -> Finding:
    """Whether tokens become more alike the more of them there are.

    ``exponents`` are NaN for samples that cannot tell.
    """
    told = exponents[~exponents.isnan()]
    seen = Sighting(told <= thresholds.WIDTH_EXPONENT, told <= thresholds.WIDTH_HINT_EXPONENT, told)

    def words(name: str, figure: float) -> str:
        power = short(figure, digits=2)
        return f"{name}: the relative dispersion goes as the number of tokens to the power {power}."

    return WIDTH.finding(
        seen if len(told) else Sighting.none(len(exponents), why_not),
        when_found=lambda figure, _: words("Width collapse", figure),
        when_not=lambda figure, _: words("No width collapse", figure),
    )


def entropy(measured: Measured) -> Finding:
    """Whether attention becomes one-hot."""
    shares = measured.heads["entropy_share"].nanmean(1)  # layer, sample
    if bool(shares.isnan().all()):
        return ENTROPY.finding(
            Sighting.none(measured.samples, "every query sees one token only"),
            when_found=_nothing,
            when_not=_nothing,
        )
    lowest, at = shares.nan_to_num(nan=math.inf).min(0)
    seen = Sighting(
        lowest < thresholds.ONE_HOT_ENTROPY, lowest < thresholds.SHARP_ENTROPY, lowest, at + 1
    )
    return ENTROPY.finding(
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


def layers(measured: Measured) -> Finding:
    """Whether layers become the identity."""
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

    return LAYER.finding(
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


def last_token(measured: Measured) -> Finding:
    """Whether the last token cannot be told from another."""
    apart, lost = measured.last_apart, (kept(measured.common) < thresholds.SHRUNK_RESIDUAL).any(0)
    if bool(lost.all()):
        untold = Sighting.none(measured.samples, _MORE)
        return LAST.finding(untold, when_found=_nothing, when_not=_nothing)
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

    return LAST.finding(
        seen,
        when_found=when_found,
        when_not=lambda figure, _: (
            "No last-token collapse: after the last layer the last token's nearest fellow is "
            f"{short(figure, digits=2)} of its length away."
        ),
    )


def cone(measured: Measured) -> Finding:
    """Whether tokens point the same way, and yet differ."""
    cosine = measured.states["mean_cosine"]
    lost = (kept(measured.common) < thresholds.SHRUNK_RESIDUAL).any(0)
    enough = measured.tokens >= thresholds.CONE_TOKENS
    wide = ~lost & enough & (measured.states["rank_share"] >= thresholds.FULL_RANK_SHARE)
    highest, at = torch.where(wide, cosine, -math.inf).max(0)
    if not bool(wide.any()):
        why = "the tokens are too few, or have no full rank in any layer"
        why = _MORE if bool(lost.all()) else why
        untold = Sighting.none(measured.samples, why)
        return CONE.finding(untold, when_found=_nothing, when_not=_nothing)
    seen = Sighting(highest >= thresholds.CONE_COSINE, torch.zeros_like(highest) > 0, highest, at)

    def told(figure: float, layer: int) -> str:
        angle = math.degrees(math.acos(max(-1.0, min(1.0, figure))))
        where = "at the input" if layer == 0 else f"at layer {layer}"
        return f"{where} the mean cosine is {short(figure, digits=2)}, an angle of {angle:.0f}°"

    def when_found(figure: float, layer: int) -> str:
        rank = float(measured.states["numerical_rank"][layer].quantile(0.5))
        return f"Cone: {told(figure, layer)}, yet the rank is {short(rank)}."

    return CONE.finding(
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


def _first(flags: Tensor, otherwise: Tensor) -> Tensor:
    """The first layer with a flag, by sample."""
    return torch.where(flags.any(0), flags.int().argmax(0), otherwise)


def _nothing(_: float, __: int) -> str:
    return ""
