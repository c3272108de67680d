"""Networks made of short paths only, and what a model's own head says of them."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from rankscope.arguments import checked
from rankscope.core.checks import whole
from rankscope.core.network import Network
from rankscope.core.paths._lengths import Count, path_lengths
from rankscope.core.shapes import Hidden
from rankscope.errors import InputError


@checked
def truncate(
    network: Network,
    x: Tensor,
    *,
    max_length: int,
    count: Count = "attention",
    token_mask: Tensor | None = None,
) -> Hidden:
    """The last hidden state made of paths up to ``max_length``, and of the biases.

    At full length it is the network's own output. Through a model's own head it shows what short
    paths alone can do: ``loaded.finish(truncate(loaded.network, x, max_length=2), arguments)``.
    """
    return truncations(network, x, [max_length], count=count, token_mask=token_mask)[max_length]


@checked
def truncations(
    network: Network,
    x: Tensor,
    lengths: "list[int] | range",
    *,
    count: Count = "attention",
    token_mask: Tensor | None = None,
) -> Mapping[int, Hidden]:
    """``truncate`` at several lengths, for the price of the longest."""
    if not lengths:
        raise InputError("no max_length was given; name at least one.")
    for length in lengths:
        whole("max_length", length, least=0)
    found = path_lengths(network, x, count=count, max_length=max(lengths), token_mask=token_mask)
    sums: Any = found.contributions.cumsum(0) + found.bias
    return {length: sums[min(length, len(sums) - 1)] for length in lengths}
