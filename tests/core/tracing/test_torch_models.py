"""``trace`` on PyTorch's own transformers and on models one might write."""

import pytest
import torch
from torch import nn

from rankscope.core.metrics import dispersion
from rankscope.core.tracing import trace
from rankscope.errors import BlocksNotFoundError, InputError, KindError

# PyTorch warns that nested tensors are a prototype whenever its own encoder makes one.
pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")

PADDED = torch.tensor([[0, 0, 0, 0, 0], [0, 0, 0, 1, 1], [0, 1, 1, 1, 1]]).bool()


def encoder(*, batch_first=True, norm_first=False, nested=False):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        8, 2, 16, batch_first=batch_first, norm_first=norm_first, dtype=torch.float64
    )
    model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=nested)
    with torch.no_grad():  # PyTorch makes all layers alike
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model


def by_hand(model, x, *, padding=None, batch_first=True):
    """Dispersion of each layer, the layers called one by one, outside their container."""
    model.eval()
    token_mask = None if padding is None else ~padding
    found = []
    for layer in (None, *model.layers):
        x = x if layer is None else layer(x, src_key_padding_mask=padding)
        rows = x.detach() if batch_first else x.detach().transpose(0, 1)
        found += dispersion(rows, token_mask=token_mask).reshape(-1).tolist()
    return found


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
def test_encoder(batch_first, norm_first, training, tokens):
    model = encoder(batch_first=batch_first, norm_first=norm_first).train(training)
    x = tokens(3, 5, 8) if batch_first else tokens(5, 3, 8)
    traced = trace(model, x, metrics=["dispersion"])
    assert set(traced.columns["sample"]) == {0, 1, 2}
    expected = by_hand(model, x, batch_first=batch_first)
    assert traced.columns["value"] == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("batch_first", [True, False])
def test_encoder_with_padding(batch_first, tokens):
    model = encoder(batch_first=batch_first)
    x = tokens(3, 5, 8) if batch_first else tokens(5, 3, 8)
    inputs = {"src": x, "src_key_padding_mask": PADDED}
    traced = trace(model, inputs, metrics=["dispersion"], token_mask=~PADDED)
    expected = by_hand(model, x, padding=PADDED, batch_first=batch_first)
    assert traced.columns["value"] == pytest.approx(expected, rel=1e-10)


def test_encoder_with_nested_tensors(tokens):
    model, x = encoder(nested=True), tokens(3, 5, 8)
    nested = []
    handle = model.layers[1].register_forward_pre_hook(lambda _, args: nested.append(args[0]))
    inputs = {"src": x, "src_key_padding_mask": PADDED}
    traced = trace(model, inputs, metrics=["dispersion"], token_mask=~PADDED)
    handle.remove()
    assert [one.is_nested for one in nested] == [True]  # or this tests nothing
    expected = by_hand(model, x, padding=PADDED)
    assert traced.columns["value"] == pytest.approx(expected, rel=1e-10)


def test_nested_tensors_drop_columns_that_are_all_padding(tokens):
    """PyTorch cuts the batch to its longest sequence; the mask is still as wide as the input."""
    model, x = encoder(nested=True), tokens(3, 5, 8)
    wide = nn.functional.pad(x, (0, 0, 0, 2))
    wider = nn.functional.pad(PADDED, (0, 2), value=True)
    inputs = {"src": wide, "src_key_padding_mask": wider}
    traced = trace(model, inputs, metrics=["dispersion"], token_mask=~wider)
    assert traced.columns["value"] == pytest.approx(by_hand(model, x, padding=PADDED), rel=1e-10)


def test_unbatched_encoder(tokens):
    for batch_first in (True, False):
        model, x = encoder(batch_first=batch_first), tokens(5, 8)
        traced = trace(model, x, metrics=["dispersion"])
        assert traced.columns["value"] == pytest.approx(by_hand(model, x), rel=1e-10)


def test_decoder_and_encoder_decoder(tokens):
    torch.manual_seed(0)
    model = nn.Transformer(8, 2, 3, 2, 16, batch_first=True, dtype=torch.float64)
    source, target = tokens(2, 5, 8), tokens(2, 4, 8, seed=1)
    with pytest.raises(BlocksNotFoundError, match="several stacks of blocks"):
        trace(model, (source, target))
    encoded = trace(model, (source, target), blocks="encoder.layers", metrics=["dispersion"])
    decoded = trace(model, (source, target), blocks="decoder.layers", metrics=["dispersion"])
    assert max(encoded.columns["layer"]) == 3
    assert max(decoded.columns["layer"]) == 2
    assert encoded.columns["value"][:2] == pytest.approx(dispersion(source).tolist())
    assert decoded.columns["value"][:2] == pytest.approx(dispersion(target).tolist())


class Odd(nn.Module):
    """A block with PyTorch's attention in it, whatever the layout around it."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, dtype=torch.float64)  # token first
        self.norm = nn.LayerNorm(8, dtype=torch.float64)

    def forward(self, x):
        inside = x.transpose(0, 1)
        return self.norm(self.attention(inside, inside, inside)[0].transpose(0, 1))


def test_layout_can_be_said(tokens):
    """Token-first attention in batch-first blocks: the guess is wrong, and can be overruled."""
    torch.manual_seed(0)
    model, x = nn.Sequential(Odd(), Odd()), tokens(3, 5, 8)
    said = trace(model, x, metrics=["dispersion"], layout="batch token feature")
    expected = dispersion(torch.cat((x, model[0](x), model(x))).detach()).tolist()
    assert said.columns["value"] == pytest.approx(expected, rel=1e-10)
    turned = trace(model, x, metrics=["dispersion"], layout="token batch feature")
    assert set(turned.columns["sample"]) == {0, 1, 2, 3, 4}


# What blocks take and give.


class Giving(nn.Module):
    """Blocks that wrap their result as ``wrap`` says."""

    def __init__(self, wrap, unwrap):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4)) for _ in range(2))
        for layer in self.layers:
            layer.register_forward_hook(lambda *call: wrap(call[-1]))
        self.unwrap = unwrap

    def forward(self, x):
        for layer in self.layers:
            x = self.unwrap(layer(x))
        return x


@pytest.mark.parametrize(
    ("wrap", "unwrap"),
    [
        (lambda h: h, lambda out: out),
        (lambda h: (h,), lambda out: out[0]),
        (lambda h: [h, torch.zeros(1)], lambda out: out[0]),
        (lambda h: (torch.arange(3), h), lambda out: out[1]),  # integers are no hidden states
        (lambda h: (None, "text", h), lambda out: out[2]),
        (lambda h: ((), (h, h * 0)), lambda out: out[1][0]),
        (lambda h: {"weights": h * 0, "hidden_states": h}, lambda out: out["hidden_states"]),
        (lambda h: {"aux": None, "whatever": h}, lambda out: out["whatever"]),
        (lambda h: ({"x": h},), lambda out: out[0]["x"]),
    ],
    ids=["plain", "tuple", "list", "integers", "none", "nested", "named", "any", "mapping"],
)
def test_hidden_states_are_found_in_what_a_block_gives(wrap, unwrap, tokens):
    model, x = Giving(wrap, unwrap), tokens(2, 3, 4).float()
    found = trace(model, x, metrics=["dispersion"]).columns["value"]
    assert (
        found
        == trace(Giving(lambda h: h, lambda out: out), x, metrics=["dispersion"]).columns["value"]
    )


class Calling(nn.Module):
    def __init__(self, call):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([Called()])
        self.call = call

    def forward(self, x):
        return self.call(self.layers[0], x)


class Called(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, *args, hidden_states=None, **options):
        del options
        return self.linear(args[-1] if hidden_states is None else hidden_states)


@pytest.mark.parametrize(
    "call",
    [
        lambda block, x: block(x),
        lambda block, x: block(torch.arange(3), x),
        lambda block, x: block(hidden_states=x),
        lambda block, x: block(bias=x * 0, hidden_states=x),
    ],
    ids=["positional", "integers-first", "keyword", "keyword-after-another"],
)
def test_hidden_states_are_found_in_what_a_block_takes(call, tokens):
    model, x = Calling(call), tokens(2, 3, 4).float()
    found = trace(model, x, metrics=["dispersion"]).columns["value"]
    assert found[:2] == pytest.approx(dispersion(x).tolist())


@pytest.mark.parametrize(
    "given",
    [(), ("text", 3), {}, (torch.arange(3),)],
    ids=["tuple", "text", "mapping", "integers"],
)
def test_blocks_that_give_no_hidden_states(given, tokens):
    model = Giving(lambda _: given, lambda _: torch.zeros(2, 3, 4))
    with pytest.raises(InputError, match="without a floating-point tensor"):
        trace(model, tokens(2, 3, 4).float())
    assert not any(m._forward_pre_hooks for m in model.modules())


class Mapped(nn.Module):
    """Attention written for one sequence."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return self.linear(torch.vmap(self.attend)(x))

    def attend(self, sequence):
        heads = sequence.unsqueeze(0)
        return nn.functional.scaled_dot_product_attention(heads, heads, heads).squeeze(0)


class Plain(Mapped):
    def forward(self, x):
        heads = x.unsqueeze(1)
        attended = nn.functional.scaled_dot_product_attention(heads, heads, heads)
        return self.linear(attended.squeeze(1))


def test_attention_inside_vmap(tokens):
    x = tokens(2, 5, 8).float()
    mapped = nn.Sequential(Mapped(), Mapped())
    plain = nn.Sequential(Plain(), Plain())
    plain.load_state_dict(mapped.state_dict())
    expected = trace(plain, x).columns["value"]
    assert trace(mapped, x).columns["value"] == pytest.approx(expected, rel=1e-5)
    with torch.no_grad():
        mapped[0].linear.weight.fill_(1e30)
    with pytest.raises(InputError, match="layer 2: products of queries and keys overflow"):
        trace(mapped, x, metrics={"count": lambda h, **_: h.new_ones(len(h))})


def test_blocks_inside_vmap_are_refused(tokens):
    class Outside(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(Plain(), Plain())

        def forward(self, x):
            return torch.vmap(lambda sequence: self.layers(sequence.unsqueeze(0)))(x)

    with pytest.raises(InputError, match=r"inside torch\.vmap"):
        trace(Outside(), tokens(2, 5, 8).float())


@pytest.mark.filterwarnings("ignore")  # TorchScript is going away
def test_blocks_that_are_scripted_are_refused():
    model = nn.Sequential(*(torch.jit.script(nn.Linear(4, 4)) for _ in range(2)))
    with pytest.raises(KindError, match="TorchScript runs outside Python"):
        trace(model, torch.randn(1, 3, 4), blocks=list(model))
    assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in model)
