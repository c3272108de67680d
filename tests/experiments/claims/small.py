"""Claims on something small on which they hold."""

from functools import cache
from typing import Any

from rankscope.experiments.claims import d1, d2, d3, d4, d5, d8, d9, n1, w1
from rankscope.results import Result

from ..tiny import Fresh

TEXTS = ("one two three four five six", "a rose is a flower")
SMALL = {"width": 16, "tokens": 8, "samples": 2}

TINY: dict[str, tuple[Any, Any]] = {
    "d1": (d1, d1.Config(layers=2, heads=2, width=4, tokens=3)),
    "d2": (d2, d2.Config(layers=6, heads=(1, 2), inits=("lecun",), **SMALL)),
    "d3": (d3, d3.Config(layers=6, heads=2, gains=(0.5, 2.0), **SMALL)),
    "d4": (d4, d4.Config(layers=6, strengths=(0.5, 1.0), kept=2, width=8, tokens=8, samples=2)),
    "d5": (d5, d5.Config(models=(Fresh("bert"),), texts=TEXTS, length=8)),
    "d8": (d8, d8.Config()),
    "d9": (d9, d9.Config(models=(Fresh("bert"),), texts=TEXTS, length=8, paths=3)),
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
            values=(w1.Values("values × 0.5", 0.5), w1.Values("grown", 1.2, uniform=True)),
            changing=(("block:16", "block:24"), ("block:16", "block:8")),
        ),
    ),
}
"""By name, its module and a configuration."""


@cache
def tiny(name: str) -> tuple[Result, list[float]]:
    """A tiny claim's result and what it reported on its way."""
    module, config = TINY[name]
    seen: list[float] = []
    return module.run(config, seen.append), seen
