"""Modules one might write, each with the states it went through kept by itself while it runs.

They are read wrongly if one looks at nothing but shapes: the memory comes first, tensors change in
place, tokens come before samples, branches run side by side, masks have names of their own.
"""

from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

WIDTH = 8


class Case(NamedTuple):
    """A model with its inputs; ``tokens`` marks those that are no padding."""

    model: nn.Module
    inputs: Any
    tokens: Tensor | None = None


class Block(nn.Module):
    """A residual block that mixes its tokens; ``way`` says how, on axis ``axis``."""

    def __init__(self, way: str = "softmax", axis: int = 1, width: int = WIDTH) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, width)
        self.way, self.axis = way, axis

    def mix(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        if self.way == "none":
            return x + torch.tanh(self.linear(h))
        if self.way == "mean":
            return x + torch.tanh(self.linear(h)) + h.mean(self.axis, keepdim=True)
        rows = h if self.axis == 1 else h.transpose(0, 1)
        if self.way == "softmax":
            rows = torch.softmax(rows @ rows.mT / 3, -1) @ rows
        elif self.way == "heads":
            heads = rows.unflatten(-1, (2, -1)).transpose(1, 2)
            pattern = (heads @ heads.mT).softmax(dim=-1)
            rows = (pattern @ heads).transpose(1, 2).flatten(2)
        elif self.way == "sdpa":
            heads = rows.unflatten(-1, (2, -1)).transpose(1, 2)
            heads = nn.functional.scaled_dot_product_attention(heads, heads, heads)
            rows = heads.transpose(1, 2).flatten(2)
        elif self.way == "linear":  # attention without a softmax
            rows = torch.einsum("btd,bsd,bse->bte", rows, rows, rows) / 9
        return x + self.linear(rows if self.axis == 1 else rows.transpose(0, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(x)


class Calling(Block):
    """A block that is called in a way of its own."""

    def __init__(self, take: Callable[..., Tensor], **options: Any) -> None:
        super().__init__(**options)
        self.take = take

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return self.mix(self.take(*args, **kwargs))


class MemoryFirst(Block):
    def forward(self, memory: Tensor, x: Tensor) -> Tensor:
        return self.mix(x) + memory.mean(1, keepdim=True)[..., :1]


class MemorySecond(Block):
    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        return self.mix(x) + memory.mean(1, keepdim=True)[..., :1]


class BiasByName(Block):
    def forward(self, *, bias: Tensor, h: Tensor) -> Tensor:
        return self.mix(h) + bias.mean()


class Giving(Block):
    """A block whose output is wrapped, in turns if there are several ways."""

    def __init__(self, wrap: Callable[[Tensor], Any], **options: Any) -> None:
        super().__init__(**options)
        self.wrap = wrap

    def forward(self, x: Tensor) -> Any:
        return self.wrap(self.mix(x))


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], *, batch_first: bool) -> None:
        super().__init__()
        self.cells = kind(WIDTH, WIDTH, batch_first=batch_first)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.cells(x)[0]


class Turned(nn.Module):
    """PyTorch's attention with the tokens of a block turned around it, or not."""

    def __init__(self, *, batch_first: bool, turns: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=batch_first)
        self.norm, self.turns = nn.LayerNorm(WIDTH), turns

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        h = h.transpose(0, 1) if self.turns else h
        h = self.attention(h, h, h, need_weights=False)[0]
        return x + (h.transpose(0, 1) if self.turns else h)


class Model(nn.Module):
    """Blocks run as ``way(blocks, keep, *inputs)`` says; it tells ``keep`` each state it makes."""

    def __init__(self, blocks: list[nn.Module], way: Callable[..., Any]) -> None:
        super().__init__()
        with torch.no_grad():
            for place, parameter in enumerate(nn.ModuleList(blocks).parameters()):
                generator = torch.Generator().manual_seed(place)
                parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
        self.layers, self.way = nn.ModuleList(blocks), way
        self.states: list[Tensor] = []

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.states = []
        return self.way(self.layers, self.keep, *args, **kwargs)

    def keep(self, state: Tensor) -> None:
        """Samples first, then tokens; a copy, whatever becomes of the tensor."""
        self.states.append(state.detach().clone())


class Embedded(Model):
    """The same behind an embedding."""

    def __init__(self, blocks: list[nn.Module], way: Callable[..., Any]) -> None:
        super().__init__(blocks, way)
        self.embedding = nn.Embedding(20, WIDTH)

    def forward(self, ids: Tensor, **kwargs: Any) -> Any:
        return super().forward(self.embedding(ids), **kwargs)


def real(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def token_ids(samples: int, tokens: int) -> Tensor:
    return torch.randint(0, 20, (samples, tokens), generator=torch.Generator().manual_seed(1))


def in_turn(blocks: Any, keep: Any, x: Tensor, **_: Any) -> Tensor:
    keep(x)
    for block in blocks:
        x = block(x)
        keep(x)
    return x


def token_first(blocks: Any, keep: Any, x: Tensor) -> Tensor:
    keep(x.transpose(0, 1))
    for block in blocks:
        x = block(x)
        keep(x.transpose(0, 1))
    return x


def norm(x: Tensor) -> Tensor:
    return nn.functional.layer_norm(x, x.shape[-1:])


# Several tensors in, of which one is the stream.


def with_other(call: Callable[[nn.Module, Tensor, Tensor], Tensor], between: Any = None) -> Any:
    def way(blocks: Any, keep: Any, x: Tensor, other: Tensor) -> Tensor:
        keep(x)
        for block in blocks:
            x = call(block, other, x)
            keep(x)
            x = x if between is None else between(x)
        return x

    return way


CALLS: dict[str, tuple[Callable[[], nn.Module], Callable[[Any, Tensor, Tensor], Tensor]]] = {
    "memory first": (MemoryFirst, lambda block, other, x: block(other, x)),
    "memory second": (MemorySecond, lambda block, other, x: block(x, other)),
    "memory first by name": (MemoryFirst, lambda block, other, x: block(memory=other, x=x)),
    "bias by name": (BiasByName, lambda block, other, x: block(bias=other, h=x)),
    "anything": (lambda: Calling(lambda _, x: x), lambda block, other, x: block(other, x)),
    "in a list": (lambda: Calling(lambda pair: pair[1]), lambda block, o, x: block([o, x])),
    "named anything": (
        lambda: Calling(lambda **named: named["hid"]),
        lambda block, other, x: block(c=other, hid=x),
    ),
    "x is the memory": (
        lambda: Calling(lambda **named: named["y"]),
        lambda block, other, x: block(x=other, y=x),
    ),
}
OTHERS = {"alike": (3, 6, 8), "longer": (3, 9, 8), "of pairs": (3, 6, 6), "flat": (6, 6)}
MEMORIES = {
    f"{call}, {shape}, {count} blocks{', normed between' if between else ''}": (
        lambda call=call, shape=shape, count=count, between=between: Case(
            Model([CALLS[call][0]() for _ in range(count)], with_other(CALLS[call][1], between)),
            [real(3, 6, 8), 9 * real(*OTHERS[shape], seed=5)],
        )
    )
    for call, shape, count, between in product(CALLS, OTHERS, (1, 3), (None, norm))
}


# Tensors that change in place, and tensors that change their place.

CHANGES: dict[str, Callable[[Tensor], Any]] = {
    "mul": lambda x: x.mul_(3),
    "add": lambda x: x.add_(torch.arange(6.0)[:, None].to(x)),
    "zero": lambda x: x[:, :3].zero_(),
    "view": lambda x: x.view(-1).mul_(-2),
    "item": lambda x: x.__setitem__((slice(None), 0), 5.0),
}
WRAPS: dict[str, tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]] = {
    "plain": (lambda h: h, lambda out: out),
    "tuple": (lambda h: (h, h.relu()), lambda out: out[0]),
    "last": (lambda h: [h * 2, h], lambda out: out[1]),
    "dict": (lambda h: {"a": h * 2, "out": h}, lambda out: out["out"]),
}


def changing(change: str, pick: Any) -> Any:
    def way(blocks: Any, keep: Any, x: Tensor) -> Tensor:
        keep(x)
        for block in blocks:
            x = pick(block(x))
            keep(x)
            CHANGES[change](x)
        return x

    return way


IN_PLACE = {
    f"{change} of {wrap}, {dtype}": (
        lambda change=change, wrap=wrap, dtype=dtype: Case(
            Model([Giving(WRAPS[wrap][0]) for _ in range(3)], changing(change, WRAPS[wrap][1])).to(
                dtype
            ),
            real(3, 6, 8, dtype=dtype),
        )
    )
    for change, wrap, dtype in product(CHANGES, WRAPS, (torch.float32, torch.float64))
}


def alternating(blocks: Any, keep: Any, x: Tensor) -> Tensor:
    keep(x)
    for place, block in enumerate(blocks):
        x = block(x)[place % 2]
        keep(x)
    return x


ALTERNATING = {
    f"{count} blocks, beside {name}": (
        lambda count=count, beside=beside: Case(
            Model(
                [
                    Giving(
                        (lambda h: (h, beside(h))) if place % 2 == 0 else lambda h: (beside(h), h)
                    )
                    for place in range(count)
                ],
                alternating,
            ),
            real(3, 6, 8),
        )
    )
    for count, (name, beside) in product(
        (3, 4, 5), {"a half": lambda h: h / 2, "noise": torch.sin}.items()
    )
}


# Which axis the tokens are.

SHAPES = ((3, 6), (6, 3), (5, 5), (1, 6))
WAYS = ("softmax", "heads", "sdpa", "mean", "linear")


def recurrent(kind: type[nn.RNNBase], samples: int, tokens: int, *, batch_first: bool) -> Case:
    blocks: list[nn.Module] = [Recurrent(kind, batch_first=batch_first) for _ in range(2)]
    x = real(samples, tokens, WIDTH)
    if batch_first:
        return Case(Model(blocks, in_turn), x)
    return Case(Model(blocks, token_first), x.transpose(0, 1).contiguous())


def channels(samples: int, tokens: int, *, embedded: bool) -> Case:
    def way(blocks: Any, keep: Any, x: Tensor) -> Tensor:
        x = x.mT if embedded else x
        keep(x.mT)
        for block in blocks:
            x = block(x)
            keep(x.mT)
        return x

    blocks: list[nn.Module] = [
        nn.Sequential(nn.Conv1d(WIDTH, WIDTH, 3, padding=1), nn.Tanh()) for _ in range(2)
    ]
    if embedded:
        return Case(Embedded(blocks, way), token_ids(samples, tokens))
    return Case(Model(blocks, way), real(samples, WIDTH, tokens))


def folded(way_inside: str, samples: int, *, embedded: bool) -> Case:
    """Rows of a picture folded into the batch; all tokens of a sample are one picture."""

    def way(blocks: Any, keep: Any, x: Tensor) -> Tensor:
        x = x.reshape(samples * 4, 3, WIDTH)
        keep(x.reshape(samples, 12, WIDTH))
        for block in blocks:
            x = block(x)
            keep(x.reshape(samples, 12, WIDTH))
        return x

    blocks: list[nn.Module] = [Block(way_inside) for _ in range(2)]
    if embedded:
        return Case(Embedded(blocks, way), token_ids(samples, 12))
    return Case(Model(blocks, way), real(samples, 4, 3, WIDTH))


def plain_mlp(rows: int) -> Case:
    def way(blocks: Any, keep: Any, x: Tensor) -> Tensor:
        keep(x[:, None])  # each row is a sample of its own
        for block in blocks:
            x = block(x)
            keep(x[:, None])
        return x

    blocks: list[nn.Module] = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(3)]
    return Case(Model(blocks, way), real(rows, WIDTH))


AXES: dict[str, Callable[[], Case]] = {
    **{
        f"{kind.__name__} {samples}x{tokens}, batch first {batch_first}": (
            lambda kind=kind, samples=samples, tokens=tokens, batch_first=batch_first: recurrent(
                kind, samples, tokens, batch_first=batch_first
            )
        )
        for kind, (samples, tokens), batch_first in product(
            (nn.LSTM, nn.GRU), SHAPES, (False, True)
        )
    },
    **{
        f"token-first {way} {samples}x{tokens}": (
            lambda way=way, samples=samples, tokens=tokens: Case(
                Model([Block(way, axis=0) for _ in range(2)], token_first),
                real(tokens, samples, WIDTH),
            )
        )
        for way, (samples, tokens) in product(WAYS, SHAPES)
    },
    **{
        f"token-first {way} {samples}x{tokens} of ids": (
            lambda way=way, samples=samples, tokens=tokens: Case(
                Embedded(
                    [Block(way, axis=0) for _ in range(2)],
                    lambda blocks, keep, x: token_first(blocks, keep, x.transpose(0, 1)),
                ),
                token_ids(samples, tokens),
            )
        )
        for way, (samples, tokens) in product(WAYS, SHAPES[:3])
    },
    **{
        f"turned around attention {samples}x{tokens}, {batch_first}": (
            lambda samples=samples, tokens=tokens, batch_first=batch_first: Case(
                Model(
                    [Turned(batch_first=batch_first, turns=batch_first) for _ in range(2)],
                    token_first,
                ),
                real(tokens, samples, WIDTH),
            )
        )
        for (samples, tokens), batch_first in product(SHAPES, (False, True))
    },
    **{
        f"channels {samples}x{tokens}, {'ids' if embedded else 'real'}": (
            lambda samples=samples, tokens=tokens, embedded=embedded: channels(
                samples, tokens, embedded=embedded
            )
        )
        for (samples, tokens), embedded in product((*SHAPES, (3, 8)), (False, True))
    },
    **{
        f"rows folded, {way}, {samples} samples, {'ids' if embedded else 'real'}": (
            lambda way=way, samples=samples, embedded=embedded: folded(
                way, samples, embedded=embedded
            )
        )
        for way, samples, embedded in product(("softmax", "sdpa", "none"), (1, 2), (False, True))
    },
    **{f"plain MLP on {rows} rows": (lambda rows=rows: plain_mlp(rows)) for rows in (1, 5, 8)},
}


# Blocks that run side by side.


def side_by_side(before: Callable[[int, Tensor], Tensor], join: Any) -> Any:
    def way(blocks: Any, keep: Any, x: Tensor) -> Tensor:
        keep(x)  # one layer of several branches
        x = join([block(before(place, x)) for place, block in enumerate(blocks)])
        keep(x)
        return x

    return way


BEFORE: dict[str, Callable[[int, Tensor], Tensor]] = {
    "the same": lambda _, x: x,
    "copies": lambda _, x: x.clone(),
    "views": lambda _, x: x[:, :],
    "norms": lambda place, x: norm(x) * (place + 1),
}
JOINS: dict[str, Callable[[list[Tensor]], Tensor]] = {
    "sum": sum,  # type: ignore[dict-item]
    "experts": lambda outs: sum(w * out for w, out in zip((0.2, 0.3, 0.5), outs, strict=True)),
    "stack": lambda outs: torch.stack(outs).mean(0),
}
PARTS: dict[str, Callable[[], nn.Module]] = {
    "blocks": Block,
    "MLPs": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()),
    "PyTorch's": lambda: nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True),
}
SIDE_BY_SIDE: dict[str, Callable[[], Case]] = {
    f"{parts} on {before}, joined by {join}": (
        lambda parts=parts, before=before, join=join: Case(
            Model([PARTS[parts]() for _ in range(3)], side_by_side(BEFORE[before], JOINS[join])),
            real(3, 6, WIDTH),
        )
    )
    for parts, before, join in product(PARTS, BEFORE, JOINS)
}


# Masks.

PADDING = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0], [1, 1, 0, 0, 0, 0]])
DTYPES = (
    torch.bool, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.uint8,
    torch.int32, torch.int64,
)  # fmt: skip


class Masked(Model):
    """Takes the mask under its name."""

    def __init__(self, name: str) -> None:
        super().__init__([Block("heads") for _ in range(2)], in_turn)
        self.name = name

    def forward(self, x: Tensor, **masks: Tensor) -> Any:
        assert self.name in masks
        return super().forward(x)


def pairs(tokens: int, kind: str) -> Tensor:
    causal = torch.ones(tokens, tokens).tril()
    if kind == "added":
        return torch.zeros(tokens, tokens).masked_fill(causal == 0, -torch.inf)
    return causal.to(getattr(torch, kind))


MASKS: dict[str, Callable[[], Case]] = {
    **{
        f"{name} of tokens, {dtype}": (
            lambda name=name, dtype=dtype: Case(
                Masked(name), {"x": real(3, 6, WIDTH), name: PADDING.to(dtype)}, PADDING.bool()
            )
        )
        for name, dtype in product(("mask", "valid", "m", "keep", "attention_mask"), DTYPES)
    },
    **{
        f"{name} of padding, {dtype}": (
            lambda name=name, dtype=dtype: Case(
                Masked(name), {"x": real(3, 6, WIDTH), name: (1 - PADDING).to(dtype)},
                PADDING.bool(),
            )
        )
        for name, dtype in product(("mask", "pad", "is_padding"), DTYPES)
    },
    **{
        f"{name} of pairs, {kind}, {samples} samples": (
            lambda name=name, kind=kind, samples=samples: Case(
                Masked(name), {"x": real(samples, 6, WIDTH), name: pairs(6, kind)}
            )
        )
        for name, kind, samples in product(
            ("attention_mask", "mask", "m"), ("bool", "float32", "float64", "int64", "added"),
            (1, 3, 6),
        )
    },
}  # fmt: skip

TRICKY: dict[str, Callable[[], Case]] = {
    f"{group}: {name}": case
    for group, cases in {
        "memory": MEMORIES, "in place": IN_PLACE, "alternating": ALTERNATING, "axes": AXES,
        "side by side": SIDE_BY_SIDE, "mask": MASKS,
    }.items()
    for name, case in cases.items()
}  # fmt: skip
