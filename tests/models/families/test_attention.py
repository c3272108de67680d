"""Attention of every family, of the original as it runs and of our network, without matrices."""

import pytest
import torch

from rankscope import load, trace
from rankscope.core import metrics

from ...core.tracing.watching import watched_attention
from .conftest import TINY, lively

NAMES = ["attention_entropy", "renyi_entropy", "sink_mass", "high_pass_ratio"]


@pytest.mark.parametrize("name", TINY)
def test_network_and_original_agree(name: str) -> None:
    model, seen = lively(name), []
    body = model.encoder if name == "t5" else model  # of both stacks, ours is the encoder
    pictures = "pixel_values" in model.main_input_name
    size = getattr(model.config, "image_size", 0)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, 60, (2, 7), generator=generator)
    given = torch.randn(2, 3, size, size, generator=generator) if pictures else ids
    model.set_attn_implementation("eager")
    with torch.no_grad(), watched_attention(lambda _, scores: seen.append(scores), body):
        matrices = body(given, output_attentions=True).attentions
    loaded = load(model)
    x, token_mask, _ = loaded.inputs(given)
    table = trace(loaded.network, x, token_mask=token_mask, metrics=NAMES).table
    for metric in NAMES:
        ours = table.filter(table["metric"] == metric)["value"].to_list()
        expected = torch.stack([getattr(metrics, metric)(each) for each in matrices])
        assert ours == pytest.approx(expected.flatten().tolist(), abs=1e-4)
        if "xlnet" in name:
            assert seen == [], "which computes attention in code of its own"
            continue
        found = torch.stack([getattr(metrics, metric)(each) for each in seen])
        assert torch.allclose(found, expected, atol=1e-5)
