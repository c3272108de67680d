"""Which change of a design would help? Changes are predicted, and the best are measured."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import polars as pl
from torch import Tensor, nn

from rankscope import tables
from rankscope.arguments import Count, Range, Seed, checked
from rankscope.ask import Cost, refuse_unfit
from rankscope.core.metrics import dispersion
from rankscope.core.network import Network, Spec, drawable
from rankscope.errors import InputError
from rankscope.experiments import advice, kit
from rankscope.experiments.advice import Change, Trial
from rankscope.models.calls import Inputs, as_network, read_inputs
from rankscope.models.text import embed, passages
from rankscope.results import Headline

if TYPE_CHECKING:
    from rankscope.models.families import Loaded

ENTRY = kit.question(
    "advise",
    "Which change of the design would help?",
    asks=kit.Asks(
        samples=1, length=32, all_tokens="predictions are about all tokens", seeded="draw_seed"
    ),
    metrics=(
        kit.Metric(
            "predicted_shortfall",
            "Shortfall, predicted",
            "decades",
            "linear",
            "0 = within every limit",
            "By how many decades random networks exceed the limits on relative dispersion, token "
            "norm, gradients across depth, gradients of queries and attention entropy, summed; "
            "predicted.",
            includes=(0.0,),
        ),
        kit.Metric(
            "measured_shortfall",
            "Shortfall, measured",
            "decades",
            "linear",
            "0 = within every limit",
            "The same, measured on random networks.",
            includes=(0.0,),
        ),
        kit.Metric(
            "dispersion_kept",
            "Kept apart",
            "last / first",
            "log",
            "1 = tokens as different as at first",
            "The relative dispersion after the last layer over the input's, at most 1; predicted.",
            "down",
            includes=(1.0,),
        ),
        kit.Metric(
            "measured_dispersion_kept",
            "Kept apart, measured",
            "last / first",
            "log",
            "1 = tokens as different as at first",
            "The relative dispersion after the last layer over the input's, at most 1; measured.",
            "down",
            includes=(1.0,),
        ),
        kit.Metric(
            "size_growth",
            "Growth",
            "last / first",
            "log",
            "1 = tokens keep their size",
            "The token norm after the last layer over that of the input.",
            includes=(1.0,),
        ),
        kit.Metric(
            "gradient_ratio",
            "Gradient",
            "first / last",
            "log",
            "1 = the same at every depth",
            "The norm of the gradient with respect to the input over that with respect to the "
            "last layer's state.",
            includes=(1.0,),
        ),
        kit.Metric(
            "query_share",
            "Queries / values",
            "least of all layers",
            "log",
            "0 = queries do not learn",
            "The norm of the gradient of query weights over that of value weights, in the layer "
            "where it is least.",
            includes=(1.0,),
        ),
        kit.Metric(
            "log10_entropy_share",
            "Entropy / uniform",
            "least of all layers",
            "exponent",
            "1 = uniform; 0 = one key per query",
            "The entropy of attention over that of uniform attention under the same mask, in the "
            "layer where it is least.",
            includes=(0.0,),
        ),
        kit.Metric(
            "parameters_added",
            "Parameters added",
            "more / before",
            "linear",
            "0 = as many as before",
            "The number of parameters that a change adds, as a share of those before.",
            includes=(0.0,),
        ),
        kit.Metric(
            "context_share",
            "Context",
            "pairs seen / all",
            "linear",
            "1 = every token sees every token",
            "The share of all pairs of tokens that the masks allow, over the layers.",
            includes=(0.0, 1.0),
        ),
    ),
)
_Few = Annotated[int, Range(1, 1000)]
AS_IS = "unchanged"
_LENGTH = 32
"""Default number of tokens; the time grows with its square."""
_CHARTED = "log10_relative_dispersion"
_LOWEST = -6.0
"""Decades that the chart goes down, where a collapse would make all other differences too small."""
_SHOWN = (
    "predicted_shortfall",
    "measured_shortfall",
    "log10_dispersion_kept",
    "parameters_added",
    "context_share",
    "log10_measured_dispersion_kept",
    "log10_size_growth",
    "log10_gradient_ratio",
    "log10_query_share",
    "log10_entropy_share",
)


@dataclass(frozen=True)
class Config(kit.Question):
    """The number of draws for all changes and for the best, and of networks that are measured."""

    draws: _Few = 8
    first_draws: _Few = 2
    candidates: _Few = 4
    confirmed: _Few = 3
    networks: _Few = 2
    draw_seed: Seed = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.subject.refuse_measured(ENTRY.asks.all_tokens)
        if not bool((dispersion(self.subject.x, token_mask=self.subject.token_mask) > 0).all()):
            raise InputError(
                "all tokens of some sample are equal, so there are no differences to keep; give at "
                "least two different tokens."
            )


def cost(config: Config) -> Cost:
    """The cost: every change predicted, some again, a few networks measured."""
    subject = config.subject
    tried = len(advice.changes(drawable(subject.network), subject.x.shape[1])) + 1
    draws = tried * config.first_draws + (1 + config.candidates) * config.draws
    drawn = (1 + config.confirmed) * config.networks
    weights = float(advice.parameter_count(subject.network.spec))
    return (
        Cost.of_prediction(subject, draws, gradients=True)
        + Cost(touched=15.0 * weights, bytes=32.0 * weights).times(drawn)
        + Cost.of_forward(subject).times(3 * drawn)
    )


def run(config: Config, on_step: kit.OnStep) -> kit.Result:
    """Predict every change, then the best again with more draws, then measure what helps most."""
    config = replace(config, subject=config.subject.on_cpu())
    subject, seed = config.subject, config.draw_seed
    scale = advice.embedding_scale(subject)
    as_is = Change(AS_IS, replace(drawable(subject.network), embedding_scale=scale))
    on_original, on_first, on_second, on_third = kit.parts(on_step, 1, 4, 2, 3)
    original = Trial.of(as_is, subject, draws=config.draws, seed=seed)
    on_original(1.0)
    # Where nothing is missing nothing can help.
    changes = advice.changes(as_is.spec, subject.x.shape[1]) if original.spread.high else []
    tried = [
        Trial.of(change, subject, draws=config.first_draws, seed=seed)
        for change, _ in kit.tracked(changes, on_first)
    ]
    best = [
        Trial.of(trial.change, subject, draws=config.draws, seed=seed)
        for trial, _ in kit.tracked(advice.best_of_each_kind(tried)[: config.candidates], on_second)
    ]
    surely = [trial for trial in advice.ranked(best) if advice.helps(trial, original)]
    chosen = [original, *surely[: config.confirmed]]
    original, *confirmed = (
        trial.measure(subject, networks=config.networks, seed=seed)
        for trial, _ in kit.tracked(chosen, on_third)
    )
    helping = [*confirmed, *surely[config.confirmed :]]
    sure = {trial.change for trial in helping}
    latest = {trial.change: trial for trial in [*tried, *best] if trial.change not in sure}
    others = advice.ranked(latest.values())
    charted = [original, *(trial for trial in helping if trial.measured is not None)]
    lowest = min(float(trial.values[_CHARTED].min()) for trial in charted)
    samples, tokens, _ = subject.x.shape
    sentences = list(advice.sentences(original, helping, others, draws=config.draws))
    return ENTRY.result(
        config,
        headline=_headline(original, helping),
        sentences=sentences,
        labels=("unchanged", "what now", *[""] * (len(sentences) - 2)),
        listings=(advice.tried(original, helping, others),) if helping or others else (),
        table=_table([original, *helping, *others], charted),
        about={"read": f"{samples} × {tokens} tokens", "weights": "none: random networks"},
        drawings=(
            kit.Drawing(
                "by_depth",
                "The unchanged design and the changes that help most: predicted, and measured on "
                "random networks that share no weights with the prediction.",
                _CHARTED,
                {"lowest": _LOWEST} if lowest < _LOWEST else {},
            ),
        ),
        shown=_SHOWN,
    )


def _headline(original: Trial, helping: Sequence[Trial]) -> Headline:
    """Whether the design meets all limits, and what helps most."""
    if not original.spread.high:
        return Headline("The design meets all limits", "holds")
    if not helping:
        return Headline("Limits are exceeded, and no change that was tried helps", "collapse")
    return Headline(f"Limits are exceeded; the best change: {helping[0].change.words}", "slow")


def _table(trials: Sequence[Trial], charted: Sequence[Trial]) -> pl.DataFrame:
    """One number of each kind for each change, none where it was not measured; and by layer, every
    metric of what was measured and of its prediction, in a panel each."""
    rows: list[tuple[Any, ...]] = []
    for trial in trials:
        measured = trial.measured
        values = {
            "predicted_shortfall": trial.spread.mean,
            "measured_shortfall": None if measured is None else measured.spread.mean,
            "log10_measured_dispersion_kept": None if measured is None else measured.kept,
            **{name: float(values.mean()) for name, values in trial.predicted.figures.items()},
            "parameters_added": trial.price.parameters,
            "context_share": trial.price.context,
        }
        rows += [(None, trial.change.words, None, None, *figure) for figure in values.items()]
    for trial in charted:
        for model, by_metric in (("predicted", trial.values), ("measured", trial.measured_values)):
            rows += [
                (model, trial.change.words, layer, sample, metric, value)
                for metric, by_layer in (by_metric or {}).items()
                for layer, numbers in enumerate(by_layer.flatten(1).tolist())
                for sample, value in enumerate(numbers)
                if value == value
            ]
    return tables.from_rows(("model", "variant", "layer", "sample", "metric", "value"), rows)


@checked
def advise(
    model: "Spec | Network | Loaded | nn.Module | str | Path",
    inputs: "Inputs | None" = None,
    *,
    token_mask: Tensor | None = None,
    draws: Count = 8,
    candidates: Count = 4,
    confirmed: Count = 3,
    networks: Count = 2,
    seed: Seed = 0,
    on_step: kit.OnStep | None = None,
) -> kit.Result:
    """Rank changes to a design by prediction, and measure the best on random networks.

    >>> from rankscope import Spec
    >>> found = advise(Spec.pure_attention(6, 2, 16), draws=4)
    >>> print(found.sentences[1][:28])
    The best change: skips added

    ``model`` is a spec, or a network or model (whatever ``rankscope.load`` takes) whose
    architecture is meant: weights are drawn anew. ``inputs`` are hidden states ``(batch, token,
    feature)`` for the first block, by default 32 tokens of the first bundled passage; a model also
    takes texts or token ids. Every change is
    predicted from two draws, the best of each kind again from ``draws`` (``candidates`` of them),
    and of those that help the best ``confirmed`` are measured on so many ``networks`` each.

    What counts is the shortfall: by how many decades random networks break five limits (tokens kept
    apart, their size, gradients across depth, queries' gradients, entropy), added up. A change
    helps if all its draws fall short of less than every draw of the design as it is, by a tenth of
    a decade in the mean. Of those that help equally, to a tenth, the cheaper comes first: another
    initialisation, then another function, then other parameters, then less context.
    """
    subject = _subject(model, inputs, token_mask, seed)
    config = Config(
        subject,
        draws=draws,
        candidates=candidates,
        confirmed=confirmed,
        networks=networks,
        draw_seed=seed,
    )
    return run(config, on_step or kit.silent)


def _subject(
    design: Any, inputs: Inputs | None, token_mask: Tensor | None, seed: int
) -> kit.Subject:
    """The architecture as a network, and its input."""
    if inputs is None and token_mask is not None:
        raise InputError("token_mask says which tokens of the inputs count; give inputs, too.")
    x = None
    if inputs is not None and isinstance(design, Spec | Network):
        x, token_mask = read_inputs(inputs, token_mask)[1:]
        if x is None or not x.is_floating_point():
            raise InputError("a design reads hidden states (batch, token, feature), not text.")
    title, network, twin = "", design, None
    if isinstance(design, Spec):
        network = Network.random(design, seed=seed)
    elif not isinstance(design, Network):
        from rankscope.ask import read_model  # imports Transformers
        from rankscope.models.families import Loaded, load

        loaded = design if isinstance(design, Loaded) else load(design, at_init=True, seed=seed)
        title, network = loaded.name, loaded.network

        def twin(seed: int) -> Network:
            return loaded.reinitialised(seed=seed).network

        if inputs is None:
            read, check = read_model(loaded, length=_LENGTH, seed=seed)
            refuse_unfit(title, check)
            x, token_mask = read.x, read.token_mask
        else:
            _, x, token_mask = as_network(loaded, inputs, token_mask)
    if x is None:
        spec = network.spec
        x, token_mask = embed(passages()[:1], spec.width, length=_LENGTH, seed=seed)
        x = x * spec.embedding_scale
    if x.ndim == 2:
        x = x.unsqueeze(0)
        token_mask = token_mask if token_mask is None else token_mask.reshape(1, -1)
    return kit.Subject(network, x, token_mask, title=title or repr(network.spec), twin=twin)
