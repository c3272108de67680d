"""Designs tried: how random networks of each stand, predicted and measured, and what helps.

Five figures of a random network, each the logarithm of a ratio, and for each how far it may go
before anything is wrong. What is beyond is added up: that is the shortfall, zero for a design that
keeps all five. It is about the first step of training alone, and a network that does nothing has
none: so it says what to mend, not what to build.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

from rankscope.ask import Subject
from rankscope.core.deep import deep_trace
from rankscope.core.network import Network, Spec
from rankscope.core.prediction import even_entropy, measured_gradients, predict
from rankscope.core.tracing import trace
from rankscope.errors import RankscopeError
from rankscope.experiments.advice._changes import Change, Price
from rankscope.numerals import plural, power_of_ten, sentence_case, short
from rankscope.results import Listing
from rankscope.streams import stream_seed

LEAST_GAIN: Final = 0.1
"""Decades by which a change must reduce the shortfall to be reported: a factor of 1.26."""
_NO_LESS: Final = 0.01
"""Decades of relative dispersion that a change may lose: within the noise of few draws."""
_DEVIATIONS: Final = 4.0
"""Standard errors by which measurement and prediction may differ."""
_BLURRED: Final = 1e-4
"""Relative dispersion below which float32 may measure rounding errors."""
_LARGE: Final = 1e9
"""Token size above which squares may overflow float32."""
_MEASURED: Final = ("relative_dispersion", "token_norm", "attention_entropy")
_DISPERSION: Final = "log10_relative_dispersion"

PerNetwork = Float[Tensor, "network"]
Values = Mapping[str, Float[Tensor, "layer _ sample"]]


class Spread(NamedTuple):
    """The mean over some networks, the least and the largest of any."""

    mean: float
    low: float
    high: float


class Criterion(NamedTuple):
    """A figure, in decades, which may lie ``allowed`` below zero, or if ``both`` also above."""

    metric: str
    allowed: float
    both: bool
    words: str
    limit: str


CRITERIA: Final = tuple(
    Criterion(*row)
    for row in (
        ("log10_dispersion_kept", math.log10(2), False, "tokens become alike",
         "tokens keep half of their relative dispersion"),
        ("log10_size_growth", 1.0, True, "tokens change in size",
         "their size changes by at most a factor of 10"),
        ("log10_gradient_ratio", 1.0, True, "gradients are uneven",
         "the gradient changes by at most a factor of 10 from the last layer to the first"),
        ("log10_query_share", 2.0, False, "queries get no gradient",
         "gradients of queries are at least a hundredth of those of values in every layer"),
        ("log10_entropy_share", 1.0, False, "attention is nearly one-hot",
         "attention has at least a tenth of the entropy of uniform attention in every layer"),
    )
)  # fmt: skip


@dataclass(frozen=True)
class Standing:
    """The five figures of some random networks of one design, and by how much they fall short."""

    figures: Mapping[str, PerNetwork]

    @classmethod
    def of(cls, values: Values, even: Float[Tensor, "block sample"]) -> "Standing":
        """From metrics by layer, and the entropies of uniform attention (see ``even_entropy``).

        >>> from rankscope import Spec, predict
        >>> from rankscope.core.prediction import even_entropy
        >>> spec, x = Spec(2, 2, 8), torch.eye(5, 8)
        >>> prediction = predict(spec, x, draws=2, gradients=True)
        >>> Standing.of(prediction.values, even_entropy(spec, 5, None)[1:]).shortfall.shape
        torch.Size([2])
        """
        apart = values[_DISPERSION]
        size, gradient = values["token_norm"].log10(), values["state_gradient"].log10()
        queries = values["query_gradient"][1:].log10() - values["value_gradient"][1:].log10()
        entropy = values["attention_entropy"][1:]
        most = even.unsqueeze(1)
        shares = torch.where(most > 0, entropy / most, 1.0).clamp(min=0).log10()
        figures = {
            # More than there was at first is no merit.
            "log10_dispersion_kept": (apart[-1] - apart[0]).clamp(max=0),
            "log10_size_growth": size[-1] - size[0],
            "log10_gradient_ratio": gradient[0] - gradient[-1],
            "log10_query_share": queries.amin(0),
            "log10_entropy_share": shares.amin(0),
        }
        return cls({name: figure.flatten() for name, figure in figures.items()})

    @property
    def shortfalls(self) -> dict[str, PerNetwork]:
        """Decades beyond what is allowed, by figure and network; beyond everything if no number."""
        excesses = {}
        for metric, allowed, both, *_ in CRITERIA:
            figure = self.figures[metric]
            size = figure.abs() if both else -figure
            excesses[metric] = torch.where(size.isnan(), math.inf, (size - allowed).clamp(min=0))
        return excesses

    @property
    def shortfall(self) -> PerNetwork:
        """The sum over all criteria, by network."""
        return torch.stack(list(self.shortfalls.values())).sum(0)

    @property
    def spread(self) -> Spread:
        """The shortfall over the networks."""
        values = self.shortfall
        return Spread(float(values.mean()), float(values.amin()), float(values.amax()))

    @property
    def kept(self) -> float:
        """The mean share of the relative dispersion that is kept, in decades."""
        return float(self.figures["log10_dispersion_kept"].mean())


@dataclass(frozen=True, eq=False)
class Trial:
    """A design, its price, and how its random networks stand: predicted, and measured if it was.

    ``failure`` says why it could not be measured.
    """

    change: Change
    price: Price
    values: Values
    predicted: Standing
    measured_values: Values | None = None
    measured: Standing | None = None
    failure: str = ""

    @classmethod
    def of(cls, change: Change, subject: Subject, *, draws: int, seed: int) -> "Trial":
        """The predicted trial of a design, on the input of a subject."""
        x, token_mask = _input(change.spec, subject), subject.token_mask
        prediction = predict(
            change.spec, x, draws=draws, seed=seed, token_mask=token_mask, gradients=True
        )
        even = even_entropy(change.spec, x.shape[1], token_mask)[1:]
        price = Price.of(subject.network.spec, change.spec, x.shape[1])
        return cls(change, price, prediction.values, Standing.of(prediction.values, even))

    def measure(self, subject: Subject, *, networks: int, seed: int) -> "Trial":
        """The same trial with measurements of some networks."""
        spec, token_mask = self.change.spec, subject.token_mask
        x = _input(spec, subject)
        # A model is drawn as its library does.
        twin = None if self.change.kind else subject.twin
        largest = float(self.values["token_norm"].nan_to_num(nan=torch.inf).amax())
        try:
            by_network = [
                measured_values(
                    spec, x, token_mask, seed=seed, number=number, largest=largest, twin=twin
                )
                for number in range(networks)
            ]
        except RankscopeError as error:
            return replace(self, failure=str(error))
        values = {
            name: torch.stack([figures[name] for figures in by_network], 1)
            for name in by_network[0]
        }
        even = even_entropy(spec, x.shape[1], token_mask)[1:]
        return replace(self, measured_values=values, measured=Standing.of(values, even))

    @property
    def spread(self) -> Spread:
        """The predicted shortfall."""
        return self.predicted.spread

    @property
    def order(self) -> tuple[float, int, float, float]:
        """The sort key: shortfall to a tenth of a decade, price, dispersion kept.

        Among initialisations, those come first that leave the branches nearest to what they were:
        a network that does nothing has no shortfall.
        """
        size = self.price.branches
        decades = round(abs(math.log10(size)), 1) if size > 0 else math.inf
        return (round(self.spread.mean, 1), self.price.level, decades, -self.predicted.kept)

    @property
    def agrees(self) -> bool:
        """Whether measured and predicted shortfall agree within the error of few networks.

        Means may differ by four standard errors of the predicted networks plus the smallest
        difference that is reported.
        """
        if self.measured is None:
            return False
        measured, expected = self.measured.shortfall, self.predicted.shortfall
        if float(measured.mean()) == float(expected.mean()):
            return True  # also where both are infinite
        errors = math.sqrt(1 / len(measured) + 1 / len(expected))
        spread = float(expected.std(correction=0)) * errors
        return abs(float(measured.mean() - expected.mean())) <= LEAST_GAIN + _DEVIATIONS * spread


def embedding_scale(subject: Subject) -> float:
    """The root mean square of the entries of what a subject's blocks are given; 1 if all are 0."""
    x, mask = subject.x.double(), subject.token_mask
    entries = x if mask is None else x[mask]
    return float(entries.square().mean().sqrt()) or 1.0


def _input(spec: Spec, subject: Subject) -> Tensor:
    """The input of a subject at the scale of a design's embeddings."""
    scale = embedding_scale(subject)
    return subject.x if spec.embedding_scale == scale else subject.x * spec.embedding_scale / scale


def measured_values(
    spec: Spec,
    x: Tensor,
    token_mask: Tensor | None,
    *,
    seed: int,
    number: int,
    largest: float,
    twin: Callable[[int], Network] | None = None,
) -> dict[str, Float[Tensor, "layer sample"]]:
    """The metrics of ``predict`` by layer, measured on the ``number``-th network of a seed.

    ``largest`` is how large tokens are expected to become; ``twin`` draws a network as a model's
    library does. Its weights are independent of those that predictions with the same seed draw.
    """
    dtype = torch.float64 if largest > _LARGE else torch.float32
    drawn = stream_seed(seed, "advice", "network", number)
    if twin is None:
        network = Network.random(spec, seed=drawn, dtype=dtype)
    else:
        network = twin(drawn).to("cpu", dtype)
    traced = trace(network, x.to(dtype), metrics=_MEASURED, token_mask=token_mask).table
    values = {name: _by_layer(traced, name) for name in _MEASURED}
    apart = values["relative_dispersion"]
    values[_DISPERSION] = apart.log10()
    if bool((apart < _BLURRED).any()):
        deep = deep_trace(network, x.double(), norm="fro", token_mask=token_mask).table
        values[_DISPERSION] = _by_layer(deep, "log10_relative_residual")
    return values | measured_gradients(network, x, token_mask=token_mask, seed=drawn)


def _by_layer(table: pl.DataFrame, metric: str) -> Float[Tensor, "layer sample"]:
    """Means over heads, by layer and sample; not a number where the input has none."""
    places = table.select("layer", "sample").unique().sort("layer", "sample")
    rows = table.filter(metric=metric).group_by("layer", "sample").agg(pl.col("value").mean())
    values = places.join(rows, on=["layer", "sample"], how="left", maintain_order="left")["value"]
    out: Tensor = values.fill_null(math.nan).to_torch()
    return out.reshape(-1, places["sample"].n_unique())


def helps(trial: Trial, original: Trial) -> bool:
    """Whether every draw of a change has a smaller shortfall than any of the original.

    A change that makes tokens more alike never helps, whatever else it improves.
    """
    alike = trial.predicted.kept < original.predicted.kept - _NO_LESS
    return is_better(trial.spread, original.spread) and not alike


def is_better(spread: Spread, other: Spread) -> bool:
    """Whether one spread lies entirely below another, and its mean by enough.

    >>> is_better(Spread(0.2, 0.1, 0.3), Spread(0.5, 0.4, 0.6))
    True
    >>> is_better(Spread(0.2, 0.1, 0.5), Spread(0.5, 0.4, 0.6))
    False
    """
    return spread.high < other.low and not other.mean - spread.mean < LEAST_GAIN


def ranked(trials: Iterable[Trial]) -> list[Trial]:
    """Sorted, the best first."""
    return sorted(trials, key=lambda trial: trial.order)


def best_of_each_kind(trials: Iterable[Trial]) -> list[Trial]:
    """The best of each kind of change, the best first."""
    best: dict[str, Trial] = {}
    for trial in ranked(trials):
        best.setdefault(trial.change.kind, trial)
    return list(best.values())


def sentences(
    original: Trial, helping: Sequence[Trial], others: Sequence[Trial], *, draws: int
) -> Iterator[str]:
    """The state of the design, what helps, best first, what does not, and the definitions."""
    spread, measured = original.spread, original.measured
    reasons = "it is within all limits"
    if spread.high:
        means = {
            criterion: float(original.predicted.shortfalls[criterion.metric].mean())
            for criterion in CRITERIA
        }
        parts = [
            f"{criterion.words} ({_decades(mean)})" for criterion, mean in means.items() if mean > 0
        ]
        beside = "" if measured is None else f" (measured {_told(measured.spread)})"
        reasons = f"its shortfall is {_told(spread)}{beside}: {', '.join(parts)}"
    yield (
        f"In the unchanged design tokens keep {power_of_ten(original.predicted.kept)} of their "
        f"relative dispersion over {plural(original.change.spec.layers, 'layer')}; {reasons}."
    )
    if not helping and not others:
        yield "The design is within all limits, so no change was tried."
    elif not helping:
        best = f"the best, {others[0].change.words}, has a shortfall of {_told(others[0].spread)}"
        yield f"No change helps, of {len(others)} that were tried: {best}."
    lead = "The best change"
    for trial in helping:
        if trial.measured or trial.failure:
            yield f"{lead}: {_advice(trial, original)}"
            lead = "Next"
    yield f"The unchanged design is initialised with {original.change.spec.initialised}."
    yield (
        "The shortfall is the sum, in decades, of how far random networks exceed these limits: "
        f"{'; '.join(criterion.limit for criterion in CRITERIA)}. A change helps if all {draws} "
        "draws of it lie below all draws of the unchanged design, and their mean is lower by at "
        f"least {short(LEAST_GAIN)}."
    )


def _advice(trial: Trial, original: Trial) -> str:
    """A change that helps, with its figures and its cost."""
    change = f"{trial.change.words}; predicted {_told(trial.spread)}"
    price = sentence_case(trial.price.in_words(trial.change.drawback))
    measured = trial.measured
    if measured is None:
        return f"{change}; it could not be measured ({trial.failure.rstrip('.')}). Cost: {price}."
    verdict = "which confirms it" if _is_confirmed(trial, original) else "which does not confirm it"
    doubt = "" if trial.agrees else ", though the figures differ"
    return (
        f"{change}, measured {_told(measured.spread)} on "
        f"{plural(len(measured.shortfall), 'network')}, {verdict}{doubt}; tokens keep "
        f"{power_of_ten(trial.predicted.kept)}, measured {power_of_ten(measured.kept)}. "
        f"Cost: {price}."
    )


def tried(original: Trial, helping: Sequence[Trial], others: Sequence[Trial]) -> Listing:
    """Everything that was tried, best first, with its shortfall and the dispersion kept."""
    outcomes = [(original, "")]
    for trial in helping:
        outcome = "yes, predicted"
        if trial.measured is not None:
            confirmed = _is_confirmed(trial, original)
            outcome = "yes, measured" if confirmed else "predicted, not confirmed"
        outcomes.append((trial, outcome))
    for trial in others:
        perhaps = helps(trial, original)
        outcomes.append((trial, "perhaps, from a few draws" if perhaps else "no"))
    return Listing(
        "What was tried on random networks of the design",
        ("change", "shortfall, predicted", "measured", "dispersion kept", "does it help?"),
        tuple(
            (
                trial.change.words,
                round(trial.spread.mean, 2),
                None if trial.measured is None else round(trial.measured.spread.mean, 2),
                power_of_ten(trial.predicted.kept),
                outcome,
            )
            for trial, outcome in outcomes
        ),
        "Shortfall in decades; 0 is within all limits.",
    )


def _is_confirmed(trial: Trial, original: Trial) -> bool:
    if trial.measured is None or original.measured is None:
        return False
    return is_better(trial.measured.spread, original.measured.spread)


def _told(spread: Spread) -> str:
    mean, low, high = map(_decades, spread)
    return mean if low == high else f"{mean} ({low} to {high})"


def _decades(value: float) -> str:
    return short(value) if value >= 0.005 else "0"
