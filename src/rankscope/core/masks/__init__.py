"""Attention masks as values: who may attend to whom, from a name, a rule, a matrix or edges."""

from rankscope.core.masks._explicit import EdgeList, Explicit, from_edges
from rankscope.core.masks._explicit import check_matrix as check_matrix
from rankscope.core.masks._intervals import (
    BlockLocal,
    Causal,
    Full,
    Prefix,
    Window,
    causal_window,
    window,
)
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
from rankscope.core.masks._naming import NAMES as NAMES
from rankscope.core.masks._naming import as_mask
from rankscope.core.masks._random import Random
from rankscope.core.masks._sparse import Columns, Dilated, OffsetMask, Star, Strided
from rankscope.core.masks._unions import BigBird, Fixed

__all__ = [
    "BigBird",
    "BlockLocal",
    "Causal",
    "Columns",
    "Dilated",
    "EdgeList",
    "Edges",
    "Explicit",
    "Fixed",
    "Full",
    "Intersection",
    "LengthMask",
    "Mask",
    "OffsetMask",
    "Prefix",
    "Random",
    "Spans",
    "Star",
    "Strided",
    "Union",
    "Window",
    "as_mask",
    "causal_window",
    "from_edges",
    "intersection",
    "union",
    "window",
]
