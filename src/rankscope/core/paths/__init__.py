"""The exact path decomposition: single paths and all paths by length."""

from rankscope.core.paths._frozen import FrozenAttention as FrozenAttention
from rankscope.core.paths._frozen import attention_patterns as attention_patterns
from rankscope.core.paths._frozen import frozen_steps as frozen_steps
from rankscope.core.paths._heads import HeadShares, head_shares
from rankscope.core.paths._lengths import Count as Count
from rankscope.core.paths._lengths import PathLengths, path_lengths, truncate, truncations
from rankscope.core.paths._path import (
    Path,
    PathCounts,
    chained_matrices,
    count_paths,
    enumerate_paths,
    path_matrix,
    path_output,
    path_outputs,
    sample_paths,
)
from rankscope.core.paths._top import TopPaths, top_paths

__all__ = [
    "HeadShares", "Path", "PathCounts", "PathLengths", "TopPaths", "chained_matrices",
    "count_paths", "enumerate_paths", "head_shares", "path_lengths", "path_matrix", "path_output",
    "path_outputs", "sample_paths", "top_paths", "truncate", "truncations",
]  # fmt: skip
