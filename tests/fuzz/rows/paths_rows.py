"""Paths."""

import torch
from table import add, fresh
from things import MASK, NET, PATH, PURE, X

import rankscope as rs
from rankscope.core import paths

for one in ("head_shares", "path_lengths"):
    add(f"paths.{one}", getattr(paths, one), network=NET, x=X, token_mask=MASK, measured=MASK)
add("paths.path_lengths", paths.path_lengths, network=NET, x=X, count="both", max_length=1)
add("paths.chained_matrices", paths.chained_matrices, network=NET, x=X, path=PATH, token_mask=MASK)
add("paths.path_matrix", paths.path_matrix, network=NET, x=X, path=PATH, token_mask=MASK)
add(
    "paths.path_output",
    paths.path_output,
    network=PURE,
    x=X,
    path=rs.Path.of(0, 0),
    token_mask=MASK,
)
add(
    "paths.path_outputs",
    paths.path_outputs,
    network=PURE,
    x=X,
    paths=[rs.Path.of(0, 0)],
    token_mask=MASK,
)
add("paths.count_paths", paths.count_paths, layers=2, heads=2)
add("paths.enumerate_paths", paths.enumerate_paths, layers=2, heads=2, length=1)
fresh(
    "paths.sample_paths",
    paths.sample_paths,
    lambda: {"layers": 3, "heads": 2, "length": 2, "count": 3, "generator": torch.Generator()},
)
add("paths.top_paths", paths.top_paths, network=PURE, x=X, count=2, budget=8, token_mask=MASK)
add("paths.truncate", paths.truncate, network=NET, x=X, max_length=1, count="mlp", token_mask=MASK)
add(
    "paths.truncations",
    paths.truncations,
    network=NET,
    x=X,
    lengths=[0, 1],
    count="attention",
    token_mask=MASK,
)
add("paths.Path", paths.Path, choices=(0, None, 1))
add("paths.Path.of", paths.Path.of, **{"*0": 0, "*1": None})
add("paths.Path.check", PATH.check, layers=2, heads=2)
add("paths.PathCounts", paths.PathCounts, layers=2, heads=2)
add("paths.TopPaths", paths.TopPaths, paths=(PATH,), values=(1.0,), proven=True, missed_at_most=0.0)
TOP = paths.top_paths(NET, X, count=2)
add("paths.TopPaths.plot", TOP.plot, metric="residual_contribution")
add("paths.TopPaths.save", TOP.save, path="top.parquet")
add("paths.TopPaths.load", paths.TopPaths.load, path=TOP.save("kept_top.parquet"))
add("paths.HeadShares", paths.HeadShares, contributions=X[None, None], output=X, columns={})
add(
    "paths.PathLengths",
    paths.PathLengths,
    contributions=X[None],
    bias=X,
    output=X,
    sums=(X,),
    complete=True,
    columns={},
    _errors=(0.0,),
)
