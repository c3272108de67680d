"""Blocks from random weights, from matrices, or from the parts of another block."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rankscope.core.checks import finite, real
from rankscope.core.network._block import Block
from rankscope.core.network._fields import MatrixName
from rankscope.core.network._norms import build_norm, share_gain
from rankscope.core.network._parts import MLP, Attention, BareMLP, make_linear
from rankscope.core.network._spec import Spec
from rankscope.errors import ShapeError
from rankscope.streams import stream


def random_blocks(spec: Spec, seed: int, dtype: torch.dtype) -> list[Block]:
    """All blocks of a random network.

    Every matrix has its own random stream, so it does not depend on other layers and parts. All are
    drawn in float64: a seed defines one network, rounded to each dtype.
    """
    if spec.shared_layers:
        return [_random_block(spec, 0, seed, dtype)] * spec.layers
    return [_random_block(spec, layer, seed, dtype) for layer in range(spec.layers)]


def _random_block(spec: Spec, layer: int, seed: int, dtype: torch.dtype) -> Block:
    def draw(name: MatrixName, inputs: int, outputs: int) -> nn.Linear:
        drawn = torch.empty(outputs, inputs, dtype=torch.float64)
        generator = stream(seed, "weights", layer, name)
        with torch.no_grad():
            spec.init.fill(drawn, matrix=name, generator=generator)
        bias = torch.zeros(outputs, dtype=dtype) if spec.bias else None
        return make_linear(drawn.to(dtype), bias)

    inner, kv_inner = spec.heads * spec.head_width, spec.kv_heads * spec.head_width
    attention = Attention(
        query=draw("query", spec.width, inner),
        key=draw("key", spec.width, kv_inner),
        value=draw("value", spec.width, kv_inner),
        output=draw("output", inner, spec.width),
        scores=spec.build_scores(dtype),
        heads=spec.heads,
        kv_heads=spec.kv_heads,
        scale=spec.score_scale,
        centered=spec.centered,
    )
    mlp = None
    if spec.mlp_width:
        mlp = MLP(
            up=draw("up", spec.width, spec.mlp_width),
            gate=draw("gate", spec.width, spec.mlp_width) if spec.gated else None,
            down=draw("down", spec.mlp_width, spec.width),
            activation=spec.activation,
        )
    return Block(spec, attention=attention, mlp=mlp, norms=_norms(spec, dtype))


def matrix_spec(query_key: Tensor, values: Tensor, head_width: int, **structure: Any) -> Spec:
    """The spec of a network given by ``(layer, head, width, width)`` matrices, checked."""
    for name, given in {"query_key": query_key, "values": values}.items():
        real(given, name=name, axes="(layer, head, width, width)", least=4)
        finite(given, name=name)
        if given.ndim != 4 or given.shape[-1] != given.shape[-2]:
            raise ShapeError(
                f"{name} has shape {tuple(given.shape)}, expected (layer, head, width, width); "
                "a single matrix needs both leading axes: w[None, None]."
            )
    if query_key.shape != values.shape or query_key.dtype != values.dtype:
        raise ShapeError(
            f"query_key {tuple(query_key.shape)} {query_key.dtype} and values "
            f"{tuple(values.shape)} {values.dtype} must agree in shape and dtype."
        )
    layers, heads, width, _ = values.shape
    scale = Spec(1, 1, 1, head_width=head_width).score_scale
    structure |= {"head_width": width, "score_scale": scale, "norm_place": "post"}
    return Spec(layers, heads, width, mlp_ratio=0.0, bias=False, **structure)


def matrix_blocks(spec: Spec, query_key: Tensor, values: Tensor) -> list[Block]:
    """Blocks whose heads have ``W_Q = W_QK, W_K = I`` and ``W_V = W_h, W_O = I``."""
    identity = torch.eye(spec.width, dtype=values.dtype, device=values.device)
    every_head = identity.repeat(1, spec.heads)

    def block(layer: int) -> Block:
        attention = Attention(
            query=make_linear(_side_by_side(query_key[layer]).T),
            key=make_linear(every_head.T),
            value=make_linear(_side_by_side(values[layer]).T),
            output=make_linear(every_head),
            scores=spec.build_scores(values.dtype, values.device),
            heads=spec.heads,
            kv_heads=spec.heads,
            scale=spec.score_scale,
        )
        norms = _norms(spec, values.dtype, values.device)
        return Block(spec, attention=attention, mlp=None, norms=norms)

    return [block(layer) for layer in range(spec.layers)]


def rebuild(spec: Spec, block: Block, *, removed: frozenset[int], same_norm: bool) -> Block:
    """A block of another structure on the same parts, hence with the same weights."""
    weight = block.attention.query.weight
    old = dict(block.norms.items())
    norms = {
        name: old[name] if same_norm and name in old else share_gain(fresh, old.get(name))
        for name, fresh in _norms(spec, weight.dtype, weight.device).items()
    }
    attention = block.attention
    if removed != attention.removed:
        attention = attention.replaced(removed=removed)
    mlp = block.mlp if spec.mlp_width else None
    if mlp is not None and spec.mlp_as != "mlp":
        mlp = BareMLP(spec.activation if spec.mlp_as == "activation" else None)
    return Block(spec, attention=attention, mlp=mlp, norms=norms)


def _norms(
    spec: Spec, dtype: torch.dtype, device: torch.device | None = None
) -> dict[str, nn.Module]:
    """A new norm for every position that has one under this spec."""
    if spec.norm == "none":
        return {}
    names = ["attention", "mlp"] if spec.mlp_width else ["attention"]
    inside = [f"{name}_inside" for name in names]
    names = {"both": [*names, *inside], "output": inside}.get(spec.norm_place, names)
    if spec.norm_place == "post" and spec.parallel:
        names = ["attention"]  # one sum, so one norm after it
    return {
        name: build_norm(spec.norm, spec.width, eps=spec.norm_eps, bias=spec.bias).to(device, dtype)
        for name in names
    }


def _side_by_side(matrices: Float[Tensor, "head width width"]) -> Float[Tensor, "width inner"]:
    """Concatenate one matrix per head into one projection."""
    return matrices.transpose(0, 1).flatten(1)
