"""Recordings of a model: its states are those of a trace, its sublayers are confirmed."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from rankscope.core.tracing import captured_states, find_blocks, find_sublayers, record
from rankscope.errors import ShapeError

WIDTH = 8


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unsqueeze(1) for part in self.qkv(x).chunk(3, -1))
        return self.out(functional.scaled_dot_product_attention(q, k, v).squeeze(1))


class Block(nn.Module):
    """One attention and one MLP; how they are put together is up to the subclass."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn = Attention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 16), nn.GELU(), nn.Linear(16, WIDTH))


class Pre(Block):
    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Post(Block):
    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + self.attn(x))
        return self.norm2(x + self.mlp(x))


class Parallel(Block):
    def forward(self, x: Tensor) -> Tensor:
        return x + self.attn(self.norm1(x)) + self.mlp(self.norm2(x))


class OnOutputs(Block):
    def forward(self, x: Tensor) -> Tensor:
        x = x + self.norm1(self.attn(x))
        return x + self.norm2(self.mlp(x))


class InPlace(Block):
    def forward(self, x: Tensor) -> Tensor:
        x = x.clone()
        x += self.attn(self.norm1(x))
        x += self.mlp(self.norm2(x))
        return x


class Scaled(Block):
    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * (x + self.attn(self.norm1(x)))


def model_of(kind: type[nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(*(kind() for _ in range(3))).double()


X = torch.randn(2, 6, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        (Pre, ["attention", "MLP"]),
        (Post, ["attention", "norm", "MLP", "norm"]),
        (Parallel, ["attention", "MLP"]),
        (OnOutputs, ["attention", "MLP"]),
        (InPlace, ["attention", "MLP"]),
    ],
)
def test_sublayers_are_found_and_add_up(kind: type[nn.Module], parts: list[str]) -> None:
    model = model_of(kind)
    known = find_sublayers(record(model, X))
    recording = record(model, X, sublayers=known)
    for layer in (1, 2, 3):
        steps = recording.steps(layer, known)
        assert steps is not None
        assert [part for part, *_ in steps] == parts
        state = recording.states[layer - 1]
        for part, before, _, out in steps:
            torch.testing.assert_close(before, state)
            state = out if part == "norm" else state + out
        torch.testing.assert_close(state, recording.states[layer])


def test_states_are_those_that_the_model_computes() -> None:
    model = model_of(Pre)
    states = captured_states(find_blocks(model), lambda: model(X))
    for mine, theirs in zip(record(model, X, sublayers={}).states, states, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_what_no_sum_explains_has_no_sublayers() -> None:
    model = model_of(Scaled)
    known = find_sublayers(record(model, X))
    assert not known
    assert record(model, X, sublayers=known).steps(1, known) is None


def test_a_sublayer_that_adds_nothing_is_known_from_other_layers() -> None:
    model = model_of(Pre)
    with torch.no_grad():
        for block in (model[0], model[2]):
            block.attn.out.weight.zero_()
            block.attn.out.bias.zero_()
    known = find_sublayers(record(model, X))
    steps = record(model, X, sublayers=known).steps(3, known)
    assert steps is not None
    (_, _, _, out), _ = steps
    assert steps[0][0] == "attention"
    assert not bool(out.any())


def test_sublayers_of_another_layer_are_not_taken_for_granted() -> None:
    class Sometimes(Block):
        halved = False

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.attn(self.norm1(x)) * (0.5 if self.halved else 1.0)
            return x + self.mlp(self.norm2(x))

    model = model_of(Sometimes)
    model[2].halved = True
    known = find_sublayers(record(model, X))
    recording = record(model, X, sublayers=known)
    assert [recording.steps(layer, known) is not None for layer in (1, 2, 3)] == [True, True, False]


def test_attention_is_read_from_fused_functions_and_selected_by_sample() -> None:
    model = model_of(Pre)
    recording = record(model, X, sublayers={})
    scores, why = recording.attention(1)
    assert why == ""
    assert scores is not None
    q, k, _ = model[0].attn.qkv(model[0].norm1(X)).chunk(3, -1)
    p = (q @ k.mT / WIDTH**0.5).softmax(-1)
    torch.testing.assert_close(scores.matrix().squeeze(1), p.detach())
    second, _ = recording.of_samples(torch.tensor([1])).attention(1)
    assert second is not None
    torch.testing.assert_close(second.matrix().squeeze(1), p[1:].detach())


@pytest.mark.parametrize("hidden", [-torch.inf, torch.finfo(torch.float64).min])
def test_a_softmax_over_pairs_of_tokens_is_attention(hidden: float) -> None:
    class Written(Attention):
        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (part.unsqueeze(1) for part in self.qkv(x).chunk(3, -1))
            later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
            scores = (q @ k.mT).masked_fill(later, hidden)
            return self.out((scores.softmax(-1) @ v).squeeze(1))

    model = model_of(Pre)
    for block in model:
        block.attn = Written().double()
    scores, _ = record(model, X, sublayers={}).attention(1)
    assert scores is not None
    seen = scores.weights(slice(0, 6)).shifted > -torch.inf
    assert seen[0, 0].tolist() == torch.ones(6, 6).tril().bool().tolist()


def test_masks_that_may_be_logits_are_not_guessed() -> None:
    class Written(Attention):
        def forward(self, x: Tensor) -> Tensor:
            later = torch.ones(x.shape[1], x.shape[1]).triu(1) * -10000.0
            q, k, v = (part.unsqueeze(1) for part in self.qkv(x).chunk(3, -1))
            return self.out((functional.softmax(q @ k.mT + later, dim=-1) @ v).squeeze(1))

    model = model_of(Pre)
    model[1].attn = Written().double()
    recording = record(model, X, sublayers={})
    assert recording.attention(1)[0] is not None
    scores, why = recording.attention(2)
    assert scores is None
    assert "may be hidden keys" in why


def test_multi_head_attention_with_padding_is_read() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True, dropout=0.0)
        model = nn.TransformerEncoder(layer, 2).double().eval()
    padding = torch.zeros(2, 6, dtype=torch.bool)
    padding[1, 4:] = True
    assert model.use_nested_tensor
    recording = record(model, {"src": X, "src_key_padding_mask": padding}, sublayers={})
    assert model.use_nested_tensor
    scores, why = recording.attention(1)
    assert scores is not None, why
    attention = model.layers[0].self_attn
    _, weights = attention(
        X, X, X, key_padding_mask=padding, need_weights=True, average_attn_weights=False
    )
    torch.testing.assert_close(scores.matrix(), weights.detach())


def test_layers_of_several_classes_are_a_stack() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([PreLayer(), PostLayer(), PreLayer()])

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x)
            return x

    class PreLayer(Pre):
        pass

    class PostLayer(Post):
        pass

    assert len(record(Model().double(), X).states) == 4


def test_a_scaled_branch_that_rounding_hides_is_not_confirmed() -> None:
    class Faint(Block):
        def forward(self, x: Tensor) -> Tensor:
            return x + 0.5 * self.attn(self.norm1(x))

    model = model_of(Faint).to(torch.bfloat16)
    with torch.no_grad():
        for block in model:
            block.attn.out.weight.mul_(0.1)
            block.attn.out.bias.mul_(0.1)
    x = (4 * X).to(torch.bfloat16)
    assert not find_sublayers(record(model, x))


def test_a_batch_without_samples_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"take \(0, 5, 8\): there is no token"):
        record(nn.Sequential(Pre(), Pre()), torch.zeros(0, 5, WIDTH))
