"""The rules of a diagnosis: seven kinds of collapse (docs/theory.md, section 8), and sublayers.

To add a rule, write a function of ``RuleEvidence``, decorate it with ``@rule``, and enter its
threshold in ``rankscope.core.theory.thresholds``.
"""

import math
from collections.abc import Callable
from typing import Final

import torch

from rankscope.core.theory import thresholds
from rankscope.experiments.diagnosis._causes import Suspect, describe
from rankscope.experiments.diagnosis._evidence import RuleEvidence, Sighting, Words, rule
from rankscope.experiments.diagnosis._measure import VIEWS
from rankscope.experiments.diagnosis._texts import VECTORS, text_figures, vector_direction
from rankscope.experiments.diagnosis._weights import is_passed_through
from rankscope.numerals import plural, power_of_ten, sentence_case, short

_MORE: Final = "all tokens become alike"


@rule(
    "depth collapse",
    f"the relative residual (without tokens more than {thresholds.GIANT_NORM:g} times as long as "
    f"the median one) falls below {thresholds.COLLAPSED_RESIDUAL:g}, and below "
    f"{thresholds.SHRUNK_RESIDUAL:g} of its largest value in an earlier layer; under way from "
    f"{thresholds.SHRUNK_RESIDUAL:g} of that value down, or if a single layer leaves less than "
    f"{thresholds.HALVED_RESIDUAL:g} of it",
)
def depth(evidence: RuleEvidence) -> Words | str:
    """Whether the residual goes to zero with the layers."""
    seen, loss = evidence.depth, evidence.loss
    if seen is None:
        return "the tokens are alike before the first layer"
    measured, collapsed = evidence.measured, bool(seen.present.any())
    if seen.fate != "absent":
        measured = measured.of_samples(seen.concerned)
    curve = measured.typical_residual
    figure, layer = seen.typical if collapsed else measured.lowest
    start, lowest, end = (
        short(residual, digits=2) for residual in (float(curve[0]), figure, float(curve[-1]))
    )
    if seen.fate == "absent":
        words = (
            f"No depth collapse: the relative residual is {start} at the input, {lowest} at its "
            f"lowest (layer {layer}) and {end} after the last layer"
        )
    elif not collapsed:
        alone = ""
        if 10**loss.decades < thresholds.HALVED_RESIDUAL:
            alone = f"; layer {loss.layer} alone leaves {power_of_ten(loss.decades)} of it"
        words = (
            f"Depth collapse under way: the relative residual falls from {start} at the input to "
            f"{lowest} at its lowest (layer {layer}){alone}"
        )
    else:
        noise = figure < thresholds.NOISE_EPSILONS * evidence.epsilon
        words = (
            f"Depth collapse: at layer {layer} tokens differ by less than a thousandth of their "
            f"size (relative residual {lowest}{', which is rounding error' if noise else ''})"
        )
    if measured.has_giants:
        words += f"; tokens longer than {thresholds.GIANT_NORM:g} times the median are left out"
    words += "."
    if collapsed and float(curve[-1]) > thresholds.SHRUNK_RESIDUAL:
        words += f" After the last layer it is {end} again."
    return Words(seen, words, loss.part, loss.layer, None if collapsed else (figure, layer))


@rule(
    "width collapse",
    "the relative dispersion after the last layer falls with the number T of tokens as T to the "
    f"power −{-thresholds.WIDTH_EXPONENT:g} or faster, over the first eighth, quarter, half and "
    f"all of each text (theory: −0.5); under way from −{-thresholds.WIDTH_HINT_EXPONENT:g}",
)
def width(evidence: RuleEvidence) -> Words | str:
    """Whether tokens become more alike the more of them there are."""
    known = evidence.exponents[~evidence.exponents.isnan()]
    if not len(known):
        return evidence.why_no_exponents
    seen = Sighting(
        known <= thresholds.WIDTH_EXPONENT, known <= thresholds.WIDTH_HINT_EXPONENT, known
    )
    name = {"absent": "No width collapse", "slow": "Width collapse under way"}.get(
        seen.fate, "Width collapse"
    )
    power = short(seen.typical[0], digits=2)
    return Words(
        seen,
        f"{name}: the relative dispersion scales as T^{power} with the number T of tokens.",
    )


@rule(
    "entropy collapse",
    "in some layer the entropy of attention, over all heads, is below "
    f"{thresholds.ONE_HOT_ENTROPY:g} of that of uniform attention under the same mask; under way "
    f"below {thresholds.SHARP_ENTROPY:g}, or if the standard deviation of the logits is "
    f"{thresholds.SHARP_LOGITS:g} times that in the other layers and in the untrained twin, and "
    "above √(2 ln T), where T independent logits condense",
)
def entropy(evidence: RuleEvidence) -> Words | str:
    """Whether attention becomes one-hot."""
    shares = evidence.measured.heads["entropy_share"].nanmean(1)  # layer, sample
    if bool(shares.isnan().all()):
        return evidence.measured.unread or "every query attends to a single token"
    shares = shares.nan_to_num(nan=math.inf)
    scales = evidence.measured.logit_scales["attention"]
    critical = (2 * evidence.measured.tokens.double().clamp_min(2).log()).sqrt()
    sharp = torch.zeros_like(scales, dtype=torch.bool)
    for at_layer, scale, usual, fresh in evidence.beside("logit_scales", "attention"):
        if scale > thresholds.SHARP_LOGITS * max(usual, fresh):
            sharp[at_layer - 1] = scales[at_layer - 1] > critical
    # Where no layer has little entropy, a layer with far larger logits than others is the one.
    wanted = torch.where((shares.amin(0) >= thresholds.SHARP_ENTROPY) & sharp.any(0), sharp, True)
    lowest, at = torch.where(wanted, shares, math.inf).min(0)
    nearly = (lowest < thresholds.SHARP_ENTROPY) | sharp.any(0)
    seen = Sighting(lowest < thresholds.ONE_HOT_ENTROPY, nearly, lowest, at + 1)
    figure, layer = seen.typical
    share = f"{short(figure, digits=2)} of the entropy of uniform attention"
    words = f"No entropy collapse: attention is sharpest in layer {layer}, with {share}."
    if seen.fate != "absent":
        under_way = "" if bool(seen.present.any()) else " under way"
        tokens = float(evidence.measured.tokens.double().quantile(0.5)) ** figure
        words = (
            f"Entropy collapse{under_way}: in layer {layer} attention has {share}, as if a query "
            f"attended to about {short(tokens, digits=2)} token{'s' * (tokens >= 1.05)}."
        )
    return Words(seen, words, "attention")


@rule(
    "layer collapse",
    f"at least {thresholds.IDLE_LAYERS:g} of the layers turn the median token by less than "
    f"{thresholds.IDLE_TURN:g} radians, so that they are close to the identity, and by less than "
    f"{thresholds.HALVED_RESIDUAL:g} of what they do in the untrained twin; under way if any does",
)
def layers(evidence: RuleEvidence) -> Words | str:
    """Whether layers become the identity, and which made the tokens too long to be changed."""
    turned = evidence.measured.turned.nan_to_num(nan=math.inf)  # where tokens are not the same
    if bool(turned.isinf().all()):
        return "every layer changes the number of tokens or features"
    idle = turned < thresholds.IDLE_TURN
    if evidence.twin is not None:  # a layer may start close to the identity, and learn
        fresh = evidence.twin.turned.quantile(0.5, dim=-1, keepdim=True)
        idle &= turned < thresholds.HALVED_RESIDUAL * fresh
    share = idle.double().mean(0)
    least = turned.argmin(0) + 1
    seen = Sighting(share >= thresholds.IDLE_LAYERS, idle.any(0), turned.amin(0), least)
    figure, layer = seen.typical
    radians = f"{short(figure, digits=2)} radians"
    usual = (idle.double().mean(1) >= 0.5).tolist()
    sizes = evidence.measured.states["token_norm"].quantile(0.5, dim=-1)
    growth = sizes[1:] / sizes[:-1].clamp_min(1e-300)
    largest, because = int(growth.argmax()), ""
    blamed = usual.index(True) + 1 if any(usual) else None
    if float(growth[largest]) >= thresholds.GROWN_NORM and any(usual[largest + 1 :]):
        blamed = largest + 1
        because = (
            f"; layer {blamed} makes the tokens {short(float(growth[largest]), digits=2)} times as "
            "long, so later layers change them little"
        )
    words = (
        f"No layer collapse: layer {layer} changes tokens least and still turns the median token "
        f"by {radians}."
    )
    if seen.fate != "absent":
        under_way = "" if bool(seen.present.any()) else " under way"
        verb = "turns" if sum(usual) <= 1 else "turn"
        idle_layers = runs_of(usual) or f"layer {layer}"
        words = (
            f"Layer collapse{under_way}: {idle_layers} hardly {verb} the tokens (down to {radians})"
            f"{because}."
        )
    return Words(seen, words, layer=blamed)


@rule(
    "merged last token",
    "after the last layer the last token is nearer to another token than "
    f"{thresholds.MERGED_DISTANCE:g} of its length, while the tokens as a whole keep "
    f"{thresholds.SHRUNK_RESIDUAL:g} or more of their relative residual",
)
def last_token(evidence: RuleEvidence) -> Words | str:
    """Whether the last token is indistinguishable from another."""
    apart = evidence.measured.last_apart
    lost = (evidence.kept < thresholds.SHRUNK_RESIDUAL).any(0)
    if bool(lost.all()) or evidence.depth is None:
        return _MORE
    together = apart < thresholds.MERGED_DISTANCE
    in_a_row = together.flip(0).int().cumprod(0).sum(0)  # up to the last layer
    layers = (len(apart) - in_a_row).clamp(max=len(apart) - 1)
    merged = together[-1] & ~lost
    seen = Sighting(merged, torch.zeros_like(merged), apart[-1], layers)
    figure, layer = seen.typical
    distance = f"{short(figure, digits=2)} of its length"
    words = (
        "No merged last token: after the last layer the token closest to the last one is at a "
        f"distance of {distance}."
    )
    if seen.fate != "absent":
        neighbour = int(evidence.measured.last_neighbour[seen.concerned].mode().values)
        since = "the input" if layer == 0 else f"layer {layer}"
        words = (
            f"Merged last token: from {since} on the last token is indistinguishable from token "
            f"{neighbour} of its text (counted from 0; distance {distance})."
        )
    return Words(seen, words)


@rule(
    "cone",
    f"in some layer the mean cosine between tokens is {thresholds.CONE_COSINE:g} or more, the "
    f"rank {thresholds.FULL_RANK_SHARE:g} or more of the largest possible, and the tokens keep "
    f"{thresholds.SHRUNK_RESIDUAL:g} or more of their relative residual; not a loss of rank",
    worst="noted",
    headline="the tokens lie in a cone",
)
def cone(evidence: RuleEvidence) -> Words | str:
    """Whether tokens point the same way, and yet differ."""
    measured = evidence.measured
    lost = (evidence.kept < thresholds.SHRUNK_RESIDUAL).any(0)
    enough = measured.tokens >= thresholds.CONE_TOKENS
    wide = ~lost & enough & (measured.states["rank_share"] >= thresholds.FULL_RANK_SHARE)
    if not bool(wide.any()):
        few = "there are too few tokens, or they have no full rank in any layer"
        return _MORE if bool(lost.all()) else few
    highest, at = torch.where(wide, measured.states["mean_cosine"], -math.inf).max(0)
    seen = Sighting(highest >= thresholds.CONE_COSINE, torch.zeros_like(highest) > 0, highest, at)
    figure, layer = seen.typical
    angle = math.degrees(math.acos(max(-1.0, min(1.0, figure))))
    where = "at the input" if layer == 0 else f"at layer {layer}"
    narrow = f"{where} the mean cosine is {short(figure, digits=2)} (an angle of {angle:.0f}°)"
    if seen.fate == "absent":
        return Words(seen, f"No cone: at its narrowest, {narrow}.")
    rank = float(measured.states["numerical_rank"][layer].quantile(0.5))
    return Words(seen, f"Cone: {narrow}, but the numerical rank is {short(rank)}.")


@rule(
    "collapse between texts",
    "the vectors that represent texts (the mean of the tokens in some layer; after the last layer "
    "also the first token, or under a causal mask the last one, and the embedding by the model's "
    "own pooling) "
    f"have a relative dispersion over the texts below {thresholds.ALIKE_TEXTS:g}, and below "
    f"{thresholds.SHRUNK_TEXTS:g} of that of the untrained twin, where that can tell texts apart; "
    f"under way from {thresholds.SHRUNK_TEXTS:g} of the twin's down",
)
def texts(evidence: RuleEvidence) -> Words | str:
    """Whether texts cannot be told from each other."""
    count = evidence.measured.views.shape[-1]
    if count < thresholds.LEAST_TEXTS:
        return f"it takes {thresholds.LEAST_TEXTS} texts, and there are {count}"
    if evidence.twin is None:
        return "there is no untrained twin to compare with"
    mine, fresh = (
        text_figures(figures)["relative_dispersion"]
        for figures in (evidence.measured, evidence.twin)
    )
    asked = torch.zeros_like(fresh, dtype=torch.bool)
    asked[:, 0] = True
    asked[-1, VIEWS.index("last token" if evidence.causal else "first token")] = True
    asked[-1, VECTORS.index("embedding")] = evidence.measured.embeddings is not None
    asked &= fresh >= thresholds.ALIKE_TEXTS
    if not bool(asked.any()):
        return "the untrained twin does not tell texts apart either"
    parts = torch.where(asked, mine / fresh.clamp_min(1e-300), math.inf)
    shrunk = parts < thresholds.SHRUNK_TEXTS
    alike = shrunk & (mine < thresholds.ALIKE_TEXTS)
    # The first layer in which it is so, or where it comes closest.
    at = int(alike.int().argmax()) if bool(alike.any()) else int(parts.argmin())
    layer, view = divmod(at, len(VECTORS))
    figure = mine[layer, view]
    seen = Sighting(
        alike.any().reshape(1), shrunk.any().reshape(1), figure.reshape(1), torch.tensor([layer])
    )
    cosine = float(text_figures(evidence.measured)["mean_cosine"][layer, view])
    where = "at the input" if layer == 0 else f"at layer {layer}"
    mine_here, fresh_here = (short(float(of[layer, view]), digits=2) for of in (mine, fresh))
    details = (
        f"{plural(count, 'text')}, each represented by its {VECTORS[view]}, have a relative "
        f"dispersion of {mine_here} {where} (mean cosine {short(cosine, digits=4)}), compared with "
        f"{fresh_here} in the untrained twin"
    )
    if seen.fate == "absent":
        return Words(seen, f"No collapse between texts: {details}.")
    under_way = "" if seen.fate == "collapse" else " under way"
    part = VECTORS[view] if view else ""
    direction = vector_direction(evidence.measured, layer, view, evidence.epsilon)
    why = f" {direction.sentence()}" if direction.alike else ""
    return Words(seen, f"Collapse between texts{under_way}: {details}.{why}", part)


def _sublayers(
    evidence: RuleEvidence,
    name: str,
    clause: str,
    is_bad: Callable[[int, str, float, float, float], bool],
) -> Words:
    """The sublayers that a figure shows not to work, compared with other layers and the twin.

    ``clause`` describes the first of them; ``{parts}`` and ``{figure}`` are filled in.
    """
    bad = []
    for part in getattr(evidence.measured, name):
        for layer, figure, usual, fresh in evidence.beside(name, part):
            if not math.isnan(figure) and is_bad(layer, part, figure, usual, fresh):
                bad.append((layer, part, figure, usual, fresh))
    nothing = torch.tensor([False])
    if not bad:
        return Words(Sighting(nothing, nothing, torch.zeros(1, dtype=torch.float64)), "")
    bad.sort(key=lambda sublayer: sublayer[0])
    layer, _, *figures = bad[0]
    same = [sublayer[1] for sublayer in bad if sublayer[0] == layer]
    rest = [f"the {sublayer[1]} of layer {sublayer[0]}" for sublayer in bad if sublayer[0] != layer]
    more = ", …" if len(rest) > 4 else ""
    also = f" The same applies to {', '.join(rest[:4])}{more}." if rest else ""
    this, others, untrained = (short(figure, digits=2) for figure in figures)
    beside = [f"{others} in other layers"] if len(evidence.measured.turned) > 1 else []
    beside += [f"{untrained} in the untrained twin"] if evidence.twin is not None else []
    parts = f"the {' and the '.join(same)} of layer {layer}"
    compared = f", compared with {' and '.join(beside)}" if beside else ""
    words = f"{clause.format(parts=parts, figure=this)}{compared}.{also}"
    at = torch.tensor([figures[0]], dtype=torch.float64)
    return Words(Sighting(~nothing, ~nothing, at, torch.tensor([layer])), words, " and ".join(same))


@rule(
    "dead sublayer",
    "the output of attention, an MLP or a norm varies between tokens, relative to the norm of the "
    f"hidden state, by less than {thresholds.DEAD_SUBLAYER:g} of its variation in the other layers "
    f"and by less than in the untrained twin ({thresholds.FEW_OTHERS:g} of it in a model of two "
    f"layers); or here and in the other layers by less than {thresholds.DEAD_SUBLAYER:g} of its "
    "variation in the twin; or the standard deviation of the logits is below that in the twin and "
    f"below {thresholds.FAINT_LOGITS:g} of that in the other layers",
)
def dead(evidence: RuleEvidence) -> Words:
    """Whether a sublayer does nothing, or the same to every token."""
    least, several = thresholds.DEAD_SUBLAYER, len(evidence.measured.turned) > 2

    def is_dead(_layer: int, _part: str, figure: float, usual: float, fresh: float) -> bool:
        part_of_fresh = 1.0 if several else thresholds.FEW_OTHERS
        alone = figure < least * usual and figure < part_of_fresh * fresh
        return alone or max(figure, usual) < least * fresh

    seen, words, part, *_ = _sublayers(
        evidence,
        "spreads",
        "the output of {parts} varies between tokens by {figure} of the hidden state's norm",
        is_dead,
    )
    if not words:
        seen, words, part, *_ = _sublayers(
            evidence,
            "logit_scales",
            "the logits of {parts} have a standard deviation of {figure}",
            lambda _layer, _part, figure, usual, fresh: (
                figure < min(fresh, thresholds.FAINT_LOGITS * usual)
            ),
        )
    return Words(seen, f"Dead sublayer: {words}" if words else "No dead sublayer.", part)


@rule(
    "dominating sublayer",
    "the output of attention or of an MLP is larger than the hidden state it is added to, and this "
    f"ratio is more than {thresholds.DOMINANT_SUBLAYER:g} times that in the untrained twin and in "
    "the other layers; in addition either the output itself is more than "
    f"{thresholds.DOMINANT_SUBLAYER / 2:g} times that of the other layers and a weight of the "
    f"sublayer is unusual by a factor of {thresholds.DOMINANT_WEIGHT:g}, or it is in layer 1 and "
    f"the embeddings have less than {1 / thresholds.DOMINANT_SUBLAYER:g} of the twin's norm",
)
def dominating(evidence: RuleEvidence) -> Words:
    """Whether the output of a sublayer is far larger than all others, or than the embeddings."""
    most, twin = thresholds.DOMINANT_SUBLAYER, evidence.twin
    faint = False
    if twin is not None:
        mine, fresh = (
            float(figures.states["token_norm"][0].quantile(0.5))
            for figures in (evidence.measured, twin)
        )
        faint = mine * most < fresh
    longer = {
        (layer, part): length / max(usual, 1e-300)
        for part in evidence.measured.lengths
        for layer, length, usual, _ in evidence.beside("lengths", part)
    }

    unusual_parts = {
        (suspect.weight.layer, suspect.weight.part)
        for suspect in evidence.suspects
        if suspect.score >= math.log(thresholds.DOMINANT_WEIGHT)
    }

    def dominates(layer: int, part: str, figure: float, usual: float, fresh: float) -> bool:
        if part == "norm" or not (figure > 1.0 and figure > most * max(usual, fresh)):
            return False
        heavy = longer[layer, part] > most / 2 and (layer, part) in unusual_parts
        return heavy or (faint and layer == 1)

    clause = "the output of {parts} has {figure} times the norm of the hidden state it is added to"
    seen, words, part, *_ = _sublayers(evidence, "sizes", clause, dominates)
    return Words(
        seen, f"Dominating sublayer: {words}" if words else "No dominating sublayer.", part
    )


@rule(
    "narrow sublayer",
    "a matrix that the output of attention or of an MLP passes through, or an embedding table, "
    f"has fewer than {thresholds.NARROW_DIRECTIONS:g} directions (participation ratio), and fewer "
    f"than {thresholds.NARROW_SUBLAYER:g} of those in the untrained twin and in the other layers",
)
def narrow(evidence: RuleEvidence) -> Words:
    """Whether a sublayer moves all tokens along a few lines."""
    least = math.log(1 / thresholds.NARROW_SUBLAYER)
    matrices = [
        suspect
        for suspect in evidence.suspects
        if is_passed_through(suspect.weight)
        and suspect.figure == "directions"
        and suspect.value < thresholds.NARROW_DIRECTIONS
        and suspect.score >= least
    ]
    return _by_weight(evidence, "narrow sublayer", matrices)


@rule(
    "unusual weights",
    f"a matrix is {thresholds.UNUSUAL_WEIGHT:g} times as large or as small as in the other layers "
    "and in the untrained twin, or its number of directions is smaller by that factor, or the rows "
    "of an embedding table are closer together by that factor; for gains, biases, embeddings and "
    f"shared blocks the factor is {thresholds.UNUSUAL_ALONE:g}, for all layers at once "
    f"{thresholds.UNUSUAL_EVERYWHERE:g}; not necessarily a loss",
    worst="noted",
    headline="unusual weights",
)
def unusual(evidence: RuleEvidence) -> Words:
    """Whether a weight differs so much from others that training does not explain it."""
    return _by_weight(
        evidence,
        "unusual weights",
        [suspect for suspect in evidence.suspects if suspect.is_unusual],
    )


def _by_weight(evidence: RuleEvidence, name: str, suspects: list[Suspect]) -> Words:
    """A judgement by weights alone, for all samples; describes the most unusual weight."""
    seen = torch.full_like(evidence.measured.tokens, bool(suspects), dtype=torch.bool)
    figures = torch.zeros_like(evidence.measured.tokens, dtype=torch.float64)
    if not suspects:
        return Words(Sighting(seen, seen, figures), f"No {name}.")
    first = suspects[0]
    layers = torch.full_like(evidence.measured.tokens, first.weight.layer)
    rest = len(suspects) - 1
    more = f" The same applies to {plural(rest, 'more weight')}." if rest else ""
    return Words(
        Sighting(seen, seen, figures + first.value, layers),
        f"{sentence_case(name)}: {describe(first)}.{more}",
        first.weight.part,
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
    if not runs:
        return ""
    *before, last = (str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)
    listed = f"{', '.join(before)} and {last}" if before else last
    return f"layer{'s' * (len(numbers) > 1)} {listed}"


RULES: Final = (
    *(depth, width, entropy, layers, last_token, cone, texts),
    *(dead, dominating, narrow, unusual),
)
"""In the order in which findings are listed."""
