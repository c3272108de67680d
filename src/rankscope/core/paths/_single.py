"""Single paths: what one of them contributes, and the attention matrices chained along it."""

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from rankscope.arguments import checked
from rankscope.core.network import Network
from rankscope.core.paths._freezing import check_layer, frozen_steps
from rankscope.core.paths._frozen import FrozenAttention, FrozenStep, Streams
from rankscope.core.paths._path import Path, check_all
from rankscope.core.shapes import Hidden


@checked
def path_output(
    network: Network, x: Tensor, path: Path, *, token_mask: Tensor | None = None
) -> Hidden:
    """What one path contributes to the output: ``P_path X W_path`` (Dong et al. 2021,
    theorem 2.1).

    Norms and MLPs on the way are frozen at this input, as in ``path_lengths``; an MLP's step is
    part of every path. Where a network has no skip, a path that wants one contributes nothing.
    """
    return path_outputs(network, x, [path], token_mask=token_mask)[0]


@checked
def path_outputs(
    network: Network, x: Tensor, paths: Sequence[Path], *, token_mask: Tensor | None = None
) -> Streams:
    """``path_output`` of several paths, in one pass through the network."""
    check_all(paths, network.spec.layers, network.spec.heads)
    x, token_mask = network.prepare(x, token_mask)
    streams = x.unsqueeze(0).expand(len(paths), *x.shape)
    with torch.no_grad():
        for step in frozen_steps(network, x, token_mask):
            choices = [path.choices[step.layer - 1] for path in paths]
            streams = _follow_choices(step, streams.to(step.state.device), choices)
            check_layer(network, step.layer, streams, token_mask)
    return streams


@checked
def path_matrix(
    network: Network, x: Tensor, path: Path, *, token_mask: Tensor | None = None
) -> Float[Tensor, "batch query key"]:
    """``P_path = P^L_{h_L} … P^1_{h_1}`` alone: which input token reaches which output token."""
    *_, last = chained_matrices(network, x, path, token_mask=token_mask)
    return last


@checked
def chained_matrices(
    network: Network, x: Tensor, path: Path, *, token_mask: Tensor | None = None
) -> Iterator[Float[Tensor, "batch query key"]]:
    """The product of attention matrices along a path, after each layer."""
    check_all([path], network.spec.layers, network.spec.heads)
    x, token_mask = network.prepare(x, token_mask)
    tokens = x.shape[1]
    product = torch.eye(tokens, dtype=x.dtype, device=x.device).expand(len(x), tokens, tokens)
    with torch.no_grad():
        for step in frozen_steps(network, x, token_mask):
            choice = path.choices[step.layer - 1]
            pattern = _pattern(step)
            if pattern is not None and choice is not None:
                product = pattern[:, choice] @ product.to(pattern.device)
            if step.closes:
                yield product


def _follow_choices(step: FrozenStep, streams: Streams, choices: Sequence[int | None]) -> Streams:
    """A step in which every stream takes its own way past or through the heads."""
    total = step.skip * streams
    for branch in step.branches:
        if branch.kind == "mlp":
            total = total + branch.linear(streams)
    for branch in step.branches:
        if isinstance(branch.part, FrozenAttention):
            normed = branch.before.linear(streams)
            total = total.clone()
            for number, head in enumerate(choices):
                if head is not None:
                    one = branch.part.heads(normed[number])[head]
                    total[number] = branch.inside.linear(one.unsqueeze(0)).squeeze(0)
    return step.after.linear(total)


def _pattern(step: FrozenStep) -> Tensor | None:
    for branch in step.branches:
        if isinstance(branch.part, FrozenAttention):
            return branch.part.pattern
    return None
