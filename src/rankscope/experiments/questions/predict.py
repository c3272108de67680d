"""Predict how a design behaves at initialisation, and measure one network."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import polars as pl

from rankscope import metric_catalogue, tables
from rankscope.arguments import Count, Seed
from rankscope.ask import Cost
from rankscope.core.metrics import mean_center
from rankscope.core.network import Spec, drawable
from rankscope.core.prediction import GRADIENTS, Prediction, predict
from rankscope.errors import RankscopeError
from rankscope.experiments import kit
from rankscope.experiments.counterparts import DISPERSION, EXPONENT, OF_TOKENS, counterpart
from rankscope.numerals import plural, power_of_ten, sentence_case, short
from rankscope.results import Headline, Tone

ENTRY = kit.question(
    "predict",
    "What will this design do, before it has weights?",
    asks=kit.Asks(samples=1, all_tokens="predictions are about all tokens"),
)
_NETWORK, _MODEL = "this network", "this model"
_TOLD = (EXPONENT, DISPERSION, "mean_cosine", "token_norm", "attention_entropy", "state_gradient")
"""Metrics printed in a terminal; charts and the table have all."""
_SMALL = -12.0
"""Decades below which float64 cannot represent the dispersion; its logarithm is shown."""
_BAD: Final[Mapping[Tone, tuple[str, ...]]] = {
    "collapse": ("depth collapse", "entropy collapse"),
    "slow": (
        "collapse under way",
        "vanishing gradients",
        "exploding gradients",
        "starved queries",
        "chaos",
    ),
}
"""Outcomes that a headline is made of, by what it sounds like."""
_NEAR = 0.01
"""The relative dispersion at which tokens count as nearly alike."""
_FEW = 8
_STEPS = 4
_LEVEL = math.log10(1.01)
"""Decades per layer within which differences neither grow nor shrink."""
_ROUNDING = 1e-4
"""What a figure may be beside a band that has no width, as a part of it: draws are in float32."""


@dataclass(frozen=True)
class Config(kit.Question):
    """How many networks are drawn from which seed; whether gradients are followed, too.

    ``infinite_width`` predicts the limit that theory speaks of instead of networks of this width.
    """

    draws: Count = 16
    gradients: bool = False
    infinite_width: bool = False
    draw_seed: Seed = 0


def cost(config: Config) -> Cost:
    """The cost: the draws, and one network in float64."""
    subject = config.subject
    drawn = Cost.of_prediction(subject, config.draws, gradients=config.gradients)
    return drawn + Cost.of_trace(subject, (DISPERSION, *OF_TOKENS)).times(2)


def run(config: Config, on_step: kit.OnStep) -> kit.Result:
    """Predict every figure by layer from the design and the input, and measure one network."""
    subject = config.subject
    subject.refuse_measured(ENTRY.asks.all_tokens)
    spec = drawable(subject.network)
    on_prediction, on_measured = kit.parts(on_step, 3, 1)
    prediction = predict(
        spec,
        subject.x,
        draws=config.draws,
        seed=config.draw_seed,
        token_mask=subject.token_mask,
        gradients=config.gradients,
        infinite_width=config.infinite_width,
    )
    on_prediction(1.0)
    is_model = "origin" in subject.about or subject.network.seed is None
    name = _MODEL if is_model else _NETWORK
    exponents = float(prediction.values[EXPONENT].nan_to_num(neginf=-1e9).amin()) < _SMALL
    shown = [EXPONENT if exponents else DISPERSION, *OF_TOKENS]
    shown += [metric for metric in GRADIENTS if metric in prediction.metrics]
    parts = {"predicted": prediction.table}
    sentences = [*map(str, prediction.verdict), _side(config, spec)]
    if not is_model:
        sentences.append(f"It is initialised with {spec.initialised}.")
    labels = ["predicted"] * len(sentences)
    try:
        measured = counterpart(
            subject, exponents=exponents, gradients=config.gradients, seed=config.draw_seed
        )
    except RankscopeError as error:
        sentences.append(f"{sentence_case(name)} could not be measured: {error}")
        labels.append("measured")
    else:
        sentences += _comparison(config, name, prediction, measured, shown)
        labels += ["measured"] * (len(sentences) - len(labels))
        # The logarithm always, so that tables of designs that collapse and of such that do not fit.
        logarithm = measured.filter(metric=DISPERSION).with_columns(
            pl.lit(EXPONENT).alias("metric"), pl.col("value").log10()
        )
        parts[name] = tables.stack([measured, logarithm])
    on_measured(1.0)
    if prediction.width_error:
        sentences.append(
            "Xavier weights are uniform but treated as normal here, an error of about "
            f"{short(prediction.width_error)} where tokens are spread over all features."
        )
        labels.append("")
    return ENTRY.result(
        config,
        question="What will this design do to its tokens at initialisation?",
        headline=_headline(prediction),
        sentences=sentences,
        labels=labels,
        table=tables.joined(parts).filter(pl.col("metric").is_in([*shown, EXPONENT])),
        notes={"the prediction": prediction.notes["doubt"]} if prediction.notes else None,
        about={"predicted": f"{plural(config.draws, 'draw')} of {spec.describe()}"},
        drawings=_drawings(name, shown, config.draws),
        shown=tuple(metric for metric in shown if metric in _TOLD),
    )


def _headline(prediction: Prediction) -> Headline:
    """The problems that are predicted, the worst first."""
    kinds = [outcome.kind for outcome in prediction.verdict]
    for tone, bad in _BAD.items():
        if any(kind in bad for kind in kinds):
            every = [kind for group in _BAD.values() for kind in group if kind in kinds]
            return Headline(f"{sentence_case(', '.join(every))} predicted", tone)
    return Headline("No collapse predicted", "holds")


def _side(config: Config, spec: Spec) -> str:
    """Whether tokens that are nearly alike diverge or converge."""
    x, mask = config.subject.x[:1], config.subject.token_mask
    mask = None if mask is None else mask[:1]
    center = mean_center(x.double(), mask).unsqueeze(-2)
    near = center + _NEAR * (x.double() - center)
    few = min(config.draws, _FEW)
    prediction = predict(spec, near, draws=few, seed=config.draw_seed, token_mask=mask)
    logs = prediction.values[EXPONENT].mean((1, 2))
    # The first layer also gives the tokens the sizes that later ones find.
    start, end = min(1, spec.layers - 1), min(_STEPS, spec.layers)
    rate = float(logs[end] - logs[start]) / (end - start)
    if not math.isfinite(rate):
        return "Tokens that are nearly equal become exactly equal after a few layers."
    if abs(rate) < _LEVEL:
        return "Nearly equal tokens keep their distance: the design is between collapse and chaos."
    side = "chaos" if rate > 0 else "collapse"
    return (
        f"A layer multiplies the relative distance between nearly equal tokens by "
        f"{power_of_ten(rate)}: the design is on the side of {side}."
    )


def _expected(draws: int) -> float:
    """The expected share of new draws between the 10th and 90th percentile of others."""
    return 0.8 * (draws - 1) / (draws + 1)


def _drawings(name: str, shown: Sequence[str], draws: int) -> tuple[kit.Drawing, ...]:
    band = f"The band shows the networks drawn, the line {name}"
    captions = (
        f"{band}; {_expected(draws):.0%} of the figures of another draw lie in it.",
        f"{band}. Gradients of a random linear function of the last layer.",
    )
    kinds = (
        [metric for metric in shown if (metric in GRADIENTS) is kind] for kind in (False, True)
    )
    return tuple(
        kit.Drawing("by_layer", caption, options={"metrics": metrics})
        for caption, metrics in zip(captions, kinds, strict=True)
        if metrics
    )


def _comparison(
    config: Config, name: str, prediction: Prediction, measured: pl.DataFrame, shown: Sequence[str]
) -> Iterator[str]:
    """How much of the measured network lies in the band."""
    counts: dict[str, tuple[int, int]] = {}
    for metric in shown:
        title = metric_catalogue.metric(metric).title
        what = "gradients" if metric in GRADIENTS else title[:1].lower() + title[1:]
        before, here = counts.get(what, (0, 0)), _inside(prediction, measured, metric)
        counts[what] = (before[0] + here[0], before[1] + here[1])
    inside, places = (sum(count[at] for count in counts.values()) for at in (0, 1))
    if not places:
        yield f"Networks of this design, and {name}, differ only by rounding."
        return
    if name == _MODEL:
        init, model = prediction.spec.init, "the model with its own weights"
        if config.subject.about.get("origin") == "random":
            model = "the model as its library initialises it"
        yield (
            f"The prediction is for the architecture at initialisation, {init}; the measurement is "
            f"for {model}."
        )
    of = "layers and samples" if len(config.subject.x) > 1 else "layers"
    hits = ", ".join(f"{what} at {some} of {all_}" for what, (some, all_) in counts.items() if all_)
    yield (
        f"{inside / places:.0%} of the figures of {name} lie in the band of 10 to 90 %; "
        f"{_expected(config.draws):.0%} are expected. By {of}: {hits}."
    )


def _inside(prediction: Prediction, measured: pl.DataFrame, metric: str) -> tuple[int, int]:
    """At how many layers after the input, and samples, a metric lies in the band, and of how many.

    Points where networks differ only by rounding are not counted.
    Each sample is compared with the draws for itself: samples differ more than networks do.
    """
    rows = measured.filter(pl.col("metric") == metric, pl.col("layer") > 0)
    inside, places = 0, 0
    least = 0.0 if metric_catalogue.metric(metric).scale == "log" else 1.0
    for (sample,), rows_of_sample in rows.group_by("sample"):
        values = prediction.values[metric][:, :, sample : sample + 1]
        band = replace(prediction, values={metric: values}, even_entropy=None).band(metric)
        at = rows_of_sample["layer"].to_torch()
        value = rows_of_sample["value"].to_torch()
        low, high = band.low[at], band.high[at]
        slack = _ROUNDING * value.abs().clamp(min=least)
        varied = high - low > slack
        outside = (value < low - slack) | (value > high + slack)
        inside += int((varied & ~outside).sum())
        places += int((varied | outside).sum())
    return inside, places
