"""A network in training mode: the network itself without dropout, Hugging Face's BERT with it."""

from collections.abc import Iterator

import pytest
import torch
import transformers as hf

import rankscope
from rankscope.core.network import Network, Spec
from rankscope.experiments.claims._bert_shape import DropoutRates, drop, states_with_dropout
from rankscope.streams import stream

NONE = DropoutRates(attention=0.0, hidden=0.0)


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=stream(0, "test"))


@pytest.mark.parametrize(
    "options",
    [
        {"mlp_ratio": 0.0, "norm_place": "post", "skip": False, "mask": "causal"},
        {"norm_place": "pre", "skip": 0.5},
        {"norm_place": "both", "mask": "window:2", "kv_heads": 1},
        {"parallel": True},
    ],
)
def test_without_dropout_it_is_the_network(options) -> None:
    network = Network.random(Spec(3, 2, 8, init=0.5, **options), dtype=torch.float64)
    x, mask = draw(2, 5, 8), torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    plain = list(network.states(x, mask))
    again = list(states_with_dropout(network, x, mask, NONE, stream(0, "dropout")))
    for one, other in zip(plain, again, strict=True):
        torch.testing.assert_close(one[mask], other[mask])


def test_with_the_same_draws_it_is_bert_in_training_mode(monkeypatch) -> None:
    config = hf.BertConfig(
        vocab_size=97,
        hidden_size=24,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=40,
        initializer_range=0.3,
        attention_probs_dropout_prob=0.2,
        hidden_dropout_prob=0.4,
        attn_implementation="eager",
    )
    model = rankscope.load(hf.BertModel(config), at_init=True, seed=3)
    x = draw(2, 6, 24).to(torch.float32)
    generator, shares = stream(1, "dropout"), []

    def same_draws(values, p=0.5, training=True, inplace=False) -> torch.Tensor:
        assert training
        assert not inplace
        shares.append(p)
        return drop(values, p, generator)

    monkeypatch.setattr(torch.nn.functional, "dropout", same_draws)
    encoder = model.original.encoder.train()
    with torch.no_grad():
        theirs = encoder(x).last_hidden_state
    assert shares == [0.2, 0.4, 0.4] * 3  # weights, output of attention, output of the MLP
    dropout = DropoutRates(attention=0.2, hidden=0.4)
    *_, ours = states_with_dropout(model.network, x, None, dropout, stream(1, "dropout"))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_dropping_keeps_the_mean_and_the_share() -> None:
    dropped = drop(torch.ones(400, 500), 0.3, stream(0, "dropout"))
    assert (dropped == 0).double().mean() == pytest.approx(0.3, abs=0.005)
    assert dropped.double().mean() == pytest.approx(1.0, abs=0.01)
    assert sorted(set(dropped.flatten().tolist())) == pytest.approx([0.0, 1 / 0.7])


@pytest.mark.parametrize("share", [0.1, 0.4])
def test_equal_tokens_are_made_to_differ_by_the_derived_amount(share: float) -> None:
    """μ of 32 equal tokens of 512 features after dropout and LayerNorm, by hand."""
    tokens, width = 32, 512
    y = draw(1, width).expand(tokens, width)
    normed = torch.nn.functional.layer_norm(drop(y, share, stream(0, "dropout")), (width,))
    spread = torch.linalg.matrix_norm(normed - normed.mean(0))
    assert float(spread) == pytest.approx(DropoutRates(hidden=share).floor(tokens, width), rel=0.03)


def runs(seed: int) -> Iterator[torch.Tensor]:
    network = Network.random(Spec(2, 2, 8, init=0.5))
    return states_with_dropout(
        network, draw(1, 5, 8).float(), None, DropoutRates(), stream(seed, "d")
    )


def test_draws_depend_on_the_generator_alone() -> None:
    first, again, other = (list(runs(seed))[-1] for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
