"""While a model runs, its trace asks for no number: on a GPU each would wait for the device."""

import pytest
import torch
from torch import nn

from rankscope.core.network import Network, Spec
from rankscope.core.tracing import DEFAULT_METRICS, MEASURES, trace

from ...counting import waits_in
from .architectures import TEXT, build

SPECTRA = {name for name, measure in MEASURES.items() if measure.of == "spectrum"}
DECOMPOSED = {"second_singular_value", "second_singular_lower", "second_singular_upper"}
"""Found by singular value decompositions, which wait for the device that computes them."""
ATTENTION = [name for name, each in MEASURES.items() if each.of == "attention"]
ATTENTION = [name for name in ATTENTION if name not in DECOMPOSED]
STATES = [name for name, measure in MEASURES.items() if measure.of == "statistics"]
REAL = torch.tensor([[False, False, True, True, True, True], [True] * 6])
MASKS = {"whole": None, "padded": REAL}
X = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(0))
IDS = torch.randint(3, 40, (2, 6), generator=torch.Generator().manual_seed(0))


def network(**options):
    return Network.random(Spec(2, 2, 8, init="lecun", **options), seed=0)


def waits(model, inputs, *, token_mask=None, **options):
    """What a trace waits for beyond what the model itself does, on the same input."""
    ours = {} if token_mask is None else {"token_mask": token_mask}
    args, named = ((inputs,), {}) if isinstance(inputs, torch.Tensor) else ((), inputs)
    with torch.no_grad(), waits_in(model) as own:
        model(*args, **named, **ours)
    with waits_in(model) as together:
        traced = trace(model, inputs, **ours, **options)
    assert traced.columns["value"]
    return together - own


@pytest.mark.parametrize("metrics", [DEFAULT_METRICS, STATES, ATTENTION])
@pytest.mark.parametrize("token_mask", MASKS.values(), ids=MASKS)
def test_a_network(token_mask, metrics) -> None:
    for mask in ("full", "causal"):
        assert waits(network(mask=mask), X, token_mask=token_mask, metrics=metrics) == {}


@pytest.mark.parametrize("metrics", [DEFAULT_METRICS, ATTENTION])
@pytest.mark.parametrize("token_mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize(
    ("name", "implementation"),
    [("qwen2", "eager"), ("qwen2", "sdpa"), ("gpt_oss", "eager"), ("modernbert", "sdpa")],
)
def test_a_model_of_transformers(name, implementation, token_mask, metrics) -> None:
    inputs = {"input_ids": IDS}
    if token_mask is not None:
        inputs["attention_mask"] = token_mask.long()
    assert waits(build(TEXT[name], implementation), inputs, metrics=metrics) == {}


@pytest.mark.parametrize("token_mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("tokens", [6, 96])
def test_sampled_attention(token_mask, tokens) -> None:
    x = X.repeat_interleave(tokens // 6, 1)
    mask = None if token_mask is None else token_mask.repeat_interleave(tokens // 6, 1)
    options = {"metrics": ["attention_entropy", "sink_mass"], "attention": "sampled"}
    assert waits(network(mask="causal"), x, token_mask=mask, **options) == {}


@pytest.mark.parametrize("batch_first", [True, False])
def test_a_model_of_pytorch(batch_first) -> None:
    """Its layout is read off while it runs."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=batch_first)
        model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    x = X if batch_first else X.transpose(0, 1)
    assert waits(model, x) == {}
    assert waits(model, {"src": x, "src_key_padding_mask": ~REAL}) == {}


def test_decompositions_alone_wait() -> None:
    net = network()
    assert {name for name in MEASURES if waits(net, X, metrics=name)} == SPECTRA | DECOMPOSED


# The counter sees what waits.

READERS = {
    "bool": lambda x: bool(x.sum() > 0),
    "float": lambda x: float(x.sum()),
    "int": lambda x: int(x.sum()),
    "item": lambda x: x.sum().item(),
    "list": lambda x: x.tolist(),
    "copy": lambda x: x.cpu(),
    "array": lambda x: x.numpy(),
    "nonzero": lambda x: x.nonzero(),
    "where": lambda x: torch.where(x > 0),
    "chosen": lambda x: x[x > 0],
    "set": lambda x: x.clone().__setitem__(x > 0, torch.ones(1)),
    "selected": lambda x: x.masked_select(x > 0),
    "equal": lambda x: torch.equal(x, x),
    "decomposed": lambda x: torch.linalg.svdvals(x),
}


@pytest.mark.parametrize("reader", READERS)
def test_what_waits_is_seen(reader) -> None:
    def metric(x, **_):
        READERS[reader](x)
        return x.sum((-2, -1))

    assert waits(network(), X, metrics={"mine": metric})


def test_what_follows_the_model_may_wait() -> None:
    """Figures do come to the host, and the counter is off by then."""
    net = network()
    with waits_in(net) as found:
        trace(net, X)
        X.tolist()
    assert found == {}
