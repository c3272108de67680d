"""Chained attention tends to rank one where tokens mix, and not where they do not."""

from dataclasses import replace

import pytest

from rankscope.experiments.claims import d9
from rankscope.experiments.progress import silent

from ..tiny import Fresh, Inward
from .small import TINY, tiny


def test_d9_fails_where_no_token_looks_at_another() -> None:
    config = TINY["d9"][1]
    assert d9.run(replace(config, models=(Inward("bert"),)), silent).verdict == "fails"
    both = d9.run(replace(config, models=(Fresh("bert"), Inward("bert"))), silent)
    assert both.verdict == "depends"
    found, _ = tiny("d9")
    assert len(found.table) == 3 * 2 * 3 * 2  # paths, texts, depths, metrics
    assert found.table.filter(metric="relative_residual", layer=3)["sample"].n_unique() == 6
    (quoted,) = found.key_figures.values()
    ends = found.table.filter(metric="relative_residual", layer=3)["value"]
    assert quoted == pytest.approx(ends.mean())
