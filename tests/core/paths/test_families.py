"""Real architectures, and one real model."""

from pathlib import Path as Folder

import pytest
import torch

from rankscope.core.paths import count_paths, path_lengths, truncate
from rankscope.models.families import load
from rankscope.models.text import passages

from ...models.families.conftest import TEXTUAL, TINY, lively, minilm

__all__ = ["minilm"]


@pytest.mark.parametrize("name", TINY)
def test_every_family_is_rebuilt_to_ten_digits(name: str) -> None:
    loaded = load(lively(name), dtype=torch.float64)
    if name in TEXTUAL:
        ids = torch.tensor([[5, 17, 42, 8, 66, 23], [7, 9, 3, 1, 1, 1]])
        mask = torch.tensor([[True] * 6, [True] * 3 + [False] * 3])
        x, token_mask, _ = loaded.inputs(ids, token_mask=mask)
    else:
        x, token_mask, _ = loaded.inputs(loaded.noise_images(2))
    found = path_lengths(loaded.network, x, token_mask=token_mask)
    assert len(found.contributions) == loaded.network.spec.layers + 1
    assert found.reconstruction_error < 1e-10


def test_minilm_short_paths_carry_the_residual(minilm: Folder) -> None:
    loaded = load(minilm, dtype=torch.float64)
    x, token_mask, _ = loaded.inputs(passages()[:3], length=32)
    found = path_lengths(loaded.network, x, token_mask=token_mask)
    assert found.reconstruction_error < 1e-10
    assert count_paths(6, 12).total == 13**6
    last = found.table.filter(layer=6, metric="residual_share").drop_nulls()
    shares = [last.filter(length=k)["value"].mean() for k in range(7)]
    assert shares == sorted(shares, reverse=True)
    assert 0.6 < shares[0] < 1.2
    assert 1e-4 < shares[6] < 1e-2


def test_truncated_states_through_the_models_own_head(minilm: Folder) -> None:
    loaded = load(minilm, dtype=torch.float64)
    arguments = loaded.arguments(["One text.", "Another one, a little longer."])
    x, token_mask, _ = loaded.inputs(["One text.", "Another one, a little longer."])
    with torch.no_grad():
        expected = loaded.original(**arguments)
    whole = loaded.finish(
        truncate(loaded.network, x, max_length=6, token_mask=token_mask), arguments
    )
    short = loaded.finish(
        truncate(loaded.network, x, max_length=0, token_mask=token_mask), arguments
    )
    assert torch.allclose(whole.pooler_output, expected.pooler_output, atol=1e-9)
    assert not torch.allclose(short.pooler_output, expected.pooler_output, atol=1e-3)


@pytest.mark.parametrize("name", ["gpt2 with a head", "xlnet", "neox", "albert"])
def test_finishing_with_the_networks_own_state_changes_nothing(name: str) -> None:
    loaded = load(lively(name), dtype=torch.float64)
    ids = torch.tensor([[5, 17, 42, 8, 66, 23]])
    arguments = loaded.arguments(ids)
    x, token_mask, _ = loaded.inputs(ids)
    with torch.no_grad():
        expected = loaded.original(**arguments)[0]
        got = loaded.finish(loaded.network(x, token_mask), arguments)[0]
        other = loaded.finish(loaded.network(x, token_mask) + 1.0, arguments)[0]
    assert torch.allclose(got, expected, rtol=1e-9, atol=1e-9)
    assert got.shape == other.shape
