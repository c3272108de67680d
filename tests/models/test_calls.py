"""Questions of any model: the same answers as of its network, whatever form the inputs have."""

import numpy as np
import polars as pl
import pytest
import torch
import transformers as hf
from torch import nn

import rankscope
from rankscope.core import paths, theory
from rankscope.core.network import Network, Spec
from rankscope.errors import InputError, KindError, ShapeError, UnsupportedModelError
from rankscope.models.calls import read_inputs
from rankscope.models.families import load

SHAPE = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16}
IDS = [[5, 6, 7, 8], [9, 10, 11]]
PADDED = torch.tensor([[5, 6, 7, 8], [9, 10, 11, 0]])
MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])


@pytest.fixture(scope="module")
def bert() -> nn.Module:
    torch.manual_seed(0)
    config = hf.BertConfig(vocab_size=50, num_hidden_layers=2, initializer_range=0.3, **SHAPE)
    return hf.BertModel(config).eval()


@pytest.mark.parametrize(
    "inputs",
    [IDS, {"input_ids": PADDED, "attention_mask": MASK},
     hf.BatchEncoding({"input_ids": PADDED, "attention_mask": MASK})],
    ids=["lists", "mapping", "encoding"],
)  # fmt: skip
@pytest.mark.parametrize("loaded", [False, True])
def test_inputs_of_every_form_give_the_same(bert: nn.Module, inputs, loaded: bool) -> None:
    model = load(bert) if loaded else bert
    x, token_mask, _ = load(bert).inputs(PADDED, token_mask=MASK.bool())
    expected = paths.path_lengths(load(bert).network, x, token_mask=token_mask).table
    assert rankscope.path_lengths(model, inputs).table.equals(expected)


def test_arrays_and_masks_are_taken(bert: nn.Module) -> None:
    for ids in (PADDED, PADDED.numpy()):
        found = rankscope.head_shares(bert, ids, token_mask=MASK.bool()).table
        assert found.equals(rankscope.head_shares(bert, IDS).table)
    net = Network.random(Spec.pure_attention(2, 2, 8), seed=0)
    x = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(0))
    whole = theory.bounds(net, x).table
    assert rankscope.bounds(net, x.numpy()).table.equals(whole)


class Series(list):
    """A pandas column, as far as it is used."""

    to_list = list.copy


Series.__module__ = "pandas"


@pytest.mark.parametrize("column", [pl.Series, Series], ids=["polars", "pandas"])
def test_columns_of_frames_are_lists(bert: nn.Module, column) -> None:
    expected = rankscope.trace(bert, {"input_ids": PADDED, "attention_mask": MASK}).columns
    assert rankscope.trace(load(bert), column(IDS)).columns == expected
    assert read_inputs(np.array(["A rose", "is"])).texts == ("A rose", "is")
    assert read_inputs(np.array(["A rose", "is"], dtype=object)).texts == ("A rose", "is")


def test_a_loaded_model_is_traced_as_its_original(bert: nn.Module) -> None:
    expected = rankscope.trace(bert, {"input_ids": PADDED, "attention_mask": MASK})
    assert rankscope.trace(load(bert), IDS).columns["value"] == expected.columns["value"]


def test_designs_of_models_are_predicted(bert: nn.Module) -> None:
    network = load(bert).network
    x, token_mask, _ = load(bert).inputs(PADDED[:1])
    expected = rankscope.predict(network, x, token_mask=token_mask, draws=2).values
    for model in (bert, load(bert)):
        values = rankscope.predict(model, IDS[:1], draws=2).values
        for name, value in expected.items():
            torch.testing.assert_close(values[name], value, equal_nan=True)


def test_activations_are_what_modules_put_out(bert: nn.Module) -> None:
    names = ["encoder.layer.1", "embeddings"]
    states = rankscope.activations(load(bert), IDS, names)
    assert list(states) == ["embeddings", "encoder.layer.1"]
    with torch.no_grad():
        whole = bert(PADDED, attention_mask=MASK, output_hidden_states=True).hidden_states
    real = MASK.bool()  # padding has positions of its own
    torch.testing.assert_close(states["embeddings"][real], whole[0][real])
    torch.testing.assert_close(states["encoder.layer.1"][real], whole[2][real])
    shared = nn.Linear(3, 3)
    twice = rankscope.activations(
        nn.Sequential(shared, nn.ReLU(), shared), np.ones((2, 3)).astype("f4"), "*"
    )
    assert list(twice) == ["0", "1", "0#2"]
    with pytest.raises(InputError, match="did you mean 'embeddings'"):
        rankscope.activations(bert, PADDED, "embedings")


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            lambda: rankscope.bounds(nn.Linear(2, 2), torch.ones(1, 2, 2)),
            UnsupportedModelError,
            "trace",
        ),
        (lambda: rankscope.bounds(3, [[1]]), KindError, "expected a Network"),
        (
            lambda: rankscope.bounds(Network.random(Spec(1, 1, 4)), ["a"]),
            InputError,
            "no embeddings",
        ),
        (lambda: read_inputs([]), KindError, "at least one sample"),
        (lambda: read_inputs({"a": 1}), InputError, "input_ids"),
        (lambda: read_inputs(["a"], MASK), InputError, "leave token_mask out"),
        (lambda: read_inputs(IDS, MASK), InputError, "leave token_mask out"),
        (lambda: read_inputs([object()]), KindError, "rows of token ids"),
        (lambda: read_inputs(torch.ones(2, 4, 3).long()).ids, ShapeError, "have shape .2, 4, 3."),
        (lambda: read_inputs(PADDED, MASK[:, :3]).ids, ShapeError, "token_mask .2, 3."),
    ],
)
def test_what_cannot_be_asked_is_said(call, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()
