"""The path decomposition: paths, single and by length, exactly, for toy and real transformers."""

from rankscope.paths.heads import HeadShares, head_shares
from rankscope.paths.lengths import PathLengths, path_lengths
from rankscope.paths.path import Path, PathCounts, count_paths, enumerate_paths, sample_paths
from rankscope.paths.single import chained_matrices, path_matrix, path_output, path_outputs
from rankscope.paths.top import TopPaths, top_paths
from rankscope.paths.truncated import truncate, truncations

__all__ = [
    "HeadShares",
    "Path",
    "PathCounts",
    "PathLengths",
    "TopPaths",
    "chained_matrices",
    "count_paths",
    "enumerate_paths",
    "head_shares",
    "path_lengths",
    "path_matrix",
    "path_output",
    "path_outputs",
    "sample_paths",
    "top_paths",
    "truncate",
    "truncations",
]
