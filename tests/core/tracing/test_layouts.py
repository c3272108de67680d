"""Batch or tokens first: decided from what the model's parts show, or refused."""

import pytest
import torch
from torch import nn

from rankscope.core.metrics import dispersion
from rankscope.core.tracing import trace
from rankscope.errors import InputError, ShapeError

BATCH_FIRST, TOKEN_FIRST = "batch token feature", "token batch feature"


class Turning(nn.Module):
    """A block that turns its tokens around PyTorch's attention, or does not."""

    def __init__(self, *, turns, batch_first=False, pre_norm=False, in_place=False):
        super().__init__()
        options = {"dtype": torch.float64}
        self.attention = nn.MultiheadAttention(8, 2, batch_first=batch_first, **options)
        self.norm = nn.LayerNorm(8, **options)
        self.turns, self.pre_norm, self.in_place = turns, pre_norm, in_place

    def forward(self, x):
        if self.in_place:
            x *= 2
        inside = self.norm(x) if self.pre_norm else x
        inside = inside.transpose(0, 1) if self.turns else inside
        out = self.attention(inside, inside, inside, need_weights=False)[0]
        return x + (out.transpose(0, 1) if self.turns else out)


def stack(**options):
    torch.manual_seed(0)
    return nn.Sequential(*(Turning(**options) for _ in range(3)))


def by_hand(model, x, *, token_first):
    found = []
    with torch.no_grad():
        for block in (None, *model):
            x = x if block is None else block(x)
            found += dispersion(x.transpose(0, 1) if token_first else x).tolist()
    return found


@pytest.mark.parametrize("pre_norm", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("turns", [False, True])
def test_the_attention_inside_shows_the_layout(turns, batch_first, pre_norm, tokens):
    model = stack(turns=turns, batch_first=batch_first, pre_norm=pre_norm)
    x, token_first = tokens(3, 6, 8), turns == batch_first
    traced = trace(model, x, metrics=["dispersion"])
    expected = by_hand(model, x, token_first=token_first)
    assert traced.columns["value"] == pytest.approx(expected, rel=1e-10)
    decided = traced.provenance.settings["layout"]
    assert decided.startswith(TOKEN_FIRST if token_first else BATCH_FIRST)
    assert "PyTorch's attention in the first block" in decided


def test_layer_zero_is_what_the_block_was_given_though_it_works_in_place(tokens):
    model, x = stack(turns=True, in_place=True), tokens(3, 6, 8)
    found = trace(model, x.clone(), metrics=["dispersion"]).columns["value"]
    assert found[:3] == pytest.approx(dispersion(x).tolist(), rel=1e-12)


@pytest.mark.parametrize("turns", [False, True])
def test_as_many_samples_as_tokens(turns, tokens):
    """Equal numbers show whether the axes were turned; behind a norm nothing does."""
    x = tokens(5, 5, 8)
    model = stack(turns=turns)
    traced = trace(model, x, metrics=["dispersion"])
    assert traced.columns["value"] == pytest.approx(by_hand(model, x, token_first=not turns))
    hidden = stack(turns=turns, pre_norm=True)
    with pytest.raises(
        InputError, match=r"as many samples as tokens.*layout='batch token feature'"
    ):
        trace(hidden, x)
    said = trace(hidden, x, layout=BATCH_FIRST, metrics=["dispersion"])
    assert said.columns["value"] == pytest.approx(by_hand(hidden, x, token_first=False))
    assert said.provenance.settings["layout"] == f"{BATCH_FIRST}: as specified"


class Embedding(nn.Module):
    """Token ids into blocks of linear maps; ``turn`` puts the tokens first on the way."""

    def __init__(self, *, turn=False, flat=False, twice=False):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(50, 8)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2))
        self.turn, self.flat, self.twice = turn, flat, twice

    def forward(self, input_ids):
        x = self.embedding(input_ids)
        x = x.transpose(0, 1) if self.turn else x
        x = x.flatten(0, 1) if self.flat else x
        x = torch.cat((x, x)) if self.twice else x
        for layer in self.layers:
            x = layer(x)
        return x


IDS = torch.arange(18).view(3, 6)


def test_turned_token_ids_are_not_guessed_at():
    model = Embedding(turn=True)
    with pytest.raises(InputError, match=r"\(6, 3, 8\), and input_ids has shape \(3, 6\).*layout="):
        trace(model, IDS)
    said = trace(model, IDS, layout=TOKEN_FIRST)
    assert said.columns == trace(Embedding(), IDS).columns


def test_real_inputs_that_are_turned_on_the_way(tokens):
    class Turned(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8)) for _ in range(2))

        def forward(self, x):
            return self.layers[1](self.layers[0](x.transpose(0, 1)))

    with pytest.raises(InputError, match="either may have the batch first"):
        trace(Turned(), tokens(3, 6, 8).float())


def test_samples_laid_end_to_end_are_not_one_sample():
    with pytest.raises(ShapeError, match="without a batch axis, although input_ids has 3 samples"):
        trace(Embedding(flat=True), IDS)


def test_samples_that_are_not_those_of_the_input():
    with pytest.raises(ShapeError, match=r"\(6, 6, 8\), but input_ids has 3 samples of 6 tokens"):
        trace(Embedding(twice=True), IDS)
    said = trace(Embedding(twice=True), IDS, layout=BATCH_FIRST)
    assert set(said.columns["sample"]) == set(range(6))


def test_attention_that_is_never_called(tokens):
    class Idle(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, dtype=torch.float64)
            self.linear = nn.Linear(8, 8, dtype=torch.float64)

        def forward(self, x):
            return self.linear(x)

    with pytest.raises(InputError, match="layout is unknown; specify it"):
        trace(nn.Sequential(Idle(), Idle()), tokens(3, 6, 8))
