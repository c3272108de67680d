"""Every layer of one network, measured."""

from dataclasses import dataclass, field

import polars as pl

from rankscope.ask import Cost
from rankscope.core.tracing import DEFAULT_METRICS, choose_measures
from rankscope.experiments import kit
from rankscope.numerals import course, plural

ENTRY = kit.question(
    "trace",
    "Every layer of one network",
)
_RESIDUAL = "relative_residual"


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
    subject = config.subject
    why = all_tokens(config)
    if why:
        subject.refuse_measured(why)
    found = subject.trace(config.metrics, on_step).result
    return ENTRY.result(
        config,
        title=subject.name,
        question=found.question,
        sentences=_sentences(found.summary),
        table=found.table,
        drawings=found.drawings,
    )


def _sentences(summary: pl.DataFrame) -> tuple[str, ...]:
    """How far the relative residual goes from the input to the last layer, if it was measured."""
    rows = summary.filter(metric=_RESIDUAL).sort("layer")
    if rows.is_empty():
        return ()
    first, last, layers = rows["median"][0], rows["median"][-1], rows["layer"][-1]
    return (
        f"The relative residual {course(first, last)} over {plural(layers, 'layer')} "
        "(means over the samples).",
    )
