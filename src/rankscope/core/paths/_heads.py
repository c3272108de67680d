"""The contribution of each head: all paths through it, with everything else frozen."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from rankscope.arguments import checked
from rankscope.core.checks import measured_tokens
from rankscope.core.network import Network
from rankscope.core.paths._frozen import check_layer, frozen_steps
from rankscope.core.paths._shares import Columns, Shares, mean_shares
from rankscope.core.shapes import Hidden
from rankscope.core.tabular import Tabular
from rankscope.numerals import short, some

if TYPE_CHECKING:
    import polars

    from rankscope.show import figures


@checked
@dataclass(frozen=True, repr=False)
class HeadShares(Tabular):
    """The part of the output carried by all paths through each head.

    >>> import torch
    >>> from rankscope import Network, Spec, head_shares
    >>> shares = head_shares(Network.random(Spec(2, 2, 8), seed=0), torch.eye(8)[None])
    >>> shares.contributions.shape
    torch.Size([2, 2, 1, 8, 8])

    ``contributions`` are ``(layer, head, batch, token, feature)``. Contributions of heads in
    different layers overlap, because a path passes through several; those of one layer do not.
    """

    contributions: Float[Tensor, "layer head batch token feature"]
    output: Hidden
    columns: Columns

    def __repr__(self) -> str:
        layers, heads, samples, tokens, _ = self.contributions.shape
        shares = mean_shares(self.columns, "layer", "head")
        layer, head = max(shares, key=lambda key: shares[key])
        return (
            f"HeadShares of {layers} layers, {heads} heads, {samples} samples of {tokens} tokens; "
            f"largest mean residual share {short(shares[layer, head])}, of head {head} in layer "
            f"{layer}"
        )

    def _repr_html_(self) -> str:
        """Mean residual shares: a row for each layer, a column for each head."""
        from rankscope.show.display import card, table

        layers, heads = self.contributions.shape[:2]
        shares = mean_shares(self.columns, "layer", "head")
        columns, rows = some(range(heads)), some(range(1, layers + 1))
        cells = [
            [layer, *(short(shares[layer, head], digits=2) for head in columns)] for layer in rows
        ]
        header = ["layer", *(f"head {head}" for head in columns)]
        return card("Mean residual shares of all paths through each head", table(header, cells))

    @property
    def table(self) -> "polars.DataFrame":
        """Residual share, norm share and projection by layer, head and sample."""
        from rankscope import tables

        return tables.frame(self.columns)

    def plot(self, metric: str | None = None) -> "figures.Figure":
        """Residual shares, or another ``metric``, layers against heads."""
        from rankscope.show import figures

        return figures.head_map(self.table, metric=metric or "residual_share")


@checked
def head_shares(
    network: Network, x: Tensor, *, token_mask: Tensor | None = None, measured: Tensor | None = None
) -> HeadShares:
    """For every head, what all paths through it carry to the output.

    >>> from rankscope import Network, Spec
    >>> x = torch.randn(1, 4, 8, generator=torch.Generator().manual_seed(0))
    >>> head_shares(Network.random(Spec(2, 2, 8)), x).table["head"].max()
    1

    A head's own output at this input is followed through the rest of the network, every later part
    frozen. That is about ``H L / 2`` forward passes in all. ``measured`` says which tokens count in
    the shares (default: all).
    """
    x, token_mask = network.prepare(x, token_mask)
    state, streams = x, x.new_zeros((0, *x.shape))
    with torch.no_grad():
        for step in frozen_steps(network, x, token_mask):
            device = step.state.device
            streams = step(streams.to(device)) if len(streams) else streams.to(device)
            if step.attention is not None:  # each head's own output, through the norms behind it
                branch, part = step.attention
                heads = part.heads(branch.before(state.to(device), biased=True), biased=True)
                streams = torch.cat((streams, step.after(branch.inside(heads))))
            check_layer(network, step.layer, streams, token_mask)
            state = step.state
    shares = Shares(measured_tokens(measured, token_mask, tuple(x.shape[:-1])))
    by_head = streams.unflatten(0, (network.spec.layers, network.spec.heads))
    shares.record_heads(by_head, state)
    return HeadShares(by_head, state, shares.columns())
