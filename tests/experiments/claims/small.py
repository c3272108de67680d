"""Claims on something small on which they hold."""

from functools import cache
from typing import Any

import torch
import transformers as hf

from rankscope.experiments.claims import (
    d1,
    d2,
    d3,
    d4,
    d5,
    d8,
    d9,
    d11,
    d12,
    n1,
    n2,
    n3,
    n4,
    w1,
    w8,
    w9,
)
from rankscope.results import Result

from ..made import Made

TEXTS = ("one two three four five six", "a rose is a flower")
SMALL = {"width": 16, "tokens": 8, "samples": 2}


def _deep_bert() -> hf.BertModel:
    """Twelve layers as transformers initialises them, in twelve features."""
    shape = {"hidden_size": 12, "num_attention_heads": 3, "intermediate_size": 24}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        more = {"vocab_size": 99, "max_position_embeddings": 16, "initializer_range": 0.16}
        return hf.BertModel(hf.BertConfig(num_hidden_layers=12, **shape, **more)).eval()


DEEP = Made("bert", make=_deep_bert)
TINY: dict[str, tuple[Any, Any]] = {
    "d1": (d1, d1.Config(layers=2, heads=2, width=4, tokens=3)),
    "d2": (d2, d2.Config(layers=6, heads=(1, 2), scales=(0.25,), **SMALL)),
    "d3": (d3, d3.Config(layers=6, heads=2, gains=(0.5, 2.0), draws=1, **SMALL)),
    "d4": (
        d4,
        d4.Config(
            layers=6,
            betas=(0.1, 1e-12),
            controls=(0.1,),
            random_scales=(1.0,),
            width=4,
            tokens=8,
            samples=2,
        ),
    ),
    "d5": (d5, d5.Config(models=(DEEP,), texts=TEXTS, length=8)),
    "d8": (
        d8,
        d8.Config(architectures=tuple(a for a in d8.Config().architectures if a[1] == a[2])),
    ),
    "d9": (d9, d9.Config(models=(DEEP,), texts=TEXTS, length=8, paths=3)),
    "d11": (d11, d11.Config(spreads=(0.1, 1.25), wider=(2.0,), layers=3, masks=("causal",))),
    "d12": (
        d12,
        d12.Config(
            layers=3,
            width=8,
            tokens=6,
            activations=("relu",),
            scales=(0.02,),
            gains=(1.0, 4.0),
            draws=1,
        ),
    ),
    "n2": (
        n2,
        n2.Config(
            sizes=((50, 1500), (20_000, 1500)), search=n2.Search(widths=(6,), starts=1, steps=30)
        ),
    ),
    "n3": (
        n3,
        n3.Config(
            widths=(4,), scales=(1.0, 64.0), layers=60, counts=((2, 2), (3, 1)), layernorm_width=8
        ),
    ),
    "n4": (n4, n4.Config(width=9, dimensions=(1, 2), draws=2)),
    "n1": (n1, n1.Config(layers=12, patterns=n1.Config().patterns[:6:2], **SMALL)),
    "w1": (
        w1,
        w1.Config(
            layers=24,
            width=16,
            samples=1,
            windows=("window:16", "window:8"),
            others=("causal",),
            without_center=("block:16",),
            values=(
                w1.ValueScaling("values × 0.5", 0.5),
                w1.ValueScaling("grown", 1.2, uniform=True),
            ),
            changing=(("block:16", "block:24"), ("block:16", "block:8")),
        ),
    ),
    "w8": (
        w8,
        w8.Config(
            widths=(2, 4),
            tokens=(4,),
            starts=30,
            covered=(w8.WidthRun("causal", 5, 5),),
            fewer=(w8.WidthRun(w8.RING, 2, 6, 0.0),),
            followed=12,
            draws=1,
            layers=30,
        ),
    ),
    "w9": (w9, w9.Config(masks=("star:1", "window:1"), tokens=5, layers=20, draws=2, radii=(1, 2))),
}
"""By name, its module and a configuration."""


@cache
def tiny(name: str) -> tuple[Result, list[float]]:
    """A tiny claim's result and what it reported on its way."""
    module, config = TINY[name]
    seen: list[float] = []
    return module.ENTRY.run(config, seen.append), seen
