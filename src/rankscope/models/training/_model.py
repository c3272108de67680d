"""The model that is trained: inputs → hidden states → network → one readout per token."""

import copy
from collections.abc import Mapping
from typing import Annotated, Self

import torch
from torch import Tensor, nn

from rankscope.arguments import Count, Range, checked
from rankscope.core.checks import real, whole_numbers
from rankscope.core.network import Network, Spec, make_linear
from rankscope.core.shapes import Hidden
from rankscope.errors import InputError, ShapeError
from rankscope.streams import stream


class TokenEmbedding(nn.Module):
    """A vector for every symbol."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, ids: Tensor) -> Hidden:
        rows: Hidden = self.weight[ids]
        return rows


@checked
class SequenceModel(nn.Module):
    """A network between an encoder of its inputs and a linear readout of each token.

    >>> model = SequenceModel.random(Spec(2, 2, 8), outputs=3, symbols=10, positions=4, seed=0)
    >>> model(torch.tensor([[1, 2, 3, 4]])).shape
    torch.Size([1, 4, 3])

    Symbols have an embedding; points, which have coordinates, a linear map. Learned positions are
    added where an order matters; a set of points has none.
    """

    def __init__(
        self, encoder: nn.Module, positions: Tensor | None, network: Network, readout: nn.Module
    ) -> None:
        super().__init__()
        if positions is not None:
            real(positions, name="positions", axes="(token, feature)", least=2)
        self.encoder = encoder
        self.positions = None if positions is None else nn.Parameter(positions)
        self.network = network
        self.readout = readout

    @classmethod
    def random(
        cls,
        spec: Spec,
        *,
        outputs: Count,
        symbols: Annotated[int, Range(0, 1_000_000)] = 0,
        coordinates: Annotated[int, Range(0, 1_000_000)] = 0,
        positions: Annotated[int, Range(0, 1_000_000)] = 0,
        seed: int = 0,
    ) -> Self:
        """Draw weights from streams of the seed, for ``symbols`` or points with ``coordinates``.

        Embedding and positions are standard normal, like hidden states after a norm.
        """

        def draw(name: str, *shape: int) -> Tensor:
            return torch.randn(shape, generator=stream(seed, "model", name), dtype=torch.float32)

        if not symbols and not coordinates:
            raise InputError("give the number of symbols, or of coordinates per point.")
        return cls(
            TokenEmbedding(draw("symbols", symbols, spec.width))
            if symbols
            else _linear(draw("coordinates", spec.width, coordinates)),
            draw("positions", positions, spec.width) if positions else None,
            Network.random(spec, seed=seed),
            _linear(draw("readout", outputs, spec.width) / spec.width**0.5),
        )

    @classmethod
    def of_weights(cls, spec: Spec, weights: Mapping[str, Tensor]) -> Self:
        """A model with the weights of a ``state_dict``, without gradients."""
        encoder, positions = weights["encoder.weight"], weights.get("positions", ())
        points = "encoder.bias" in weights  # symbols have an embedding, which has none
        sizes = {"coordinates": encoder.shape[1]} if points else {"symbols": len(encoder)}
        sizes |= {"positions": len(positions), "outputs": len(weights["readout.weight"])}
        model = cls.random(spec, **sizes)
        model.load_state_dict(weights, assign=True)
        return model.requires_grad_(False)

    def forward(self, inputs: Tensor, token_mask: Tensor | None = None) -> Tensor:
        """The readout of every token; ``token_mask`` is False at padding."""
        out: Tensor = self.readout(self.network(self.embed(inputs), token_mask))
        return out

    def embed(self, inputs: Tensor) -> Hidden:
        """The hidden states before the first block: encoded inputs plus positions."""
        if isinstance(self.encoder, TokenEmbedding):
            expected = "(batch, token)"
            whole_numbers("inputs", inputs, least=0, most=len(self.encoder.weight) - 1)
        else:
            expected = "(batch, token, coordinate)"
            real(inputs, name="inputs", axes=expected, least=3)
        if inputs.ndim != expected.count(",") + 1:
            raise ShapeError(f"inputs has shape {tuple(inputs.shape)}, expected {expected}.")
        if self.positions is not None and inputs.shape[1] > len(self.positions):
            raise ShapeError(
                f"inputs has {inputs.shape[1]} tokens, but the model has {len(self.positions)} "
                "positions; truncate the sequences."
            )
        x: Hidden = self.encoder(inputs)
        return x if self.positions is None else x + self.positions[: x.shape[1]]

    def double(self) -> Self:
        """A float64 copy; like a network's ``double`` it leaves this one as it is."""
        return copy.deepcopy(self).to(torch.float64)


def _linear(weight: Tensor) -> nn.Linear:
    """A linear map with this matrix and a bias of zero."""
    return make_linear(weight, weight.new_zeros(len(weight)))
