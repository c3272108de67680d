"""What the calls are about: tiny networks, tensors, tables and files."""

from pathlib import Path as FilePath

import torch

import rankscope as rs
from rankscope import results, tables
from rankscope.core import paths
from rankscope.run import ClaimRun
from rankscope.show import figures, report

X = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(1))
MASK = torch.tensor([[True, True, True], [True, True, False]])
P = torch.softmax(torch.randn(2, 2, 3, 3, generator=torch.Generator().manual_seed(2)), -1)
SPEC = rs.Spec(2, 2, 4)
NET = rs.Network.random(SPEC)
PURE = rs.Network.random(rs.Spec(2, 1, 4, mlp_ratio=0, norm="none", skip=False, bias=False))
SPHERE = rs.Network.random(
    rs.Spec(1, 1, 2, mlp_ratio=0, norm="sphere", norm_place="post", skip=False, bias=False),
    dtype=torch.float64,
)
BLOCK = NET.blocks[0]
QUERY = torch.tensor([0, 1])
PATH = rs.Path.of(0, None)
TEXTS = ("one two three four", "a rose is a flower")


def table_of(**columns):
    return tables.frame({"metric": ["residual"] * 4, "value": [1.0, 0.5, 0.9, 0.4], **columns})


LAYERS = table_of(layer=[0, 1, 0, 1], sample=[0, 0, 1, 1])
VARIANTS = tables.joined({"SAN": LAYERS, "transformer": LAYERS})
RELATIVE = tables.stack(
    VARIANTS.with_columns(metric=tables.pl.lit(each))
    for each in ("relative_residual", "mean_cosine")
)
SWEPT = LAYERS.with_columns(
    run=tables.pl.Series(["a", "a", "b", "b"]),
    heads=tables.pl.Series([1, 1, 2, 2]),
    mask=tables.pl.Series(["full", "full", "causal", "causal"]),
)
SUMMARY, BY_VARIANT = tables.summary(LAYERS), tables.summary(VARIANTS)
DRAWING = results.Drawing("by_depth", metric="residual")
RESULT = results.Result(
    "fuzz", "Title", "Question?", ("It falls.",), LAYERS, {"seed": 0}, drawings=(DRAWING,)
)
LENGTHS = tables.summary(tables.joined({"SAN": paths.path_lengths(NET, X).table}, column="variant"))
CHART = figures.by_depth(SUMMARY, metric="residual")
TABLE = report.Table(LAYERS, "One")
PAGE = report.Report("Title", "Lead.", sections=[report.Section("One", blocks=[TABLE])])
RUN = ClaimRun(
    "D1",
    "d1-0",
    0,
    "quick",
    "a",
    results.Judgement("holds", "all"),
    None,
    None,
    1.0,
    "2026-01-01T00:00:00+00:00",
)
WRITTEN = FilePath("written.parquet")
SENTENCES = FilePath("sentences.txt")
tables.write(LAYERS, WRITTEN, {"seed": 0})
RECORD = results.write(RESULT, "record.parquet")
SENTENCES.write_text("One sentence.\nAnother one.\n", encoding="utf-8")
