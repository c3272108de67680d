"""Networks with parts that only loaded models have, made by hand from random ones.

``network(name, lively)`` is a network with one such part in every layer. What it computes is
written out once more, in loops or in other words, by the tests that use it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from rankscope.core.network import (
    MLP,
    Attention,
    Block,
    CappedScores,
    ChangingRotary,
    Described,
    Init,
    Joined,
    Latent,
    LearnedSinks,
    Network,
    NormedHeads,
    OffsetNorm,
    PartlyShared,
    RotaryScores,
    Scores,
    SinusoidKeys,
    Spec,
    View,
    make_linear,
)

from .deep.kinds import Kind

WIDTH = 8


def drawn(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(500 + seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def matrix(outputs: int, inputs: int, *, seed: int = 0, bias: bool = False) -> nn.Linear:
    """A random linear layer; outputs are about as large as inputs."""
    weight = drawn(outputs, inputs, seed=seed) / inputs**0.5
    return make_linear(weight, 0.3 * drawn(outputs, seed=seed + 1) if bias else None)


def parameter(values: Tensor) -> nn.Parameter:
    return nn.Parameter(values.clone())


class AsStored:
    """A pick: the parameters as they are."""

    def weight(self, stored: Tensor) -> Tensor:
        return stored

    def bias(self, stored: Tensor) -> Tensor:
        return stored


class Half:
    """A pick: the first or the second half of the outputs."""

    def __init__(self, second: bool) -> None:
        self.second = second

    def weight(self, stored: Tensor) -> Tensor:
        return stored.chunk(2)[self.second]

    def bias(self, stored: Tensor) -> Tensor:
        return stored.chunk(2)[self.second]


class Router(nn.Module):
    """Experts of ``units`` units each: the better half is chosen and weighted by a softmax."""

    def __init__(self, experts: int, units: int) -> None:
        super().__init__()
        self.choose, self.units = matrix(experts, WIDTH, seed=70), units

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.choose(x)
        best = scores.topk(scores.shape[-1] // 2).indices
        kept = torch.full_like(scores, -torch.inf).scatter(-1, best, scores.gather(-1, best))
        return kept.softmax(-1).repeat_interleave(self.units, -1)


Change = Callable[[Attention, MLP], tuple[Attention, MLP]]


@dataclass(frozen=True)
class Part:
    """One part: the fields of a spec that has it, and how it is put into a block of that spec."""

    fields: dict[str, object]
    change: Change = lambda attention, mlp: (attention, mlp)
    offset: bool = False
    """Whether norms have gains 1 + w."""
    undescribed: tuple[str, ...] = ()


def with_scores(make: Callable[[Scores], Scores]) -> Change:
    def change(attention: Attention, mlp: MLP) -> tuple[Attention, MLP]:
        return attention.replaced(scores=make(attention.scores)), mlp

    return change


def _scaled_views(attention: Attention, mlp: MLP) -> tuple[Attention, MLP]:
    """A residual multiplier for attention, LayerScale for the MLP."""
    scale = parameter(1 + 0.5 * drawn(WIDTH, seed=3))
    output = View(attention.output, AsStored(), scale=0.4)
    down = View(mlp.down, AsStored(), scale=scale)
    return attention.replaced(output=output), mlp.replaced(down=down)


def _joined(attention: Attention, mlp: MLP) -> tuple[Attention, MLP]:
    """The same matrices, in two pieces each; of some pieces one has no bias."""
    halves = [View(attention.query, Half(second)) for second in (False, True)]
    value = attention.value.weight.chunk(2)
    pieces = make_linear(value[0]), make_linear(value[1], drawn(len(value[1]), seed=5))
    down = mlp.down.weight.chunk(2, dim=1)
    summed = Joined(make_linear(down[0], mlp.down.bias), make_linear(down[1]), summed=True)
    changed = attention.replaced(query=Joined(*halves), value=Joined(*pieces))
    return changed, mlp.replaced(down=summed)


def latent(outputs: int, norm: nn.Module, *, seed: int, bias: bool = False) -> Latent:
    down, up = matrix(3, WIDTH, seed=seed, bias=bias), matrix(outputs, 3, seed=seed + 2, bias=bias)
    return Latent(down, norm, up)


def latent_norm(*, centers: bool, seed: int = 20) -> OffsetNorm:
    bias = parameter(drawn(3, seed=seed + 1)) if centers else None
    offset = parameter(0.4 * drawn(3, seed=seed))
    return OffsetNorm(centers=centers, eps=0.1, offset=offset, bias=bias)


def _latent(*, centers: bool) -> Change:
    def change(attention: Attention, mlp: MLP) -> tuple[Attention, MLP]:
        heads, width = attention.heads, attention.query.weight.shape[0] // attention.heads
        norm = nn.RMSNorm(3, eps=0.1, dtype=torch.float64)
        query = latent(heads * width, norm, seed=30, bias=centers)
        own = latent(attention.kv_heads * (width - 1), norm, seed=40)
        key = PartlyShared(attention.kv_heads, own, matrix(1, WIDTH, seed=50))
        inside = latent_norm(centers=centers) if centers else norm
        value = latent(attention.kv_heads * width, inside, seed=60, bias=centers)
        return attention.replaced(query=query, key=key, value=value), mlp

    return change


def _gates(*, by_head: bool) -> Change:
    def change(attention: Attention, mlp: MLP) -> tuple[Attention, MLP]:
        outputs = attention.heads if by_head else attention.query.weight.shape[0]
        return attention.replaced(gate=matrix(outputs, WIDTH, seed=80, bias=True)), mlp

    return change


def _routed(attention: Attention, mlp: MLP) -> tuple[Attention, MLP]:
    return attention, mlp.replaced(router=Router(4, mlp.up.weight.shape[0] // 4))


def _by_length() -> Scores:
    """Other frequencies from the third token on, so that those of the tests are long ones."""
    return ChangingRotary(ANGLES, limit=2, longer=lambda tokens: ANGLES / tokens)


def _rotary_norms(scores: Scores) -> Scores:
    norms = [nn.RMSNorm(4, eps=0.1, dtype=torch.float64) for _ in range(2)]
    return NormedHeads(*norms, scores)


def _sinks(scores: Scores) -> Scores:
    return LearnedSinks(parameter(0.5 + drawn(2, seed=90)), scores)


def _sinusoids(scores: Scores) -> Scores:
    """With biases that are weights, as in a loaded model."""
    assert isinstance(scores, SinusoidKeys)
    scores.content_bias = parameter(scores.content_bias)
    scores.position_bias = parameter(scores.position_bias)
    return scores


GROUPED = {"heads": 4, "kv_heads": 2, "head_width": 4}
PARTS: dict[str, Part] = {
    "scaled views": Part({}, _scaled_views),
    "joined projections": Part({}, _joined),
    "latent projections": Part({"bias": False}, _latent(centers=False)),
    "latent projections with biases": Part(GROUPED, _latent(centers=True)),
    "gates of entries": Part({}, _gates(by_head=False), undescribed=("gates",)),
    "gates of heads": Part(GROUPED, _gates(by_head=True), undescribed=("gates",)),
    "experts": Part({"mlp_ratio": 2.0}, _routed, undescribed=("experts",)),
    "gated experts": Part(
        {"mlp_ratio": 2.0, "gated": True, "activation": "silu", "parallel": True},
        _routed,
        undescribed=("experts",),
    ),
    "offset LayerNorm": Part({"norm_place": "both"}, offset=True),
    "offset RMSNorm": Part({"norm": "rms", "norm_place": "post"}, offset=True),
    "capped logits": Part({}, with_scores(lambda scores: CappedScores(0.8, scores))),
    "capped, normed heads": Part(
        {}, with_scores(lambda _: CappedScores(0.8, _rotary_norms(RotaryScores(ANGLES))))
    ),
    "learned sinks": Part({"mask": "causal"}, with_scores(_sinks)),
    "learned sinks, rotary": Part({}, with_scores(lambda _: _sinks(RotaryScores(ANGLES)))),
    "rotary, interleaved": Part({"head_width": 5, "scores": Kind("rotary, interleaved")}),
    "rotary, by length": Part({}, with_scores(lambda _: _by_length())),
    "rotary of a grid": Part({"scores": Kind("grid")}),
    "normed heads": Part({"scores": Kind("normed")}),
    "normed last": Part({"scores": Kind("normed last")}),
    "normed side by side": Part({**GROUPED, "scores": Kind("normed side by side")}),
    "sinusoids of distances": Part({"scores": Kind("sinusoids")}, with_scores(_sinusoids)),
    "disentangled": Part({"scores": Kind("disentangled")}),
    "disentangled, buckets": Part({**GROUPED, "scores": Kind("disentangled, buckets")}),
    "relu2": Part({"activation": "relu2"}),
    "gated relu2": Part({"activation": "relu2", "gated": True}),
    "quick_gelu": Part({"activation": "quick_gelu"}),
}
ANGLES = torch.tensor([1.0, 0.37])


def network(name: str, lively: Callable[..., Network], *, layers: int = 2, **fields) -> Network:
    """A float64 network that has this part in every layer; ``fields`` are others of its spec."""
    part = PARTS[name]
    given = {"heads": 2, "mlp_ratio": 1.5, "init": Init("normal", 0.5), **part.fields, **fields}
    net = lively(Spec(layers, width=WIDTH, **given))
    blocks = [_changed(net.spec, block, part) for block in net.blocks]
    spec = replace(net.spec, undescribed=part.undescribed)
    if type(blocks[0].attention.scores) is not Scores:
        spec = replace(spec, scores=Described(name))
    return Network(spec, blocks)


def _changed(spec: Spec, block: Block, part: Part) -> Block:
    attention, mlp = block.attention, block.mlp
    if isinstance(mlp, MLP):
        attention, mlp = part.change(attention, mlp)
    else:
        unit = make_linear(torch.eye(WIDTH, dtype=torch.float64))
        attention, _ = part.change(attention, MLP(up=unit, down=unit, gate=None, activation="gelu"))
    norms = dict(block.norms.items())
    if part.offset:
        norms = {name: _offset(norm) for name, norm in norms.items()}
    return Block(spec, attention=attention, mlp=mlp, norms=norms)


def _offset(norm: nn.LayerNorm | nn.RMSNorm) -> OffsetNorm:
    centers = isinstance(norm, nn.LayerNorm)
    offset = parameter(norm.weight.detach() - 1)
    return OffsetNorm(
        centers=centers, eps=norm.eps, offset=offset, bias=norm.bias if centers else None
    )
