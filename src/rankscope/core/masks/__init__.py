"""Attention masks as values: who may attend to whom, from a name, a rule, a matrix or edges."""

from rankscope.core.masks._explicit import EdgeList, Explicit, Random, from_edges
from rankscope.core.masks._explicit import check_matrix as check_matrix
from rankscope.core.masks._mask import (
    Edges,
    Intersection,
    LengthMask,
    Mask,
    Spans,
    Union,
    intersection,
    union,
)
from rankscope.core.masks._mask import dense as dense
from rankscope.core.masks._mask import token_count as token_count
from rankscope.core.masks._naming import NAMES as NAMES
from rankscope.core.masks._naming import as_mask
from rankscope.core.masks._rules import (
    BigBird,
    BlockLocal,
    Causal,
    Dilated,
    Fixed,
    Full,
    GlobalColumns,
    OffsetMask,
    Prefix,
    Star,
    Strided,
    Window,
    causal_window,
    window,
)

__all__ = [
    "BigBird", "BlockLocal", "Causal", "Dilated", "EdgeList", "Edges", "Explicit", "Fixed", "Full",
    "GlobalColumns", "Intersection", "LengthMask", "Mask", "OffsetMask", "Prefix", "Random",
    "Spans", "Star", "Strided", "Union", "Window", "as_mask", "causal_window", "from_edges",
    "intersection", "union", "window",
]  # fmt: skip
