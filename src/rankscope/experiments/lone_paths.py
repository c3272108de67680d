"""Paths as in the code of Dong et al. 2021, figure 4: each is run as a separate state.

Read off ``modeling_san.py``, ``functions.py`` and the commands of their README, all of which pass
``--no_sub_path`` (github.com/twistedcubic/attention-rank-collapse); no code of theirs is used. A
path runs through the network as the only state there is. A layer it skips leaves that state alone.
A layer it goes through by head h replaces it:

    x ← LayerNorm(P_h(x) x V_h O_h + b)

with attention computed anew from the state, no skip, and a LayerNorm without gain and bias. The
states in which some random paths of one length end are added up; another such LayerNorm of the sum
goes to the readout. Attention, norms and the biases of all layers but the path's are therefore not
those of the whole network, and the sum of all paths is not its output.

Checked against the released encoder when this was written: with the same weights and paths both
give the same states, to 1e-6.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import layer_norm

from rankscope.core.network import Block, Network, Visibility
from rankscope.core.paths import Path
from rankscope.core.shapes import Hidden

Choices = tuple[int | None, ...]
"""The head in each layer; None if the layer is skipped."""


@torch.no_grad()
def lone_paths(
    network: Network, x: Hidden, token_mask: Tensor | None = None
) -> Iterator[tuple[Choices, Hidden]]:
    """Every path of a network and its final state; paths with a common prefix share its states."""
    x, token_mask = network.prepare(x, token_mask)
    sighted = list(network.sighted_blocks(x.shape[1], token_mask))

    def follow(choices: Choices, state: Hidden) -> Iterator[tuple[Choices, Hidden]]:
        if len(choices) == len(sighted):
            yield choices, state
            return
        yield from follow((*choices, None), state)
        for head, after in enumerate(through_heads(*sighted[len(choices)], state)):
            yield from follow((*choices, head), after)

    yield from follow((), x)


def through_heads(
    block: Block, seen: Visibility, state: Hidden
) -> Float[Tensor, "head batch token feature"]:
    """The output of each head of a layer for one state; an MLP follows if the block has one."""
    attention = block.attention
    values = attention.split(attention.value(state), attention.kv_heads)
    mixed = (attention.pattern(state, seen) @ values).transpose(0, 1)
    weight = attention.output.weight.unflatten(1, (attention.heads, -1)).movedim(1, 0).mT
    after = mixed @ weight.unsqueeze(1)
    bias = attention.output.bias
    after = plain_norm(after if bias is None else after + bias)
    for step in block.steps[1:]:
        after = torch.stack([step(state, seen) for state in after])
    return after


def plain_norm(x: Tensor) -> Tensor:
    """LayerNorm without gain and bias."""
    normed: Tensor = layer_norm(x, x.shape[-1:], eps=1e-12)
    return normed


def summed(
    network: Network,
    x: Hidden,
    draws: Mapping[str, Sequence[Sequence[Path]]],
    *,
    everything: str,
    token_mask: Tensor | None = None,
) -> dict[str, list[Hidden]]:
    """The normalised sum of the final states of the paths of each draw, by name.

    ``everything`` holds all paths, by length. A path drawn twice counts twice.
    """
    sums = {name: [torch.zeros_like(x) for _ in several] for name, several in draws.items()}
    sums[everything] = [torch.zeros_like(x) for _ in range(network.spec.layers + 1)]
    wanted: dict[Choices, list[tuple[str, int, int]]] = {}
    for name, several in draws.items():
        for number, paths in enumerate(several):
            for choices, times in Counter(path.choices for path in paths).items():
                wanted.setdefault(choices, []).append((name, number, times))
    for choices, state in lone_paths(network, x, token_mask):
        sums[everything][sum(head is not None for head in choices)] += state
        for name, number, times in wanted.get(choices, ()):
            sums[name][number] += times * state
    return {name: [plain_norm(total) for total in totals] for name, totals in sums.items()}
