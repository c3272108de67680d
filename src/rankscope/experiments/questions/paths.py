"""How much do paths of each length carry, over many samples?"""

import math
from dataclasses import dataclass

import polars as pl
from torch import Tensor

from rankscope import tables
from rankscope.arguments import checked
from rankscope.ask import Cost
from rankscope.core.network import Network
from rankscope.core.paths import Count, count_paths, head_shares, path_lengths
from rankscope.experiments import kit
from rankscope.numerals import power_of_ten, short

ENTRY = kit.question(
    "paths",
    "Which paths carry the differences?",
    asks=kit.Asks(wide="sums over many paths mean nothing in half precision"),
)
_NOTICEABLE = 0.01
"""Share of the residual that is worth a sentence."""
_SHARE = "residual_share"
_BY_LENGTH = kit.Drawing(
    "by_length",
    "A path takes one head, or the skip, in every layer; its length is the number of layers it "
    "does not skip. Everything that depends on the input (attention, the scale of norms, the "
    "gates of MLPs) is frozen, which makes the network linear, so the contributions of all paths "
    "of one length add up exactly. The share of the residual is the norm of the differences "
    "between tokens that these paths contribute, over that of the output; shares need not sum to "
    "one, because contributions can cancel.",
    _SHARE,
)
_BY_HEAD = kit.Drawing(
    "head_map",
    "The contribution of all paths through a head to the output, with everything else frozen.",
    _SHARE,
)


@dataclass(frozen=True)
class Config(kit.Question):
    """``count`` defines the length of a path; ``by_head`` adds the share of each head."""

    count: Count = "attention"
    max_length: int | None = None
    by_head: bool = False


def cost(config: Config) -> Cost:
    """The cost: in each layer a stream for every length so far, or for every head."""
    spec = config.subject.network.spec
    lengths = spec.layers if config.max_length is None else min(config.max_length, spec.layers)
    streams = (lengths + 3) / 2 + config.by_head * spec.layers * spec.heads / 2
    samples, tokens, _ = config.subject.x.shape
    at_once = 4.0 * min(samples, config.subject.batch_size) * tokens * (lengths + 1)
    activations = Cost(bytes=at_once * (4 * spec.width + 2 * spec.mlp_width))
    return Cost.of_forward(config.subject).times(streams) + activations


def run(config: Config, on_step: kit.OnStep) -> kit.Result:
    """``path_lengths`` and, with ``by_head``, ``head_shares`` of all batches in one table.

    Rows by length have no head, rows by head no length, and those of the biases neither.
    The reconstruction error is that of the first batch: it costs two more passes.
    """
    network = config.subject.network
    parts: list[pl.DataFrame] = []
    error, complete = math.nan, True
    for batch, on_part in kit.tracked(config.subject.batches(), on_step):
        masks = {"token_mask": batch.token_mask, "measured": batch.measured}
        lengths = path_lengths(
            network, batch.x, count=config.count, max_length=config.max_length, **masks
        )
        measured = [lengths.table]
        if batch.start == 0:
            error, complete = lengths.reconstruction_error, lengths.complete
        if config.by_head:
            on_part(0.5)
            measured.append(head_shares(network, batch.x, **masks).table)
        parts += [table.with_columns(pl.col("sample") + batch.start) for table in measured]
    paths = count_paths(network.spec.layers, network.spec.heads).total
    table = tables.stack(parts)
    return ENTRY.result(
        config,
        sentences=(
            _shares_sentence(tables.summary(table)),
            _exactness(paths, error, complete=complete),
        ),
        table=table,
        key_figures={"paths": paths, "reconstruction_error": error},
        drawings=(_BY_LENGTH, _BY_HEAD) if config.by_head else (_BY_LENGTH,),
        shown=(_SHARE,),
    )


@checked
def path_study(
    network: Network,
    x: Tensor,
    token_mask: Tensor | None = None,
    *,
    measured: Tensor | None = None,
    count: Count = "attention",
    max_length: int | None = None,
    heads: bool = False,
    batch_size: int = 8,
    on_step: kit.OnStep | None = None,
) -> kit.Result:
    """The contribution of paths of each length, for a network and its input.

    >>> import torch
    >>> from rankscope import Network, Spec
    >>> found = path_study(Network.random(Spec(2, 2, 8)).double(), torch.randn(1, 5, 8).double())
    >>> found.key_figures["paths"], found.key_figures["reconstruction_error"] < 1e-12
    (9, True)
    """
    subject = kit.Subject(network, x, token_mask, measured, batch_size=batch_size)
    return run(Config(subject, count, max_length, heads), on_step or kit.silent)


def _shares_sentence(summary: pl.DataFrame) -> str:
    """Which lengths have the largest shares at the last layer."""
    rows = summary.filter(pl.col("length").is_not_null()).sort("length")
    last = rows.filter(pl.col("layer") == pl.col("layer").max().over("metric"))
    shares, parts = (
        last.filter(metric=metric)["median"].to_list() for metric in (_SHARE, "projection")
    )
    most, largest = parts.index(max(parts)), shares.index(max(shares))
    if parts[most] < _NOTICEABLE:
        return (
            f"No path length has a noticeable share of the residual (the largest is "
            f"{short(parts[most], digits=2)}, length {most}): it comes from the biases."
        )
    words = (
        f"Paths of length {most} contribute most to the residual: {short(parts[most], digits=2)} "
        "of it (projected on the residual, where all lengths and the biases add up to one)"
    )
    if largest != most:
        words += (
            f"; those of length {largest} are the largest by themselves "
            f"({short(shares[largest], digits=2)} of its norm), but cancel out in part"
        )
    elif most < len(parts) - 1:
        words += f"; the longest added up ({len(shares) - 1}) {short(parts[-1], digits=2)}"
    return words + "."


def _exactness(paths: int, error: float, *, complete: bool) -> str:
    """The number of paths, and how well their sum reconstructs the network."""
    many = f"{paths:,}" if paths < 10**15 else power_of_ten(math.log10(paths))
    if not complete:
        return f"There are {many} paths; the longest were left out."
    return (
        f"The sum of all {many} attention paths and the biases reconstructs every layer with a "
        f"relative error of {short(error, digits=1)}."
    )
