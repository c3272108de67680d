"""Every layer of one network, measured."""

from dataclasses import dataclass, field

from rankscope.ask import Cost
from rankscope.core.tracing import DEFAULT_METRICS, choose_measures
from rankscope.experiments import kit
from rankscope.numerals import course, plural

ENTRY = kit.question("trace", "Every layer of one network", asks=kit.Asks(any_model=True))


@dataclass(frozen=True)
class Config(kit.Question):
    """``metrics`` are names from ``rankscope.core.tracing.MEASURES``."""

    metrics: tuple[str, ...] = field(default=DEFAULT_METRICS, metadata={"check": choose_measures})


def cost(config: Config) -> Cost:
    """What it will take."""
    return Cost.of_trace(config.subject, config.metrics)


def all_tokens(config: Config) -> str:
    """Why every token counts, where none can be left out of what is measured."""
    measures = choose_measures(config.metrics)
    of_attention = [measure.name for measure in measures if measure.of == "attention"]
    return f"attention is between all tokens ({', '.join(of_attention)})" if of_attention else ""


def run(config: Config, on_step: kit.OnStep) -> kit.Result:
    """Measure the hidden states of every layer, and the attention matrices if asked to."""
    if why := all_tokens(config):
        config.subject.refuse_measured(why)
    traced = config.subject.trace(config.metrics, on_step).result
    residuals = traced.summary.filter(metric="relative_residual").sort("layer")
    sentences = []
    if residuals.height:
        way = course(residuals["median"][0], residuals["median"][-1])
        layers = plural(residuals["layer"][-1], "layer")
        sentences = [f"The relative residual {way} over {layers} (means over the samples)."]
    return ENTRY.result(
        config,
        question=traced.question,
        sentences=sentences,
        table=traced.table,
        drawings=traced.drawings,
    )
