"""The paths sum to the output, and a lost one is noticed."""

from dataclasses import replace

import polars as pl
import torch

from rankscope.core.network import Network
from rankscope.core.paths import enumerate_paths
from rankscope.experiments.claims import d1
from rankscope.process.progress import silent

from .small import TINY, tiny


def test_d1_depends_on_what_counts_as_rounding() -> None:
    """Each network misses by something: a tolerance of nothing is kept by none."""
    found, _ = tiny("d1")
    worst = dict(found.table.group_by("model").agg(pl.max("value")).rows())
    config = TINY["d1"][1]
    stated, others = (
        sorted(value for kind, value in worst.items() if (kind in d1.STATED) is side)
        for side in (True, False)
    )
    between = replace(config, tolerance=(stated[0] + stated[-1]) / 2)
    assert d1.ENTRY.run(between, silent).verdict == "depends"
    among_others = replace(config, tolerance=(others[0] + others[-1]) / 2)
    assert d1.ENTRY.run(among_others, silent).beyond.verdict == "depends"
    none = d1.ENTRY.run(replace(config, tolerance=0.0), silent)
    assert (none.verdict, none.beyond.verdict) == ("fails", "fails")


def test_d1_notices_a_lost_path() -> None:
    network = Network.random(d1.KINDS["attention and skips"](3, 2, 4, init=0.5)).double()
    x = torch.randn(1, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    paths = list(enumerate_paths(3, 2))
    whole, short = (d1.errors(network, x, each) for each in (paths, paths[:-1]))
    assert whole["value"].max() < 1e-12
    assert short.filter(variant="single paths", layer=3)["value"].item() > 1e-4
    assert short.filter(variant="path lengths")["layer"].to_list() == [1, 2, 3]
