"""What is read of any model is right, or refused with an error of ours; never wrong."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.overrides import _get_current_function_mode_stack as modes
from torch.utils.checkpoint import checkpoint

from rankscope.core.tracing import trace
from rankscope.errors import InputError, RankscopeError

from .handwritten import (
    TRICKY,
    Block,
    Calling,
    Case,
    Embedded,
    Giving,
    MemoryFirst,
    MemorySecond,
    Model,
    Recurrent,
    Turned,
    in_turn,
    norm,
    real,
    token_first,
    token_ids,
    with_other,
)


def by_hand(case):
    """Dispersion of every state the model kept, without any code of ours."""
    figures = []
    for state in case.model.states:
        masks = [None] * len(state) if case.tokens is None else case.tokens.numpy()
        for sample, mask in zip(state.double().numpy(), masks, strict=True):
            rows = sample if mask is None else sample[mask]
            figures.append(np.sqrt(((rows - rows.mean(0)) ** 2).sum()))
    return figures


def reading(case, **options):
    """``right``, ``wrong``, or why it was refused; any other error is raised."""
    try:
        traced = trace(case.model, case.inputs, metrics=["dispersion"], **options)
    except RankscopeError as error:
        assert not modes()
        return f"refused: {error}"
    assert not modes()
    expected = by_hand(case)
    figures = traced.columns["value"]
    same = len(figures) == len(expected) and np.allclose(figures, expected, rtol=2e-5, atol=1e-6)
    return "right" if same else "wrong"


def test_there_are_enough_of_them():
    assert len(TRICKY) >= 105


SETTLED_BY = {
    "memory": ("stream=",), "alternating": ("output=",), "axes": ("layout=",),
    "side by side": ("blocks=",),
    "mask": ("token_mask=", "layout="),
}  # fmt: skip
"""What the error names, by the kind of module."""


@pytest.mark.parametrize("name", TRICKY)
def test_right_or_refused(name):
    read = reading(TRICKY[name]())
    kind = name.partition(":")[0]
    named = any(option in read for option in SETTLED_BY.get(kind, ()))
    assert read == "right" or (read.startswith("refused") and named)


# Modules there is nothing unusual about.


class Named(Block):
    def forward(self, *, hidden_states):
        return {"hidden_states": self.mix(hidden_states), "attentions": hidden_states.mean()}


class Rotated(Block):
    def forward(self, x, cos, sin):
        return self.mix(x * cos) + x * sin


class Patches(Model):
    """A vision transformer's way in: patches, and a token of their own before them."""

    def __init__(self, blocks):
        super().__init__(blocks, in_turn)
        self.patches, self.token = nn.Conv2d(3, 8, 4, 4), nn.Parameter(torch.ones(1, 1, 8))

    def forward(self, pixels):
        patches = self.patches(pixels).flatten(2).transpose(1, 2)
        return super().forward(torch.cat((self.token.expand(len(pixels), 1, 8), patches), 1))


def kept(step):
    """A way to run blocks that keeps what ``step(block, x)`` gives."""

    def way(blocks, keep, x, *others, **_):
        keep(x)
        for block in blocks:
            x = step(block, x, *others)
            keep(x)
        return x

    return way


def outside(blocks, keep, x):
    """Norms and skip connections outside the blocks, whose outputs are branches."""
    keep(norm(x))
    for block in blocks:
        branch = block(norm(x))
        keep(branch)
        x = x + branch
    return x


def pytorch(batch_first):
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=batch_first)
    return [layer, nn.TransformerEncoderLayer(8, 2, 16, batch_first=batch_first)]


def blocks(way="sdpa", count=3):
    return [Block(way) for _ in range(count)]


PIXELS = real(2, 3, 8, 8)
ORDINARY = {
    "nanoGPT": lambda: Case(Embedded(blocks(), in_turn), token_ids(3, 6)),
    "nanoGPT with a softmax": lambda: Case(Embedded(blocks("heads"), in_turn), token_ids(3, 6)),
    "one sample of ids": lambda: Case(Embedded(blocks("heads"), in_turn), token_ids(1, 6)),
    "attention without a softmax": lambda: Case(
        Embedded(blocks("linear"), in_turn), token_ids(3, 6)
    ),
    "embeddings": lambda: Case(Model(blocks(), in_turn), real(3, 6, 8)),
    "means": lambda: Case(Model(blocks("mean"), in_turn), real(3, 6, 8)),
    "MLPs of each token": lambda: Case(Model(blocks("none"), in_turn), real(3, 6, 8)),
    "vision": lambda: Case(Patches(blocks()), PIXELS),
    "vision, PyTorch's attention": lambda: Case(
        Patches([Turned(batch_first=True, turns=False) for _ in range(2)]), PIXELS
    ),
    "PyTorch's layers": lambda: Case(Model(pytorch(True), in_turn), real(3, 6, 8)),
    "PyTorch's layers, tokens first": lambda: Case(
        Model(pytorch(False), token_first), real(6, 3, 8)
    ),
    "dictionaries": lambda: Case(
        Model(
            [Named("heads") for _ in range(3)],
            kept(lambda block, x: block(hidden_states=x)["hidden_states"]),
        ),
        real(3, 6, 8),
    ),
    "tuples": lambda: Case(
        Model(
            [Giving(lambda h: (h, h @ h.mT), way="heads") for _ in range(3)],
            kept(lambda block, x: block(x)[0]),
        ),
        real(3, 6, 8),
    ),
    "memory second": lambda: Case(
        Model([MemorySecond("heads") for _ in range(3)], with_other(lambda b, o, x: b(x, o))),
        [real(3, 6, 8), real(3, 6, 8, seed=2)],
    ),
    "PyTorch's decoder": lambda: Case(
        Model(
            [nn.TransformerDecoderLayer(8, 2, 16, batch_first=True) for _ in range(2)],
            with_other(lambda block, other, x: block(x, other)),
        ),
        [real(3, 6, 8), real(3, 6, 8, seed=2)],
    ),
    "skips outside": lambda: Case(Model(blocks("heads"), outside), real(3, 6, 8)),
    "rotations": lambda: Case(
        Model([Rotated("heads") for _ in range(3)], kept(lambda b, x, cos, sin: b(x, cos, sin))),
        [real(3, 6, 8), real(1, 6, 8, seed=3), real(1, 6, 8, seed=4)],
    ),
    "one block again and again": lambda: Case(
        Model(blocks("heads", 1), lambda b, keep, x: in_turn([b[0]] * 4, keep, x)), real(3, 6, 8)
    ),
    "checkpoints": lambda: Case(
        Model(blocks("heads"), kept(lambda b, x: checkpoint(b, x, use_reentrant=False))),
        real(3, 6, 8),
    ),
    "recurrence": lambda: Case(
        Model([Recurrent(nn.GRU, batch_first=True) for _ in range(2)], in_turn), real(3, 6, 8)
    ),
    "two arguments that are one": lambda: Case(
        Model([MemoryFirst("heads") for _ in range(2)], kept(lambda block, x: block(x, x))),
        real(3, 6, 8),
    ),
    "a block with a mode of its own around it": lambda: Case(
        Model(blocks("heads"), kept(lambda block, x: within(block, x))), real(3, 6, 8)
    ),
    "an attention mask": lambda: Case(
        Model(blocks("heads"), in_turn),
        {"x": real(3, 6, 8), "attention_mask": torch.ones(3, 6).tril(3).long()},
        torch.ones(3, 6).tril(3).bool(),
    ),
}


def within(block, x):
    with torch.device("cpu"):
        return block(x)


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_modules_are_not_refused(name):
    torch.manual_seed(0)
    assert reading(ORDINARY[name]()) == "right"


# Options settle what is refused.


def test_the_stream_can_be_named():
    case = Case(
        Model([MemoryFirst()], with_other(lambda block, other, x: block(other, x))),
        [real(3, 6, 8), 9 * real(3, 6, 8, seed=5)],
    )
    assert "unclear which of them is layer 0: 'memory', 'x'; choose one: stream='x'" in reading(
        case
    )
    assert reading(case, stream="x") == reading(case, stream=1) == "right"
    assert reading(case, stream="memory") == "wrong"
    with pytest.raises(
        InputError, match=r"stream='y' matches 0 of the tensors .*\('memory', 'x'\)"
    ):
        trace(case.model, case.inputs, stream="y")


def test_another_stream_than_the_one_that_goes_on_is_refused():
    case = TRICKY["memory: memory first, alike, 3 blocks"]()
    with pytest.raises(InputError, match="stream='x'"):
        trace(case.model, case.inputs, stream="memory")


def test_a_name_of_transformers_is_not_believed_against_the_evidence():
    def way(blocks, keep, x, memory):
        keep(x)
        for block in blocks:
            x = block(hidden_states=memory, h=x)
        return x

    model = Model([Calling(lambda **named: named["h"]) for _ in range(2)], way)
    with pytest.raises(InputError, match="stream='h'"):
        trace(model, [real(3, 6, 8), real(3, 6, 8, seed=1)])


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("axes: token-first linear 3x6", "token batch feature"),
        ("axes: token-first sdpa 5x5", "token batch feature"),
        ("axes: LSTM 5x5, batch first True", "batch token feature"),
    ],
)
def test_the_layout_can_be_said(name, layout):
    assert reading(TRICKY[name](), layout=layout) == "right"


def test_layer_zero_is_the_first_in_the_table_though_it_is_known_later():
    case = TRICKY["memory: memory first, alike, 3 blocks"]()
    traced = trace(case.model, case.inputs)
    assert traced.columns["layer"] == sorted([0, 1, 2, 3] * 12)
    words = "argument 'x': passed from block to block"
    assert traced.provenance.settings["stream"] == words
