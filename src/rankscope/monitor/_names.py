"""What a monitor measures: the names under which it is logged, stored and drawn.

A name is ``group/metric`` in tables and ``group/metric/L09`` in loggers, for layer 9; what
describes the whole model has no layer. Names are stable: dashboards and scripts rely on them.
"""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final, Literal

from rankscope.metric_catalogue import Metric, Scale

Over = Literal["median", "max", "one"]
"""How a value of all samples is made from theirs: ``one`` is measured of all samples together."""
VS_INIT: Final = "vs_init"
VS_PREDICTED: Final = "vs_predicted"
LOSS: Final = "loss"
OVERHEAD: Final = "rankscope/overhead_ms"
ALARM: Final = "alarm/"
PREDICTED_LOW: Final = "/predicted_low"
PREDICTED_HIGH: Final = "/predicted_high"
MOST_LOGGED: Final = 40
"""Scalars that go to a logger by default at one step."""
LOGGED_LAYERS: Final = 4
"""Evenly spaced layers, the last among them, that are logged by default."""


@dataclass(frozen=True)
class MonitoredMetric:
    """One metric of a monitor: its words for tables and charts, and where it is logged.

    ``predicted`` is its name in a ``Prediction``, if it is predicted. ``logged`` metrics go to
    loggers by default.
    """

    metric: Metric
    over: Over = "median"
    predicted: str = ""
    by_layer: bool = True
    logged: bool = False

    @property
    def name(self) -> str:
        """The name in tables, without a layer."""
        return self.metric.name


def _monitored(
    name: str,
    title: str,
    meaning: str,
    definition: str,
    *,
    scale: Scale = "linear",
    over: Over = "median",
    predicted: str = "",
    by_layer: bool = True,
    logged: bool = False,
    includes: tuple[float, ...] = (),
) -> MonitoredMetric:
    metric = Metric(
        name, title, scale=scale, includes=includes, meaning=meaning, definition=definition
    )
    return MonitoredMetric(metric, over, predicted, by_layer, logged)


_ENTRIES: Final = (
    _monitored(
        "rank/residual",
        "Relative residual",
        "0 = all tokens alike; 1 = no common part",
        "‖X − 1x̄ᵀ‖ / ‖X‖ in the Frobenius norm (relative dispersion), the residual that `predict` "
        "predicts; median over the samples of the probe.",
        scale="log",
        predicted="relative_dispersion",
        logged=True,
    ),
    _monitored(
        "rank/mean_cosine",
        "Mean cosine",
        "1 = all tokens in one direction; 0 = no common direction",
        "Mean cosine of two different tokens; median over the samples of the probe.",
        predicted="mean_cosine",
        includes=(0.0, 1.0),
    ),
    _monitored(
        "rank/effective_rank",
        "Effective rank",
        "1 = one direction; higher = more in use",
        "exp of the entropy of σ/Σσ of the tokens of a sample; median over the samples.",
        predicted="effective_rank",
        logged=True,
        includes=(1.0,),
    ),
    _monitored(
        "attention/entropy",
        "Attention entropy",
        "0 = one key per query; log n = all alike",
        "Entropy of the attention weights, mean over queries and heads; median over the samples.",
        predicted="attention_entropy",
        logged=True,
        includes=(0.0,),
    ),
    _monitored(
        "attention/entropy_min",
        "Entropy of the sharpest head",
        "0 = one key per query; log n = all alike",
        "The smallest mean entropy of a head; median over the samples.",
        includes=(0.0,),
    ),
    _monitored(
        "attention/max_logit",
        "Largest logit",
        "logits above 100 round badly in half precision",
        "The largest absolute logit before the softmax, of any query, key, head and sample.",
        scale="log",
        over="max",
        logged=True,
    ),
    _monitored(
        "attention/logit_deviation",
        "Deviation of logits",
        "above the root of 2 log n attention condenses on few keys",
        "Standard deviation of the logits of a query over its visible keys, mean over queries and "
        "heads; median over the samples.",
        scale="log",
    ),
    _monitored(
        "attention/sink",
        "Attention sink weight",
        "1 = every query looks at the first token",
        "Weight on the first key or a learned sink, mean over queries and heads; median over the "
        "samples.",
        includes=(0.0, 1.0),
    ),
    _monitored(
        "stream/rms",
        "Size of the stream",
        "root mean square of the entries",
        "‖X‖ / √(tokens · features) in the Frobenius norm; median over the samples.",
        scale="log",
        logged=True,
    ),
    _monitored(
        "stream/max_over_median",
        "Largest over median entry",
        "thousands = massive activations",
        "Largest absolute entry of the stream over the median one; largest of the samples.",
        scale="log",
        over="max",
    ),
    _monitored(
        "stream/attention_share",
        "Written by attention",
        "size of the output relative to the stream",
        "‖output of the attention sublayer‖ / ‖stream after the layer‖; median over the samples.",
        scale="log",
    ),
    _monitored(
        "stream/mlp_share",
        "Written by the MLP",
        "size of the output relative to the stream",
        "‖output of the MLP‖ / ‖stream after the layer‖; median over the samples.",
        scale="log",
    ),
    _monitored(
        "router/entropy",
        "Router entropy",
        "log of the number of experts in use",
        "Entropy of the share of tokens that each expert gets.",
        over="one",
        includes=(0.0,),
    ),
    _monitored(
        "router/dead",
        "Dead experts",
        "0 = every expert gets tokens",
        "Share of the experts that get no token of the probe.",
        over="one",
        includes=(0.0, 1.0),
    ),
    _monitored(
        "grad/qk_over_v",
        "Gradient of queries and keys over that of values",
        "falls with the residual: queries and keys stop learning",
        "‖∂loss/∂W_Q, ∂loss/∂W_K‖ / ‖∂loss/∂W_V‖ of the training batch.",
        scale="log",
        over="one",
        logged=True,
    ),
    _monitored(
        "grad/qk_over_mlp",
        "Gradient of queries and keys over that of the MLP",
        "falls with the residual: queries and keys stop learning",
        "‖∂loss/∂W_Q, ∂loss/∂W_K‖ / ‖∂loss/∂W of the MLP‖ of the training batch.",
        scale="log",
        over="one",
    ),
    _monitored(
        "update/ratio",
        "Update over parameter",
        "about 0.001 is usual",
        "‖ΔW‖ / ‖W‖ of the matrices of a layer in one optimizer step, of up to 4,096 entries each.",
        scale="log",
        over="one",
    ),
    _monitored(
        "pooled/effective_rank",
        "Effective rank of embeddings",
        "1 = all samples on one line",
        "Effective rank of the pooled embeddings of all samples of the probe, last layer.",
        over="one",
        by_layer=False,
        logged=True,
        includes=(1.0,),
    ),
    _monitored(
        "pooled/mean_cosine",
        "Mean cosine of embeddings",
        "1 = all samples in one direction",
        "Mean cosine of the pooled embeddings of two different samples of the probe, last layer.",
        over="one",
        by_layer=False,
        logged=True,
        includes=(0.0, 1.0),
    ),
    _monitored(
        "live/rms",
        "Size of the stream, training batch",
        "root mean square of the entries",
        "Root mean square of the stream on the training batch (live mode).",
        scale="log",
        over="one",
    ),
    _monitored(
        "live/max",
        "Largest entry, training batch",
        "largest absolute entry",
        "Largest absolute entry of the stream on the training batch (live mode).",
        scale="log",
        over="one",
    ),
    _monitored(
        LOSS, "Loss", "loss of the training batch", "The loss of the training batch.",
        over="one", by_layer=False,
    ),
    _monitored(
        OVERHEAD, "Overhead", "milliseconds at this step",
        "Time that the probe and the gradients of a recorded step took, and storing the record "
        "before.", over="one", by_layer=False, includes=(0.0,),
    ),
)  # fmt: skip
MONITORED: Final = {entry.name: entry for entry in _ENTRIES}
"""Every metric by its name in tables."""


def scalar_name(name: str, layer: int | None, layers: int) -> str:
    """The name in loggers.

    >>> scalar_name("rank/residual", 9, 12), scalar_name("loss", None, 12)
    ('rank/residual/L09', 'loss')
    """
    if layer is None:
        return name
    return f"{name}/L{layer:0{max(2, len(str(layers)))}d}"


def logged_layers(layers: int) -> set[int]:
    """The layers that are logged by default: evenly spaced ones, the last among them."""
    count = min(LOGGED_LAYERS, layers)
    return {round(layers * (k + 1) / count) for k in range(count)}


def is_chosen(name: str, patterns: tuple[str, ...]) -> bool:
    """Whether one of some patterns (``rank/*``, ``attention/entropy/L0?``) matches a name."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)
