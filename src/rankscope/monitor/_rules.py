"""The rules of a monitor's alarms (docs/alarms.md).

To add a rule, write a function with ``@rule`` here and a section of its name in docs/alarms.md. A
rule sees records and facts, never alarms. It returns None if it cannot judge the latest record
because figures are missing; an infinite figure counts as missing, except for ``non-finite``.
"""

import math
from collections.abc import Iterable
from math import isfinite
from statistics import median

from rankscope.core.theory import thresholds
from rankscope.monitor._evidence import (
    RULES,
    Layer,
    Limits,
    Met,
    earlier_values,
    even_entropy,
    fact,
    figure_text,
    finite_values,
    gradients_text,
    has_enough_samples,
    has_labels,
    is_untrained,
    numbers_of,
    rule,
    text_against_start,
    values_with_baseline,
)
from rankscope.monitor._history import History
from rankscope.monitor._names import LOSS
from rankscope.numerals import short

__all__ = ["RULES"]

_LOOK_BACK = 16
"""Records among which the last one with a figure is searched."""


@rule(
    "non-finite",
    "Non-finite value",
    "NaN or infinity inside the model or in its loss; what is computed from it is lost.",
    "a figure of the hidden states or of attention in some layer, or the loss, is NaN or infinite",
    patience=1,
)
def non_finite(history: History, limits: Limits) -> Met | None:  # noqa: ARG001 (it has no limits)
    """The lowest layer with a value that is not a number."""
    bad: dict[Layer, tuple[str, float]] = {}
    watched = 0
    for group in ("attention/", "stream/", "rank/", "live/", LOSS):  # as a layer computes them
        for (metric, layer), value in history.last.values.items():
            if metric.startswith(group):
                watched += 1
                if not isfinite(value):
                    bad.setdefault(layer, (metric, value))

    def words(layer: Layer) -> str:
        metric, value = bad[layer]
        last = next((r for r in reversed(history.records) if isfinite(r.get(metric, layer))), None)
        before = "" if last is None else f"; {short(last.get(metric, layer))} at step {last.step:,}"
        return f"{figure_text(history, metric, layer, value)}{before}"

    return Met({layer: value for layer, (_, value) in bad.items()}, words) if watched else None


@rule(
    "sharp-init",
    "Sharp attention at initialisation",
    "Attention of an untrained model already selects single keys, so its softmax is saturated and "
    "hardly passes a gradient to queries and keys.",
    "at the baseline of an untrained model the deviation of the logits of a layer is above "
    "{deviation:g} times √(2 ln n) for n tokens, or the entropy of its attention below {entropy:g} "
    "of that of uniform attention",
    kept="the deviation of the logits of a layer is above {deviation:g} times √(2 ln n), or the "
    "entropy of its attention below {entropy:g} of that of uniform attention",
    patience=1,
    records=(1, math.inf),
    deviation=(1.0, 0.9),
    entropy=(thresholds.SHARP_ENTROPY, 0.3),
)
def sharp_init(history: History, limits: Limits) -> Met | None:
    """Layers whose logits condense, or whose attention has little entropy, from the start."""
    tokens, even = fact(history, "tokens"), even_entropy(history)
    critical = math.sqrt(2 * math.log(tokens)) if tokens > 1 else math.nan
    deviations = finite_values(history.last, "attention/logit_deviation")
    entropies = finite_values(history.last, "attention/entropy")
    known = (deviations and critical > 0) or (entropies and even > 0)
    if not known or not is_untrained(history):
        return None
    allowed = len(history.records) <= limits["records"]
    wide = {k: v for k, v in deviations.items() if v > limits["deviation"] * critical}
    sharp = {k: v for k, v in entropies.items() if v < limits["entropy"] * even}

    def words(layer: Layer) -> str:
        parts = []
        if layer in wide:
            figure = figure_text(history, "attention/logit_deviation", layer, wide[layer])
            limit = f"{short(critical)} (√(2 ln {int(tokens):,}))"
            parts.append(f"{figure}; attention condenses on few keys above {limit}")
        if layer in sharp:
            figure = figure_text(history, "attention/entropy", layer, sharp[layer], named=not parts)
            parts.append(f"{figure}; {short(even)} for uniform attention")
        return "; ".join(parts)

    values: dict[Layer, float] = dict([*sharp.items(), *wide.items()]) if allowed else {}
    return Met(values, words)


@rule(
    "collapsed-init",
    "Collapsed at initialisation",
    "All tokens of an untrained model are alike in some layer, so that later layers cannot tell "
    "them apart and training hardly begins.",
    "at the baseline of an untrained model the relative residual of a layer is below {residual:g}",
    kept="the relative residual of a layer is below {residual:g}",
    patience=1,
    records=(1, math.inf),
    residual=(thresholds.COLLAPSED_RESIDUAL, 2 * thresholds.COLLAPSED_RESIDUAL),
)
def collapsed_init(history: History, limits: Limits) -> Met | None:
    """Layers whose tokens are alike from the start."""
    values = finite_values(history.last, "rank/residual")
    if not values or not is_untrained(history):
        return None
    allowed = len(history.records) <= limits["records"]
    met: dict[Layer, float] = {
        layer: value for layer, value in values.items() if allowed and value < limits["residual"]
    }
    return Met(met, lambda layer: _residual_words(history, layer, met))


@rule(
    "logit-growth",
    "Growing attention logits",
    "Logits grow without a bound; they lose precision in half precision and attention saturates.",
    "the largest logit of a layer is above {logit:g}, at least {growth:g} times its first value, "
    "and larger than in the record before",
    kept="the largest logit of a layer is above {logit:g} and at least {growth:g} times its first "
    "value",
    logit=(100.0, 80.0),
    growth=(1.5, 1.2),
    rise=(1.0, 0.0),
)
def logit_growth(history: History, limits: Limits) -> Met | None:
    """Layers whose largest logit is large, has grown and still grows."""
    metric = "attention/max_logit"
    values = finite_values(history.last, metric)
    if not values:
        return None
    met: dict[Layer, float] = {}
    for layer, value in values.items():
        if value > limits["logit"] and value >= limits["growth"] * history.first(metric, layer):
            before = earlier_values(history, metric, layer, _LOOK_BACK)
            if before and value > limits["rise"] * before[-1]:
                met[layer] = value
    return Met(met, lambda layer: text_against_start(history, metric, layer))


@rule(
    "entropy-collapse",
    "Entropy collapse",
    "Queries of a layer attend to very few keys, because all their logits lie far apart.",
    "the attention entropy of a layer is below {uniform:g} of that of uniform attention, H, and "
    "below {fall:g} of its baseline, and the deviation of its logits above {spread:g} times √(2H)",
    uniform=(thresholds.SHARP_ENTROPY, 0.3),
    fall=(0.5, 0.6),
    spread=(2.5, 2.0),
)
def entropy_collapse(history: History, limits: Limits) -> Met | None:
    """Layers whose attention became sharp, by logits that are all far apart.

    A head that looks for one key needs a large logit there and no others, so that the deviation of
    its logits stays small.
    """
    metric, even = "attention/entropy", even_entropy(history)
    pairs = values_with_baseline(history, metric)
    deviations = finite_values(history.last, "attention/logit_deviation")
    if not pairs or not deviations or math.isnan(even):
        return None
    met: dict[Layer, float] = {
        layer: value
        for layer, (value, start) in pairs.items()
        if value < limits["uniform"] * even
        and value < limits["fall"] * start
        and deviations.get(layer, 0.0) > limits["spread"] * math.sqrt(2 * even)
    }

    def words(layer: Layer) -> str:
        figure = text_against_start(history, metric, layer)
        spread = f"logits deviate by {short(history.last.get('attention/logit_deviation', layer))}"
        return f"{figure}; {short(even)} for uniform attention; {spread}" + gradients_text(
            history, met
        )

    return Met(met, words)


@rule(
    "hidden-collapse",
    "Hidden rank collapse",
    "Tokens become alike in a layer before the last while the output looks healthy; neither "
    "the output nor the loss shows it.",
    "the relative residual of a layer before the last is below {residual:g} of its baseline, and "
    "that of the last layer is at least {output:g} of its own",
    steps=20,
    excludes="rank-collapse",
    residual=(thresholds.SHRUNK_RESIDUAL, 0.15),
    output=(0.5, 0.4),
)
def hidden_collapse(history: History, limits: Limits) -> Met | None:
    """Layers before the last whose tokens became alike, unseen in the output."""
    output = _output_share(history)
    if math.isnan(output):
        return None
    shrunk = _shrunk(history, limits["residual"]) if output >= limits["output"] else {}
    met = {layer: value for layer, value in shrunk.items() if layer != history.layers}
    last = f"; the output looks healthy (layer {history.layers}: {short(output)} of its start)"
    return Met(met, lambda layer: _residual_words(history, layer, met) + last)


@rule(
    "rank-collapse",
    "Rank collapse",
    "Tokens become alike: the hidden states of a sample approach a single vector.",
    "the relative residual of a layer is below {residual:g} of its baseline, and that of the last "
    "layer below {output:g} of its own (otherwise the rule is `hidden-collapse`)",
    steps=20,
    excludes="hidden-collapse",
    residual=(thresholds.SHRUNK_RESIDUAL, 0.15),
    output=(0.5, 0.625),
)
def rank_collapse(history: History, limits: Limits) -> Met | None:
    """Layers whose tokens became alike."""
    if not values_with_baseline(history, "rank/residual"):
        return None
    hidden = _output_share(history) >= limits["output"]  # False if it was not measured
    met = {} if hidden else _shrunk(history, limits["residual"])
    return Met(met, lambda layer: _residual_words(history, layer, met))


@rule(
    "few-directions",
    "Tokens on few directions",
    "The tokens of a sample differ along far fewer directions than at the start, at worst in size "
    "and sign along a single one; the residual does not show it, because they are not alike.",
    "the effective rank of the tokens of a layer, less one, is below {rank:g} of its baseline",
    patience=3,
    steps=50,
    excludes="rank-collapse",
    rank=(0.1, 0.15),
    start=(3, 3),
)
def few_directions(history: History, limits: Limits) -> Met | None:
    """Layers whose tokens lost their effective rank."""
    metric = "rank/effective_rank"
    pairs = values_with_baseline(history, metric)
    if not pairs:
        return None
    met: dict[Layer, float] = {
        layer: value
        for layer, (value, start) in pairs.items()
        if start >= limits["start"] and value - 1 < limits["rank"] * (start - 1)
    }
    return Met(
        met,
        lambda layer: text_against_start(history, metric, layer) + gradients_text(history, met),
    )


@rule(
    "rank-falls-with-loss",
    "Rank falls with the loss",
    "Embeddings of different samples become alike while the loss improves: the loss rewards the "
    "collapse, as losses between a model's own outputs can.",
    "the effective rank of pooled embeddings less one is below {rank:g} of its baseline and at "
    "most {lowest:g} times its smallest value so far, while the median of the latest {losses:g} "
    "losses is below each of the first {losses:g}, and below their median by {drop:g} of it",
    patience=5,
    steps=20,
    rank=(0.25, 0.35),
    lowest=(1.2, 2.0),
    drop=(0.1, 0.05),
    losses=(5, 5),
    start=(2, 2),
)
def rank_falls_with_loss(history: History, limits: Limits) -> Met | None:
    """Whether embeddings lose their rank while the loss falls, with no labels to explain it."""
    metric = "pooled/effective_rank"
    start, value = history.baseline.get(metric), history.last.get(metric)
    known = isfinite(value) and start >= limits["start"]  # there is a rank to lose
    if not known or has_labels(history) or not has_enough_samples(history):
        return None
    losses, few = list(numbers_of(history.records, LOSS)), int(limits["losses"])
    if len(losses) < 2 * few:
        return None
    if not value - 1 < limits["rank"] * (start - 1):
        return Met({}, str)
    before, now = median(losses[:few]), median(losses[-few:])
    met = (
        value - 1 <= limits["lowest"] * (min(numbers_of(history.records, metric)) - 1)
        and now < min(losses[:few])
        and before - now >= limits["drop"] * abs(before)
    )
    return Met(
        {None: value} if met else {},
        lambda layer: (
            f"{text_against_start(history, metric, layer)}; the loss fell from "
            f"{short(before)} to {short(now)} meanwhile"
        ),
    )


@rule(
    "loss-plateau",
    "Loss stands at ln K",
    "The loss is that of a model that gives every class the same probability: it learns nothing.",
    "every loss of the latest {records:g} records, over {span:g} steps or more, is within "
    "{near:.1%} of ln K for K classes",
    kept="the latest loss is within {near:.1%} of ln K",
    patience=1,
    records=(20, 1),
    span=(200, 0),
    near=(0.01, 0.015),
)
def loss_plateau(history: History, limits: Limits) -> Met | None:
    """Whether the loss stands where chance puts it."""
    classes, loss = fact(history, "classes"), history.last.get(LOSS)
    if not classes > 1 or not isfinite(loss):
        return None
    chance = math.log(classes)
    steps: list[int] = []
    for record in reversed(history.records):
        if (LOSS, None) in record.values:
            if not abs(record.get(LOSS) - chance) <= limits["near"] * chance:
                break
            steps.append(record.step)
    stands = len(steps) >= limits["records"] and steps[0] - steps[-1] >= limits["span"]
    return Met(
        {None: loss} if stands else {},
        lambda layer: (
            f"{figure_text(history, LOSS, layer, loss)}; within {limits['near']:.1%} of "
            f"ln {int(classes):,} = {short(chance)} since step {steps[-1]:,}"
        ),
    )


@rule(
    "embedding-cone",
    "Embeddings in a cone",
    "Embeddings of all samples point in nearly one direction, so their similarities say little.",
    "the mean cosine of pooled embeddings is above {cosine:g} and its distance from 1 below "
    "{fall:g} of that at the baseline",
    steps=20,
    cosine=(0.9, 0.875),
    fall=(0.5, 0.6),
)
def embedding_cone(history: History, limits: Limits) -> Met | None:
    """Whether pooled embeddings moved into a narrow cone."""
    metric = "pooled/mean_cosine"
    start, value = history.baseline.get(metric), history.last.get(metric)
    learns_labels = is_untrained(history) and has_labels(history)  # a cone is how that begins
    if learns_labels or not has_enough_samples(history) or not isfinite(start + value):
        return None
    met = value > limits["cosine"] and 1 - value < limits["fall"] * (1 - start)
    return Met(
        {None: value} if met else {}, lambda layer: text_against_start(history, metric, layer)
    )


@rule(
    "router-collapse",
    "Router collapse",
    "The router sends most tokens to a few experts; the others hardly learn.",
    "exp(router entropy) of a layer, the number of experts in use, is below {share:g} of its "
    "experts",
    share=(0.5, 0.6),
)
def router_collapse(history: History, limits: Limits) -> Met | None:
    """Layers whose router uses few of its experts."""
    metric, experts = "router/entropy", fact(history, "experts")
    values = finite_values(history.last, metric)
    read = fact(history, "tokens", 1) * fact(history, "samples", math.inf)
    if not values or not experts > 1 or read < experts:  # few tokens cannot fill many experts
        return None
    met: dict[Layer, float] = {
        layer: value
        for layer, value in values.items()
        if value < math.log(limits["share"] * experts)
    }
    return Met(
        met,
        lambda layer: (
            f"{text_against_start(history, metric, layer)}; as if "
            f"{short(math.exp(met[layer]), digits=2)} of {int(experts):,} experts were in use"
        ),
    )


@rule(
    "stream-spike",
    "Spike of the hidden states",
    "Hidden states on the training batch are suddenly many times as large as before.",
    "the root mean square or the largest entry of a layer on the training batch is above "
    "{factor:g} times its median in the {window:g} records before (at least {least:g} of them) and "
    "above {jump:g} times the latest of these",
    kept="the root mean square or the largest entry of a layer on the training batch is above "
    "{factor:g} times its median in the {window:g} records before",
    patience=1,
    factor=(10.0, 5.0),
    jump=(2.0, 0.0),
    window=(16, 16),
    least=(4, 4),
)
def stream_spike(history: History, limits: Limits) -> Met | None:
    """Layers whose hidden states are far larger than before."""
    met: dict[Layer, tuple[str, float, float]] = {}
    judged = False
    for metric in ("live/rms", "live/max"):
        for layer, value in finite_values(history.last, metric).items():
            before = earlier_values(history, metric, layer, limits["window"])
            if len(before) >= limits["least"]:
                judged, usual = True, median(before)
                if usual > 0 and value > max(limits["factor"] * usual, limits["jump"] * before[-1]):
                    met.setdefault(layer, (metric, value, usual))

    def words(layer: Layer) -> str:
        metric, value, usual = met[layer]
        return f"{figure_text(history, metric, layer, value)}; {short(usual)} before (median)"

    return Met({layer: value for layer, (_, value, _) in met.items()}, words) if judged else None


def _output_share(history: History) -> float:
    """Relative residual of the last layer over its baseline; NaN if it was not measured."""
    value, start = values_with_baseline(history, "rank/residual").get(
        history.layers, (math.nan, 1.0)
    )
    return value / start if start > 0 else math.nan


def _shrunk(history: History, share: float) -> dict[Layer, float]:
    """Layers whose residual fell below a share of its baseline; not if tokens began alike."""
    return {
        layer: value
        for layer, (value, start) in values_with_baseline(history, "rank/residual").items()
        if value < share * start and start >= thresholds.COLLAPSED_RESIDUAL
    }


def _residual_words(history: History, layer: Layer, layers: Iterable[Layer]) -> str:
    return text_against_start(history, "rank/residual", layer) + gradients_text(history, layers)
