"""Masks."""

import torch
from table import add
from things import QUERY

from rankscope.core import masks

add("masks.BigBird", masks.BigBird, window=1, hubs=1, random=1, seed=0)
add("masks.BlockLocal", masks.BlockLocal, size=2)
add("masks.GlobalColumns", masks.GlobalColumns, stride=2)
add("masks.Dilated", masks.Dilated, reach=2, step=2, causal=True)
add("masks.EdgeList", masks.EdgeList, tokens=2, packed=masks.from_edges(2, [(0, 0), (1, 1)]).packed)
add("masks.Explicit", masks.Explicit, tokens=2, bits=masks.Explicit.of(torch.eye(2) > 0).bits)
add("masks.Explicit.of", masks.Explicit.of, matrix=torch.eye(3) > 0)
add("masks.Fixed", masks.Fixed, stride=2)
add("masks.Intersection", masks.Intersection, parts=(masks.Causal(), masks.window(1)))
add("masks.Union", masks.Union, parts=(masks.Causal(), masks.window(1)))
add("masks.Prefix", masks.Prefix, length=2)
add("masks.Random", masks.Random, count=2, seed=0)
add("masks.Star", masks.Star, hubs=(0, 1))
add("masks.Strided", masks.Strided, stride=2, causal=False)
add("masks.Window", masks.Window, before=1, after=0)
add("masks.as_mask", masks.as_mask, mask="window:2 & causal", seed=1)
add("masks.causal_window", masks.causal_window, reach=2)
add("masks.window", masks.window, reach=2)
add("masks.from_edges", masks.from_edges, tokens=3, edges=[(0, 0), (0, 1), (1, 2)])
add("masks.intersection", masks.intersection, **{"*0": masks.Causal(), "*1": masks.window(1)})
add("masks.union", masks.union, **{"*0": masks.Causal(), "*1": masks.window(1)})
for one in (
    masks.Full(),
    masks.Causal(),
    masks.window(1),
    masks.Random(1),
    masks.Dilated(2, 2),
    masks.BigBird(1, 1, 1),
    masks.Star(1),
    masks.Fixed(2),
    masks.GlobalColumns(2),
    masks.union(masks.Causal(), masks.Star(1)),
    masks.intersection(masks.Causal(), masks.window(1)),
):
    kind = f"masks.{type(one).__name__}"
    add(f"{kind}.matrix", one.matrix, tokens=4)
    add(f"{kind}.edges", one.edges, tokens=4)
    add(f"{kind}.missing_self_loops", one.missing_self_loops, tokens=4)
    add(f"{kind}.picture", one.picture, tokens=4)
    add(f"{kind}.allows_in", one.allows_in, query=QUERY, key=QUERY, tokens=torch.tensor(4))
add("masks.Mask.allows", masks.Causal().allows, query=QUERY, key=QUERY)
add("masks.OffsetMask.allows_offset", masks.Dilated(2, 2).allows_offset, offset=QUERY)
add(
    "masks.LengthMask.allows",
    masks.Random(1).allows_in,
    query=QUERY,
    key=QUERY,
    tokens=torch.tensor(4),
)
