"""Models of several seeds as one: each of their linear maps and norms on a stack of weights.

The samples of all seeds lie one after the other in the batch axis, seed by seed. Attention has no
weights beside its projections, so it does not see that they belong to different models; only maps
and norms do, and one batched product serves all seeds. ``torch.func.vmap`` over the model would do
the same with no code of ours, but has no rule for the fused attention kernel, and was slower
where both were tried.
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import stack_module_state
from torch.nn.functional import layer_norm

from rankscope.core.network import MLP, Attention, Block, Network, Spec
from rankscope.errors import SpecError
from rankscope.models.training._model import SequenceModel, TokenEmbedding


class StackedLinear(nn.Linear):
    """``x ↦ x Wₛᵀ + bₛ`` for the samples of each seed s."""

    def __init__(self, like: nn.Linear) -> None:
        nn.Module.__init__(self)  # it has weights already
        self.weight, self.bias = like.weight, like.bias

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(len(self.weight), -1, x.shape[-1])
        if self.bias is None:
            out = torch.bmm(rows, self.weight.mT)
        else:
            out = torch.baddbmm(self.bias.unsqueeze(1), rows, self.weight.mT)
        return out.view(*x.shape[:-1], -1)


class StackedNorm(nn.Module):
    """LayerNorm with the gain and bias of each seed."""

    def __init__(self, like: nn.LayerNorm) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = like.weight, like.bias, like.eps

    def forward(self, x: Tensor) -> Tensor:
        rows = layer_norm(x, x.shape[-1:], eps=self.eps).view(len(self.weight), -1, x.shape[-1])
        gain = self.weight.unsqueeze(1)
        out = (
            rows * gain if self.bias is None else torch.addcmul(self.bias.unsqueeze(1), rows, gain)
        )
        return out.view(x.shape)


class StackedEmbedding(nn.Module):
    """The rows of each seed's own embedding."""

    def __init__(self, like: TokenEmbedding) -> None:
        super().__init__()
        self.weight = like.weight

    def forward(self, ids: Tensor) -> Tensor:
        seeds, symbols, _ = self.weight.shape
        first = torch.arange(seeds, device=ids.device).mul(symbols).view(-1, 1, 1)
        rows = (ids.view(seeds, -1, ids.shape[-1]) + first).view(ids.shape)
        out: Tensor = self.weight.flatten(0, 1)[rows]
        return out


class StackedModel(SequenceModel):
    """The models of several seeds, which run as one on their batches laid end to end."""

    def embed(self, inputs: Tensor) -> Tensor:
        x: Tensor = self.encoder(inputs)
        if self.positions is None:
            return x
        seeds = len(self.positions)
        shifted = x.view(seeds, -1, *x.shape[1:]) + self.positions[:, None, : x.shape[1]]
        return shifted.view(x.shape)


def stack(models: Sequence[SequenceModel]) -> StackedModel:
    """Models of one shape as one; the stack has copies of their weights, under the same names."""
    shape = models[0]
    spec = shape.network.spec
    if any(model.network.spec != spec for model in models):
        raise SpecError("models that are trained together must have the same spec.")
    _refuse_others(spec)
    blocks = [_block(spec, cast(Block, block)) for block in shape.network.blocks]
    stacked = StackedModel(
        _stacked(shape.encoder), shape.positions, Network(spec, blocks), _stacked(shape.readout)
    )
    weights, _ = stack_module_state(list(models))
    for name, weight in weights.items():
        put_parameter(stacked, name, weight.detach().clone())
    return stacked


def put_parameter(model: nn.Module, name: str, value: Tensor) -> None:
    """Make a tensor itself, not a copy of it, the parameter of this dotted name."""
    path, _, own = name.rpartition(".")
    setattr(model.get_submodule(path), own, nn.Parameter(value))


def _refuse_others(spec: Spec) -> None:
    if spec.norm not in ("layer", "none") or spec.scores != "dot" or spec.shared_layers:
        raise SpecError(
            "models are trained with LayerNorm or no norm, plain dot products, and weights of "
            f"their own in every layer; got {spec.describe()}."
        )


def _block(spec: Spec, block: Block) -> Block:
    old, mlp = block.attention, cast(MLP | None, block.mlp)
    attention = Attention(
        query=_stacked(old.query),
        key=_stacked(old.key),
        value=_stacked(old.value),
        output=_stacked(old.output),
        scores=old.scores,
        heads=old.heads,
        kv_heads=old.kv_heads,
        scale=old.scale,
        removed=old.removed,
        centered=old.centered,
    )
    if mlp is not None:
        mlp = MLP(
            up=_stacked(mlp.up),
            down=_stacked(mlp.down),
            gate=None if mlp.gate is None else _stacked(mlp.gate),
            activation=mlp.activation,
        )
    norms = {name: _stacked(norm) for name, norm in block.norms.items()}
    return Block(spec, attention=attention, mlp=mlp, norms=norms)


def _stacked(part: nn.Module) -> Any:
    """A part that takes its weights from a stack; so far with those of one model."""
    if isinstance(part, TokenEmbedding):
        return StackedEmbedding(part)
    if isinstance(part, nn.LayerNorm):
        return StackedNorm(part)
    return StackedLinear(cast(nn.Linear, part))
